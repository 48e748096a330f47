"""A context engine without summaries: old messages are replaced by references and can be reread.

Old messages are grouped into spans, each made of several adjacent messages. The conversation
contains a table with one line per span, and two tools return spans verbatim from the session store.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from hermes_nb.context.archive import Archive, everything, first_and_last, is_cut
from hermes_nb.context.boundaries import (
    REFERENCES,
    Group,
    flat,
    grouped,
    is_ours,
    is_references,
    is_summary,
    size,
    spliced,
)
from hermes_nb.context.ledger import MOST_TOKENS, Fact, clipped, find_facts, ledger, read_ledger
from hermes_nb.context.policy import CompressionLimits, Gauged
from hermes_nb.context.pruning import (
    PruningPlan,
    ending,
    fitted,
    is_bad,
    make_plan,
    noted,
    paths_of,
)
from hermes_nb.core.errors import StoreError, ToolError
from hermes_nb.core.messages import Image, Message
from hermes_nb.core.protocols import ChatModel, Compression, SessionStore
from hermes_nb.core.text import CHARACTERS_PER_TOKEN, one_line
from hermes_nb.core.tools import Arguments, Tool, ToolContext, ToolOutput, Toolset
from hermes_nb.safety.redact import redact

HEADER = (
    f"{REFERENCES}\nThe messages that stood here are kept under these ids, oldest first. "
    "context_expand(id) shows a span word for word, context_search(query) finds where something "
    "was said. They ask for nothing by themselves; what follows is newer."
)
SPAN_TOKENS = 4_000
"""Size of a new span in tokens; it can be read in one or two parts."""
_GIST = 220
_ID = re.compile(r"s(\d+)(?:-(\d+))?$")
_LINE = re.compile(r"- (s\d+(?:-\d+)?|m[0-9a-f]{10}): (\d+) messages, (\d+) tokens\. (.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """A reference to a span of messages."""

    id: str
    """Positions in the store, such as `s12-57`, or a digest of the text if it isn't stored."""
    messages: int
    """Number of messages."""
    tokens: int
    """Estimated size in tokens."""
    gist: str
    """A one-line description."""

    def line(self) -> str:
        """Return the reference as a line of the table."""
        return f"- {self.id}: {self.messages} messages, {self.tokens} tokens. {self.gist}"


def positions_of(span_id: str) -> tuple[int, int] | None:
    """Return the first and last position in an id such as `s12-57`, or None."""
    match = _ID.match(span_id.strip().lstrip("#").strip("\"'"))
    return (int(match[1]), int(match[2] or match[1])) if match else None


def span_id(first: int, last: int) -> str:
    """Return the id of the messages between two positions, inclusive."""
    return f"s{first}" if first == last else f"s{first}-{last}"


def spans(groups: Sequence[Group], tokens: int = SPAN_TOKENS) -> list[list[Group]]:
    """Combine groups into spans of about `tokens` tokens, preferably starting at user messages."""
    out: list[list[Group]] = []
    for group in groups:
        if is_ours(group.messages[0]):
            continue
        # A user message often starts a new topic, but spans should not become tiny.
        begins = not out or size(out[-1]) + group.tokens > tokens
        if begins or (group.role == "user" and size(out[-1]) > tokens // 4):
            out.append([])
        out[-1].append(group)
    return out


def reference(groups: Sequence[Group], located: Mapping[int, int]) -> Reference:
    """Return the reference to a span; if part of the span isn't stored, its id is a digest."""
    messages = flat(groups)
    between = first_and_last(located, messages)
    if between is None:
        text = "\x1e".join(everything(message) for message in messages)
        name = "m" + hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:10]
    else:
        name = span_id(*between)
    return Reference(id=name, messages=len(messages), tokens=size(groups), gist=_gist(messages))


def read_references(messages: Iterable[Message]) -> list[Reference]:
    """Return the references listed in messages."""
    return [
        Reference(id=match[1], messages=int(match[2]), tokens=int(match[3]), gist=match[4])
        for message in messages
        if message.text.startswith(REFERENCES)
        for match in map(_LINE.fullmatch, message.text.split("\n"))
        if match
    ]


def carried(message: Message) -> str:
    """Return the summary that another engine stored next to a table's references, or ""."""
    body, _ = read_ledger(message.text)
    lines = body.removeprefix(HEADER).split("\n")
    return "\n".join(line for line in lines if not _LINE.fullmatch(line)).strip()


