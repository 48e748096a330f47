"""A running turn: an asyncio task for which its cell waits, or that runs next to the user's cells.

The cell and the turn are separate tasks, so that a turn can continue when its cell ends. Pages
reach it on the control channel, which kernels read even while code runs.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from hermes_nb.core import threads
from hermes_nb.notebook.execute.code_lock import CodeLock, code_lock, turn_context
from hermes_nb.notebook.interrupt import PATIENCE, Stopped, stopped_in_view
from hermes_nb.notebook.shell import Shell, TurnCell, can_ask, next_number, request_of

if TYPE_CHECKING:
    from hermes_nb.agent.session.session import Session
    from hermes_nb.agent.session.turn import Turn
    from hermes_nb.notebook.turn import CellTurn


AFTER_CELL = "stopping, after your cell"
IN_COMPILED_CODE = "stopping, waiting for compiled code in {tool}"
NAMED = 1.0
"""Seconds after a stop until the status line names the compiled code that delays it."""


@dataclass(slots=True, eq=False)
class TurnQueue:
    """The turns of one session, which run one after another."""

    name: str = ""
    """The session's id, or the title of one that is yet to start; "" for a new one."""
    session: Session | None = None
    """The session, once a turn has opened it."""


class RunningTurn:
    """A turn from its start to its end; created in its cell."""

    def __init__(self, shell: Shell, turn: CellTurn, *, beside: bool) -> None:
        self.cell = TurnCell(
            request=request_of(shell), can_ask=can_ask(shell), count=next_number(shell), over=beside
        )
        self.ahead: RunningTurn | None = None
        """The turn for which this one waits; None once it runs."""
        self.admitted = False
        """Whether the turn has left the queue and started."""
        self.alone = False
        """Whether no other turn may run at the same time."""
        self.line: TurnQueue | None = None
        """The queue of its session; None if not assigned yet."""
        self.session: Session | None = None
        """Its session, once it is open."""
        self.came: Turn | None = None
        """Its result, once it has ended."""
        self.turn = turn
        self._shell = shell
        self._lock: CodeLock | None = code_lock(shell)
        self._loop = asyncio.get_running_loop()
        self._detached = self._loop.create_future()
        self._stopped = 0.0
        turn.transcript.beside = beside
        turn.transcript.state = self._state

    def begin(
        self, work: Coroutine[object, None, str], ended: Callable[[RunningTurn], None]
    ) -> None:
        """Start the task; `ended` is called when it has ended."""
        self._raised: BaseException | None = None
        self._context = turn_context(self.cell)
        self._stop = self._context.run(threads.own_stop)
        if self.cell.over:
            self._context.run(self.turn.begin)
        self.task = self._loop.create_task(self._guarded(work), context=self._context)

        def over(task: asyncio.Task[str]) -> None:
            work.close()  # a task that is cancelled at once never starts it
            ended(self)
            task.cancelled() or task.exception()

        self.task.add_done_callback(over)
        if self._lock is not None:
            self._lock.watch()

    async def _guarded(self, work: Coroutine[object, None, str]) -> str:
        """Run `work`; store a KeyboardInterrupt or SystemExit, which would end the event loop.

        A Ctrl-C during `input()` raises the former.
        """
        try:
            return await work
        except (KeyboardInterrupt, SystemExit) as error:
            self._raised = error
            return ""

    async def result(self) -> str:
        """Wait in the turn's cell and return the answer; "" once it runs next to the cells.

        Cancelling this interrupts the turn and raises CancelledError after its end. Raises
        `Stopped` if the page's button stopped the turn, and the turn's errors.
        """
        cancelled = False
        async with self._lock.lent() if self._lock is not None else nullcontext():
            while not (self.task.done() or self.cell.over):
                try:
                    await asyncio.wait(
                        {self.task, self._detached}, return_when=asyncio.FIRST_COMPLETED
                    )
                except asyncio.CancelledError:
                    cancelled = self.task.cancel()
        if cancelled:
            raise asyncio.CancelledError
        if self.cell.over:
            return ""
        if self._raised is not None:
            raise self._raised
        if self.task.cancelled():
            raise stopped_in_view(self._shell) if self.turn.begun else Stopped("stopped")
        return self.task.result()

    async def ended(self, other: asyncio.Task[object]) -> None:
        """Wait for the end of the turn or of another task; the turn may run code meanwhile."""
        async with self._lock.lent() if self._lock is not None else nullcontext():
            await asyncio.wait({self.task, other}, return_when=asyncio.FIRST_COMPLETED)

    def stop(self) -> bool:
        """Interrupt the turn and the code that it runs; return whether a cell delays that.

        Can be called from any thread, even while code blocks the event loop.
        """
        if not self._lock or not self._lock.interrupt(self.cell):
            self.cancel()
        self._stopped = self._stopped or time.monotonic()
        show = partial(self._context.copy().run, self._show_stopping)
        threading.Thread(target=show, name="hermes-stop", daemon=True).start()
        return self._lock is not None and self._lock.in_users_cell and self.cell.over

    def _show_stopping(self) -> None:
        """Update the status line from a thread, because code may block the event loop."""
        self.turn.refresh()
        time.sleep(NAMED)
        self.turn.refresh()

    def cancel(self) -> None:
        """Interrupt the turn when the event loop runs; can be called in a signal handler."""
        if time.monotonic() - self._stopped < PATIENCE:
            return
        self._stopped = time.monotonic()
        self._stop.set()
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self.task.cancel)

    def detach(self) -> None:
        """Let the cell end while the turn continues; can be called from any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._detach, context=self._context)

    def _detach(self) -> None:
        if self.task.done() or self._detached.done():
            return
        self.cell.over = self.turn.transcript.beside = True
        self._detached.set_result(None)
        self.turn.begin()

    def _state(self) -> str:
        """Return what the turn waits for, other than its model."""
        if self._stopped:
            return self._stopping()
        if self.ahead is not None:
            return f"waiting for [{self.ahead.cell.count}]"
        waits = self._lock is not None and self._lock.waits(self.cell)
        return "waiting for your cell" if waits else ""

    def _stopping(self) -> str:
        """Return what a stopped turn waits for."""
        lock = self._lock
        if lock is None:
            return "stopping"
        if lock.in_users_cell and self.cell.over:
            return AFTER_CELL
        if time.monotonic() - self._stopped >= NAMED and lock.in_compiled_code(self.cell):
            return IN_COMPILED_CODE.format(tool=self.turn.transcript.calls[-1].call.name)
        return "stopping"
