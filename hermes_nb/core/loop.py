"""The agent loop: a prompt goes in, events come out, and the conversation stays valid.

However a turn ends (answered, out of budget, stopped anywhere, failed), the messages it leaves
behind can be sent as they are: every call has one result, and the assistant has the last word.
The loop knows no Jupyter, no provider and no storage.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Literal

from hermes_nb.core.calls import run_segment
from hermes_nb.core.errors import (
    ConfigError,
    FailureKind,
    HermesError,
    ModelError,
    SessionBusy,
    TurnInterrupted,
)
from hermes_nb.core.events import (
    ContextCompressed,
    Event,
    MessageAdded,
    RequestRetried,
    TurnEnded,
    TurnStarted,
    UsageReported,
)
from hermes_nb.core.messages import Message, Reply, mend
from hermes_nb.core.progress import Progress
from hermes_nb.core.protocols import ChatModel, Compression, ContextEngine, EventSink, Request
from hermes_nb.core.segments import segments
from hermes_nb.core.text import estimate_tokens, one_line
from hermes_nb.core.tools import Toolset

logger = logging.getLogger(__name__)

MAX_REQUESTS = 15
"""Model requests a turn; the closing summary comes on top."""
EMPTY_REPLIES = 2
"""So many empty replies in a row are answered with a nudge; one more fails the turn."""
LOST_RESULT = "No result: the process ended while this call was running."
NUDGE = "Your reply was empty. Answer the question, or call a tool."
OUT_OF_BUDGET = (
    "The budget of {budget} requests for this turn is used up, and no more tools can run. "
    "Say in a few sentences what is done, what is still open and how to go on."
)


class Agent:
    """A model, its tools and their conversation.

    `messages` may come from a store: they are mended first. `sinks` see every event before the
    consumer does; one that raises is logged and does no harm. `rebuild(note)` makes the system
    prompt that follows a compression, with the engine's note at its end; without it, the note is
    appended to the present one, once. `model`, `tools` and `sinks` may be exchanged between turns.
    """

    def __init__(
        self,
        model: ChatModel,
        tools: Toolset | None = None,
        *,
        system: str = "",
        messages: Sequence[Message] = (),
        engine: ContextEngine | None = None,
        rebuild: Callable[[str], str] | None = None,
        sinks: Iterable[EventSink] = (),
        max_requests: int = MAX_REQUESTS,
    ) -> None:
        self.model = model
        self.tools = tools if tools is not None else Toolset()
        self.engine = engine
        self.rebuild = rebuild
        self.sinks = list(sinks)
        self.max_requests = max_requests
        self.turns = sum(message.role == "user" for message in messages)
        self._system = Message.system(system) if system else None
        self._messages = mend(messages, note=LOST_RESULT)
        self._measured = (0, 0)  # so many messages made a prompt of so many tokens
        self._running = False

    @property
    def messages(self) -> list[Message]:
        """The conversation, without the system prompt, as a list of its own."""
        return list(self._messages)

    @property
    def system(self) -> str:
        """The system prompt, fixed until a compression or until the user wants another."""
        return self._system.text if self._system else ""

    @system.setter
    def system(self, text: str) -> None:
        self._system = Message.system(text) if text else None
        self._measured = (0, 0)

    def prompt_tokens(self) -> int:
        """Return the size of the next prompt: what the provider last counted, plus an estimate."""
        count, tokens = self._measured
        head = [self._system] if self._system and not count else []
        return tokens + estimate_tokens([*head, *self._messages[count:]])

    def request(self) -> Request:
        """Return the request that would be sent now."""
        return self._request("auto")

    async def compress(self, focus: str = "") -> ContextCompressed | None:
        """Compress the conversation between two turns; None when nothing could be gained.

        Sinks see the events. Raises `SessionBusy` during a turn, `ConfigError` without an engine.
        """
        if self.engine is None:
            message = "there is no context engine; set context.engine to 'compressor'"
            raise ConfigError(message)
        self._check_idle()
        self._running = True
        try:
            events = [event async for event in self._compress(self.engine, focus)]
        finally:
            self._running = False
        for event in events:
            self._publish(event, Progress())
        return next((event for event in events if isinstance(event, ContextCompressed)), None)

    def restore(self, messages: Sequence[Message]) -> ContextCompressed:
        """Put an earlier conversation back between two turns, as the undo of a compression does.

        Sinks see the event. Raises `SessionBusy` during a turn.
        """
        self._check_idle()
        before = self.prompt_tokens()
        restored = tuple(mend(messages, note=LOST_RESULT))
        event = ContextCompressed(restored, before, self._estimate(restored), phase="restored")
        self._publish(event, Progress())
        return event

    async def run(
        self, prompt: str | Message, *, max_requests: int | None = None
    ) -> AsyncGenerator[Event, None]:
        """Take one turn and yield its events; the last one is `TurnEnded`.

        A cancelled turn is closed properly, yields what closes it, and then raises CancelledError.
        Raises `SessionBusy` when a turn is already running.
        """
        self._check_idle()
        self._running = True
        self.turns += 1
        user = Message.user(prompt) if isinstance(prompt, str) else prompt
        budget = self.max_requests if max_requests is None else max_requests
        progress = Progress()
        error: BaseException | None = None
        try:
            opening: tuple[Event, ...] = (TurnStarted(self.turns), MessageAdded(user))
            for event in opening:  # both before a consumer can leave: no prompt is ever lost
                self._publish(event, progress)
            for event in opening:
                yield event
            async with aclosing(self._turn(budget, progress)) as events:
                async for event in events:
                    self._publish(event, progress)
                    yield event
        except GeneratorExit:
            self._close(progress, TurnEnded("interrupted"))
            raise
        except BaseException as caught:  # noqa: BLE001 - what is not the turn's own is raised below
            error = caught
        finally:
            self._running = False
        for event in self._close(progress, _ending(error, progress)):
            yield event
        if error is not None and not isinstance(error, Exception):
            raise error

    def _check_idle(self) -> None:
        if self._running:
            message = "this session is already taking a turn; wait for it or stop it"
            raise SessionBusy(message)

    async def _turn(self, budget: int, progress: Progress) -> AsyncGenerator[Event, None]:
        empty = 0
        for _ in range(budget):
            async with aclosing(self._step()) as step:
                async for event in step:
                    yield event
            last = self._messages[-1]
            if last.calls:
                empty = 0
                async with aclosing(self._calls(last, progress)) as batch:
                    async for event in batch:
                        yield event
            elif last.text.strip():
                return
            else:
                empty += 1
                if empty > EMPTY_REPLIES:
                    message = f"{self.model.name} gave {empty} empty replies in a row"
                    raise ModelError(message, kind=FailureKind.MALFORMED)
                yield MessageAdded(Message.user(NUDGE))
        progress.reason = "budget"
        yield MessageAdded(Message.user(OUT_OF_BUDGET.format(budget=budget)))
        async with aclosing(self._step(tool_choice="none")) as step:
            async for event in step:
                yield event

    async def _calls(self, message: Message, progress: Progress) -> AsyncGenerator[Event, None]:
        for segment in segments(message.calls, self.tools):
            running = run_segment(segment, self.tools, turn=self.turns, settle=progress.settle)
            async with aclosing(running) as events:
                async for event in events:
                    yield event

    async def _step(
        self, *, tool_choice: Literal["auto", "none"] = "auto"
    ) -> AsyncGenerator[Event, None]:
        """Ask the model once; a prompt that turns out too long is compressed and sent again."""
        if self.engine is not None and self.engine.should_compress(self.prompt_tokens()):
            async with aclosing(self._compress(self.engine)) as compression:
                async for event in compression:
                    yield event
        try:
            async with aclosing(self._ask(tool_choice)) as events:
                async for event in events:
                    yield event
        except ModelError as error:
            if error.kind is not FailureKind.CONTEXT_OVERFLOW or self.engine is None:
                raise
        else:
            return
        yield RequestRetried("the prompt was too long", 0.0, 1)
        async with aclosing(self._compress(self.engine)) as compression:
            async for event in compression:
                yield event
        async with aclosing(self._ask(tool_choice)) as events:
            async for event in events:
                yield event

    async def _ask(self, tool_choice: Literal["auto", "none"]) -> AsyncGenerator[Event, None]:
        """Send one request and yield what comes back, the message last."""
        reply: Reply | None = None
        async with aclosing(self.model.stream(self._request(tool_choice))) as stream:
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
        yield MessageAdded(_spoken(reply.message, tool_choice))
        if reply.usage.input:
            self._measured = len(self._messages), reply.usage.input + reply.usage.output

    def _request(self, tool_choice: Literal["auto", "none"]) -> Request:
        head = (self._system,) if self._system else ()
        return Request(messages=(*head, *self._messages), tools=self.tools, tool_choice=tool_choice)

    async def _compress(
        self, engine: ContextEngine, focus: str = ""
    ) -> AsyncGenerator[Event, None]:
        """Yield what the engine used and, if it changed anything, the shorter conversation."""
        before = self.prompt_tokens()
        made = await engine.compress(tuple(self._messages), focus)
        if not isinstance(made, Compression):
            made = Compression(messages=tuple(made))
        for used in made.requests:
            yield used
        if made.messages == tuple(self._messages):
            return
        yield ContextCompressed(
            made.messages,
            before,
            self._estimate(made.messages),
            phase=made.phase,
            shortened=made.shortened,
            dropped=made.dropped,
            summary=made.summary,
            warning=made.warning,
            system=self._noted(made.note),
        )

    def _noted(self, note: str) -> str:
        """Return the system prompt that follows a compression."""
        if self.rebuild is not None:
            return self.rebuild(note)
        return self.system if note in self.system else f"{self.system}\n\n{note}".strip()

    def _estimate(self, messages: Sequence[Message]) -> int:
        return estimate_tokens([*([self._system] if self._system else []), *messages])

    def _publish(self, event: Event, progress: Progress) -> None:
        """Fold the event into the agent's state, then tell the sinks."""
        if isinstance(event, MessageAdded):
            self._messages.append(event.message)
        elif isinstance(event, ContextCompressed):
            self._messages = list(event.messages)
            self._measured = (0, 0)
            if event.system and event.system != self.system:
                self._system = Message.system(event.system)
        progress.observe(event)
        for sink in self.sinks:
            try:
                sink(event)
            except Exception:
                logger.exception("event sink %r failed", sink)

    def _close(self, progress: Progress, ending: TurnEnded) -> list[Event]:
        """Publish what makes the conversation valid again and the turn's end; return it."""
        events = [*progress.closing(ending.reason, self._messages), ending]
        for event in events:
            self._publish(event, progress)
        return events


def _ending(error: BaseException | None, progress: Progress) -> TurnEnded:
    """Return how a turn ends that was left with `error`."""
    if error is None:
        return TurnEnded(progress.reason)
    if isinstance(error, TurnInterrupted) or not isinstance(error, Exception):
        return TurnEnded("interrupted")
    if isinstance(error, HermesError):
        return TurnEnded("failed", one_line(str(error), 500))
    logger.error("the turn broke", exc_info=error)
    return TurnEnded("failed", one_line(f"{type(error).__name__}: {error}", 500))


def _spoken(message: Message, tool_choice: Literal["auto", "none"]) -> Message:
    """Return the reply as it joins the conversation.

    A model that calls tools although it must not is not followed; a reply without any text then
    says so itself, since an assistant message may not be empty.
    """
    if tool_choice == "none" and message.calls:
        message = replace(message, calls=())
    if tool_choice == "none" and not message.text.strip():
        return replace(message, parts=Message.assistant("(no summary was given)").parts)
    return message
