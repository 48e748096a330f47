"""OpenTelemetry spans for turns, requests and tool calls, following the GenAI semantic conventions.

Each session's events become spans: `invoke_agent` for a turn, `chat` for each request in it, and
`execute_tool` for each call. A child agent's spans are children of the call that started it, and
the spans of a map's tasks are children of the map's span. A background review has a separate trace
with a link to its turn.

Only the API is needed (extra `[otel]`). To export spans, configure an SDK. Without one, spans cost
almost nothing. Attribute names are literals because the package that defines them as constants is
about to remove them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.events import (
    ContextCompressed,
    Event,
    MessageAdded,
    RequestRetried,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    UsageReported,
)
from hermes_nb.core.json_values import canonical_json
from hermes_nb.core.loop import Agent, Observer
from hermes_nb.core.messages import Message, ToolCall, Usage
from hermes_nb.safety.redact import redact

if TYPE_CHECKING:
    from opentelemetry.trace import Span, SpanContext

    from hermes_nb.agent.settings.config import Settings

PROVIDERS = {"": "openai", "openrouter.ai": "openrouter", "api.anthropic.com": "anthropic"}
"""Provider names of well-known hosts; others are named by their host."""


def observer(settings: Settings) -> Telemetry:
    """Return the observer for the settings: the entry point `otel` of `hermes_nb.event_sinks`."""
    return Telemetry(base_url=settings.endpoint.base_url, content=settings.otel.content)


class Telemetry(Observer):
    """Creates the span sinks for sessions.

    With `content`, spans include messages and arguments, with secrets removed. `base_url` is the
    model's API. Raises `ConfigError` if the API package is missing.
    """

    def __init__(self, *, base_url: str = "", content: bool = False) -> None:
        try:
            from opentelemetry import context, trace
        except ImportError as error:
            message = 'otel.enabled needs OpenTelemetry: pip install "hermes_nb[otel]"'
            raise ConfigError(message) from error
        self.content = content
        self.trace, self.nothing = trace, context.Context()
        self.tracer = trace.get_tracer("hermes_nb")
        host = urlsplit(base_url).hostname or ""
        self.common = {"gen_ai.provider.name": PROVIDERS.get(host, host)}
        if host:
            self.common["server.address"] = host
        self.running: dict[str, Spans] = {}
        self.last: dict[str, SpanContext] = {}

    def sink(
        self, agent: Agent, session: str = "", parent: str = "", *, behind: bool = False
    ) -> Spans:
        return Spans(self, agent, session, parent, behind=behind)

    @contextmanager
    def mapping(self, session: str) -> Iterator[None]:
        """Open a map's span, the parent of all turns that start inside the context."""
        named = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "map"}
        named |= {"gen_ai.conversation.id": session} if session else {}
        with self.tracer.start_as_current_span(
            "invoke_agent map",
            attributes={**named, **self.common},
            record_exception=False,  # its text may contain secrets
            set_status_on_exception=False,
        ):
            yield


