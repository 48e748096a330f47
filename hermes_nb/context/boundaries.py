"""Where a conversation may be cut: between groups, never inside one.

A group is a message, or an assistant message with calls together with their results. Putting a
conversation into groups also makes it valid: a result without its call goes, a call without its
result gets one that says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hermes_nb.context.marks import is_ours
from hermes_nb.core.messages import Message, Role
from hermes_nb.core.text import estimate_tokens

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
    wanted = [_last(groups, test) for test in (_asks, _answers, _speaks)]
    kept = [group for group in middle if any(group is found for found in wanted)]
    return Cut(head=tuple(groups[:head]), middle=middle, kept=tuple(kept), tail=tuple(later))


def _last(groups: Sequence[Group], test: Callable[[Group], bool]) -> Group | None:
    return next((group for group in reversed(groups) if test(group)), None)


def _asks(group: Group) -> bool:
    return group.role == "user" and not is_ours(group.messages[0])


def _speaks(group: Group) -> bool:
    lead = group.messages[0]
    return lead.role == "assistant" and bool(lead.text.strip()) and not is_ours(lead)


def _answers(group: Group) -> bool:
    return _speaks(group) and not group.messages[0].calls
