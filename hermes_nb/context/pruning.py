"""Shorten a conversation without a model.

Old results are replaced by one line with the call and its outcome, and the middle of long arguments
is removed. A long section is shortened all at once, rather than a little at each step, because each
change to an old message invalidates the provider's prompt cache from that message on. All engines
use `make_plan` to decide where to cut and how much shortening alone can achieve.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hermes_nb.context.archive import Archive
from hermes_nb.context.boundaries import (
    LEFT_OUT,
    MOST_NOTED,
    NOTED,
    SHORT,
    Cut,
    Group,
    asks,
    common_size,
    cut,
    divide,
    flat,
    group_of,
    grouped,
    head_end,
    is_ours,
    is_shortened,
    shortened,
    size,
    skill_call,
    tail_start,
)
from hermes_nb.context.policy import Aim, Gauge
from hermes_nb.core.messages import Json, Message, ToolCall
from hermes_nb.core.protocols import Compression
from hermes_nb.core.text import CHARACTERS_PER_TOKEN, IMAGE_TOKENS, estimate_tokens, one_line

_TELLING = ("command", "code", "query", "pattern", "url", "path", "file_path", "name", "goal")
"""The arguments that best describe a call, in order of preference."""
PATHS = ("path", "file_path", "filename", "file", "workdir", "directory", "notebook")
"""Names of arguments that are paths."""
_EXIT = re.compile(
    r"(?i)\b(?:exit(?:ed)?|return(?:ed)?)(?:[ _-](?:code|status|with))*\W{1,3}(-?\d+)"
)
_LOOK = 300
"""Number of characters at each end of a result that are searched for its outcome."""
_FAILURE = re.compile(
    r"(?:\b\w*(?:Error|Exception|Failure)\b|(?i:\b(?:error|fatal|failed|denied)\b)).*"
)
_SIGNS = ("error", "exception", "fail", "fatal", "denied")


def call_outline(call: ToolCall, limit: int = 80) -> str:
    """Return a call as its name and its most descriptive argument."""
    said = {k: v for k, v in call.arguments.items() if isinstance(v, str) and v.strip()}
    gist = next((said[key] for key in (*_TELLING, *said) if key in said), "")
    return f"{call.name} `{one_line(gist, limit)}`" if gist else call.name


def outcome(result: Message) -> str:
    """Return a call's outcome and the size of its result, such as `exit 1, 212 lines`."""
    text = result.text
    facts = []
    if ended := ending(result):
        facts.append(ended)
    lines = text.count("\n") + 1
    facts.append(f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters")
    if result.images:
        facts.append(f"{len(result.images)} image{'s' if len(result.images) > 1 else ''}")
    return ", ".join(facts)


def ending(result: Message) -> str:
    """Return a call's exit status or failure, or "" if its result contains none."""
    text = result.text
    end = text[-_LOOK:]
    for part in (end, text[:_LOOK]):
        folded = part.lower()
        if ("exit" in folded or "return" in folded) and (found := _EXIT.search(part)):
            return f"exit {found[1]}"
    if result.failed:
        return f"failed: {one_line(text[:_LOOK], 80)}"
    folded = end.lower()
    if any(sign in folded for sign in _SIGNS) and (found := _FAILURE.search(end)):
        return one_line(found[0], 80)
    return "timed out" if "timed out" in folded else ""


def is_bad(result: Message, ended: str) -> bool:
    """Return whether a call with this `ending` failed."""
    return result.failed or (bool(ended) and ended != "exit 0")


def paths_of(call: ToolCall) -> Iterator[str]:
    """Yield the paths in a call's arguments."""
    for key in PATHS:
        value = call.arguments.get(key)
        if isinstance(value, str) and value.strip():
            yield one_line(value, 160)


_LONG_ARGUMENT = 500
_KEPT_ARGUMENT = 300
_MANY = 40
"""Maximum length of a list or mapping in shortened arguments."""
_DEEP = 12
"""Maximum nesting depth of shortened arguments."""

Locate = Callable[[Message], int | None]
"""Returns the position of a message in the store, or None if unknown."""
WayBack = Callable[[int | None], str | None]
"""Describes how the model can reread the message at a position. None if it can't, in which case the
message must not be shortened."""


class Pruner:
    """Shortens groups of messages, and adds to each how the model can reread the original."""

    def __init__(self, locate: Locate, way_back: WayBack) -> None:
        self._locate = locate
        self._way_back = way_back
        self.skills: Mapping[str, str] = {}
        """Calls that display a skill's text again, by the ids of the calls that loaded it."""
        self.noted: Mapping[int, Sequence[str]] = {}
        """Lines to keep of a shortened message, by its `id()`."""

    def prune(self, groups: Iterable[Group]) -> list[Group]:
        """Return the shortened groups; unchanged groups are the same objects.

        If several results have the same text, only the last one is described; the others refer to
        it.
        """
        groups = list(groups)
        last = {
            message.text: message.call_id
            for group in groups
            for message in group.messages
            if message.role == "tool" and len(message.text) > SHORT
        }
        return [self._pruned(group, last) for group in groups]

    def _pruned(self, group: Group, last: Mapping[str, str]) -> Group:
        lead = group.messages[0]
        if not lead.calls:
            return group
        calls = {call.id: call for call in lead.calls}
        messages = [lead]
        if self._way_back(self._locate(lead)) is not None:
            messages = [self.shorter_calls(lead)]
        for result in group.messages[1:]:
            again = last.get(result.text, result.call_id) != result.call_id
            messages.append(self._line(calls[result.call_id], result, again=again))
        if all(new is old for new, old in zip(messages, group.messages, strict=True)):
            return group
        return group_of(messages)

    def shorter_calls(self, message: Message, kept: int = _KEPT_ARGUMENT) -> Message:
        """Return the message with long arguments shortened, as valid JSON, or the same message."""
        limit = kept + _LONG_ARGUMENT - _KEPT_ARGUMENT
        if all(len(call.arguments_json()) <= limit for call in message.calls):
            return message
        back = self._recovery_hint(message)
        noted = " | ".join(self.noted.get(id(message), ()))[: MOST_NOTED // 2]
        calls = tuple(_shorter_call(call, limit, kept, back, noted) for call in message.calls)
        if all(new is old for new, old in zip(calls, message.calls, strict=True)):
            return message
        return replace(message, calls=calls)

    def shorter_result(self, result: Message, limit: int) -> Message:
        """Shorten a result to about `limit` characters of its head and tail, without its images.

        If the result is already shortened, only its first line is kept.
        """
        back = self._recovery_hint(result)
        line, _, lines = result.text.partition("\n")
        if lines and is_shortened(result.text):
            return replace(result, parts=Message.user(line, origin=result.origin).parts)
        text = cut(result.text, limit, way_back=back)
        if result.images:
            text = f"{text}\n[{len(result.images)} images left out; {back}]"
        return replace(result, parts=Message.user(text, origin=result.origin).parts)

    def shorter_speech(self, message: Message, limit: int) -> Message:
        """Shorten a message's text to about `limit` characters, and keep the images that fit."""
        back = self._recovery_hint(message)
        text = cut(message.text, limit, way_back=back)
        room = limit - len(text)
        images = message.images[: max(0, room // int(IMAGE_TOKENS * CHARACTERS_PER_TOKEN))]
        if dropped := len(message.images) - len(images):
            text = f"{text}\n[{dropped} images left out; {back}]".strip()
        if text == message.text:
            return message
        said = Message.user(text, images=images, origin=message.origin)
        return replace(message, parts=said.parts)

    def _recovery_hint(self, message: Message) -> str:
        shows = self.skills.get(message.call_id)
        return shows or self._way_back(self._locate(message)) or "gone from view"

    def _line(self, call: ToolCall, result: Message, *, again: bool) -> Message:
        """Return a long result as one line that states its outcome and how to reread it."""
        if (len(result.text) <= SHORT and not result.images) or is_shortened(result.text):
            return result
        position = self._locate(result)
        back = self.skills.get(result.call_id) or self._way_back(position)
        if back is None:
            return result
        if again:
            what = f"{ending(result) or 'done'}, the same as a later result"
        else:
            what = outcome(result)
        end = f" → {one_line(what, 90)}; {back}"
        room = SHORT - len(end) - len(shortened("", position))
        line = one_line(call_outline(call, max(room - len(call.name) - 3, 8)), max(room, 8))
        text = shortened(f"{line}{end}", position)
        for each in () if again else self.noted.get(id(result), ()):
            if len(text) + len(each) < MOST_NOTED:
                text += f"\n{NOTED}{each}"
        return replace(result, parts=Message.user(text, origin=result.origin).parts)


def _shorter_call(call: ToolCall, limit: int, kept: int, back: str, noted: str) -> ToolCall:
    written = call.arguments_json()
    if call.problem or len(written) <= limit + MOST_NOTED * (LEFT_OUT in written):
        return call
    long = [
        key for key, value in call.arguments.items() if isinstance(value, str) and value[limit:]
    ]
    message = f"{back}; in it: {noted}" if noted and len(long) == 1 else back
    arguments = {
        key: _shorter(value, limit, kept, message if key in long else back, 1)
        for key, value in call.arguments.items()
    }
    if arguments == dict(call.arguments):
        return call
    text = json.dumps(arguments, ensure_ascii=False, default=str)
    return replace(call, arguments=arguments, text=text)


def _shorter(value: Json, limit: int, kept: int, back: str, depth: int) -> Json:
    """Remove the middle of long strings and the end of long lists in a JSON value."""
    match value:
        case str():
            return cut(value, kept, way_back=back) if len(value) > limit else value
        case list() | tuple() | dict() if depth > _DEEP:
            return f"[… {LEFT_OUT}; {back} …]"
        case list() | tuple():
            items = [_shorter(item, limit, kept, back, depth + 1) for item in value[:_MANY]]
            more = len(value) - _MANY
            return [*items, f"[… {more:,} items left out; {back} …]"] if more > 0 else items
        case Mapping():
            pairs = list(value.items())
            shorter = {k: _shorter(v, limit, kept, back, depth + 1) for k, v in pairs[:_MANY]}
            if len(pairs) > _MANY:
                shorter["…"] = f"[… {len(pairs) - _MANY:,} items left out; {back} …]"
            return shorter
        case _:
            return value


_HEAD_SHARE = 4
"""The protected head is limited to 1/_HEAD_SHARE of the maximum size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruningPlan:
    """A conversation before and after pruning, and where to divide it."""

    groups: list[Group]
    """The original groups."""
    pruned: list[Group]
    """The same groups, shortened."""
    head: int
    """Number of groups in the protected head."""
    tail: int
    """Index of the tail's first group."""
    aim: Aim
    """The target sizes."""
    pruner: Pruner
    """Shortens further messages."""
    located: Mapping[int, int]
    """Positions in the store, by the `id()` of the messages in `groups`."""

    def enough(self) -> bool:
        """Return whether pruning alone makes the conversation small enough."""
        return self.shortened() > 0 and size(self.pruned) <= self.aim.whole

    def fills_itself(self) -> bool:
        """Return whether results from the last turn fill most of the context window.

        If so, shortening those results is enough, and older messages don't have to be dropped.
        """
        turn = next((n for n in reversed(range(len(self.groups))) if asks(self.groups[n])), 0)
        before, after = (
            estimate_tokens(
                message
                for group in groups[turn:]
                for message in group.messages
                if message.role == "tool" and not is_shortened(message.text)
            )
            for groups in (self.groups, self.pruned)
        )
        return before > size(self.groups) / 2 and size(self.pruned) - after <= self.aim.whole

    def shortened(self) -> int:
        """Return the number of shortened messages."""
        return sum(
            new is not old
            for pruned, group in zip(self.pruned, self.groups, strict=True)
            if pruned is not group
            for new, old in zip(pruned.messages, group.messages, strict=True)
        )

    def cut(self) -> tuple[Cut, Cut]:
        """Divide the conversation for a compression; return it in original and pruned form."""
        whole = divide(self.groups, self.head, self.tail)
        lifted = {id(group) for group in whole.kept}
        kept = tuple(
            pruned
            for group, pruned in zip(self.groups, self.pruned, strict=True)
            if id(group) in lifted
        )
        pruned = Cut(
            head=tuple(self.pruned[: self.head]),
            middle=tuple(self.pruned[self.head : self.tail]),
            kept=kept,
            tail=tuple(self.pruned[self.tail :]),
        )
        return whole, pruned

    def result(self, groups: Sequence[Group], *, note: str) -> Compression:
        """Return the compression if nothing was dropped."""
        messages = tuple(flat(groups))
        if messages == tuple(flat(self.groups)):
            return Compression(messages=messages)
        made = Compression(messages=messages, phase="pruned", shortened=self.shortened())
        return noted(made, note)


def noted(made: Compression, note: str) -> Compression:
    """Return the compression with its note, which is also added to its system message, if any."""
    first = made.messages[0] if made.messages else None
    if first is None or first.role != "system" or note in first.text:
        return replace(made, note=note)
    system = replace(first, parts=Message.system(f"{first.text}\n\n{note}").parts)
    return replace(made, note=note, messages=(system, *made.messages[1:]))


def make_plan(
    messages: Sequence[Message], gauge: Gauge, archive: Archive | None, way_back: WayBack
) -> PruningPlan:
    """Plan the compression of a conversation."""
    groups = grouped(messages)
    # The counted prompt also contained messages that belong to no group, such as orphaned results.
    aim = gauge.aim(max(estimate_tokens(messages), size(groups)))
    located = archive.locate(flat(groups)) if archive is not None else {}
    head = min(head_end(groups, messages=gauge.limits.protect_first), max(len(groups) - 1, 0))
    tail = tail_start(
        groups, head, tokens=aim.tail, most=aim.most, at_least=gauge.limits.protect_last_n
    )
    pruner = Pruner(lambda message: located.get(id(message)), way_back)
    calls = (call for group in groups for call in group.messages[0].calls)
    pruner.skills = {call.id: shows for call in calls if (shows := skill_call(call))}
    pruned = [*pruner.prune(groups[:tail]), *groups[tail:]]
    # A long first prompt must not take the space of recent messages.
    while head > 1 and size(pruned[:head]) * _HEAD_SHARE > aim.hard:
        head -= 1
    return PruningPlan(
        groups=groups,
        pruned=pruned,
        head=head,
        tail=tail,
        aim=aim,
        pruner=pruner,
        located=located,
    )


_LEAST = 150
"""Minimum size to which a message is shortened, in tokens."""
_MARKER = 50
"""Size of the marker that replaces removed text, in tokens."""
_LION = 0.7
"""Maximum fraction of the sendable size for the user's and the assistant's last messages."""


def fitted(groups: Sequence[Group], aim: Aim, pruner: Pruner) -> list[Group]:
    """Fit the groups into `aim.hard` if possible, shortening the largest messages first.

    Results and arguments are shortened before speech. The user's last message and the last answer
    stay whole as long as they can be sent. Even if these two are large, the others get as much
    space as they would next to small ones.
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
    """Shorten the messages at indexes `due` to `tokens` tokens in total, all to one maximum size.

    If `said` is false, only results and arguments are shortened, not speech. Many small arguments
    shrink less than planned; if so, this is repeated with a lower target.
    """
    # Markers and JSON take up space too, so the first goal may be missed.
    for goal in (tokens, tokens * 3 // 5, tokens * 3 // 10):
        sizes = {index: estimate_tokens([messages[index]]) for index in due}
        if not sizes or sum(sizes.values()) <= tokens:
            return
        level = max(common_size(sizes.values(), goal, 0, max(sizes.values())), _LEAST)
        for index, each in sizes.items():
            if each > level:
                messages[index] = _smaller(messages[index], level, pruner, said=said)


def _smaller(message: Message, tokens: int, pruner: Pruner, *, said: bool) -> Message:
    """Shorten a message to about `tokens` tokens; a marker replaces the removed part."""
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
    found: dict[str, int] = {}
    for index, message in enumerate(messages):
        said = message.role == "user" or (message.role == "assistant" and message.text.strip())
        if said and not is_ours(message):  # a prompt may be an image without text
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
