"""Track a turn's open calls and children by observing its events.

If a turn stops early, `Progress` returns the events that make the conversation valid again and the
`TurnEnded` event. `OpenChildren` returns the events that end its child agents.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from hermes_nb.core.errors import HermesError, ModelError, TurnInterrupted
from hermes_nb.core.events import (
    ChildFinished,
    ChildProgress,
    ChildStarted,
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
from hermes_nb.core.messages import Message, ToolCall, Usage
from hermes_nb.core.text import one_line

logger = logging.getLogger(__name__)

ERROR_CHARACTERS = 500
"""Maximum length of a failed turn's error line."""
NOT_RUN = {
    "interrupted": "Not run: the user stopped the turn first.",
    "failed": "Not run: the turn failed first.",
}
CUT_SHORT = {
    "interrupted": "Stopped by the user before it finished; it may have had effects.",
    "failed": "Cut short: the turn failed; it may have had effects.",
}


class Progress:
    """The text written and the calls started so far in the running turn."""

    def __init__(self) -> None:
        self.reason: EndReason = "answered"
        self.note = ""
        self._draft: list[str] = []
        self._open: dict[str, ToolCall] = {}
        self._started: dict[str, float] = {}
        self._finished: set[str] = set()
        self._results: dict[str, Message] = {}

    def settle(self, call: ToolCall, result: Message) -> None:
        """Store the result of a call before its `ToolFinished` is announced."""
        self._results[call.id] = result

    def observe(self, event: Event) -> None:
        """Update the state from an event."""
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
        """Return the events that close open calls and an unfinished answer.

        Args:
            reason: How the turn ends.
            messages: The conversation so far.
        """
        events: list[Event] = []
        for call in self._open.values():
            events += self._close_call(call, reason)
        draft = "".join(self._draft)
        dangling = bool(events) or (bool(messages) and messages[-1].role in ("user", "tool"))
        if draft or dangling:
            events.append(MessageAdded(Message.assistant(draft, interrupted=True)))
        return events

    def ending(self, error: BaseException | None) -> TurnEnded:
        """Return the `TurnEnded` event for a turn that raised `error` (None: it ended normally)."""
        if error is None:
            return TurnEnded(self.reason, note=self.note)
        if isinstance(error, TurnInterrupted) or not isinstance(error, Exception):
            return TurnEnded("interrupted")
        if isinstance(error, HermesError):
            failure = error.kind.value if isinstance(error, ModelError) else ""
            return TurnEnded("failed", one_line(str(error), ERROR_CHARACTERS), failure=failure)
        logger.error("the turn failed", exc_info=error)
        return TurnEnded("failed", one_line(f"{type(error).__name__}: {error}", ERROR_CHARACTERS))

    def _close_call(self, call: ToolCall, reason: EndReason) -> list[Event]:
        """Return the events that a call still lacks, whether it is done, running or not started."""
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
"""Key of a child agent: the id of the call that started it, and its number within that call."""


class OpenChildren:
    """Running child agents, their start times and their usage so far."""

    def __init__(self) -> None:
        self._open: dict[Child, tuple[float, Usage]] = {}

    def observe(self, event: Event) -> None:
        """Update the state from an event."""
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
        """Return the events that end the running children."""
        now = time.monotonic()
        return [
            ChildFinished(call_id, number, "stopped", now - started, usage)
            for (call_id, number), (started, usage) in self._open.items()
        ]
