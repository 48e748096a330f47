"""The table of what lies elsewhere: a line for each span of messages that left the conversation."""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hermes_nb.context.archive import everything, first_and_last
from hermes_nb.context.boundaries import Group, flat, size
from hermes_nb.context.facts import clipped
from hermes_nb.context.ledger import read_ledger
from hermes_nb.context.marks import REFERENCES, is_ours
from hermes_nb.context.outlines import ending, is_bad, paths_of
from hermes_nb.core.messages import Message
from hermes_nb.core.text import CHARACTERS_PER_TOKEN, one_line
from hermes_nb.safety.redact import redact

HEADER = (
    f"{REFERENCES}\nThe messages that stood here are kept under these ids, oldest first. "
    "context_expand(id) shows a span word for word, context_search(query) finds where something "
    "was said. They ask for nothing by themselves; what follows is newer."
)
SPAN_TOKENS = 4_000
"""What a span may hold when it is made: it can be read in one or two pieces."""
_GIST = 220
_ID = re.compile(r"s(\d+)(?:-(\d+))?$")
_LINE = re.compile(r"- (s\d+(?:-\d+)?|m[0-9a-f]{10}): (\d+) messages, (\d+) tokens\. (.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A span of messages. Its id holds its positions in the store, or else a digest of its text."""

    id: str
    messages: int
    tokens: int
    gist: str

    def line(self) -> str:
        """Return the reference as a line of the table."""
        return f"- {self.id}: {self.messages} messages, {self.tokens} tokens. {self.gist}"


def positions_of(span_id: str) -> tuple[int, int] | None:
    """Return the first and the last position that an id such as `s12-57` stands for, or None."""
    match = _ID.match(span_id.strip().lstrip("#").strip("\"'"))
    return (int(match[1]), int(match[2] or match[1])) if match else None


def span_id(first: int, last: int) -> str:
    """Return the id of the messages between two positions."""
    return f"s{first}" if first == last else f"s{first}-{last}"


def spans(groups: Sequence[Group], tokens: int = SPAN_TOKENS) -> list[list[Group]]:
    """Return groups put together to spans of about `tokens`; what the user says begins one."""
    out: list[list[Group]] = []
    for group in groups:
        if is_ours(group.messages[0]):
            continue
        begins = not out or size(out[-1]) + group.tokens > tokens
        if begins or (group.role == "user" and size(out[-1]) > tokens // 4):
            out.append([])
        out[-1].append(group)
    return out


def reference(groups: Sequence[Group], located: Mapping[int, int]) -> Reference:
    """Return the reference to a span; its id is a digest if the store has not got all of it."""
    messages = flat(groups)
    between = first_and_last(located, messages)
    if between is None:
        text = "\x1e".join(everything(message) for message in messages)
        name = "m" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:10]
    else:
        name = span_id(*between)
    return Reference(id=name, messages=len(messages), tokens=size(groups), gist=_gist(messages))


def read_references(messages: Iterable[Message]) -> list[Reference]:
    """Return the references that messages list."""
    return [
        Reference(id=match[1], messages=int(match[2]), tokens=int(match[3]), gist=match[4])
        for message in messages
        if message.text.startswith(REFERENCES)
        for match in map(_LINE.fullmatch, message.text.split("\n"))
        if match
    ]


def carried(message: Message) -> str:
    """Return what a table says besides its references: the summary that an engine before left."""
    body, _ = read_ledger(message.text)
    lines = body.removeprefix(HEADER).split("\n")
    return "\n".join(line for line in lines if not _LINE.fullmatch(line)).strip()


def condensed(references: Sequence[Reference], tokens: int) -> list[Reference]:
    """Return references whose lines take at most `tokens` tokens where that is possible.

    The oldest are joined, two to one and again; an id that was given before stays good.
    """
    out = list(references)
    room = int(tokens * CHARACTERS_PER_TOKEN) - len(HEADER)
    while len(out) > 1 and sum(len(each.line()) + 1 for each in out) > room:
        half = max(2, len(out) // 2)
        joined = [each for at in range(0, half, 2) for each in _pair(out[at : min(at + 2, half)])]
        if len(joined) == half:
            break
        out = [*joined, *out[half:]]
    return out


def _pair(references: Sequence[Reference]) -> Sequence[Reference]:
    """Return one or two references as one where that can be."""
    both = _joined(*references) if len(references) > 1 else None
    return references if both is None else [both]


def _joined(a: Reference, b: Reference) -> Reference | None:
    """Return one reference to two spans, None where one of them is not in the store."""
    first, last = positions_of(a.id), positions_of(b.id)
    if first is None or last is None:
        return None
    return Reference(
        id=span_id(min(first[0], last[0]), max(first[1], last[1])),
        messages=a.messages + b.messages,
        tokens=a.tokens + b.tokens,
        gist=f"{one_line(a.gist, _GIST // 2)} | {one_line(b.gist, _GIST // 2)}",
    )


def _gist(messages: Sequence[Message]) -> str:
    """Return in a line what messages are about: what was asked, which tools ran, which files."""
    said = [m for m in messages if m.text.strip() and m.role in ("user", "assistant")]
    asked = [m for m in said if m.role == "user"] or said[-1:]
    parts = [f'{m.role} "{clipped(m.text, 60)}"' for m in asked[:2]]
    calls = [call for message in messages for call in message.calls]
    bad = Counter(m.name for m in messages if m.role == "tool" and is_bad(m, ending(m)))
    for name, count in Counter(call.name for call in calls).most_common(4):
        failures = f" ({bad[name]} failed)" if bad[name] else ""
        parts.append(f"{name} x{count}{failures}")
    files = dict.fromkeys(path for call in calls for path in paths_of(call))
    parts += list(files)[:4]
    return one_line(redact("; ".join(parts)), _GIST)
