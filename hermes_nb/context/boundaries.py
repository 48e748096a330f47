"""Split and join conversations at valid boundaries, and recognise traces of a compression.

A group is a message, or an assistant message with calls together with their results. Conversations
are split only between groups. Grouping also makes a conversation valid: results without a call are
dropped, and calls without a result get one. Engines keep no state that a killed process could lose:
they read the results of earlier compressions from the marks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from hermes_nb.core.messages import Message, Role, Text, ToolCall, least_trusted
from hermes_nb.core.text import estimate_tokens, one_line

SUMMARY = "[Earlier conversation, compressed]"
REFERENCES = "[Earlier conversation, kept word for word elsewhere]"
LEDGER = "[Facts kept word for word, found by rule]"
PLAN = "the plan: "
"""Prefix of the fact that holds the agent's latest plan; a ledger has at most one."""
_MOST_PLAN = 2_000
GO_ON = "[Go on from there.]"
UNDERSTOOD = "[I go on from there.]"
"""GO_ON and UNDERSTOOD are the texts of messages that only separate two with the same role."""

_BRACKET = "["
SHORT = 200
"""Maximum length, in characters, of a result that is never shortened, and of the line that replaces
a longer one."""
NOTED = "· "
MOST_NOTED = 1_200
"""Maximum total length, in characters, of the important lines below a result's replacement. Each is
copied verbatim from the result, prefixed with NOTED."""
_SHORTENED = re.compile(r"\[shortened(?: #(\d+))?\] ")
LEFT_OUT = "characters left out"
"""Part of the marker that replaces the middle of a text."""


def plan_of(call: ToolCall) -> str:
    """Return the to-do list in a call of `todo` as the text of a fact, or "" for other calls."""
    items = call.arguments.get("items") if call.name == "todo" else None
    if not (isinstance(items, list | tuple) and items):
        return ""
    return one_line(f"{PLAN}{'; '.join(map(str, items))}", _MOST_PLAN)


def shortened(line: str, position: int | None) -> str:
    """Return `line`, marked as a shortened result whose original is stored at `position`."""
    return f"[shortened{'' if position is None else f' #{position}'}] {line}"


SKILL = "a loaded skill, to be read again before it is used: "
"""Prefix of the fact that names a skill whose text was dropped."""


def skill_call(call: ToolCall) -> str:
    """Return the call that displays a skill again, `skill_view('NAME')`, or "" for other calls."""
    if call.name != "skill_view":
        return ""
    wanted = (call.arguments.get(key) for key in ("name", "file_path"))
    return f"skill_view({', '.join(repr(one_line(str(each), 100)) for each in wanted if each)})"


def is_shortened(text: str) -> bool:
    """Return whether a result was shortened."""
    return _mark(text) is not None


def position_of(text: str) -> int | None:
    """Return the position of a shortened result's original, or None if unknown."""
    match = _mark(text)
    return int(match[1]) if match and match[1] else None


def _mark(text: str) -> re.Match[str] | None:
    # A result that only quotes a mark is longer, or has other lines below it.
    line, _, lines = text.partition("\n")
    if (
        len(line) > SHORT
        or len(lines) > MOST_NOTED
        or lines.count("\n") != lines.count(f"\n{NOTED}")
    ):
        return None
    return _SHORTENED.match(line) if not lines or lines.startswith(NOTED) else None


def is_summary(message: Message) -> bool:
    """Return whether a message is a summary of compressed messages."""
    return _begins(message, SUMMARY)


def is_references(message: Message) -> bool:
    """Return whether a message is a table of references."""
    return _begins(message, REFERENCES)


def is_bridge(message: Message) -> bool:
    """Return whether a message only separates two others with the same role."""
    return _begins(message, _BRACKET) and message.text in (GO_ON, UNDERSTOOD)


def is_ours(message: Message) -> bool:
    """Return whether a compression generated the message."""
    if not _begins(message, _BRACKET):
        return False
    return is_summary(message) or is_references(message) or is_bridge(message)


_CONTEXT = "[Notebook context]"
"""Prefix of the part that the notebook adds to a user message."""
_CELLS = re.compile(r"(?ms)^Cells above.*\Z")


def said_in(message: Message) -> str:
    """Return a message's text without the part that the notebook added."""
    texts = (part.text for part in message.parts if isinstance(part, Text))
    return "\n".join(text for text in texts if not text.startswith(_CONTEXT))


def cells_in(message: Message) -> str:
    """Return the notebook's text about its cells, or "" if it added none."""
    texts = (part.text for part in message.parts if isinstance(part, Text))
    return "\n".join(_CELLS.findall("\n".join(t for t in texts if t.startswith(_CONTEXT))))


def cut(text: str, limit: int, *, way_back: str = "") -> str:
    """Shorten text to about `limit` characters: head (70 %) and tail around a marker."""
    if len(text) <= limit:
        return text
    head = limit * 7 // 10
    tail = limit - head
    back = f"; {way_back}" if way_back else ""
    end = text[-tail:] if tail else ""
    return f"{text[:head]}\n[… {len(text) - limit:,} {LEFT_OUT}{back} …]\n{end}"


def _begins(message: Message, mark: str) -> bool:
    first = message.parts[0] if message.parts else None
    return (
        isinstance(first, Text)
        and first.text.startswith(mark)
        and message.role in ("user", "assistant")
        and not message.calls
    )


NO_RESULT = "No result: it was lost before the conversation was compressed."


