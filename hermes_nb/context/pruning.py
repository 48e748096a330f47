"""Shortening without a model: old results become one line, long arguments lose their middle.

Done to a whole stretch at once and never a little at every step: each change of an old message
throws away the provider's cached prefix from there on.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from hermes_nb.context.boundaries import Group, group_of
from hermes_nb.context.marks import LEFT_OUT, SHORT, cut, is_shortened, shortened
from hermes_nb.context.outlines import call_outline, ending, outcome
from hermes_nb.core.messages import Message, ToolCall
from hermes_nb.core.text import CHARACTERS_PER_TOKEN, IMAGE_TOKENS, one_line

_LONG_ARGUMENT = 500
_KEPT_ARGUMENT = 300
_MANY = 40
"""Items of a list or mapping in the arguments that stay."""
_DEEP = 12
"""Levels of nested arguments that are kept."""

Locate = Callable[[Message], int | None]
"""Says where a message is stored, None if nobody knows."""
WayBack = Callable[[int | None], str | None]
"""Says, for the position where a message is stored, how the model reads the whole of it. None means
that there is no way back, and that the message is to stay."""


class Pruner:
    """Shortens groups of messages, and tells in each place how to get the whole back."""

    def __init__(self, locate: Locate, way_back: WayBack) -> None:
        self._locate = locate
        self._way_back = way_back

    def prune(self, groups: Iterable[Group]) -> list[Group]:
        """Return the groups shortened, the same object where nothing changed.

        Of results with the same text only the last is described; the others refer to it.
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
        """Return the message with long arguments cut, as valid JSON; itself if there are none."""
        limit = kept + _LONG_ARGUMENT - _KEPT_ARGUMENT
        if all(len(call.arguments_json()) <= limit for call in message.calls):
            return message
        back = self._back(message)
        calls = tuple(_shorter_call(call, limit, kept, back) for call in message.calls)
        if all(new is old for new, old in zip(calls, message.calls, strict=True)):
            return message
        return replace(message, calls=calls)

    def shorter_result(self, result: Message, limit: int) -> Message:
        """Return a result in about `limit` characters, head and tail, without its images."""
        back = self._back(result)
        text = cut(result.text, limit, way_back=back)
        if result.images:
            text = f"{text}\n[{len(result.images)} images left out; {back}]"
        return replace(result, parts=Message.user(text, origin=result.origin).parts)

    def shorter_speech(self, message: Message, limit: int) -> Message:
        """Return what was said in about `limit` characters, with the images that fit in there."""
        back = self._back(message)
        text = cut(message.text, limit, way_back=back)
        room = limit - len(text)
        images = message.images[: max(0, room // int(IMAGE_TOKENS * CHARACTERS_PER_TOKEN))]
        if dropped := len(message.images) - len(images):
            text = f"{text}\n[{dropped} images left out; {back}]".strip()
        if text == message.text:
            return message
        said = Message.user(text, images=images, origin=message.origin)
        return replace(message, parts=said.parts)

    def _back(self, message: Message) -> str:
        return self._way_back(self._locate(message)) or "gone from view"

    def _line(self, call: ToolCall, result: Message, *, again: bool) -> Message:
        """Return a long result as one line that says what it was and how to read it."""
        if (len(result.text) <= SHORT and not result.images) or is_shortened(result.text):
            return result
        position = self._locate(result)
        back = self._way_back(position)
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
        return replace(result, parts=Message.user(text, origin=result.origin).parts)


def _shorter_call(call: ToolCall, limit: int, kept: int, back: str) -> ToolCall:
    if call.problem or len(call.arguments_json()) <= limit:
        return call
    arguments = {
        key: _shorter(value, limit, kept, back, 1) for key, value in call.arguments.items()
    }
    if arguments == dict(call.arguments):
        return call
    text = json.dumps(arguments, ensure_ascii=False, default=str)
    return replace(call, arguments=arguments, text=text)


def _shorter(value: Any, limit: int, kept: int, back: str, depth: int) -> Any:  # noqa: ANN401 - JSON
    """Return a JSON value without the middle of long texts and the ends of long lists."""
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
