"""The agent loop: a prompt goes in, events come out, and the conversation stays valid.

However a turn ends (answered, out of budget, stopped anywhere, failed), the messages it leaves
behind can be sent as they are: every call has one result, and the assistant has the last word.
The steps yield events and change nothing themselves: whoever consumes an event applies it to the
conversation before asking for the next one. The loop knows no Jupyter, no provider and no storage.
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
from hermes_nb.core.tools import Place, ToolContext, Toolset

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
        spoken = with_own_ids(_spoken(reply.message, tool_choice), self.conversation.ids)
        yield MessageAdded(bounded(spoken, self.tools))
        self.conversation.measure(reply)

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


logger = logging.getLogger(__name__)

MAX_REQUESTS = 15
"""Model requests a turn; the closing summary comes on top."""
EMPTY_REPLIES = 2
"""So many empty replies in a row are answered with a nudge; one more fails the turn."""
BUSY = "this session is already taking a turn; wait for it or stop it"
LOST_RESULT = "No result: the process ended while this call was running."
NUDGE = "Your reply was empty. Answer the question, or call a tool."
OUT_OF_BUDGET = (
    "The budget of {limit} is used up, and no more tools can run. "
    "Say in a few sentences what is done, what is still open and how to go on."
)
_BEGINS, _, _ENDS = OUT_OF_BUDGET.partition("{limit}")
NOTHING_LEFT = "(Stopped here: {refusal}. What was done so far is kept.)"
"""What the assistant is made to say where even the request for a summary does not fit."""


def is_prompt(message: Message) -> bool:
    """Say whether a message is the user's own, and not one of the loop's in the user's name."""
    text = message.text
    own = text == NUDGE or (text.startswith(_BEGINS) and text.endswith(_ENDS))
    return message.role == "user" and not own