@dataclass(frozen=True, slots=True)
class Group:
    """Messages that can only be kept or dropped together."""

    messages: tuple[Message, ...]
    """The messages."""
    tokens: int
    """Their estimated size in tokens."""

    @property
    def role(self) -> Role:
        """The role of the first message."""
        return self.messages[0].role


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A conversation divided for a compression."""

    head: tuple[Group, ...]
    """The protected start."""
    middle: tuple[Group, ...]
    """The part to replace, including `kept`."""
    kept: tuple[Group, ...]
    """Groups in the middle that stay unchanged: the user's last message and the last answers."""
    tail: tuple[Group, ...]
    """The protected end."""

    @property
    def vanishing(self) -> tuple[Group, ...]:
        """The groups in the middle that are dropped."""
        kept = {id(group) for group in self.kept}
        return tuple(group for group in self.middle if id(group) not in kept)


def group_of(messages: Sequence[Message]) -> Group:
    """Return the messages as a single group."""
    return Group(tuple(messages), estimate_tokens(messages))


def grouped(messages: Iterable[Message]) -> list[Group]:
    """Split a conversation into groups, repairing it if needed."""
    groups: list[Group] = []
    asking: Message | None = None
    results: dict[str, Message] = {}

    def close() -> None:
        if asking is not None:
            answers = [
                results.get(call.id) or Message.tool(call, NO_RESULT, failed=True)
                for call in asking.calls
            ]
            groups.append(group_of((asking, *answers)))

    for message in messages:
        if message.role == "tool":
            if asking is not None and any(c.id == message.call_id for c in asking.calls):
                results.setdefault(message.call_id, message)  # a second result is dropped
            continue
        close()
        asking, results = None, {}
        if message.calls:
            asking = message
        else:
            groups.append(group_of((message,)))
    close()
    return groups


def flat(groups: Iterable[Group]) -> list[Message]:
    """Return the messages of the groups."""
    return [message for group in groups for message in group.messages]


def size(groups: Iterable[Group]) -> int:
    """Return the estimated number of tokens in the groups."""
    return sum(group.tokens for group in groups)


def head_end(groups: Sequence[Group], *, messages: int) -> int:
    """Return the number of groups in the protected head.

    `messages` counts the system message, even if it isn't in `groups`. An exchange with tools
    counts as one message, regardless of its number of calls.
    """
    apart = not groups or groups[0].role != "system"
    return min(len(groups), max(0, messages - apart))


def tail_start(
    groups: Sequence[Group], first: int, *, tokens: int, most: int, at_least: int
) -> int:
    """Return the index of the tail's first group, at least `first`.

    The tail has up to `tokens` tokens, or up to `most` as long as it has fewer than `at_least`
    messages. It always contains the last group.
    """
    start, used, count = len(groups), 0, 0
    while start > first:
        group = groups[start - 1]
        fits = used + group.tokens <= (most if count < at_least else tokens)
        if count and not fits:
            break
        start -= 1
        used += group.tokens
        count += len(group.messages)
    return start


def divide(groups: Sequence[Group], head: int, tail: int) -> Cut:
    """Divide a conversation at two indexes, and select the groups to keep in the middle."""
    middle = tuple(groups[head:tail])
    later = groups[tail:]
    # The last prompt, the last answer, and the last text that came with calls, if it is later.
    tests = (asks, _answers, _speaks)
    wanted = [next((g for g in reversed(groups) if test(g)), None) for test in tests]
    kept = [group for group in middle if any(group is found for found in wanted)]
    return Cut(head=tuple(groups[:head]), middle=middle, kept=tuple(kept), tail=tuple(later))


def asks(group: Group) -> bool:
    """Return whether a group is the user's prompt that starts a turn."""
    return group.role == "user" and not is_ours(group.messages[0])


def _speaks(group: Group) -> bool:
    lead = group.messages[0]
    return lead.role == "assistant" and bool(lead.text.strip()) and not is_ours(lead)


def _answers(group: Group) -> bool:
    return _speaks(group) and not group.messages[0].calls


def spliced(
    head: Sequence[Group],
    text: str,
    kept: Sequence[Group],
    tail: Sequence[Group],
    *,
    gone: Sequence[Message],
) -> list[Group]:
    """Join the head, a message with `text`, the kept groups and the tail, with alternating roles.

    The text replaces the messages in `gone` and gets their least trusted origin. Its role is one
    that fits between its neighbours. If none does, or if two pieces with the same role would be
    adjacent, a short message separates them.
    """
    after = [*kept, *tail]
    before_role = _last_role(head)
    after_role = after[0].role if after else "assistant"
    role: Role = "assistant" if before_role == "user" or after_role == "user" else "user"
    if role == "assistant" and before_role in ("assistant", "", "system"):
        role = "user"
    origin = least_trusted(message.origin for message in gone)
    message = Message(role=role, parts=(Text(text, origin),))
    out = list(head)
    for piece in ([group_of((message,))], *([group] for group in kept), list(tail)):
        if piece:
            out += _bridge(_last_role(out), piece[0].role)
            out += piece
    return out


def _bridge(before: str, after: str) -> list[Group]:
    if before == after == "user":
        return [group_of((Message.assistant(UNDERSTOOD),))]
    if before == after == "assistant":
        return [group_of((Message.user(GO_ON),))]
    return []


def _last_role(groups: Sequence[Group]) -> str:
    return groups[-1].messages[-1].role if groups else ""


def common_size(sizes: Collection[int], room: int, low: int, high: int) -> int:
    """Return the largest common limit, from `low` to `high`, at which the sum fits in `room`."""
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(each, middle) for each in sizes) <= room:
            low = middle
        else:
            high = middle - 1
    return low
