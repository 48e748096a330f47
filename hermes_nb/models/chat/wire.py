"""The providers' protocols: chat.completions here, the others in `anthropic` and `responses`.

A wire writes a request's fields and translates a reply's events to those of chat.completions, so
that one `Assembly` reads them all. It caches the bytes of each message object for as long as the
object lives. A request in a long turn joins cached bytes and serialises only new messages. The
bytes of a prefix never change while the conversation only grows, which providers' prompt caches
rely on.
"""

from __future__ import annotations

import hashlib
import re
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import call, is_
from typing import Protocol, TypeAlias

from hermes_nb.core.json_values import dumps
from hermes_nb.core.messages import Image, Json, Memo, Message, Text, ToolCall
from hermes_nb.models.caching import TTL, mark_items
from hermes_nb.models.chat.errors import ROLES
from hermes_nb.models.chat.stream import EXTRAS
from hermes_nb.models.profiles import Profile, effort_fields

KEY_HEADER = "x-api-key"
"""Header that replaces `Authorization` if a wire sets it."""
_NO_STREAM_USAGE = re.compile(r"stream_options|include_usage", re.IGNORECASE)
_NO_MARK = re.compile(r"cache_control|tool_result\.content", re.IGNORECASE)


class Pieces(list[bytes]):
    """The pieces of a field's JSON text, joined only once, along with the rest of the request."""


def array(items: Sequence[bytes]) -> Pieces:
    """Return serialised values as a JSON array."""
    listed = [b","] * 2 * len(items)
    listed[1::2] = items
    return Pieces([b"[", *listed[1:], b"]"])


class Events(Protocol):
    """Translates the events of a streamed reply to chat.completions chunks."""

    @property
    def done(self) -> bool:
        """Whether the reply is complete, although the connection is still open."""
        ...

    def chunks(self, event: Json) -> Iterator[object]:
        """Yield the chat.completions chunks for an event."""
        ...


@dataclass(frozen=True, slots=True)
class Asked:
    """The content of a request, before a wire writes it."""

    messages: Sequence[Message]
    """The conversation in the tool-calling strategy's form."""
    tools: Mapping[str, object]
    """The strategy's fields, in chat.completions format."""
    options: Mapping[str, object]
    """The fields that the user has set for the model."""
    effort: str
    """How much to reason; "" for the model's default."""


class TranslatedTools:
    """The field `tools` in a protocol's own format, translated again only if the tools change."""

    def __init__(self, translate: Callable[[Mapping[str, Json]], Mapping[str, Json]]) -> None:
        self._translate = translate
        self._listed: object = None
        self._translated: list[Mapping[str, Json]] = []

    def field(self, asked: Asked) -> Iterator[tuple[str, object]]:
        """Yield the field, if there are tools."""
        if isinstance(listed := asked.tools.get("tools"), list):
            if self._listed is not listed:
                self._listed = listed
                self._translated = [self._translate(each["function"]) for each in listed]
            yield "tools", self._translated


class Wire(Protocol):
    """One provider protocol, for one model."""

    path: str
    """Path for requests, under the API's URL."""

    def headers(self, key: str) -> Mapping[str, str]:
        """Return the protocol's own headers; one named `KEY_HEADER` replaces `Authorization`."""
        ...

    def items(self, messages: Sequence[Message]) -> list[bytes]:
        """Return the parts of the conversation as JSON, in order and without cache marks."""
        ...

    def fields(self, asked: Asked) -> Iterator[tuple[str, object]]:
        """Yield the request's fields in order, without the model's name."""
        ...

    def adapt(self, refusal: str) -> bool:
        """Stop using a feature that the endpoint refused; return whether to send again."""
        ...

    def events(self) -> Events:
        """Return a new translator for a reply."""
        ...


STOPPED = "[stopped before it was finished]"
"""Suffix for an interrupted answer, so that the model does not think it is complete."""
EMPTY = {"user": "[no text]", "assistant": "[no text]", "tool": "[no output]", "system": ""}
"""Placeholders for empty text, which several providers reject."""
PICTURES = "Pictures from the tool results above:"
READING = b'{"role":"assistant","content":"I read what you add."}'
"""Between two messages that a strict template would refuse, such as a tool result and a user's."""
UNSEEN = "[{count} left out here: this model does not take pictures]"
"""Placeholder for images sent to a model that cannot see."""


