"""An event loop in a daemon thread, a blocking function off the loop, and the stop flag."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import os
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import ParamSpec, TypeVar

Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")
STOP_SECONDS = 5.0
"""How long something that was stopped may take to clean up."""


class LoopThread:
    """A loop that runs until it is closed; nothing is started before the first coroutine.

    A fork has none of its parent's threads, so it gets a loop of its own when it needs one. Where
    nobody has closed it, the thread ends with the last reference.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0

    def submit(self, coroutine: Coroutine[object, None, Result]) -> Future[Result]:
        """Start a coroutine on the loop and return at once."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._running())

    def run(self, coroutine: Coroutine[object, None, Result]) -> Result:
        """Return what a coroutine returns; Ctrl-C cancels it, waits for its end and is raised."""
        future: Future[Result] | None = None
        try:
            future = self.submit(coroutine)
            return future.result()
        except KeyboardInterrupt:
            if future is not None:
                future.cancel()
            self.settle()
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()  # stopped before it was handed over
            raise

    def settle(self, seconds: float | None = None) -> None:
        """Wait until everything on the loop has ended, at most so long (default: STOP_SECONDS)."""
        patience = STOP_SECONDS if seconds is None else seconds

        async def others() -> None:
            running = asyncio.all_tasks() - {asyncio.current_task()}
            if running:
                await asyncio.wait(running, timeout=patience)

        if self._loop is not None and self._pid == os.getpid():
            # Where something holds up the loop itself, there is nothing more to wait for.
            with suppress(TimeoutError):
                self.submit(others()).result(timeout=patience + 1)

    def close(self) -> None:
        """Cancel what runs, end the thread and close the loop; a later call starts another."""
        with self._lock:
            loop, thread, self._loop = self._loop, self._thread, None
        if loop is None or thread is None or self._pid != os.getpid():
            return
        loop.call_soon_threadsafe(_cancel_all, loop)
        thread.join(timeout=STOP_SECONDS)

    def _running(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._pid != os.getpid():
                self._loop, self._pid = asyncio.new_event_loop(), os.getpid()
                self._thread = threading.Thread(
                    target=_serve, args=(self._loop,), name=self._name, daemon=True
                )
                self._thread.start()
                weakref.finalize(self, _quit, self._loop, self._pid).atexit = False
            return self._loop


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        while not _ran_until_stopped(loop):
            pass
        _end_all(loop)
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _end_all(loop: asyncio.AbstractEventLoop) -> None:
    """Wait for the tasks, which are cancelled, and for those that they start meanwhile."""
    deadline = time.monotonic() + STOP_SECONDS
    cancelled = asyncio.all_tasks(loop)
    while (tasks := asyncio.all_tasks(loop)) and (left := deadline - time.monotonic()) > 0:
        for task in tasks - cancelled:
            task.cancel()
        cancelled |= tasks
        until = asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        loop.run_until_complete(until)


def _ran_until_stopped(loop: asyncio.AbstractEventLoop) -> bool:
    """Run the loop; return False where a task ended it by SystemExit or KeyboardInterrupt.

    Such a task has its exception by then; whoever waits for it gets that from the running loop.
    """
    try:
        loop.run_forever()
    except (KeyboardInterrupt, SystemExit):
        return False
    return True


def _quit(loop: asyncio.AbstractEventLoop, pid: int) -> None:
    if pid == os.getpid():
        with suppress(RuntimeError):  # it was closed
            loop.call_soon_threadsafe(_cancel_all, loop)


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.stop()


async def in_thread(
    function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Call a blocking function in a daemon thread that does nothing else; return what it returns.

    Unlike `asyncio.to_thread` a thread that hangs holds up neither the loop nor the interpreter's
    end. A cancelled wait leaves the thread to itself.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()
    context = contextvars.copy_context()

    def finish(settle: Callable[[], None]) -> None:
        if not future.done():
            settle()

    def call() -> Callable[[], object]:
        try:
            settle = partial(future.set_result, context.run(function, *args, **kwargs))
        except (SystemExit, StopIteration) as exit_:  # neither may travel through a future
            error = RuntimeError(f"{type(exit_).__name__}: {exit_}")
            settle = partial(future.set_exception, error)
        except BaseException as error:  # noqa: BLE001 - carried over to the waiting task
            settle = partial(future.set_exception, error)
        return partial(loop.call_soon_threadsafe, finish, settle)

    _idle_worker().calls.put(call)
    return await future


IDLE_SECONDS = 5.0
"""How long a thread without work waits for some: to start one takes 0.1 ms of CPU."""


class _Worker(threading.Thread):
    """A thread that makes calls one after the other; each returns how its end is announced."""

    def __init__(self) -> None:
        super().__init__(name="hermes", daemon=True)
        self.calls: SimpleQueue[Callable[[], Callable[[], object]]] = SimpleQueue()

    def run(self) -> None:
        while True:
            try:
                call = self.calls.get(timeout=IDLE_SECONDS)
            except Empty:
                try:
                    _idle.remove(self)
                except ValueError:  # somebody has just taken it
                    continue
                return
            announce = call()
            _idle.append(self)
            with suppress(RuntimeError):  # the loop may be gone by now
                announce()
            del call, announce  # and what they hold


_idle: list[_Worker] = []


def _idle_worker() -> _Worker:
    """Return a thread without work; one that a fork has left behind is none."""
    while _idle:
        worker = _idle.pop()
        if worker.is_alive():
            return worker
    worker = _Worker()
    worker.start()
    return worker


_limit: contextvars.ContextVar[asyncio.Timeout | None] = contextvars.ContextVar(
    "limit", default=None
)


@asynccontextmanager
async def time_limit(seconds: float) -> AsyncGenerator[None]:
    """Raise `TimeoutError` after so many seconds, not counting what is `untimed` inside."""
    async with asyncio.timeout(seconds) as limit:
        before = _limit.set(limit)
        try:
            yield
        finally:
            _limit.reset(before)


@asynccontextmanager
async def untimed() -> AsyncGenerator[None]:
    """Stop the clock of the `time_limit` around it, as for an import on first use."""
    limit, loop = _limit.get(), asyncio.get_running_loop()
    if limit is None or (end := limit.when()) is None:
        yield
        return
    left = end - loop.time()
    limit.reschedule(None)
    try:
        yield
    finally:
        limit.reschedule(loop.time() + left)


_PRESSED = threading.Event()


def press() -> None:
    """Note that the user wants the running turn to end; safe in a signal handler."""
    _PRESSED.set()


def release() -> None:
    """Note that it has ended."""
    _PRESSED.clear()


_own = threading.local()


@contextmanager
def without_waiting() -> Iterator[None]:
    """Let calls of this thread fail where they would wait long for another process."""
    _own.hurried = True
    try:
        yield
    finally:
        _own.hurried = False


def hurried() -> bool:
    """Say whether this thread is not to wait, for its own sake or as that would hold up a stop."""
    if getattr(_own, "hurried", False):
        return True
    return _PRESSED.is_set() and threading.current_thread() is threading.main_thread()
