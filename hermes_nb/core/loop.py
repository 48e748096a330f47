"""The agent loop: it turns a prompt into events and keeps the conversation valid.

No matter how a turn ends (answered, out of budget, stopped, failed), its messages form a valid
request: every call has exactly one result, and the last message is the assistant's. Steps only
yield events; the consumer of an event applies it to the conversation before requesting the next
one. The loop depends on neither Jupyter, nor a provider, nor storage.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

from hermes_nb.core.budget import Budget, Refusal, refusal
from hermes_nb.core.calls import bounded, run_segment
from hermes_nb.core.conversation import Conversation, Preface, ToolChoice
from hermes_nb.core.errors import ConfigError, FailureKind, ModelError, SessionBusy
from hermes_nb.core.events import (
    ContextCompressed,
    Event,
    MessageAdded,
    RequestRetried,
    TextDelta,
    TurnEnded,
    TurnStarted,
    UsageReported,
)
from hermes_nb.core.messages import Message, Reply, Text, mend, with_own_ids
from hermes_nb.core.progress import OpenChildren, Progress
from hermes_nb.core.protocols import (
    ChatModel,
    Compression,
    ContextEngine,
    Effort,
    EventSink,
    Request,
    Waited,
)
from hermes_nb.core.segments import segments
from hermes_nb.core.steering import Steering, added_by, steered
from hermes_nb.core.tools import Place, ToolContext, Toolset

COMPRESSING = 2
"""Maximum full-size requests made by a compression: to save memories, and for the summary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """The model, tools and limits of a request."""

    conversation: Conversation
    """The conversation to continue."""
    model: ChatModel
    """The model to ask."""
    tools: Toolset
    """Tools that the model may call."""
    engine: ContextEngine | None = None
    """Compresses long prompts; None to send them in full."""
    rebuild: Callable[[str], str] | None = None
    """As in `Agent`."""
    affords: Callable[[int], bool] = lambda _: True
    """Returns whether the budgets allow n more full-size requests. The prompt is compressed only if
    they allow both the compression and the request after it."""
    waited: Waited = field(default_factory=Waited)
    """Time that this turn has spent waiting for providers."""
    effort: Effort = ""
    """Reasoning effort, as in `Request`."""

    async def step(self, *, tool_choice: ToolChoice = "auto") -> AsyncGenerator[Event, None]:
        """Ask the model once; if its provider finds the prompt too long, compress and resend it."""
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
        """Compress the conversation; yield the engine's usage and then any change."""
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
        """Send one request and yield its events, ending with the message."""
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
        spoken = with_own_ids(_final_form(reply.message, tool_choice), self.conversation.ids)
        yield MessageAdded(bounded(spoken, self.tools))
        self.conversation.measure(reply)

    def _noted(self, note: str) -> str:
        """Return the system prompt to use after a compression, with the engine's `note`."""
        if self.rebuild is not None:
            return self.rebuild(note)
        system = self.conversation.system
        return system if note in system else f"{system}\n\n{note}".strip()


def _final_form(message: Message, tool_choice: ToolChoice) -> Message:
    """Return the reply in the form in which it is added to the conversation.

    Forbidden tool calls are dropped. If no text is left, a placeholder replaces it, because an
    assistant message must not be empty.
    """
    if tool_choice == "none" and message.calls:
        message = replace(message, calls=())
    if tool_choice == "none" and not message.text.strip():
        return replace(message, parts=Message.assistant("(no summary was given)").parts)
    return message


logger = logging.getLogger(__name__)

MAX_REQUESTS = 15
"""Maximum model requests in a turn; the final summary is an extra request."""
EMPTY_REPLIES = 2
"""Number of consecutive empty replies answered with a nudge; one more fails the turn."""
BUSY = "this session is already running a turn; wait for it or stop it"
LOST_RESULT = "No result: the process ended while this call was running."
NUDGE = "Your reply was empty. Answer the question, or call a tool."
OUT_OF_BUDGET = (
    "The budget of {limit} is used up, and no more tools can run. "
    "Say in a few sentences what is done, what is still open and how to continue."
)
_BEGINS, _, _ENDS = OUT_OF_BUDGET.partition("{limit}")
NOTHING_LEFT = "(Stopped here: {refusal}. What was done so far is kept.)"
"""Text for the assistant message when the budget doesn't allow the request for a summary."""


def is_prompt(message: Message) -> bool:
    """Return whether a user message starts a turn.

    Others are generated by the loop, or were added by the user while the turn was running.
    """
    text = message.text
    if added_by(message) is not None:
        return False
    own = text == NUDGE or (text.startswith(_BEGINS) and text.endswith(_ENDS))
    return message.role == "user" and not own