def to_wire(message: Message, profile: Profile, *, echo: bool = False) -> dict[str, Json]:
    """Return one message in the chat-completions format; a tool message without its images.

    A model that cannot see receives only the number of images. `echo` adds the reasoning fields
    that the provider wants back.
    """
    match message.role:
        case "assistant":
            return _assistant(message, profile, echo=echo)
        case "tool":
            call_id = _call_id(message.call_id, profile)
            content = message.text or EMPTY["tool"]
            return {"role": "tool", "tool_call_id": call_id, "content": content}
        case _:
            return {"role": message.role, "content": _content(message, profile)}


def pictures(messages: Sequence[Message], profile: Profile) -> dict[str, Json] | None:
    """Return the user message with the images of a batch of tool results, or None without images.

    Most providers reject images in tool results, but accept them in a user message after the last
    one.
    """
    images = [image for message in messages for image in message.images]
    if not images:
        return None
    if not profile.vision:
        return {"role": "user", "content": f"{PICTURES} {unseen(len(images))}"}
    return {"role": "user", "content": [_part(Text(PICTURES)), *map(_part, images)]}


_ASKING = ("user", "tool")
_Last: TypeAlias = tuple[int, "list[weakref.ref[Message]]", list[bytes]]
"""The last conversation: first index with reasoning, its messages, their serialised items."""


class _Unchanged:
    """The events of chat.completions, which end with a mark that the decoder recognises."""

    done = False

    def chunks(self, event: Json) -> Iterator[object]:
        yield event


class WireConversation:
    """The wire for chat.completions."""

    path = "chat/completions"

    def __init__(self, profile: Profile, *, ttl: TTL = "5m") -> None:
        self._profile = profile
        self._ttl = ttl
        self._marks_results = True  # until a provider rejects it
        self._stream_usage = profile.stream_usage
        self._strict = profile.strict
        self._items: Memo[bytes] = Memo()
        self._pictures: Memo[bytes] = Memo()
        self._last: _Last = 0, [], []

    def headers(self, key: str) -> Mapping[str, str]:  # noqa: ARG002 - sent by the client as usual
        return {}

    def fields(self, asked: Asked) -> Iterator[tuple[str, object]]:
        items = self.items(asked.messages)
        if self._profile.caching == "system_and_3":
            items = mark_items(items, ttl=self._ttl, results=self._marks_results)
        yield "messages", array(items)
        effort = effort_fields(self._profile, asked.effort)
        yield from {**asked.tools, **effort, **asked.options}.items()
        yield "stream", True
        if self._stream_usage:
            yield "stream_options", {"include_usage": True}

    def adapt(self, refusal: str) -> bool:
        if self._stream_usage and _NO_STREAM_USAGE.search(refusal):
            self._stream_usage = False
            return True
        if self._marks_results and _NO_MARK.search(refusal):
            self._marks_results = False
            return self._profile.caching == "system_and_3"
        if not self._strict and ROLES.search(refusal):
            self._strict, self._last = True, (0, [], [])
            return True
        return False

    def events(self) -> Events:
        return _Unchanged()

    def items(self, messages: Sequence[Message]) -> list[bytes]:
        """Return each message as JSON, in order."""
        since = self._echo_since(messages)
        before, seen, items = self._last
        # Reuse the last conversation if it only grew, unless a batch continues, because its images
        # move.
        same = since == before and all(map(is_, map(call, seen), messages))
        if not same or _goes_on(messages, len(seen)):
            seen, items = [], []
        out = [*items]
        batch: list[Message] = []
        for position, message in enumerate(messages[len(seen) :], len(seen)):
            if message.role != "tool" and batch:
                out.extend(self._shown(batch))
                batch = []
            if message.role == "user" and position and messages[position - 1].role in _ASKING:
                out += [READING] if self._strict else []
            out.append(self._item(message, echo=position >= since))
            if message.role == "tool":
                batch.append(message)
        out.extend(self._shown(batch))
        self._last = since, [*seen, *map(self._forgotten, messages[len(seen) :])], out
        return out

    def _forgotten(self, message: Message) -> weakref.ref[Message]:
        """Return a weak reference that also drops the cached bytes when the message is gone."""

        def forget(_: object) -> None:
            self._last = 0, [], []

        return weakref.ref(message, forget)

    def _item(self, message: Message, *, echo: bool) -> bytes:
        # Only an assistant message with reasoning has two forms.
        echo = echo and message.role == "assistant" and bool(message.reasoning or message.echo)
        return self._items.get(
            message, lambda: dumps(to_wire(message, self._profile, echo=echo)), echo
        )

    def _shown(self, batch: Sequence[Message]) -> Iterator[bytes]:
        """Yield the message with a batch's images, cached by the batch's last result."""
        if any(message.images for message in batch):
            if self._strict:
                yield READING
            yield self._pictures.get(batch[-1], lambda: dumps(pictures(batch, self._profile)))

    def _echo_since(self, messages: Sequence[Message]) -> int:
        if self._profile.echo_policy == "never":
            return sys.maxsize
        if self._profile.echo_policy == "always":
            return 0
        return next((i for i in reversed(range(len(messages))) if messages[i].role == "user"), 0)


