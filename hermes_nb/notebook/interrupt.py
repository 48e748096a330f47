"""The stop button's effect on a turn, and on user code that runs during one.

ipykernel's own handler for async cells does not wake an idle event loop. An interrupt is then
noticed only when the next timer fires, such as 6.7 s into a `sleep(8)`. The handler here wakes the
loop. Signal handlers and timers exist only on the main thread; on other threads, both context
managers do nothing. Both restore the previous handlers and timers, even if user code has changed
them again.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from hermes_nb.core import threads
from hermes_nb.core.errors import HermesError
from hermes_nb.notebook.shell import Foreign

PATIENCE = 1.0
"""Seconds after an interrupt during which further ones are ignored, so that cleanup can finish."""
AGAIN = 1.0009765625
"""Seconds between alarms after the time limit, in case code swallows the first one.

The odd fraction distinguishes this timer from one that user code has set.
"""
SOON = 0.01
"""Seconds after which a signal is sent again if its exception was lost in a finaliser."""
CLOSE = 1e-4
"""Tolerance in seconds for comparing timer intervals."""


class TimeLimit(KeyboardInterrupt):
    """The time limit has passed; acts like a Ctrl-C sent by a timer.

    Code that cleans up after a Ctrl-C (IPython's `!`, subprocess, joblib) also cleans up after
    this, and `except Exception` does not catch it.
    """


class Stop:
    """The state of an interruptible block; created by `stoppable`."""

    def __init__(self) -> None:
        self.stopped = False
        self.active = False
        self._cancels = 0
        self._last = 0.0

    def arm(self, task: asyncio.Task[object]) -> None:
        """Install the signal handler for a task."""
        self.task = task
        self._loop = asyncio.get_running_loop()
        self._before = task.cancelling()
        self.active = True
        self._old = signal.signal(signal.SIGINT, self._on_signal)

    async def catch_up(self) -> None:
        """Take over an interrupt that arrived just before this block.

        The kernel's own handler has received it, and will cancel the task after a few loop
        iterations.
        """
        try:
            for _ in range(4):
                await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self.stopped or not self.active:
                raise
            self.task.uncancel()
            self._on_signal(signal.SIGINT, None)

    def _on_signal(self, _signum: int, _frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.stopped and now - self._last < PATIENCE:
            return
        self.stopped, self._last = True, now
        threads.press()
        with suppress(RuntimeError):  # the loop is closed: nothing to cancel
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        # The block may have ended since the signal; do not cancel the code after it.
        if self.active and self.task.cancel():
            self._cancels += 1

    def disarm(self) -> bool:
        """Restore the handler and undo our cancellations; return whether others remain."""
        if self.active:
            self.active = False
            threads.release()
            signal.signal(signal.SIGINT, self._old)
        for _ in range(self._cancels):
            self.task.uncancel()
        self._cancels = 0
        return self.task.cancelling() > self._before


@contextmanager
def stoppable() -> Iterator[Stop]:
    """Let the stop button cancel the current task, and suppress that cancellation.

    After an interrupt the block exits normally with `.stopped` True. A cancellation by other code
    passes through. A nested use in the same task shares the outer one, which suppresses the
    cancellation.
    """
    task = _task_on_main_thread()
    old = signal.getsignal(signal.SIGINT)
    outer = getattr(old, "__self__", None)
    if task is None or old is None:
        yield Stop()
        return
    if isinstance(outer, Stop) and outer.task is task:
        yield outer
        return
    stop = Stop()
    stop.arm(task)
    try:
        yield stop
    except asyncio.CancelledError:
        if stop.disarm() or not stop.stopped:
            raise
    finally:
        stop.disarm()


def _anywhere(_frame: FrameType | None) -> bool:
    return True


class Signals:
    """The signals that arrived while user code ran; created by `user_code`."""

    def __init__(
        self,
        inside: Callable[[FrameType | None], bool] = _anywhere,
        elsewhere: Callable[[], None] | None = None,
    ) -> None:
        """`inside` decides whether to raise in a frame; otherwise `elsewhere` is called."""
        self.interrupted = False
        self.timed_out = False
        self.active = True
        self._inside = inside
        self._elsewhere = elsewhere
        self._before = signal.getsignal(signal.SIGINT)
        self._pending = False
        self._raised: KeyboardInterrupt | None = None
        self._starting = False  # whether the resending timer's `Thread.start` has yet to return

    def raise_pending(self) -> None:
        """Raise KeyboardInterrupt if the user has already interrupted.

        Call it before the code starts, at a point where signals may raise. An interrupt that
        arrived just before has only requested a cancellation, which synchronous code would delay.
        """
        stop = getattr(self._before, "__self__", None)
        if self._pending or (isinstance(stop, Stop) and stop.stopped):
            self.interrupted = True
            raise KeyboardInterrupt

    def on_interrupt(self, signum: int, frame: FrameType | None) -> None:
        """Handle SIGINT."""
        if self.active and self._inside(frame):
            self.interrupted = True
            self._raised = KeyboardInterrupt()
            raise self._raised
        if self.active and self._elsewhere:
            self.interrupted = True
            self._elsewhere()
            return
        self._pending = True
        if callable(self._before):
            self._before(signum, frame)

    def on_alarm(self, timeout: float, frame: FrameType | None) -> None:
        """Handle SIGALRM."""
        if self.active and self._inside(frame):
            self.timed_out = True
            self._raised = TimeLimit(f"stopped after {timeout:g} s")
            raise self._raised
        if self.active and self._elsewhere:
            self.timed_out = True
            self._elsewhere()

    def _on_unraisable(self, lost: sys.UnraisableHookArgs) -> None:
        """Send a signal again if Python discarded its exception.

        Python ignores exceptions in `__del__`, weak reference callbacks and garbage collector
        callbacks. Without this, the user would have to press stop twice.
        """
        mine = self._raised is not None and lost.exc_value is self._raised
        if not mine or not self.active:
            self._unraisable(lost)
        elif isinstance(lost.exc_value, TimeLimit):
            signal.setitimer(signal.ITIMER_REAL, SOON, AGAIN)
        else:
            again = threading.Timer(SOON, self._interrupt_main)
            again.daemon = True
            self._starting = True
            again.start()
            self._starting = False

    def _interrupt_main(self) -> None:
        while self._starting:  # an exception raised before the hook returns is lost
            time.sleep(SOON)
        main = threading.main_thread().ident
        if not self.active or main is None:
            return
        if sys.platform == "win32":
            signal.raise_signal(signal.SIGINT)
        else:
            signal.pthread_kill(
                main, signal.SIGINT
            )  # `raise_signal` would not wake a sleeping main thread

    @contextmanager
    def not_lost(self) -> Iterator[None]:
        """Install the hook for discarded exceptions in this block."""
        self._unraisable = sys.unraisablehook
        hook = sys.unraisablehook = self._on_unraisable
        try:
            yield
        finally:
            self._raised = None
            if sys.unraisablehook is hook:
                sys.unraisablehook = self._unraisable


@contextmanager
def user_code(
    timeout: float | None = None,
    *,
    inside: Callable[[FrameType | None], bool] = _anywhere,
    elsewhere: Callable[[], None] | None = None,
) -> Iterator[Signals]:
    """Let the stop button raise KeyboardInterrupt in this block, and a timer raise `TimeLimit`.

    An async cell's handler only cancels at the next `await`, which synchronous user code (or
    `input()`) never reaches. Any alarm set by the user is restored with its remaining time, or
    fires immediately if that has passed. An alarm that the block sets replaces the time limit.

    Args:
        timeout: seconds, or None for no limit; ignored without SIGALRM (Windows) and off the main
            thread
        inside: returns whether a signal may raise in the interrupted frame; callers that pass it
            must call `raise_pending` in such a frame, before the code starts
        elsewhere: called for a signal outside such frames; by default an interrupt goes to the
            previous handler, and a timeout waits for the next alarm
    """
    if threading.current_thread() is not threading.main_thread():
        yield Signals()
        return
    signals = Signals(inside, elsewhere)
    before = signal.getsignal(signal.SIGINT)
    if before is not None:  # None: installed from C; Python cannot restore it
        signal.signal(signal.SIGINT, signals.on_interrupt)
    put_back = _set_alarm(timeout, signals.on_alarm)
    try:
        with signals.not_lost():
            if inside is _anywhere:
                signals.raise_pending()
            yield signals
    finally:
        signals.active = False
        put_back()
        if before is not None:
            signal.signal(signal.SIGINT, before)


def _task_on_main_thread() -> asyncio.Task[object] | None:
    if threading.current_thread() is not threading.main_thread():
        return None
    try:
        return asyncio.current_task()
    except RuntimeError:  # no loop runs here
        return None


def _set_alarm(
    timeout: float | None, on_alarm: Callable[[float, FrameType | None], None]
) -> Callable[[], None]:
    """Start the timer; return a function that restores the previous one."""
    if timeout is None or not has_time_limit():
        return lambda: None

    def handler(_signum: int, frame: FrameType | None) -> None:
        on_alarm(timeout, frame)

    old = signal.signal(signal.SIGALRM, handler)
    left, interval = signal.setitimer(signal.ITIMER_REAL, max(timeout, 0.001), AGAIN)
    started = time.monotonic()

    def put_back() -> None:
        ours = abs(signal.getitimer(signal.ITIMER_REAL)[1] - AGAIN) < CLOSE
        taken_over = signal.getsignal(signal.SIGALRM) is not handler
        if ours or not taken_over:
            signal.setitimer(signal.ITIMER_REAL, 0)
        if taken_over:
            return
        signal.signal(signal.SIGALRM, old)
        if left:
            rest = max(left - (time.monotonic() - started), 0.001)
            signal.setitimer(signal.ITIMER_REAL, rest, interval)

    return put_back


def has_time_limit() -> bool:
    """Return whether `user_code` can enforce a time limit here."""
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM) is not None
    )


class TurnFailed(HermesError):
    """The turn failed; its cell fails too, which stops a run of all cells."""


class Stopped(HermesError):
    """The user interrupted the turn; the cell ends with one line, like other interrupted cells."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class StoppedInView(Stopped):
    """The turn was interrupted, which its view shows, so the cell fails without a message."""


def stopped_in_view(shell: Foreign) -> StoppedInView:
    """Return the error for an interrupted turn, and make the shell show nothing for it.

    Other packages' custom exception handlers remain.
    """
    others, handler = shell.custom_exceptions, shell.CustomTB
    if StoppedInView in others:
        return StoppedInView("stopped")

    def tell(
        _: Foreign, kind: type[BaseException], error: BaseException, at: Foreign, **more: Foreign
    ) -> Foreign:
        return [] if issubclass(kind, StoppedInView) else handler(kind, error, at, **more)

    shell.set_custom_exc((StoppedInView, *others), tell)
    return StoppedInView("stopped")
