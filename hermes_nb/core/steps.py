"""One request of a turn: compress first if the prompt is long, ask, hand over what comes back.

These yield events and change nothing themselves: whoever consumes an event applies it to the
conversation before asking for the next one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from hermes_nb.core.conversation import Conversation, ToolChoice
from hermes_nb.core.errors import FailureKind, ModelError
from hermes_nb.core.events import (
    ContextCompressed,
    Event,
    MessageAdded,
    RequestRetried,
    UsageReported,
)
from hermes_nb.core.messages import Message, Reply, with_own_ids
from hermes_nb.core.protocols import ChatModel, Compression, ContextEngine, Effort, Waited
from hermes_nb.core.tools import Toolset

COMPRESSING = 2
"""Requests as large as the prompt that a compression takes at most, as a rule: the look at what
goes into memory, and the summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """What a request is made with; `rebuild` is as in `Agent`.

    `affords(n)` says whether the budgets bear n more requests as large as the prompt: where they do
    not bear a compression and the request behind it, the prompt stays as long as it is.
    """

    conversation: Conversation
    model: ChatModel
    tools: Toolset
    engine: ContextEngine | None = None
    rebuild: Callable[[str], str] | None = None
    affords: Callable[[int], bool] = lambda _: True
    waited: Waited = field(default_factory=Waited)
    effort: Effort = ""

    async def step(self, *, tool_choice: ToolChoice = "auto") -> AsyncGenerator[Event, None]:
        """Ask the model once; a prompt that turns out too long is compressed and sent again."""
        engine = self.engine
        if engine is not None and self._due(engine):
            async with aclosing(self.compress(engine)) as compression:
                async for event in compression:
                    yield event
        try:
            async with aclosing(self._ask(tool_choice)) as events:
                async for event in events:
                    yield event
        except ModelError as error:
            if error.kind is not FailureKind.CONTEXT_OVERFLOW or engine is None:
                raise
            if not self.affords(COMPRESSING + 1):
                raise
        else:
            return
        yield RequestRetried("the prompt was too long", 0.0, 1)
        async with aclosing(self.compress(engine)) as compression:
            async for event in compression:
                yield event
        async with aclosing(self._ask(tool_choice)) as events:
            async for event in events:
                yield event

    def _due(self, engine: ContextEngine) -> bool:
        due = engine.should_compress(self.conversation.tokens())
        return due and self.affords(COMPRESSING + 1)

    async def compress(self, engine: ContextEngine, focus: str = "") -> AsyncGenerator[Event, None]:
        """Yield what the engine used and, if it changed anything, the shorter conversation."""
        now = self.conversation
        before, messages = now.tokens(), tuple(now.messages)
        made = await engine.compress(messages, focus)
        if not isinstance(made, Compression):
            made = Compression(messages=tuple(made))
        for used in made.requests:
            yield used
        if made.messages == messages:
            return
        yield ContextCompressed(
            made.messages,
            before,
            now.estimate(made.messages),
            phase=made.phase,
            shortened=made.shortened,
            dropped=made.dropped,
            summary=made.summary,
            warning=made.warning,
            system=self._noted(made.note),
        )

    async def _ask(self, tool_choice: ToolChoice) -> AsyncGenerator[Event, None]:
        """Send one request and yield what comes back, the message last."""
        reply: Reply | None = None
        now = self.conversation.request(self.tools, tool_choice)
        request = replace(now, waited=self.waited, effort=self.effort)
        async with aclosing(self.model.stream(request)) as stream:
            async for item in stream:
                if isinstance(item, Reply):
                    reply = item
                else:
                    yield item
        if reply is None:
            message = f"{self.model.name} ended its stream without a reply"
            raise ModelError(message, kind=FailureKind.MALFORMED)
        if self.engine is not None:
            self.engine.observe(reply.usage)
        yield UsageReported(reply.usage, reply.model or self.model.name)
        taken = {call.id for message in self.conversation.messages for call in message.calls}
        yield MessageAdded(with_own_ids(_spoken(reply.message, tool_choice), taken))
        self.conversation.measure(reply.usage)

    def _noted(self, note: str) -> str:
        """Return the system prompt that follows a compression."""
        if self.rebuild is not None:
            return self.rebuild(note)
        system = self.conversation.system
        return system if note in system else f"{system}\n\n{note}".strip()


def _spoken(message: Message, tool_choice: ToolChoice) -> Message:
    """Return the reply as it joins the conversation.

    A model that calls tools although it must not is not followed; a reply without any text then
    says so itself, since an assistant message may not be empty.
    """
    if tool_choice == "none" and message.calls:
        message = replace(message, calls=())
    if tool_choice == "none" and not message.text.strip():
        return replace(message, parts=Message.assistant("(no summary was given)").parts)
    return message