def _goes_on(messages: Sequence[Message], known: int) -> bool:
    """Return whether there are fewer than `known` messages, or a batch continues after them."""
    return len(messages) < known or (len(messages) > known and messages[known].role == "tool")


def _assistant(message: Message, profile: Profile, *, echo: bool) -> dict[str, Json]:
    content = assistant_text(message) or (
        profile.empty_content if message.calls else EMPTY["assistant"]
    )
    out: dict[str, Json] = {"role": "assistant", "content": content}
    if message.calls:
        out["tool_calls"] = [_call(call, profile) for call in message.calls]
    if profile.call_extras:
        for written, extra in zip(out.get("tool_calls", ()), _extras(message), strict=False):
            written.update({"extra_content": extra} if extra else {})
    # Reasoning goes into the provider's own fields, plain text only once.
    for field in profile.echo if echo else ():
        if field in message.echo:
            out[field] = message.echo[field]
        elif message.reasoning and field in ("reasoning_content", "reasoning"):
            out[field] = message.reasoning
    return out


def _extras(message: Message) -> Sequence[Json]:
    extras = message.echo.get(EXTRAS)
    return extras if isinstance(extras, list) else ()


def _call(call: ToolCall, profile: Profile) -> dict[str, Json]:
    function = {"name": call.name, "arguments": call.arguments_json()}
    return {"id": _call_id(call.id, profile), "type": "function", "function": function}


def _call_id(call_id: str, profile: Profile) -> str:
    """Return the id in the provider's format: Mistral requires exactly nine letters and digits."""
    return fitting_id(call_id, r"[A-Za-z0-9]{9}", 9) if profile.short_ids else call_id


def fitting_id(call_id: str, pattern: str, length: int) -> str:
    """Return a call's id if a provider accepts it, otherwise `length` hex digits for it."""
    if re.fullmatch(pattern, call_id):
        return call_id
    return hashlib.sha256(call_id.encode("utf-8", "replace")).hexdigest()[:length]


def assistant_text(message: Message) -> str:
    """Return an assistant message's text, with a suffix if it was interrupted."""
    if not message.interrupted:
        return message.text
    return f"{message.text}\n\n{STOPPED}" if message.text else STOPPED


def placed(blocks: Sequence[tuple[int, bytes]], others: Sequence[bytes]) -> list[bytes]:
    """Return reasoning blocks at their positions in the reply, and the other parts around them."""
    out: list[bytes] = []
    rest = list(others)
    for position, block in sorted(blocks, key=lambda each: each[0]):
        while rest and len(out) < position:
            out.append(rest.pop(0))
        out.append(block)
    return [*out, *rest]


def indexed(block: Mapping[str, Json]) -> int:
    """Return the position of a stored reasoning block in its reply."""
    index = block.get("index")
    return index if isinstance(index, int) else 0


def _content(message: Message, profile: Profile) -> str | list[Mapping[str, Json]]:
    if not message.images:
        return message.text or EMPTY[message.role]
    if profile.vision:
        return [_part(part) for part in message.parts]
    return "\n".join(filter(None, (message.text, unseen(len(message.images)))))


def unseen(count: int) -> str:
    """Return the text that replaces `count` images for a model that cannot see."""
    return UNSEEN.format(count=f"{count} pictures" if count > 1 else "1 picture")


def _part(part: Text | Image) -> Mapping[str, Json]:
    if isinstance(part, Text):
        return {"type": "text", "text": part.text}
    return {"type": "image_url", "image_url": {"url": f"data:{part.mime};base64,{part.data}"}}
