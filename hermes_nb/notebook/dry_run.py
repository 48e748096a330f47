"""The first request of a turn, shown but not sent (`--dry-run`).

Nothing is stored, no session starts or ends, and no counter changes. Expressions are evaluated.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hermes_nb.agent.session.context_usage import schema_tokens, text_tokens
from hermes_nb.agent.session.session import Identity, Session, compose
from hermes_nb.core.escapes import visible
from hermes_nb.core.loop import LOST_RESULT
from hermes_nb.core.messages import Json, Message, mend
from hermes_nb.core.protocols import (
    ChatModel,
    Request,
    SessionStore,
    body_of,
)
from hermes_nb.core.text import amount, estimate_tokens, head_tail, one_line
from hermes_nb.core.tools import Place, Toolset
from hermes_nb.notebook.display.tables import grid
from hermes_nb.notebook.turn import TurnEnv, TurnOptions
from hermes_nb.safety.markup import code_block, code_span, escape
from hermes_nb.safety.redact import redact
from hermes_nb.tools.wrappers import with_context

SHOWN = 6_000
"""Characters shown per message; `--into NAME` returns all of them."""
SHOWN_MESSAGES = 40
"""Number of latest messages to show, in addition to the system prompt."""
UNSAID = "(new session)"
"""Placeholder for the id of a session that does not exist yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DryRun:
    """A request that would be sent, and its destination."""

    model: str
    """Name of the model."""
    endpoint: str
    """Address of the model; "" if the model was passed as an object."""
    session: str
    """Id of the session that the turn would continue, or "" for a new one."""
    request: Request
    """The request itself."""
    body: Mapping[str, Json] = field(default_factory=dict)
    """The JSON body of the request, or {} for a model that does not use JSON."""

    @classmethod
    def of(cls, model: ChatModel, request: Request, *, endpoint: str, session: str) -> DryRun:
        """Return the dry run of a request to this model."""
        body = body_of(model, request)
        return cls(
            model=model.name,
            endpoint=endpoint,
            session=session,
            request=request,
            body=json.loads(body) if body else {},
        )

    @property
    def tokens(self) -> dict[str, int]:
        """Estimated tokens for each part of the request."""
        system = [m for m in self.request.messages if m.role == "system"]
        rest = [m for m in self.request.messages if m.role != "system"]
        return {
            "system prompt": estimate_tokens(system),
            "tools": schema_tokens(self.request.tools),
            "conversation": estimate_tokens(rest[:-1]),
            "this message": estimate_tokens(rest[-1:]),
        }

    @property
    def wire(self) -> Mapping[str, Json]:
        """The JSON body or, without one, the messages and tool names."""
        if self.body:
            return self.body
        return {
            "messages": [message.to_dict() for message in self.request.messages],
            "tools": [tool.name for tool in self.request.tools],
        }

    def as_dict(self) -> dict[str, Json]:
        """Return the dry run as JSON-compatible values, with the request redacted."""
        return {
            "model": self.model,
            "endpoint": self.endpoint,
            "session": self.session,
            "tokens": self.tokens,
            "request": _redacted(self.wire),
        }

    def given(self, options: TurnOptions, names: dict[str, object]) -> str:
        """Bind the request to the variable named by `--into`, and return the Markdown to show."""
        if options.into:
            names[options.into] = self.as_dict()
        if not (options.into and options.quiet):
            return self.report()
        name, total = code_span(options.into), amount(sum(self.tokens.values()))
        return f"Nothing was sent: {name} is the request, about {total} tokens."

    def report(self) -> str:
        """Return a Markdown report: sizes, messages, and (folded) tools and settings."""
        total = sum(self.tokens.values())
        where = f" at {code_span(self.endpoint)}" if self.endpoint else ""
        session = f"session {code_span(self.session)}" if self.session else "a new session"
        blocks = [
            f"**Nothing was sent.** To {code_span(self.model)}{where}, in {session}, "
            f"about {amount(total)} tokens:",
            grid(("part", "tokens"), [(name, amount(size)) for name, size in self.tokens.items()]),
        ]
        messages = [item for item in self.wire.get("messages", ()) if isinstance(item, Mapping)]
        system = [item for item in messages if item.get("role") == "system"]
        rest = [item for item in messages if item.get("role") != "system"]
        blocks += [_folded(item) for item in system]
        if (left_out := len(rest) - SHOWN_MESSAGES) > 0:
            blocks.append(f"*{left_out} earlier messages are not shown; `--into NAME` has them.*")
        blocks += [_folded(item) for item in rest[-SHOWN_MESSAGES:-1]]
        blocks += [_open(item) for item in rest[-1:]]
        others = {key: value for key, value in self.wire.items() if key != "messages"}
        if tools := others.pop("tools", None):
            names = ", ".join(tool.name for tool in self.request.tools)
            title = f"{len(self.request.tools)} tools: {one_line(names, 120)}"
            blocks.append(
                _details(title, json.dumps(_redacted(tools), indent=1, ensure_ascii=False))
            )
        if others:
            blocks.append(_details("settings", json.dumps(_redacted(others), indent=1)))
        return "\n\n".join(blocks)