class Agent:
    """A model, its tools and their conversation.

    `model`, `tools`, `sinks`, `effort` and `steering` may be replaced between turns. Texts in
    `steering` reach the model with its next request; if some are left after an answer, the turn
    continues. `background` contains the
    texts in the system prompt that don't come from this package, such as the user's memory and
    project files; the guard scans them. `place` is the session and notebook to which the agent's
    tool calls belong. If `place.turn` is 0, the agent's turn number is used.

    Args:
        model: The model to ask.
        tools: Tools that the model may call.
        system: The system prompt.
        messages: The conversation so far; it is repaired if it is invalid.
        engine: Compresses long prompts.
        rebuild: Returns the system prompt to use after a compression, ending with the engine's
            note. By default, the note is appended to the current prompt, once.
        sinks: Functions that receive every event before the consumer. Their errors are only logged.
        max_requests: Maximum model requests in a turn.
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
        self.background: tuple[Text, ...] = ()
        self.place = Place()
        self.sees_images = False
        self.sinks = list(sinks)
        self.max_requests = max_requests
        self.turns = sum(map(is_prompt, messages))
        self._conversation = Conversation(system, mend(messages, note=LOST_RESULT))
        self._budgets: tuple[Budget, ...] = ()
        self._children = OpenChildren()
        self.effort: Effort = ""
        self.steering = Steering()
        self._running = False
        self._waited = Waited()

    @property
    def messages(self) -> list[Message]:
        """A copy of the conversation, without the system prompt."""
        return self._conversation.messages

    @property
    def system(self) -> str:
        """The system prompt; it changes only through a compression or an explicit assignment."""
        return self._conversation.system

    @system.setter
    def system(self, text: str) -> None:
        self._conversation.system = text

    @property
    def preface(self) -> Preface:
        """Text and messages that are sent with requests but aren't part of the conversation."""
        return self._conversation.preface

    @preface.setter
    def preface(self, preface: Preface) -> None:
        self._conversation.preface = preface

    def in_view(self) -> tuple[Message, ...]:
        """Return the conversation, preceded by the background texts as a system message."""
        return (Message(role="system", parts=self.background), *self._conversation.messages)

    def prompt_tokens(self) -> int:
        """Return the size of the next prompt: the last reported size plus an estimate."""
        return self._conversation.tokens()

    def request(self) -> Request:
        """Return the next request."""
        return self._conversation.request(self.tools)

    def check_idle(self) -> None:
        """Raise `SessionBusy` during a turn or a compression."""
        if self._running:
            raise SessionBusy(BUSY)

    async def compress(
        self, focus: str = "", *, budgets: Iterable[Budget] = ()
    ) -> ContextCompressed | None:
        """Compress the conversation between two turns; return None if nothing changed.

        Its usage counts against the `budgets`; if they don't allow it, nothing happens. Sinks
        receive the events.

        Raises:
            SessionBusy: A turn is running.
            ConfigError: There is no context engine.
        """
        if self.engine is None:
            raise ConfigError("there is no context engine; set context.engine to 'compressor'")
        self.check_idle()
        self._budgets = tuple(budgets)
        if not self._affords(COMPRESSING):
            return None
        self._running = True
        try:
            events = [event async for event in self._asking().compress(self.engine, focus)]
        finally:
            self._running = False
        for event in events:
            self._publish(event, Progress())
        return next((event for event in events if isinstance(event, ContextCompressed)), None)

    def restore(self, messages: Sequence[Message], *, phase: str = "restored") -> ContextCompressed:
        """Replace the conversation with an earlier one between two turns, to undo a compression.

        Sinks receive the event. Raises `SessionBusy` during a turn.
        """
        self.check_idle()
        before = self.prompt_tokens()
        restored = tuple(mend(messages, note=LOST_RESULT))
        after = self._conversation.estimate(restored)
        event = ContextCompressed(restored, before, after, phase=phase)
        self._publish(event, Progress())
        return event

    async def run(
        self,
        prompt: str | Message,
        *,
        max_requests: int | None = None,
        budgets: Iterable[Budget] = (),
    ) -> AsyncGenerator[Event, None]:
        """Run one turn and yield its events, ending with `TurnEnded`.

        Its usage counts against the `budgets`, which can also refuse requests. A cancelled turn
        yields its closing events and then raises CancelledError. Raises `SessionBusy` if a turn is
        already running.
        """
        self.check_idle()
        self._running = True
        self._budgets = tuple(budgets)
        self._waited = Waited()  # the limit on waiting for a provider applies to each turn
        self.turns += 1
        user = Message.user(prompt) if isinstance(prompt, str) else prompt
        most = self.max_requests if max_requests is None else max_requests
        progress = Progress()
        error: BaseException | None = None
        left = False
        try:
            opening: tuple[Event, ...] = (TurnStarted(self.turns), MessageAdded(user))
            for event in opening:  # both before the first yield: the prompt is never lost
                self._publish(event, progress)
            for event in opening:
                yield event
            async with aclosing(self._turn(most, progress)) as events:
                async for event in events:
                    # Update the state and the sinks first: the consumer may stop at any event.
                    self._publish(event, progress)
                    try:
                        yield event
                    except GeneratorExit:
                        left = True  # remember it, in case closing the turn raises another error
                        raise
        except BaseException as caught:
            if left or isinstance(caught, GeneratorExit):  # the consumer has stopped: don't yield
                self._close(progress, TurnEnded("interrupted"))
                raise
            error = caught  # reported by TurnEnded; a BaseException is also re-raised below
        finally:
            self._running = False
        for event in self._close(progress, progress.ending(error)):
            yield event
        if error is not None and not isinstance(error, Exception):
            raise error

    async def _turn(self, most: int, progress: Progress) -> AsyncGenerator[Event, None]:
        empty = 0
        ended: Refusal | None = None
        for sent in range(most):
            if texts := self.steering.take():
                yield MessageAdded(steered(texts))
            # From the second request on, keep enough budget for the final summary.
            ended = refusal(self._budgets, self.prompt_tokens(), requests=min(sent + 1, 2))
            if ended is not None:
                break
            async with aclosing(self._asking().step()) as step:
                async for event in step:
                    yield event
            # The published events have added the reply to the conversation.
            last = self._conversation.last
            if last.calls:
                empty = 0
                async with aclosing(self._calls(last, progress)) as batch:
                    async for event in batch:
                        yield event
            elif last.text.strip():
                if sent + 1 < most and not self.steering.finished():
                    continue
                progress.note = self._conversation.cut
                return
            else:
                empty += 1
                if empty > EMPTY_REPLIES:
                    message = f"{self.model.name} returned {empty} empty replies in a row"
                    raise ModelError(message, kind=FailureKind.MALFORMED)
                yield MessageAdded(Message.user(NUDGE))
        async with aclosing(self._out_of_budget(ended, most, progress)) as closing:
            async for event in closing:
                yield event

    async def _out_of_budget(
        self, ended: Refusal | None, most: int, progress: Progress
    ) -> AsyncGenerator[Event, None]:
        """Let the model write a summary; if the budget doesn't allow that, use a fixed text."""
        progress.reason, progress.note = "budget", str(ended) if ended else ""
        ended = ended or Refusal(f"{most} requests for this turn", "all of them have been used")
        if refusal(self._budgets, self.prompt_tokens()) is not None:
            text = NOTHING_LEFT.format(refusal=ended)
            yield TextDelta(text)
            yield MessageAdded(Message.assistant(text))
            return
        yield MessageAdded(Message.user(OUT_OF_BUDGET.format(limit=ended.limit)))
        # The tools are still sent: without their schemas, the prompt cache would not match.
        async with aclosing(self._asking().step(tool_choice="none")) as step:
            async for event in step:
                yield event

    async def _calls(self, message: Message, progress: Progress) -> AsyncGenerator[Event, None]:
        for segment in segments(message.calls, self.tools):
            context = partial(
                ToolContext,
                turn=self.turns,
                place=self.place if self.place.turn else replace(self.place, turn=self.turns),
                messages=self.in_view(),
                tools=tuple(self.tools),
                budgets=self._budgets,
                sees_images=self.sees_images,
            )
            running = run_segment(segment, self.tools, context=context, settle=progress.settle)
            async with aclosing(running) as events:
                async for event in events:
                    yield event

    def _asking(self) -> Asking:
        return Asking(
            conversation=self._conversation,
            model=self.model,
            tools=self.tools,
            engine=self.engine,
            rebuild=self.rebuild,
            affords=self._affords,
            waited=self._waited,
            effort=self.effort,
        )

    def _affords(self, requests: int) -> bool:
        return refusal(self._budgets, self.prompt_tokens(), requests=requests) is None

    def _publish(self, event: Event, progress: Progress) -> None:
        """Apply the event to the agent's state, then pass it to the sinks."""
        self._conversation.take(event)
        if isinstance(event, UsageReported):
            for budget in self._budgets:
                budget.spend(event.usage)
        progress.observe(event)
        self._children.observe(event)
        for sink in self.sinks:
            try:
                sink(event)
            except Exception:
                logger.exception("event sink %r failed", sink)

    def _close(self, progress: Progress, ending: TurnEnded) -> list[Event]:
        """Publish and return the events that make the conversation valid and end the turn."""
        closing = progress.closing(ending.reason, self.messages)
        events = [*self._children.closing(), *closing, ending]
        for event in events:
            self._publish(event, progress)
        return events


class Observer:
    """Base class for entry points of the group `hermes_nb.event_sinks`, which observe turns.

    An entry point creates an observer from the settings. Observers must not change anything.
    """

    def sink(
        self, agent: Agent, session: str = "", parent: str = "", *, behind: bool = False
    ) -> EventSink:
        """Return a sink for an agent's events.

        Args:
            agent: The agent to observe.
            session: Its session id; "" for a task of a fan-out.
            parent: The session that the agent works for, or that it reviews.
            behind: Whether it runs in the background, after the parent's turn.
        """
        raise NotImplementedError

    def mapping(self, session: str) -> AbstractContextManager[None]:  # noqa: ARG002 - a hook
        """Return a context manager that is active during a fan-out of a session."""
        return nullcontext()


def sinks_of(
    observers: Iterable[Observer],
    agent: Agent,
    session: str = "",
    parent: str = "",
    *,
    behind: bool = False,
) -> list[EventSink]:
    """Return all observers' sinks for an agent; an observer's errors are logged."""
    found = []
    for each in observers:
        try:
            found.append(each.sink(agent, session, parent, behind=behind))
        except Exception:
            logger.exception("observer %r failed", each)
    return found