class Agent:
    """A model, its tools and their conversation.

    `messages` may come from a store: they are mended first. `sinks` see every event before the
    consumer does; one that raises is logged and does no harm. `rebuild(note)` makes the system
    prompt that follows a compression, with the engine's note at its end; without it, the note is
    appended to the present one, once. `model`, `tools`, `sinks` and `effort` (that of a
    `Request`) may be exchanged between turns. `background` are the texts in the system prompt that
    are not ours, for whoever judges calls. `place` is where they come from; without a turn of its
    own it is the agent's.
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
        self.sinks = list(sinks)
        self.max_requests = max_requests
        self.turns = sum(map(is_prompt, messages))
        self._conversation = Conversation(system, mend(messages, note=LOST_RESULT))
        self._budgets: tuple[Budget, ...] = ()
        self._children = OpenChildren()
        self.effort: Effort = ""
        self._running = False
        self._waited = Waited()

    @property
    def messages(self) -> list[Message]:
        """The conversation, without the system prompt, as a list of its own."""
        return self._conversation.messages

    @property
    def system(self) -> str:
        """The system prompt, fixed until a compression or until the user wants another."""
        return self._conversation.system

    @system.setter
    def system(self, text: str) -> None:
        self._conversation.system = text

    @property
    def preface(self) -> Preface:
        """What goes with requests and is no part of the conversation; set between turns."""
        return self._conversation.preface

    @preface.setter
    def preface(self, preface: Preface) -> None:
        self._conversation.preface = preface

    def in_view(self) -> tuple[Message, ...]:
        """Return what the conversation holds, the texts of its prompt that are not ours first."""
        return (Message(role="system", parts=self.background), *self._conversation.messages)

    def prompt_tokens(self) -> int:
        """Return the size of the next prompt: what the provider last counted, plus an estimate."""
        return self._conversation.tokens()

    def request(self) -> Request:
        """Return the request that would be sent now."""
        return self._conversation.request(self.tools)

    def check_idle(self) -> None:
        """Raise `SessionBusy` while a turn or a compression is under way."""
        if self._running:
            raise SessionBusy(BUSY)

    async def compress(
        self, focus: str = "", *, budgets: Iterable[Budget] = ()
    ) -> ContextCompressed | None:
        """Compress the conversation between two turns; None when nothing could be gained.

        What it uses counts against the `budgets`; where they do not bear it, nothing is done. Sinks
        see the events. Raises `SessionBusy` during a turn, `ConfigError` without an engine.
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
        """Put an earlier conversation back between two turns, as the undo of a compression does.

        Sinks see the event. Raises `SessionBusy` during a turn.
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
        """Take one turn and yield its events; the last one is `TurnEnded`.

        What the turn uses counts against the `budgets`, and no request is sent that they forbid.
        A cancelled turn is closed properly, yields what closes it, and then raises CancelledError.
        Raises `SessionBusy` when a turn is already running.
        """
        self.check_idle()
        self._running = True
        self._budgets = tuple(budgets)
        self._waited = Waited()
        self.turns += 1
        user = Message.user(prompt) if isinstance(prompt, str) else prompt
        most = self.max_requests if max_requests is None else max_requests
        progress = Progress()
        error: BaseException | None = None
        left = False
        try:
            opening: tuple[Event, ...] = (TurnStarted(self.turns), MessageAdded(user))
            for event in opening:  # both before a consumer can leave: no prompt is ever lost
                self._publish(event, progress)
            for event in opening:
                yield event
            async with aclosing(self._turn(most, progress)) as events:
                async for event in events:
                    self._publish(event, progress)
                    try:
                        yield event
                    except GeneratorExit:
                        left = True  # even if something else comes up while the turn is closed
                        raise
        except BaseException as caught:
            if left or isinstance(caught, GeneratorExit):  # there is nobody to yield to any more
                self._close(progress, TurnEnded("interrupted"))
                raise
            error = caught  # what is not the turn's own is raised below
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
            # From the second on, room is left for the request that closes the turn.
            ended = refusal(self._budgets, self.prompt_tokens(), requests=min(sent + 1, 2))
            if ended is not None:
                break
            async with aclosing(self._asking().step()) as step:
                async for event in step:
                    yield event
            last = self._conversation.last
            if last.calls:
                empty = 0
                async with aclosing(self._calls(last, progress)) as batch:
                    async for event in batch:
                        yield event
            elif last.text.strip():
                progress.note = self._conversation.cut
                return
            else:
                empty += 1
                if empty > EMPTY_REPLIES:
                    message = f"{self.model.name} gave {empty} empty replies in a row"
                    raise ModelError(message, kind=FailureKind.MALFORMED)
                yield MessageAdded(Message.user(NUDGE))
        async with aclosing(self._out_of_budget(ended, most, progress)) as closing:
            async for event in closing:
                yield event

    async def _out_of_budget(
        self, ended: Refusal | None, most: int, progress: Progress
    ) -> AsyncGenerator[Event, None]:
        """Let the model sum up, or, where that does not fit either, say so in its place."""
        progress.reason, progress.note = "budget", str(ended) if ended else ""
        ended = ended or Refusal(f"{most} requests for this turn", "all of them were made")
        if refusal(self._budgets, self.prompt_tokens()) is not None:
            said = NOTHING_LEFT.format(refusal=ended)
            yield TextDelta(said)
            yield MessageAdded(Message.assistant(said))
            return
        yield MessageAdded(Message.user(OUT_OF_BUDGET.format(limit=ended.limit)))
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
        """Fold the event into the agent's state, then tell the sinks."""
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
        """Publish what makes the conversation valid again and the turn's end; return it."""
        closing = progress.closing(ending.reason, self.messages)
        events = [*self._children.closing(), *closing, ending]
        for event in events:
            self._publish(event, progress)
        return events


class Observer:
    """Watches turns: what an entry of the group `hermes_nb.event_sinks` makes from the settings.

    It sees what happens and changes nothing.
    """

    def sink(
        self, agent: Agent, session: str = "", parent: str = "", *, behind: bool = False
    ) -> EventSink:
        """Return what listens to an agent, whose `session` is "" for the task of a map.

        The `parent` is the session that it works for, or that it looks back on, `behind` its turn.
        """
        raise NotImplementedError

    def mapping(self, session: str) -> AbstractContextManager[None]:  # noqa: ARG002 - a hook
        """Return what is entered while a map of a session runs."""
        return nullcontext()


def sinks_of(
    observers: Iterable[Observer],
    agent: Agent,
    session: str = "",
    parent: str = "",
    *,
    behind: bool = False,
) -> list[EventSink]:
    """Return the sinks of observers for an agent; one that has none to give is logged."""
    found = []
    for each in observers:
        try:
            found.append(each.sink(agent, session, parent, behind=behind))
        except Exception:
            logger.exception("observer %r failed", each)
    return found
