"""A recorded reply, and its format as a line in a cassette.

A line contains one JSON object with sorted keys. A recording has a `key`. A conversation message
has an `at` (its digest) and the previous message's digest, so each message is stored once, however
many requests contained it. A line does not depend on the time and place of the recording.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, TypeVar

from hermes_nb.core.events import ReasoningDelta, TextDelta, UsageReported
from hermes_nb.core.json_values import canonical_json, clean, clean_text, with_texts
from hermes_nb.core.messages import Json, Message, Reply, Text, ToolCall, Usage
from hermes_nb.models.canonical import FORM, Canonical, Link, digest_of, redacted
from hermes_nb.models.volatile import Named
from hermes_nb.safety.redact import redact

Piece = TextDelta | ReasoningDelta | UsageReported
Change = Callable[[str], str]
_T = TypeVar("_T")
_KINDS: tuple[type[TextDelta | ReasoningDelta], ...] = (TextDelta, ReasoningDelta)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A recorded reply to a request."""

    key: str
    """Key of the request."""
    head: str
    """Digest of the whole conversation; see `Canonical.head`."""
    tools: frozenset[str]
    """Names of the tools offered."""
    choice: str
    """The request's `tool_choice`."""
    model: str
    """Name of the recorded model; not part of the key."""
    window: int | None
    """The model's context window in tokens, or None if unknown; not part of the key."""
    version: str
    """Version of hermes_nb that made the recording; "" if unknown."""
    reply: Reply
    """The reply."""
    pieces: tuple[Piece, ...]
    """The deltas as they arrived, and the usage of other models asked for this reply."""
    nth: int = 1
    """Number of this request among identical ones in its run, from 1."""
    form: int = FORM
    """Version of the key format."""
    edited: bool = False
    """Whether the line was edited after it was written."""

    @classmethod
    def of(
        cls,
        canonical: Canonical,
        reply: Reply,
        pieces: Sequence[Piece],
        *,
        model: str,
        window: int | None,
    ) -> Recording:
        """Return a reply's recording, without secrets and with tokens for this run's names."""

        def packed(text: str) -> str:
            return canonical.named.pack(redact(clean_text(text)))

        return cls(
            key=canonical.key,
            head=canonical.head,
            tools=canonical.tools,
            choice=canonical.choice,
            model=model,
            window=window,
            version=own_version(),
            reply=replace(reply, message=_changed(reply.message, packed, secrets=True)),
            pieces=recut(pieces, packed),
        )

    def played(self, named: Named) -> tuple[tuple[Piece, ...], Reply]:
        """Return the deltas and the reply with tokens replaced by this run's names."""
        message = _changed(self.reply.message, named.unpack)
        return recut(self.pieces, named.unpack), replace(self.reply, message=message)

    def fits(self, now: Canonical) -> bool:
        """Return whether the request allows the calls in the reply."""
        return not self.gone(now) and not (now.choice == "none" and self.reply.message.calls)

    def gone(self, now: Canonical) -> list[str]:
        """Return the tools that the reply calls but that are no longer offered."""
        called = {call.name for call in self.reply.message.calls}
        return sorted(called & self.tools - now.tools)

    def nearness(self, now: Canonical) -> tuple[bool, bool, int]:
        """Return how similar the request is apart from its key; a greater tuple is more similar."""
        return self.head == now.head, self.choice == now.choice, -len(self.tools ^ now.tools)

    def line(self) -> bytes:
        """Return the recording as a line without a line ending."""
        data = {
            "form": self.form,
            "key": self.key,
            "head": self.head,
            "tools": sorted(self.tools),
            **({} if self.choice == "auto" else {"choice": self.choice}),
            **({} if self.nth == 1 else {"nth": self.nth}),
            "model": self.model,
            "window": self.window,
            "hermes_nb": self.version,
            "deltas": [_delta(piece) for piece in self.pieces],
            "reply": {
                "message": self.reply.message.to_dict(),
                "usage": _counts(self.reply.usage),
                "finish": self.reply.finish,
                "model": self.reply.model,
            },
        }
        return _line({**data, "sum": _sum(data)})


def _sum(data: Mapping[str, object]) -> str:
    """Return the checksum that reveals edits to a recording."""
    return digest_of(clean({name: data[name] for name in data if name != "sum"}))[:16]


def accepted(line: bytes) -> bytes:
    """Return an edited recording's line with the correct checksum."""
    data = json.loads(line)
    return _line({**data, "sum": _sum(data)})


def link_line(link: Link) -> bytes:
    """Return a conversation message as a line without a line ending."""
    return _line({"at": link.digest, "before": link.before, "said": link.said})


def _line(data: Mapping[str, object]) -> bytes:
    return canonical_json(clean(data)).encode()


def read(line: bytes) -> Recording | Link:
    """Parse a line.

    Raises:
        ValueError: the line is neither a recording nor a message; the error's message explains why.
    """
    try:
        data: Json = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ValueError("it is not UTF-8") from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if type(data) is not dict:
        raise ValueError("it is not a JSON object")
    try:
        if "key" in data:
            return _recording(data)
        at, before = _typed(data, "at", str), _typed(data, "before", str)
        return Link(at, before, _typed(data, "said", dict))
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is not a recording ({type(error).__name__}: {error})") from error


