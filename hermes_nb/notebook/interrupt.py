"""What the stop button does to a turn, and to user code that runs inside one.

ipykernel's own handler for async cells does not wake an idle event loop: a stop in a quiet moment
is noticed when the next timer fires, 6.7 s into a `sleep(8)`. Ours wakes it. Handlers and timers
exist on the main thread only; elsewhere both context managers do nothing. What they change they put
back, also when user code in between changed it again.
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
"""Seconds after a stop in which further presses are ignored: they would stop the cleaning up."""
AGAIN = 1.0009765625
"""Seconds between alarms once time is up. Code that swallows one meets the next; the odd fraction
tells our timer from one that user code has set."""
SOON = 0.01
"""Seconds after which a signal comes again whose exception was lost in a finaliser."""
CLOSE = 1e-4
"""Seconds between two intervals of a timer that are the same one."""


class TimeLimit(KeyboardInterrupt):
    """Time is up: a Ctrl-C by the clock.

    What cleans up after a Ctrl-C (IPython's `!`, subprocess, joblib) so cleans up after this too,
    and `except Exception` does not swallow it.
    """


class Stop:
    """Whether, and how, the user stopped a block; made by `stoppable`."""

    def __init__(self) -> None:
        self.stopped = False
        self.active = False
        self._cancels = 0
        self._last = 0.0

    def arm(self, task: asyncio.Task[object]) -> None:
        self.task = task
        self._loop = asyncio.get_running_loop()
        self._before = task.cancelling()
        self.active = True
        self._old = signal.signal(signal.SIGINT, self._on_signal)

    async def catch_up(self) -> None:
        """Take over a stop that came before this block.

        The kernel's own handler had it then, and cancels the task a few rounds of the loop later.
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
        with suppress(RuntimeError):  # the loop is closed: nothing is left to stop
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        # The block may have ended between the signal and now; what follows it is not ours to stop.
        if self.active and self.task.cancel():
            self._cancels += 1

    def disarm(self) -> bool:
        """End the watch and take our cancellations back; return whether others remain."""
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
    """Let the stop button cancel the current task, and end this block quietly when it did.

    The block leaves by its end with `.stopped` True; a cancellation that was not ours passes
    through. A nested use within one task shares the outer one, which then is where the stop ends.
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
    """What arrived while user code ran; made by `user_code`."""

    def __init__(
        self,
        inside: Callable[[FrameType | None], bool] = _anywhere,
        elsewhere: Callable[[], None] | None = None,
    ) -> None:
        self.interrupted = False
        self.timed_out = False
        self.active = True
        self._inside = inside
        self._elsewhere = elsewhere
        self._before = signal.getsignal(signal.SIGINT)
        self._pending = False
        self._raised: KeyboardInterrupt | None = None
        self._starting = False  # the thread that sends a stop again

    def raise_pending(self) -> None:
        """Raise KeyboardInterrupt if the user has pressed stop already.

        To be called where signals may be raised, before the code begins: a stop from just before
        has only asked for a cancellation, which code that runs synchronously would hold up.
        """
        stop = getattr(self._before, "__self__", None)
        if self._pending or (isinstance(stop, Stop) and stop.stopped):
            self.interrupted = True
            raise KeyboardInterrupt

    def on_interrupt(self, signum: int, frame: FrameType | None) -> None:
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
        if self.active and self._inside(frame):
            self.timed_out = True
            self._raised = TimeLimit(f"stopped after {timeout:g} s")
            raise self._raised
        if self.active and self._elsewhere:
            self.timed_out = True
            self._elsewhere()

    def _on_unraisable(self, lost: sys.UnraisableHookArgs) -> None:
        """Send a signal again whose exception Python ignores.

        So it does with all that comes out of `__del__`, what weak references call, and what
        watches the garbage collector: the user would have to press stop twice.
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
        while self._starting:  # what is raised before the hook returns is lost for good
            time.sleep(SOON)
        main = threading.main_thread().ident
        if not self.active or main is None:
            return
        if sys.platform == "win32":
            signal.raise_signal(signal.SIGINT)
        else:
            signal.pthread_kill(main, signal.SIGINT)  # `raise_signal` would not end its sleep

    @contextmanager
    def not_lost(self) -> Iterator[None]:
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
    """Let the stop button raise KeyboardInterrupt in this block, and the clock `TimeLimit`.

    An async cell's handler only cancels at the next `await`, which user code running synchronously
    (or `input()`) never reaches. `timeout` is in seconds; there is no limit without SIGALRM
    (Windows) and off the main thread. An alarm that the user had set is put back with the time it
    has left, or at once when that is over; an alarm the block sets for itself replaces the limit.

    `inside(frame)` says whether the interrupted frame may be raised in. Where it may not, a signal
    calls `elsewhere`; without that a stop goes to the handler before ours and an alarm waits for
    the next one. Whoever gives `inside` calls `raise_pending` there, before the code begins.
    """
    if threading.current_thread() is not threading.main_thread():
        yield Signals()
        return
    signals = Signals(inside, elsewhere)
    before = signal.getsignal(signal.SIGINT)
    if before is not None:  # None: a handler that Python could not put back
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
    """Start the clock; return a function that puts back what was there."""
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
    """Say whether code that runs here and now can be given a time limit by `user_code`."""
    return (
        hasattr(signal, "setitimer")
        and threading.current_thread() is threading.main_thread()
        and signal.getsignal(signal.SIGALRM) is not None
    )


class TurnFailed(HermesError):
    """The turn failed; its cell fails with it, so that a run of the whole notebook stops here."""


class Stopped(HermesError):
    """The user stopped the turn; the cell ends as interrupted cells do, in one line."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class StoppedInView(Stopped):
    """It was stopped, and what is shown of the turn says so: its cell fails without an error."""


def stopped_in_view(shell: Foreign) -> StoppedInView:
    """Return the error that stands for a stop, which the shell shows as nothing from now on.

    What others had asked for of their errors stays.
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
