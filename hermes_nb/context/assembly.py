"""Putting a conversation together again: roles that alternate, and a size that fits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hermes_nb.context.boundaries import Group, flat, group_of, size
from hermes_nb.context.gauge import Aim
from hermes_nb.context.marks import GO_ON, UNDERSTOOD, is_ours
from hermes_nb.context.pruning import Pruner
from hermes_nb.core.messages import Message, Role, Text, least_trusted
from hermes_nb.core.text import CHARACTERS_PER_TOKEN, estimate_tokens

_LEAST = 150
"""Tokens below which nothing is cut to make a conversation fit."""
_MARKER = 50
"""Tokens that the marker of a cut takes."""
_LION = 0.7
"""Share of the room that the last words of both sides may take."""


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


def fitted(groups: Sequence[Group], aim: Aim, pruner: Pruner) -> list[Group]:
    """Return the groups within `aim.hard` where that is possible, the largest messages cut first.

    Results and arguments give way before what was said. The user's last message and the last answer
    stay whole as long as they can be sent; where they are large, the others get what they would
    have had beside small ones.
    """
    if size(groups) <= aim.hard:
        return list(groups)
    messages = flat(groups)
    spoken = _last_spoken(messages)
    large = estimate_tokens(replace(messages[index], calls=()) for index in spoken)
    if large > aim.ceiling * _LION:
        _cut(messages, spoken, int(aim.ceiling * _LION), pruner)
        large = int(aim.ceiling * _LION)
    tokens = min(max(aim.hard, large + int(aim.hard * (1 - _LION))), aim.ceiling)
    working = [i for i, message in enumerate(messages) if message.role == "tool" or message.calls]
    others = [index for index in range(len(messages)) if index not in spoken]
    for due, said in ((working, False), (others, True)):
        whole = estimate_tokens(messages)
        if whole > tokens:
            own = estimate_tokens(messages[index] for index in due)
            _cut(messages, due, tokens - (whole - own), pruner, said=said)
    return _regrouped(groups, messages)


def _cut(
    messages: list[Message], due: Sequence[int], tokens: int, pruner: Pruner, *, said: bool = True
) -> None:
    """Cut the messages at `due`, the largest first and all to one size, to `tokens` in all.

    Without `said`, only results and arguments are cut. Where arguments are many and small a cut
    saves less than it should; it is then made again with a lower goal.
    """
    for goal in (tokens, tokens * 3 // 5, tokens * 3 // 10):
        sizes = {index: estimate_tokens([messages[index]]) for index in due}
        if not sizes or sum(sizes.values()) <= tokens:
            return
        low, high = 0, max(sizes.values())
        while low < high:  # the largest common size that fits
            middle = (low + high + 1) // 2
            if sum(min(each, middle) for each in sizes.values()) <= goal:
                low = middle
            else:
                high = middle - 1
        level = max(low, _LEAST)
        for index, each in sizes.items():
            if each > level:
                messages[index] = _smaller(messages[index], level, pruner, said=said)


def _smaller(message: Message, tokens: int, pruner: Pruner, *, said: bool) -> Message:
    """Return a message in about `tokens` tokens; a marker takes the place of what is gone."""
    room = int(max(tokens - _MARKER, _LEAST // 3) * CHARACTERS_PER_TOKEN)
    if message.role == "tool":
        return pruner.shorter_result(message, room)
    if message.calls:
        spoken = len(message.text)
        written = sum(len(call.arguments_json()) for call in message.calls)
        share = room * written // max(written + spoken, 1) if said else max(room - spoken, 0)
        message = pruner.shorter_calls(message, share // (2 * len(message.calls)))
        room -= share
    return pruner.shorter_speech(message, room) if said else message


def _last_spoken(messages: Sequence[Message]) -> list[int]:
    """Return where the user's last message and the last answer are."""
    found: dict[str, int] = {}
    for index, message in enumerate(messages):
        said = message.role == "user" or (message.role == "assistant" and message.text.strip())
        if said and not is_ours(message):  # a prompt may be a picture without a word
            found[message.role] = index
    return sorted(found.values())


def _regrouped(groups: Sequence[Group], messages: Sequence[Message]) -> list[Group]:
    out, start = [], 0
    for group in groups:
        part = tuple(messages[start : start + len(group.messages)])
        same = all(new is old for new, old in zip(part, group.messages, strict=True))
        out.append(group if same else group_of(part))
        start += len(part)
    return out


def _bridge(before: str, after: str) -> list[Group]:
    if before == after == "user":
        return [group_of((Message.assistant(UNDERSTOOD),))]
    if before == after == "assistant":
        return [group_of((Message.user(GO_ON),))]
    return []


def _last_role(groups: Sequence[Group]) -> str:
    return groups[-1].messages[-1].role if groups else ""
