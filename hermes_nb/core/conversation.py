"""Folds over the events of a turn: what was said, how big it is, what is open, which children run.

`Conversation.take` applies the events that change it, and nothing else does but a new system
prompt. `Progress` says which events must still follow so that the conversation is valid when the
turn ends here, and how it then has ended; `OpenChildren` says how children end with it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from hermes_nb.core.errors import HermesError, TurnInterrupted
from hermes_nb.core.events import (
    ChildFinished,
    ChildProgress,
    ChildStarted,
    ContextCompressed,
    EndReason,
    Event,
    MessageAdded,
    ReasoningDelta,
    RequestRetried,
    TextDelta,
    ToolFinished,
    ToolStarted,
    ToolStatus,
    TurnEnded,
)
from hermes_nb.core.messages import Message, Reply, ToolCall, Usage
from hermes_nb.core.protocols import Request
from hermes_nb.core.text import estimate_tokens, one_line
from hermes_nb.core.tools import Toolset

ToolChoice = Literal["auto", "none"]
CUT = {
    "length": "the model reached its limit for one answer",
    "filtered": "the provider withheld the rest of the answer",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Preface:
    """What goes with requests and is no part of a conversation: it is nowhere stored.

    `system` stands behind the system prompt, the `prefill` messages before the first one.
    """

    system: str = ""
    prefill: tuple[Message, ...] = ()

    def __add__(self, other: Preface) -> Preface:
        """Return both, this one first."""
        system = "\n\n".join(filter(None, (self.system, other.system)))
        return Preface(system=system, prefill=(*self.prefill, *other.prefill))

    def head(self, system: str) -> tuple[Message, ...]:
        """Return what a request begins with."""
        text = "\n\n".join(filter(None, (system, self.system)))
        return (*((Message.system(text),) if text else ()), *self.prefill)


class Conversation:
    """The system prompt and the messages behind it; `ids` are those of their calls."""

    def __init__(self, system: str, messages: Sequence[Message]) -> None:
        self._system = system
        self._preface = Preface()
        self._head = self._preface.head(system)
        self._messages = list(messages)
        self.ids = _ids(messages)
        self._measured = (0, 0)  # so many messages made a prompt of so many tokens
        self.cut = ""  # why the end of the last answer is missing

    @property
    def messages(self) -> list[Message]:
        """The messages without the system prompt, as a list of its own."""
        return list(self._messages)

    @property
    def last(self) -> Message:
        """The last message."""
        return self._messages[-1]

    @property
    def system(self) -> str:
        """The system prompt, "" for none."""
        return self._system

    @system.setter
    def system(self, text: str) -> None:
        self._begin(text, self._preface)

    @property
    def preface(self) -> Preface:
        """What goes with the next requests."""
        return self._preface

    @preface.setter
    def preface(self, preface: Preface) -> None:
        if preface != self._preface:  # else the head stays the same objects, and bytes
            self._begin(self._system, preface)

    def _begin(self, system: str, preface: Preface) -> None:
        self._system, self._preface = system, preface
        self._head = preface.head(system)
        self._measured = (0, 0)

    def take(self, event: Event) -> None:
        """Apply what an event changes."""
        if isinstance(event, MessageAdded):
            self._messages.append(event.message)
            self.ids |= _ids([event.message])
        elif isinstance(event, ContextCompressed):
            self._messages = list(event.messages)
            self.ids = _ids(event.messages)
            self._measured = (0, 0)
            if event.system and event.system != self.system:
                self._begin(event.system, self._preface)

    def measure(self, reply: Reply) -> None:
        """Note how the answer that has just been taken ended, and what the provider counted."""
        self.cut = CUT.get(reply.finish, "")
        if reply.usage.input:
            self._measured = len(self._messages), reply.usage.input + reply.usage.output

    def tokens(self) -> int:
        """Return the size of the next prompt: what the provider last counted, plus an estimate."""
        count, tokens = self._measured
        head = () if count else self._head
        return tokens + estimate_tokens([*head, *self._messages[count:]])

    def estimate(self, messages: Sequence[Message]) -> int:
        """Return the estimated size of the prompt that other messages would make."""
        return estimate_tokens([*self._head, *messages])

    def request(self, tools: Toolset, tool_choice: ToolChoice = "auto") -> Request:
        """Return the request that the conversation makes now."""
        messages = (*self._head, *self._messages)
        return Request(messages=messages, tools=tools, tool_choice=tool_choice)


def _ids(messages: Iterable[Message]) -> set[str]:
    return {call.id for message in messages for call in message.calls}


logger = logging.getLogger(__name__)

ERROR_CHARACTERS = 500
"""Of the line that says why a turn failed."""
NOT_RUN = {
    "interrupted": "Not run: the user stopped the turn first.",
    "failed": "Not run: the turn failed first.",
}
CUT_SHORT = {
    "interrupted": "Stopped by the user before it finished; it may have had effects.",
    "failed": "Cut short: the turn failed; it may have had effects.",
}


class Progress:
    """What a running turn has said and started so far."""

    def __init__(self) -> None:
        self.reason: EndReason = "answered"
        self.note = ""
        self._draft: list[str] = []
        self._open: dict[str, ToolCall] = {}
        self._started: dict[str, float] = {}
        self._finished: set[str] = set()
        self._results: dict[str, Message] = {}

    def settle(self, call: ToolCall, result: Message) -> None:
        """Remember a result that exists but has not been announced yet."""
        self._results[call.id] = result

    def observe(self, event: Event) -> None:
        """Take note of an event."""
        match event:
            case TextDelta(text):
                self._draft.append(text)
            case RequestRetried() | ReasoningDelta(was_text=True):
                self._draft.clear()
            case MessageAdded(message) if message.role == "tool":
                self._open.pop(message.call_id, None)
            case MessageAdded(message):
                self._draft.clear()
                self._open = {call.id: call for call in message.calls}
                self._started.clear()
                self._finished.clear()
                self._results.clear()
            case ToolStarted(call):
                self._started[call.id] = time.monotonic()
            case ToolFinished(call):
                self._finished.add(call.id)
            case _:
                pass

    def closing(self, reason: EndReason, messages: Sequence[Message]) -> list[Event]:
        """Return the events that close what is open, given the conversation so far."""
        events: list[Event] = []
        for call in self._open.values():
            events += self._close_call(call, reason)
        draft = "".join(self._draft)
        dangling = bool(events) or (bool(messages) and messages[-1].role in ("user", "tool"))
        if draft or dangling:
            events.append(MessageAdded(Message.assistant(draft, interrupted=True)))
        return events

    def ending(self, error: BaseException | None) -> TurnEnded:
        """Return how a turn ends that was left with `error`, or came to its end."""
        if error is None:
            return TurnEnded(self.reason, note=self.note)
        if isinstance(error, TurnInterrupted) or not isinstance(error, Exception):
            return TurnEnded("interrupted")
        if isinstance(error, HermesError):
            return TurnEnded("failed", one_line(str(error), ERROR_CHARACTERS))
        logger.error("the turn broke", exc_info=error)
        return TurnEnded("failed", one_line(f"{type(error).__name__}: {error}", ERROR_CHARACTERS))

    def _close_call(self, call: ToolCall, reason: EndReason) -> list[Event]:
        """Return a call's missing events: it may have its result, be running, or not have begun."""
        result = self._results.get(call.id)
        started = self._started.get(call.id)
        events: list[Event] = [] if started is not None else [ToolStarted(call)]
        if call.id not in self._finished:
            seconds = 0.0 if started is None else time.monotonic() - started
            if result is not None:
                events.append(ToolFinished(call, "error" if result.failed else "ok", seconds))
            else:
                status: ToolStatus = "skipped" if started is None else "interrupted"
                events.append(ToolFinished(call, status, seconds))
        texts = NOT_RUN if started is None else CUT_SHORT
        text = texts.get(reason, texts["failed"])
        events.append(MessageAdded(result or Message.tool(call, text, failed=True)))
        return events


Child = tuple[str, int]
"""A child's call and its number there."""


class OpenChildren:
    """Children of calls that have started and not finished, and what each has used so far."""

    def __init__(self) -> None:
        self._open: dict[Child, tuple[float, Usage]] = {}

    def observe(self, event: Event) -> None:
        """Take note of an event."""
        match event:
            case ChildStarted(call_id, number):
                self._open[call_id, number] = time.monotonic(), Usage()
            case ChildProgress(call_id, number, _, usage) if (call_id, number) in self._open:
                self._open[call_id, number] = self._open[call_id, number][0], usage
            case ChildFinished(call_id, number):
                self._open.pop((call_id, number), None)
            case _:
                pass

    def closing(self) -> list[ChildFinished]:
        """Return the events that end the children that are still open."""
        now = time.monotonic()
        return [
            ChildFinished(call_id, number, "stopped", now - started, usage)
            for (call_id, number), (started, usage) in self._open.items()
        ]