def condensed(references: Sequence[Reference], tokens: int) -> list[Reference]:
    """Merge references until their lines need at most `tokens` tokens, if possible.

    The oldest ones are merged in pairs, repeatedly. The ids of merged spans remain valid.
    """
    out = list(references)
    room = int(tokens * CHARACTERS_PER_TOKEN) - len(HEADER)
    while len(out) > 1 and sum(len(each.line()) + 1 for each in out) > room:
        half = max(2, len(out) // 2)
        joined = [each for at in range(0, half, 2) for each in _pair(out[at : min(at + 2, half)])]
        if len(joined) == half:  # nothing could be merged
            break
        out = [*joined, *out[half:]]
    return out


def _pair(references: Sequence[Reference]) -> Sequence[Reference]:
    """Merge two references if possible."""
    both = _joined(*references) if len(references) > 1 else None
    return references if both is None else [both]


def _joined(a: Reference, b: Reference) -> Reference | None:
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
    """Describe messages in one line: their prompts, the tools called and the files used."""
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


PART = 20_000
"""Length of a part that `context_expand` returns, in characters."""
HITS = 10
_IMAGES = 4
_SNIPPET = 400

InView = Callable[[], Collection[int]]
"""Returns the positions of the messages that the model sees unchanged."""


def reading_tools(
    archive: Archive,
    unstored: Mapping[str, Sequence[Message]],
    in_view: InView = frozenset,
) -> Toolset:
    """Return the tools that read a session's rows, and spans that aren't stored, by id.

    Messages at the positions that `in_view` returns are not searched. Otherwise, the question that
    caused the search would be the first hit.
    """
    return Toolset([_search(archive, unstored, in_view), _expand(archive, unstored)])


def _search(archive: Archive, unstored: Mapping[str, Sequence[Message]], in_view: InView) -> Tool:
    def run(_: ToolContext, arguments: Arguments) -> str:
        query = str(arguments["query"])
        lines = _found(archive, query, in_view())
        for name, messages in unstored.items():
            lines += [
                f"{name} {message.role}: {_excerpt_around(everything(message), query)}"
                for message in messages
                if query.casefold() in everything(message).casefold()
            ]
        if not lines:
            raise ToolError(
                f"no message that is out of view matches {query!r}; try fewer or other words"
            )
        return "\n".join([*lines[:HITS], "context_expand(id) shows a message in full."])

    return Tool(
        name="context_search",
        description="Find earlier messages of this conversation that are no longer in view.",
        parameters={
            "type": "object",
            "properties": {"query": {"type": "string", "description": "words, or exact text"}},
            "required": ["query"],
            "additionalProperties": False,
        },
        run=run,
        toolset="context",
        describe=lambda arguments: one_line(str(arguments.get("query", "")), 60),
    )


def _expand(archive: Archive, unstored: Mapping[str, Sequence[Message]]) -> Tool:
    def run(_: ToolContext, arguments: Arguments) -> ToolOutput:
        name = str(arguments["id"]).strip()
        part = int(arguments.get("part") or 1)
        text, images = _span(archive, unstored, name)
        parts = max(1, -(-len(text) // PART))
        if not 1 <= part <= parts:
            raise ToolError(f"{name} has {parts} parts; ask for one from 1 to {parts}")
        shown = text[(part - 1) * PART : part * PART]
        if part < parts:
            shown += (
                f"\n[part {part} of {parts}; context_expand({name!r}, part={part + 1}) shows more]"
            )
        return ToolOutput(shown, images[:_IMAGES])

    return Tool(
        name="context_expand",
        description="Show earlier messages word for word by the id that replaces them.",
        parameters={
            "type": "object",
            "properties": {
                "id": {"type": "string", "description": "such as s12-57 or s12"},
                "part": {"type": "integer", "minimum": 1, "default": 1},
            },
            "required": ["id"],
            "additionalProperties": False,
        },
        run=run,
        toolset="context",
        describe=lambda arguments: one_line(str(arguments.get("id", "")), 60),
    )


def _found(archive: Archive, query: str, in_view: Collection[int]) -> list[str]:
    """Return a line for each matching message: the store's ranked hits, otherwise exact matches."""
    try:
        hits = archive.search(query, limit=3 * HITS)  # some of them may be in view
    except StoreError as error:
        raise ToolError(f"the conversation cannot be searched now: {error}") from error
    places = [hit.position for hit in hits if hit.position not in in_view]
    rows = {place: row for place in places for row in archive.span(place, place)}
    lines = [
        f"s{p} {row.message.role}: {_excerpt_around(everything(row.message), query)}"
        for p, row in rows.items()
    ]
    if not lines:
        lines = [
            f"s{row.position} {row.message.role}: {_excerpt_around(everything(row.message), query)}"
            for row in archive.containing(query, limit=HITS, without=in_view)
        ]
    return lines


def _span(
    archive: Archive, unstored: Mapping[str, Sequence[Message]], name: str
) -> tuple[str, tuple[Image, ...]]:
    """Return a span's text and images; raise `ToolError` if it doesn't exist."""
    between = positions_of(name)
    if between is not None:
        rows = archive.span(*between)
        entries = [(f"s{row.position} ", row.message) for row in rows]
    else:
        entries = [("", message) for message in unstored.get(name, ())]
    if not entries:
        message = f"there is nothing under {name!r}; use an id that appears in the conversation"
        raise ToolError(message)
    images = tuple(image for _, message in entries for image in message.images)
    return "\n\n".join(f"{mark}{_full_text(message)}" for mark, message in entries), images


def _full_text(message: Message) -> str:
    pictures = f" [{len(message.images)} images]" if message.images else ""
    name = f" {message.name}" if message.name else ""
    return f"{message.role}{name}:{pictures}\n{everything(message)}"


def _excerpt_around(text: str, query: str) -> str:
    """Return an excerpt around the query, or around its longest word that occurs in the text."""
    folded = text.casefold()
    words = [query, *sorted(query.split(), key=len, reverse=True)]
    at = next((place for word in words if (place := folded.find(word.casefold())) >= 0), 0)
    first = max(0, at - _SNIPPET // 3)
    return one_line(text[first : first + _SNIPPET], _SNIPPET)


NOTE = (
    "Earlier parts of this conversation are stored word for word but no longer in view: "
    "context_search(query) searches them, context_expand(id) shows it."
)


class Lossless(Gauged):
    """Keeps a conversation within its limits by replacing old spans with references to `store`.

    Ids are based on positions in the store, so they remain valid after the process ends. Spans that
    aren't stored stay in this process's memory as long as the engine exists.

    Args:
        store: The store that contains the session.
        session_id: Id of the session.
        model: The session's model.
        window: Limit for the model's context window, in tokens (default: no limit).
        limits: When to compress, and how much.
    """

    def __init__(
        self,
        store: SessionStore,
        session_id: str,
        *,
        model: ChatModel | None = None,
        window: int | None = None,
        limits: CompressionLimits | None = None,
    ) -> None:
        super().__init__(model, window, limits or CompressionLimits())
        self._archive = Archive(store, session_id)
        self._unstored: dict[str, list[Message]] = {}

    def tools(self) -> Toolset:
        """Return `context_search` and `context_expand`."""
        return reading_tools(self._archive, self._unstored, self._in_view)

    def _in_view(self) -> set[int]:
        """Return the positions of the messages that the model sees unchanged."""
        if self.live is None:
            return set()
        messages = [message for message in self.live().messages if message.role != "system"]
        located = self._archive.locate(messages)
        whole = (message for message in messages if not is_cut(message))
        return {located[id(message)] for message in whole if id(message) in located}

    async def compress(
        self,
        messages: Sequence[Message],
        focus: str = "",
    ) -> Compression:
        """Return a shorter conversation; the input isn't changed."""
        plan = make_plan(messages, self.gauge, self._archive, way_back)
        enough = plan.enough()
        made = plan.result(plan.pruned, note=NOTE) if enough else self._referenced(plan)
        self.gauge.settle(size(plan.groups), size(grouped(made.messages)))
        return made

    def _referenced(self, plan: PruningPlan) -> Compression:
        whole, pruned = plan.cut()
        if not whole.vanishing:
            return plan.result(fitted(plan.pruned, plan.aim, plan.pruner), note=NOTE)
        new = []
        for span in spans(whole.vanishing):
            each = reference(span, plan.located)
            if each.id.startswith("m"):  # not stored, so it must stay in memory
                self._unstored[each.id] = flat(span)
            new.append(each)
        gone = flat(whole.vanishing)
        table = condensed([*read_references(gone), *new], max(plan.aim.hard // 4, 200))
        earlier, known = _earlier(gone)
        facts = [*known, *find_facts(self._archive.originals(gone, plan.located))]
        listed = ledger(facts, tokens=min(MOST_TOKENS, plan.aim.hard // 8), messages=len(gone))
        lines = "\n".join([HEADER, *(each.line() for each in table)])
        text = "\n\n".join(part for part in (lines, earlier, listed) if part)
        groups = spliced(pruned.head, text, pruned.kept, pruned.tail, gone=gone)
        made = Compression(
            messages=tuple(flat(fitted(groups, plan.aim, plan.pruner))),
            phase="referenced",
            shortened=plan.shortened(),
            dropped=len(gone),
            summary=text,
        )
        return noted(made, NOTE)


def way_back(position: int | None) -> str | None:
    """Return how to reread a shortened message, or None if it isn't stored and must be kept."""
    return None if position is None else f"context_expand('s{position}')"


def _earlier(messages: Sequence[Message]) -> tuple[str, list[Fact]]:
    """Return the summary text and the facts from earlier compressions, by any engine."""
    texts: list[str] = []
    facts: list[Fact] = []
    for message in messages:
        if is_references(message):
            texts.append(carried(message))
        elif is_summary(message):
            texts.append(read_ledger(message.text)[0])
        else:
            continue
        facts += read_ledger(message.text)[1]
    return "\n\n".join(text for text in texts if text), facts