def preview(
    env: TurnEnv,
    message: Message,
    *,
    store: SessionStore,
    source: str = "script",
    endpoint: str = "",
) -> DryRun:
    """Return the first request of a turn; nothing is sent or stored.

    Args:
        env: the turn's environment, such as its session and tools
        message: the user's message
        store: the session store
        source: the kind of caller that starts a new session, as in `Identity`
        endpoint: the model's address, or "" if it was passed as an object
    """
    spec = env.spec
    system, messages, tools = _scene(env, store, source)
    head = (spec.preface + env.options.preface()).head(system)
    return DryRun.of(
        spec.model,
        Request(messages=(*head, *messages, message), tools=tools, effort=env.options.effort),
        endpoint=endpoint,
        session=env.site.session,
    )


def _scene(
    env: TurnEnv, store: SessionStore, source: str
) -> tuple[str, Sequence[Message], Toolset]:
    """Return the system prompt, conversation and tools that a turn would use."""
    found, spec = env.session, env.spec
    if isinstance(found, Session):
        tools = with_context(env.tools, found.agent.engine, spec.policy)
        return found.agent.system, found.messages, tools
    place = Place(session=found.id if found else UNSAID)
    tools = with_context(env.tools, spec.engine(store, place, tuple), spec.policy)
    if found is not None:
        return found.system_prompt, mend(store.messages(found.id), note=LOST_RESULT), tools
    prompt = compose(spec, Identity(source=source).platform, UNSAID)
    return prompt.text, (), tools


def _folded(item: Mapping[str, Json]) -> str:
    text = _text_of(item)
    size = amount(text_tokens(text))
    return _details(f"{item.get('role')}, about {size} tokens: {one_line(text, 70)}", text)


def _open(item: Mapping[str, Json]) -> str:
    return f"**{escape(str(item.get('role')))}**\n\n{code_block(_shown(_text_of(item)), 'text')}"


def _details(title: str, text: str) -> str:
    head = escape(one_line(visible(redact(title)), 140))
    body = code_block(_shown(text), "text")
    return f"<details><summary>{head}</summary>\n\n{body}\n\n</details>"


def _shown(text: str) -> str:
    return visible(head_tail(redact(text), SHOWN), lines=True)


def _text_of(item: Mapping[str, Json]) -> str:
    """Return a message from the request's JSON as text, with images as sizes and calls as JSON."""
    content = item.get("content", item.get("parts"))
    parts = content if isinstance(content, list) else [{"text": content or ""}]
    texts = [_part(part) for part in parts if isinstance(part, Mapping)]
    if calls := item.get("tool_calls", item.get("calls")):
        texts.append(json.dumps(calls, ensure_ascii=False, indent=1, default=str))
    return "\n".join(text for text in texts if text)


def _part(part: Mapping[str, Json]) -> str:
    if "text" in part:
        return str(part["text"])
    data = part.get("image") or part.get("image_url", {}).get("url", "")
    return f"[picture, {len(data) * 3 // 4:,} bytes]"


def _redacted(value: Json) -> Json:
    """Return JSON without secrets; images stay unchanged."""
    match value:
        case str():
            return value if value.startswith("data:image/") else redact(value)
        case Mapping():
            picture = "image" in value and "mime" in value
            return dict(value) if picture else {k: _redacted(v) for k, v in value.items()}
        case list() | tuple():
            return [_redacted(each) for each in value]
        case _:
            return value
