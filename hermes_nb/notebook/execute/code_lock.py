"""Let one party run code in a kernel at a time: a cell of the user's, or the agent.

A turn can run next to the user's cells. If a cell ran while the agent's code awaits something, the
cell would lose its output, its value and its number: the hooks that capture the agent's output are
restored in the wrong order. So each cell and each nested run takes a lock. A cell that only waits
for a turn lends it.
"""

from __future__ import annotations

import asyncio
import inspect
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, nullcontext
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from hermes_nb.notebook.interrupt import Signals
from hermes_nb.notebook.shell import Foreign, Shell, TurnCell, publisher_of, turn_cell

EXECUTE, SHUTDOWN = "execute_request", "shutdown_request"
ENDING = 1.0
"""Seconds for which a kernel that shuts down waits for the end of its turns."""
AGAIN = 0.02
"""Polling interval in seconds."""
SETTLE = 0.05
"""Seconds without a cell before a background turn runs code, so that cells which were started
together (*Run All*) also run together."""


@dataclass(slots=True, eq=False)
class _Holder:
    """A cell or a nested run that has taken the lock."""

    over: bool = False
    """True once it has ended."""
    lent: bool = False
    """True while it lets others run code."""


_holder: ContextVar[_Holder | None] = ContextVar("hermes_nb_code_lock", default=None)
_locks: WeakKeyDictionary[Shell, CodeLock] = WeakKeyDictionary()


class CodeLock:
    """The lock of a kernel, made when the extension is loaded."""

    def __init__(self, shell: Shell) -> None:
        self._kernel = shell.kernel
        self._lock = asyncio.Lock()
        self._ended = 0.0  # when the last cell ended
        self._next_end: asyncio.Future[None] | None = None
        self._guard = threading.Lock()
        self._runs: TurnCell | None = None
        self._aimed: TurnCell | None = None
        self._waiting: set[TurnCell | None] = set()
        self._idle: Foreign = None
        self.stop: Callable[[TurnCell | None], bool] = lambda _: False
        """Called by an interrupt between cells: stops this turn, or all; False if none runs."""
        self._handle = self._kernel.shell_handlers[EXECUTE]
        self._kernel.shell_handlers[EXECUTE] = self._execute
        self._shut_down = self._kernel.control_handlers[SHUTDOWN]
        self._kernel.control_handlers[SHUTDOWN] = self._shutdown
        self._publisher = publisher_of(shell)
        self._publisher.register_hook(_in_own_cell)
        if (self._kernel.get_parent().get("header") or {}).get("msg_type") == EXECUTE:
            self._take_for_running_cell(shell)

    def close(self) -> None:
        """Stop locking."""
        self._kernel.shell_handlers[EXECUTE] = self._handle
        self._kernel.control_handlers[SHUTDOWN] = self._shut_down
        self._publisher.unregister_hook(_in_own_cell)
        if self._kernel.saved_sigint_handler == self._interrupted:
            self._kernel.saved_sigint_handler = self._idle

    def _take_for_running_cell(self, shell: Shell) -> None:
        """Take the lock for the cell that loads the extension, whose start was not seen."""
        holder = _Holder()
        _at_once(self._lock.acquire())
        _holder.set(holder)

        def end() -> None:
            shell.events.unregister("post_execute", end)
            self._end(holder)

        shell.events.register("post_execute", end)

    async def _execute(self, stream: Foreign, identities: Foreign, message: Foreign) -> None:
        """Run a cell of the user's as soon as no other code is running."""
        if threading.current_thread() is not threading.main_thread():  # in a subshell
            await _awaited(self._handle(stream, identities, message))
            return
        with self._interruptible():
            await self._lock.acquire()
        holder = _Holder()
        token = _holder.set(holder)
        try:
            await _awaited(self._handle(stream, identities, message))
        finally:
            _holder.reset(token)
            self._end(holder)

    async def _shutdown(self, stream: Foreign, identities: Foreign, message: Foreign) -> None:
        """Stop all turns before the kernel ends, so that they save their partial answers."""
        if (cell := self._runs) is not None:
            self.interrupt(cell)
        for _ in range(round(ENDING / AGAIN)):
            if not self.stop(None):
                break
            await asyncio.sleep(AGAIN)
        await _awaited(self._shut_down(stream, identities, message))

    @contextmanager
    def _interruptible(self) -> Iterator[None]:
        """Let an interrupt reach the agent's code, as before this cell's message arrived."""
        if not self._lock.locked():
            yield
            return
        self._kernel.post_handler_hook()
        try:
            yield
        finally:
            self._kernel.pre_handler_hook()

    def _end(self, holder: _Holder) -> None:
        holder.over = True
        self._ended = time.monotonic()
        if not holder.lent:
            self._release()

    def _release(self) -> None:
        self._lock.release()
        if self._next_end is not None:
            self._next_end.set_result(None)
            self._next_end = None

    async def next_end(self, idle: float) -> None:
        """Wait until code has ended; without running code, wait for at most `idle` seconds."""
        if self._next_end is None:
            self._next_end = asyncio.get_running_loop().create_future()
        await asyncio.wait({self._next_end}, timeout=None if self._lock.locked() else idle)

    @asynccontextmanager
    async def taken(self) -> AsyncIterator[None]:
        """Run the agent's code in this block."""
        outer = _holder.get()
        if outer is not None and not outer.over and not outer.lent:
            yield  # part of that cell or run
            return
        cell = turn_cell.get()
        await self._acquire(cell)
        holder = _Holder()
        token = _holder.set(holder)
        with self._guard:
            self._runs, self._aimed = cell, None
        try:
            yield
        finally:
            with self._guard:
                self._runs = None
            _holder.reset(token)
            holder.over = True
            self._release()

    async def _acquire(self, cell: TurnCell | None) -> None:
        self._waiting.add(cell)
        try:
            await self._lock.acquire()
            beside = cell is not None and cell.over
            while beside and (rest := self._ended + SETTLE - time.monotonic()) > 0:
                self._lock.release()
                await asyncio.sleep(rest)
                await self._lock.acquire()
        finally:
            self._waiting.discard(cell)

    @asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        """Let others run code while the running cell waits in this block."""
        holder = _holder.get()
        if holder is None or holder.over or holder.lent:
            yield
            return
        holder.lent = True
        self._lock.release()
        try:
            yield
        finally:
            while holder.lent:  # even if the cell was interrupted, because it continues
                try:
                    await self._lock.acquire()
                except asyncio.CancelledError:
                    continue
                holder.lent = False

    def waits(self, cell: TurnCell) -> bool:
        """Return whether a turn waits for a cell of the user's before it can run code."""
        return cell in self._waiting and self._runs is None

    @property
    def in_users_cell(self) -> bool:
        """Whether a cell of the user's is running."""
        return self._lock.locked() and self._runs is None

    def in_compiled_code(self, cell: TurnCell) -> bool:
        """Return whether a turn's code has not noticed its interrupt yet."""
        signals = getattr(signal.getsignal(signal.SIGINT), "__self__", None)
        unnoticed = isinstance(signals, Signals) and not signals.interrupted
        return self._runs is cell and unnoticed

    def interrupt(self, cell: TurnCell) -> bool:
        """Interrupt a turn's code; return False if none is running. Call it from any thread.

        The guard keeps the code from ending between the check and the signal. If the code ends
        before Python handles the signal, `_interrupted` stops the same turn.
        """
        with self._guard:
            if self._runs is not cell:
                return False
            self._aimed = cell
            if sys.platform == "win32":
                signal.raise_signal(signal.SIGINT)
            else:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            return True

    def watch(self) -> None:
        """Let interrupts between cells stop turns; the kernel installs this when a cell ends."""
        if self._kernel.saved_sigint_handler != self._interrupted:
            self._idle = self._kernel.saved_sigint_handler
            self._kernel.saved_sigint_handler = self._interrupted

    def _interrupted(self, signum: int, frame: object) -> None:
        aimed, self._aimed = self._aimed, None
        if not self.stop(aimed) and callable(self._idle):
            self._idle(signum, frame)