def recut(pieces: Sequence[Piece], change: Change) -> tuple[Piece, ...]:
    """Apply `change` to the deltas' joined text, and split the result at the same positions.

    The deltas of each kind are joined first, because a match may span two of them. If the text gets
    longer, the last delta contains the additional text.
    """
    texts = [p for p in pieces if not isinstance(p, UsageReported)]
    left = {kind: change("".join(p.text for p in texts if type(p) is kind)) for kind in _KINDS}
    last = {type(piece): at for at, piece in enumerate(pieces)}
    out: list[Piece] = []
    for at, piece in enumerate(pieces):
        if isinstance(piece, UsageReported):
            out.append(piece)
            continue
        kind = type(piece)
        size = len(left[kind]) if last[kind] == at else len(piece.text)
        text, left[kind] = left[kind][:size], left[kind][size:]
        if text or not piece.text:
            out.append(kind(text))
    return tuple(out)


@functools.cache
def own_version() -> str:
    """Return the installed version of hermes_nb, "" if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("hermes_nb")
    except PackageNotFoundError:
        return ""


def _changed(message: Message, change: Change, *, secrets: bool = False) -> Message:
    return replace(
        message,
        parts=tuple(
            replace(p, text=change(p.text)) if isinstance(p, Text) else p for p in message.parts
        ),
        calls=tuple(_changed_call(call, change, secrets=secrets) for call in message.calls),
        reasoning=change(message.reasoning),
        echo=_bare(clean(message.echo)) if secrets else message.echo,
    )


def _bare(value: Mapping[str, Json]) -> dict[str, Json]:
    return {redact(key): redacted(item, key) for key, item in value.items()}


def _changed_call(call: ToolCall, change: Change, *, secrets: bool) -> ToolCall:
    """Return a call with `change` applied to its texts; its JSON still matches the arguments."""
    before = clean(call.arguments)
    bare = _bare(before) if secrets else before
    arguments = {change(key): with_texts(item, change) for key, item in bare.items()}
    text = change(call.text)
    if call.text and not call.problem and (arguments != before or text != call.text):
        text = json.dumps(arguments, ensure_ascii=False)
    return replace(call, name=change(call.name), arguments=arguments, text=text)


def _recording(data: Mapping[str, Json]) -> Recording:
    reply = _typed(data, "reply", dict)
    message = Message.from_dict(_typed(reply, "message", dict))
    _check(message)
    message = replace(message, calls=tuple(map(_as_written, message.calls)))
    window, nth, form = data.get("window"), data.get("nth", 1), data.get("form", 1)
    return Recording(
        key=_typed(data, "key", str),
        head=_typed(data, "head", str),
        tools=frozenset(map(str, data["tools"])),  # a mapping in earlier forms
        choice=str(data.get("choice", "auto")),
        model=str(data.get("model", "")),
        window=window if isinstance(window, int) and window > 0 else None,
        version=str(data.get("hermes_nb", "")),
        reply=Reply(
            message=message,
            usage=_usage(_typed(reply, "usage", dict, {})),
            finish=str(reply.get("finish", "stop")),
            model=str(reply.get("model", "")),
        ),
        pieces=tuple(map(_piece, _typed(data, "deltas", list, []))),
        nth=nth if isinstance(nth, int) else 1,
        form=form if isinstance(form, int) else 1,
        edited=form != 1 and data.get("sum") != _sum(data),
    )


def _as_written(call: ToolCall) -> ToolCall:
    """Return a call with its arguments in the order of its text, since a line's keys are sorted.

    A cell displays them in the original order.
    """
    try:
        written = json.loads(call.text or "null")
    except (ValueError, RecursionError):
        return call
    return replace(call, arguments=written) if written == call.arguments else call


def _delta(piece: Piece) -> str | dict[str, Json]:
    """Return a piece's JSON form."""
    match piece:
        case TextDelta(text):
            return text
        case ReasoningDelta(text):
            return {"reasoning": text}
        case UsageReported(usage, model, purpose):
            return {"used": _counts(usage), "model": model, "purpose": purpose}


def _counts(usage: Usage) -> dict[str, Json]:
    return {name: count for name, count in asdict(usage).items() if count}


def _piece(data: Json) -> Piece:
    if isinstance(data, str):
        return TextDelta(data)
    if isinstance(data, Mapping):
        if "used" in data:
            usage = _usage(_typed(dict(data), "used", dict))
            return UsageReported(usage, str(data.get("model", "")), str(data.get("purpose", "")))
        return ReasoningDelta(_typed(data, "reasoning", str))
    raise TypeError(f"a delta is {data!r:.40}")


def _usage(data: dict[str, Any]) -> Usage:
    known = {each.name for each in fields(Usage)}
    for name, value in data.items():
        good = isinstance(value, int | float if name == "cost" else int)
        if name not in known or not good or isinstance(value, bool) or not 0 <= value < math.inf:
            raise TypeError(f"usage.{name} is {value!r:.40}")
    return Usage(**data)


def _check(message: Message) -> None:
    """Raise TypeError unless the message could be a model's reply."""
    texts = [p.text for p in message.parts if isinstance(p, Text)]
    problem = "its message is not an assistant's text"
    if message.role == "assistant" and len(texts) == len(message.parts):
        texts += [message.reasoning, *(t for c in message.calls for t in (c.id, c.name, c.text))]
        objects = [message.echo, *(call.arguments for call in message.calls)]
        if all(isinstance(t, str) for t in texts) and all(isinstance(o, Mapping) for o in objects):
            return
        problem = "its message has fields of the wrong type"
    raise TypeError(problem)


def _typed(data: Mapping[str, Json], name: str, kind: type[_T], default: _T | None = None) -> _T:
    value = data[name] if default is None else data.get(name, default)
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {value!r:.40}")
    return value
