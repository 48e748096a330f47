"""Event loop in a daemon thread, blocking calls from async code, time limits, and the stop flag."""

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
"""How many seconds cancelled tasks may take to clean up."""


class LoopThread:
    """An asyncio event loop in its own daemon thread; the thread starts with the first coroutine.

    Threads don't survive a fork, so a forked child starts a new loop on first use. Without an
    explicit `close`, the thread ends when the object is garbage-collected.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0

    def submit(self, coroutine: Coroutine[object, None, Result]) -> Future[Result]:
        """Schedule a coroutine on the loop and return its future without waiting."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._running())

    def run(self, coroutine: Coroutine[object, None, Result]) -> Result:
        """Run a coroutine and return its result.

        Ctrl-C cancels the coroutine, waits for it to end and raises KeyboardInterrupt.
        """
        future: Future[Result] | None = None
        try:
            future = self.submit(coroutine)
            return future.result()
        except KeyboardInterrupt:
            if future is not None:
                future.cancel()
            self.settle()
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()  # the loop never received it
            raise

    def settle(self, seconds: float | None = None) -> None:
        """Wait for all tasks on the loop to end, at most `seconds` (default: STOP_SECONDS)."""
        patience = STOP_SECONDS if seconds is None else seconds

        async def others() -> None:
            running = asyncio.all_tasks() - {asyncio.current_task()}
            if running:
                await asyncio.wait(running, timeout=patience)

        if self._loop is not None and self._pid == os.getpid():
            # A blocked loop can't run `others`, so give up after the timeout.
            with suppress(TimeoutError):
                self.submit(others()).result(timeout=patience + 1)

    def close(self) -> None:
        """Cancel all tasks, end the thread and close the loop; a later call starts a new one."""
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
    """Cancel tasks that start during cleanup, and wait up to STOP_SECONDS until all have ended."""
    deadline = time.monotonic() + STOP_SECONDS
    cancelled = asyncio.all_tasks(loop)
    while (tasks := asyncio.all_tasks(loop)) and (left := deadline - time.monotonic()) > 0:
        for task in tasks - cancelled:
            task.cancel()
        cancelled |= tasks
        until = asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        loop.run_until_complete(until)


def _ran_until_stopped(loop: asyncio.AbstractEventLoop) -> bool:
    """Run the loop until stopped; return False if SystemExit or KeyboardInterrupt ended it.

    The task that raised it stores the exception, so its awaiter still receives it once the loop
    runs again.
    """
    try:
        loop.run_forever()
    except (KeyboardInterrupt, SystemExit):
        return False
    return True


def _quit(loop: asyncio.AbstractEventLoop, pid: int) -> None:
    if pid == os.getpid():
        with suppress(RuntimeError):  # the loop is already closed
            loop.call_soon_threadsafe(_cancel_all, loop)


def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.stop()


async def in_thread(
    function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Run a blocking function in a separate daemon thread and return its result.

    Unlike with `asyncio.to_thread`, a hanging call blocks neither the loop nor interpreter
    shutdown. Cancelling the await leaves the call running in its thread.
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
        except (SystemExit, StopIteration) as exit_:  # a future can't carry either of them
            error = RuntimeError(f"{type(exit_).__name__}: {exit_}")
            settle = partial(future.set_exception, error)
        except BaseException as error:  # noqa: BLE001 - re-raised in the awaiting task
            settle = partial(future.set_exception, error)
        return partial(loop.call_soon_threadsafe, finish, settle)

    _idle_worker().calls.put(call)
    return await future


IDLE_SECONDS = 5.0
"""How many seconds an idle thread waits for another call. Starting a thread costs 0.1 ms of CPU."""


class _Worker(threading.Thread):
    """A thread that runs queued calls one at a time.

    Each call returns a callback that delivers its result to the event loop.
    """

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
                except ValueError:  # `_idle_worker` has just claimed this thread
                    continue
                return
            announce = call()
            _idle.append(self)
            with suppress(RuntimeError):  # the loop may be closed by now
                announce()
            del call, announce  # free their arguments and results while idle


_idle: list[_Worker] = []


def _idle_worker() -> _Worker:
    """Return an idle worker thread or a new one, skipping threads that did not survive a fork."""
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
    """Raise `TimeoutError` after `seconds`, not counting time spent in `untimed` blocks."""
    async with asyncio.timeout(seconds) as limit:
        before = _limit.set(limit)
        try:
            yield
        finally:
            _limit.reset(before)


@asynccontextmanager
async def untimed() -> AsyncGenerator[None]:
    """Pause the enclosing `time_limit`, for example during an import on first use."""
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


_stop: contextvars.ContextVar[threading.Event] = contextvars.ContextVar("stop", default=_PRESSED)


def own_stop() -> threading.Event:
    """Return a stop signal for the current context alone; set it to stop the context's turn."""
    stop = threading.Event()
    _stop.set(stop)
    return stop


def press() -> None:
    """Signal that the user wants to stop the running turn; safe in a signal handler."""
    _PRESSED.set()


def release() -> None:
    """Clear the stop signal after the turn has ended."""
    _PRESSED.clear()


_own = threading.local()


@contextmanager
def without_waiting() -> Iterator[None]:
    """Make this thread's calls fail instead of waiting long for another process."""
    _own.hurried = True
    try:
        yield
    finally:
        _own.hurried = False


def hurried() -> bool:
    """Return whether this thread must not wait for other processes.

    True inside `without_waiting`, and in the main thread while a stop is pending.
    """
    if getattr(_own, "hurried", False):
        return True
    pressed = _PRESSED.is_set() or _stop.get().is_set()
    return pressed and threading.current_thread() is threading.main_thread()