def code_lock(shell: Shell) -> CodeLock | None:
    """Return the kernel's lock, or None without a kernel or before the extension is loaded."""
    return _locks.get(shell)


def load(shell: Shell) -> None:
    """Install the lock of a kernel."""
    if getattr(getattr(shell, "kernel", None), "shell_handlers", None) is not None:
        _locks[shell] = CodeLock(shell)


def unload(shell: Shell) -> None:
    """Remove the lock."""
    if (lock := _locks.pop(shell, None)) is not None:
        lock.close()


def agent_code(shell: Shell) -> AbstractAsyncContextManager[None]:
    """Return a block in which the agent may run code; it waits until no other code is running."""
    lock = code_lock(shell)
    on_main = threading.current_thread() is threading.main_thread()
    return lock.taken() if lock is not None and on_main else nullcontext()


def turn_context(cell: TurnCell) -> Context:
    """Return the context for a turn's task, which belongs to a cell but isn't part of its code."""
    context = copy_context()
    context.run(_holder.set, None)
    context.run(turn_cell.set, cell)
    return context


def _in_own_cell(message: dict[str, Foreign]) -> dict[str, Foreign]:
    """Send what a turn displays to its own cell: ipykernel 6 would use the running one."""
    if (cell := turn_cell.get()) is not None:
        message["parent_header"] = cell.request.get("header") or {}
    return message


def _at_once(acquire: Coroutine[object, object, bool]) -> None:
    """Finish a coroutine that has nothing to wait for."""
    try:
        acquire.send(None)
    except StopIteration:
        return
    raise RuntimeError("a new lock was not free")


async def _awaited(result: Foreign) -> None:
    if inspect.isawaitable(result):
        await result
