"""Where a conversation may be cut, how its pieces join, and the marks that compression leaves.

A group is a message, or an assistant message with calls together with their results; cuts fall
between groups. Putting a conversation into groups also makes it valid: a result without its call
goes, a call without its result gets one that says so. An engine keeps no state that a killed
process could lose: what it needs of an earlier compression it reads from the marks.
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
"""How the fact begins that has the agent's latest plan, of which there is one."""
_MOST_PLAN = 2_000
GO_ON = "[Go on from there.]"
UNDERSTOOD = "[I go on from there.]"
"""The last two stand only where two messages of one role would meet."""

_BRACKET = "["
SHORT = 200
"""Characters that a result may have and stay; also the length of the line left of a longer one."""
NOTED = "· "
MOST_NOTED = 1_200
"""Before each line that may follow that one, word for word as it was in the result; and the
characters that they may have in all."""
_SHORTENED = re.compile(r"\[shortened(?: #(\d+))?\] ")
LEFT_OUT = "characters left out"
"""Part of the marker in whatever was cut in the middle."""


def plan_of(call: ToolCall) -> str:
    """Return the plan that a call of `todo` keeps as a fact, "" for any other call."""
    items = call.arguments.get("items") if call.name == "todo" else None
    if not (isinstance(items, list | tuple) and items):
        return ""
    return one_line(f"{PLAN}{'; '.join(map(str, items))}", _MOST_PLAN)


def shortened(line: str, position: int | None) -> str:
    """Return `line` marked as what is left of a result that is stored at `position`."""
    return f"[shortened{'' if position is None else f' #{position}'}] {line}"


SKILL = "a loaded skill, to be read again before it is used: "
"""How the fact begins that names a skill whose text is gone."""


def skill_call(call: ToolCall) -> str:
    """Return what shows a skill's text again, `skill_view('NAME')`; "" for any other call."""
    if call.name != "skill_view":
        return ""
    wanted = (call.arguments.get(key) for key in ("name", "file_path"))
    return f"skill_view({', '.join(repr(one_line(str(each), 100)) for each in wanted if each)})"


def is_shortened(text: str) -> bool:
    """Say whether a result's text is what pruning left of it."""
    return _mark(text) is not None


def position_of(text: str) -> int | None:
    """Return where the whole of a shortened result is stored, None if that is not known."""
    match = _mark(text)
    return int(match[1]) if match and match[1] else None


def _mark(text: str) -> re.Match[str] | None:
    line, _, lines = text.partition("\n")
    if (
        len(line) > SHORT
        or len(lines) > MOST_NOTED
        or lines.count("\n") != lines.count(f"\n{NOTED}")
    ):
        return None
    return _SHORTENED.match(line) if not lines or lines.startswith(NOTED) else None


def is_summary(message: Message) -> bool:
    """Say whether a message stands for what was compressed."""
    return _begins(message, SUMMARY)


def is_references(message: Message) -> bool:
    """Say whether a message lists what is kept elsewhere."""
    return _begins(message, REFERENCES)


def is_bridge(message: Message) -> bool:
    """Say whether a message only keeps two others of one role apart."""
    return _begins(message, _BRACKET) and message.text in (GO_ON, UNDERSTOOD)


def is_ours(message: Message) -> bool:
    """Say whether compression put the message there as a whole."""
    if not _begins(message, _BRACKET):
        return False
    return is_summary(message) or is_references(message) or is_bridge(message)


_CONTEXT = "[Notebook context]"
"""How the part of a user's message begins that the notebook wrote."""


def said_in(message: Message) -> str:
    """Return a message's text without what the notebook added to it."""
    texts = (part.text for part in message.parts if isinstance(part, Text))
    return "\n".join(text for text in texts if not text.startswith(_CONTEXT))


def cut(text: str, limit: int, *, way_back: str = "") -> str:
    """Return at most about `limit` characters: head (70 %) and tail around a marker."""
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
    """Messages that stand or fall together, and what they cost in estimated tokens."""

    messages: tuple[Message, ...]
    tokens: int

    @property
    def role(self) -> Role:
        """The role of the message that leads the group."""
        return self.messages[0].role


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A conversation in four: what is protected, what goes, what of that is lifted out, the rest.

    `middle` is contiguous and holds `kept` as well, in order: the user's last message and the last
    answers, which stay word for word.
    """

    head: tuple[Group, ...]
    middle: tuple[Group, ...]
    kept: tuple[Group, ...]
    tail: tuple[Group, ...]

    @property
    def vanishing(self) -> tuple[Group, ...]:
        """The groups of the middle that do not stay."""
        kept = {id(group) for group in self.kept}
        return tuple(group for group in self.middle if id(group) not in kept)


def group_of(messages: Sequence[Message]) -> Group:
    """Return the messages as one group."""
    return Group(tuple(messages), estimate_tokens(messages))


def grouped(messages: Iterable[Message]) -> list[Group]:
    """Return a conversation's groups, in order and valid."""
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
                results.setdefault(message.call_id, message)
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
    """Return the messages of groups."""
    return [message for group in groups for message in group.messages]


def size(groups: Iterable[Group]) -> int:
    """Return what groups cost in estimated tokens."""
    return sum(group.tokens for group in groups)


def head_end(groups: Sequence[Group], *, messages: int) -> int:
    """Return how many groups the protected head has.

    `messages` counts the system message, even where it is kept apart, and an exchange with the
    model as one, however many calls it has.
    """
    apart = not groups or groups[0].role != "system"
    return min(len(groups), max(0, messages - apart))


def tail_start(
    groups: Sequence[Group], first: int, *, tokens: int, most: int, at_least: int
) -> int:
    """Return the index of the group with which the tail begins, `first` at the earliest.

    The tail has `tokens` tokens, and more for as long as it has fewer than `at_least` messages and
    stays below `most`. The last group is always in it.
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
    """Return the conversation cut at two indexes, with what is lifted out of the middle."""
    middle = tuple(groups[head:tail])
    later = groups[tail:]
    tests = (asks, _answers, _speaks)
    wanted = [next((g for g in reversed(groups) if test(g)), None) for test in tests]
    kept = [group for group in middle if any(group is found for found in wanted)]
    return Cut(head=tuple(groups[:head]), middle=middle, kept=tuple(kept), tail=tuple(later))


def asks(group: Group) -> bool:
    """Say whether a group is a prompt, which begins a turn."""
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
    """Return head, a message with `text`, what was kept, and the tail, roles alternating.

    The text stands for the messages that are `gone`, and is trusted as little as they were.
    The message gets the role that fits between its neighbours; where none does, or where what was
    cut apart would meet in one role, a short message keeps them apart.
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
    """Return the size, from `low` to `high`, to which all are cut so that they fit into `room`."""
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(each, middle) for each in sizes) <= room:
            low = middle
        else:
            high = middle - 1
    return low