class Spans:
    """An event sink that creates the spans for one agent's turns."""

    def __init__(
        self, telemetry: Telemetry, agent: Agent, session: str, parent: str, *, behind: bool
    ) -> None:
        self._all = telemetry
        self._agent = agent
        self._session, self._parent, self._behind = session, parent, behind
        self._turn: Span | None = None
        self._calls: dict[str, Span] = {}
        self._usage = Usage()
        self._since = 0

    def __call__(self, event: Event) -> None:
        """Start, update or end spans for an event."""
        match event:
            case TurnStarted():
                self._begin()
            case UsageReported(usage, model, purpose):
                self._chat(usage, model, purpose)
            case RequestRetried(reason):
                self._chat(Usage(), "", "", failed=reason)
            case ToolStarted(call):
                self._call(call)
            case ToolFinished(call, status):
                if (span := self._calls.pop(call.id, None)) is not None:
                    self._end(span, "" if status == "ok" else status)
            case MessageAdded(message):
                self._record_message(message)
            case TurnEnded(reason, error):
                self._ended(reason, error)
            case ContextCompressed():
                self._since = time.time_ns()
            case _:
                pass

    @property
    def innermost(self) -> Span | None:
        """The current span: that of the most recently started call, or of the turn."""
        return next(reversed(self._calls.values()), self._turn)

    def _begin(self) -> None:
        up = self._all.running.get(self._parent)
        above = up.innermost if up is not None and not self._behind else None
        self._usage, self._since = Usage(), time.time_ns()
        more = {"gen_ai.agent.name": "hermes"}
        if self._session:
            more["gen_ai.conversation.id"] = self._session
            self._all.running[self._session] = self
        self._turn = self._span("invoke_agent", "hermes", above, more)

    def _span(
        self,
        operation: str,
        name: str,
        above: Span | None,
        more: Mapping[str, str | int],
        began: int | None = None,
    ) -> Span:
        trace, beside = self._all.trace, self._behind and above is None
        outward = operation == "chat"
        before = self._all.last.get(self._parent) if beside else None
        around = self._all.nothing if beside else None  # None inherits the caller's context
        return self._all.tracer.start_span(
            f"{operation} {name}",
            context=around if above is None else trace.set_span_in_context(above),
            links=() if before is None else [trace.Link(before)],
            kind=trace.SpanKind.CLIENT if outward else trace.SpanKind.INTERNAL,
            attributes={"gen_ai.operation.name": operation, **self._all.common, **more},
            start_time=began,
        )

    def _chat(self, usage: Usage, answered: str, purpose: str, failed: str = "") -> None:
        """Add a finished request's span."""
        asked = self._agent.model.name
        more: dict[str, str | int] = {"gen_ai.request.model": asked}
        if answered:
            more["gen_ai.response.model"] = answered
            more["gen_ai.usage.input_tokens"] = usage.input
            more["gen_ai.usage.output_tokens"] = usage.output
            more["gen_ai.usage.cache_read.input_tokens"] = usage.cached
        if purpose:
            more["hermes_nb.purpose"] = purpose
        self._usage += usage
        self._end(self._span("chat", asked, self._turn, more, self._since or None), failed)
        self._since = time.time_ns()

    def _call(self, call: ToolCall) -> None:
        more = {"gen_ai.tool.name": call.name, "gen_ai.tool.call.id": call.id}
        more["gen_ai.tool.type"] = "function"
        if self._all.content:
            more["gen_ai.tool.call.arguments"] = redact(canonical_json(call.arguments))
        self._calls[call.id] = self._span("execute_tool", call.name, self._turn, more)

    def _record_message(self, message: Message) -> None:
        self._since = time.time_ns()
        names = {"user": "gen_ai.input.messages", "assistant": "gen_ai.output.messages"}
        name = names.get(message.role)
        if self._turn is None or not self._all.content or name is None or not message.text:
            return
        part = {"type": "text", "content": redact(message.text)}
        self._turn.set_attribute(name, canonical_json([{"role": message.role, "parts": [part]}]))

    def _ended(self, reason: str, error: str) -> None:
        if self._turn is None:
            return
        if reason == "failed":
            self._chat(Usage(), "", "", failed=error)
        for span in self._calls.values():
            self._end(span, reason)
        self._turn.set_attributes(
            {
                "gen_ai.usage.input_tokens": self._usage.input,
                "gen_ai.usage.output_tokens": self._usage.output,
                "hermes_nb.reason": reason,
            }
        )
        self._end(self._turn, error if reason == "failed" else "")
        self._all.running.pop(self._session, None)
        if not self._parent:
            self._all.last[self._session] = self._turn.get_span_context()
        self._calls.clear()
        self._turn = None

    def _end(self, span: Span, failed: str) -> None:
        if failed := redact(failed):
            span.set_attribute("error.type", failed.partition(":")[0][:80])
            status = self._all.trace.Status(self._all.trace.StatusCode.ERROR, failed[:200])
            span.set_status(status)
        span.end()
