"""The agent looks back over a conversation and saves what it learned, out of everybody's way.

A review is a fork: the same model and schemas, what user and assistant said and which calls were
made, plus one prompt of ours. The text of files, outputs and pages is left out: an order planted
there never reaches what writes memory. Only the memory and skill tools run in it. It has rows of
its own in the store, leaves the conversation alone, and its failure is one line in the log and one
event.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from hermes_nb.core.errors import StoreError, ToolDenied
from hermes_nb.core.events import (
    BackgroundEvent,
    Event,
    MessageAdded,
    ReviewFinished,
    ReviewStarted,
    ToolFinished,
    TurnEnded,
    UsageReported,
)
from hermes_nb.core.loop import Agent
from hermes_nb.core.messages import Message, Usage
from hermes_nb.core.protocols import ChatModel, SessionStore
from hermes_nb.core.text import one_line
from hermes_nb.core.threads import LoopThread
from hermes_nb.core.tools import Risk, Tool, ToolContext, Toolset
from hermes_nb.learning.nudges import Subject
from hermes_nb.learning.prompts import loaded_skills, review_prompt
from hermes_nb.learning.said import said
from hermes_nb.safety.redact import without_secrets

logger = logging.getLogger(__name__)

MAX_REQUESTS = 8
"""Model requests of a review, the closing one included."""
SOURCE = "review"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subjects:
    """What a review looks at, as it was when the turn ended.

    `model()` returns the model to ask and whether it is the review's to close. `tools` are those of
    the conversation; `own` are the memory and skill tools that run, in a form that asks nobody.
    `messages` are the conversation's as they are; the review sees what was said of them.
    """

    session_id: str
    model: Callable[[], tuple[ChatModel, bool]]
    system: str
    tools: Toolset
    own: Toolset
    messages: Sequence[Message]


async def review(
    seen: Subjects,
    subject: Subject,
    *,
    store: SessionStore,
    emit: Callable[[BackgroundEvent], None] = lambda _: None,
) -> ReviewFinished:
    """Look back, save, and return what was learned; every fault is in the returned event."""
    emit(ReviewStarted(seen.session_id, subject))
    record = _Record(store, seen, subject)
    try:
        model, ours = await asyncio.to_thread(seen.model)
        try:
            await _turn(model, seen, subject, record)
        finally:
            if ours:
                await model.aclose()
    except asyncio.CancelledError:
        emit(record.finished("stopped"))
        raise
    except Exception as error:  # noqa: BLE001 - a courtesy must not harm, whatever fails
        logger.warning("a review failed: %s", error)
        record.error = record.error or one_line(f"{type(error).__name__}: {error}", 200)
    finished = record.finished(record.error)
    emit(finished)
    return finished


class Reviewer:
    """Runs reviews in a background thread, one at a time; `learned` waits for the next turn.

    `emit` is called from that thread.
    """

    def __init__(self, *, emit: Callable[[BackgroundEvent], None] = lambda _: None) -> None:
        self._emit = emit
        self._thread = LoopThread("hermes-review")
        self._running: Future[ReviewFinished] | None = None
        self._learned: list[str] = []
        self._lock = threading.Lock()

    @property
    def busy(self) -> bool:
        """Whether a review is running."""
        return self._running is not None and not self._running.done()

    def begin(self, seen: Subjects, subject: Subject, store: SessionStore) -> bool:
        """Start a review unless one is running; return at once, and whether it was started."""
        if self.busy:
            return False
        self._running = self._thread.submit(review(seen, subject, store=store, emit=self._note))
        return True

    def wait(self, seconds: float | None = None) -> ReviewFinished | None:
        """Wait for the running review; None when there was none, or it was stopped."""
        running = self._running
        if running is None or running.cancelled():
            return None
        return running.result(timeout=seconds)

    def learned(self) -> list[str]:
        """Return, once, what was learned since this was last asked."""
        with self._lock:
            taken, self._learned = self._learned, []
        return taken

    def stop(self) -> None:
        """Stop a running review; what it saved until now stays."""
        if self._running is not None:
            self._running.cancel()

    def close(self) -> None:
        """Stop, and end the thread."""
        self._thread.close()

    def _note(self, event: BackgroundEvent) -> None:
        if isinstance(event, ReviewFinished):
            with self._lock:
                self._learned += event.saved
        self._emit(event)


class _Record:
    """Rows of a review, and what it saved; the store's faults are not the review's."""

    def __init__(self, store: SessionStore, seen: Subjects, subject: Subject) -> None:
        self.error = ""
        self._store = store
        self._seen = seen
        self._subject = subject
        self._saved: list[str] = []
        self._usage = Usage()
        self._row = ""

    def begin(self, model: str) -> None:
        """Create the session row."""

        def start() -> None:
            self._row = self._store.start(
                source=SOURCE,
                parent=self._seen.session_id,
                title=f"review: {self._subject}",
                model=model,
            )

        self._kept(start)

    def __call__(self, event: Event) -> None:
        """Take in an event of the review's turn."""
        match event:
            case MessageAdded(message) if self._row:
                self._kept(lambda: self._store.append(self._row, without_secrets(message)))
            case UsageReported(usage):
                self._usage += usage
                if self._row:
                    self._kept(lambda: self._store.count(self._row, usage))
            case ToolFinished(call, "ok", _):
                tool = self._seen.own.get(call.name)
                if tool is not None and _risk(tool, call.arguments) is not Risk.READ:
                    gist = self._seen.own.describe(call) or "saved"
                    self._saved.append(one_line(f"{call.name}: {gist}", 160))
            case TurnEnded("failed", error):
                self.error = error
            case _:
                pass

    def finished(self, error: str) -> ReviewFinished:
        """Return the event that ends the review."""
        saved = tuple(self._saved)
        if self._row:
            self._kept(lambda: self._store.end(self._row))
        return ReviewFinished(self._seen.session_id, self._subject, saved, self._usage, error)

    def _kept(self, write: Callable[[], None]) -> None:
        try:
            write()
        except StoreError as error:
            self._row = ""
            logger.warning("a review is not stored: %s", error)


async def _turn(model: ChatModel, seen: Subjects, subject: Subject, record: _Record) -> None:
    record.begin(model.name)
    agent = Agent(
        model,
        seen.tools.map(lambda tool: _own(tool, seen.own)),
        system=seen.system,
        messages=said(seen.messages),
        sinks=[record],
        max_requests=MAX_REQUESTS - 1,
    )
    asked = review_prompt(subject, loaded_skills(seen.messages))
    async with aclosing(agent.run(asked)) as events:
        async for _ in events:
            pass


def _risk(tool: Tool, arguments: Mapping[str, Any]) -> Risk:
    return tool.risk if tool.risk_of is None else tool.risk_of(arguments)


def _own(tool: Tool, own: Toolset) -> Tool:
    """Return a tool with the schema of the conversation, and what it does in a review."""
    mine = own.get(tool.name)
    if mine is not None:
        return replace(tool, run=mine.run, check=mine.check, preview=None)

    def refuse(_context: ToolContext, _arguments: Mapping[str, Any]) -> str:
        message = "only the memory and skill tools run in a review"
        raise ToolDenied(message)

    return replace(tool, run=refuse, exclusive=False, risk=Risk.READ)
