"""Running code in the user's namespace from inside a running cell, so that only its effects stay.

The outer cell's counter, history, `_` and `Out`, last error, payloads, hooks and streams are the
same afterwards. What the code shows is returned, nothing reaches the front end. One place does
this; `capture.py` knows what an output is, `interrupt.py` what a signal does.

While IPython or the user's code runs, a stop or an alarm is raised right there, as in any cell of
Jupyter's. In the frames of the agent it is not: those would be left half done.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import time
import types
from collections.abc import AsyncIterator, Coroutine, Generator
from contextlib import (
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary

from hermes_nb.core.messages import Origin
from hermes_nb.notebook.document.outputs import settle_lines, strip_ansi
from hermes_nb.notebook.execute.capture import captured, text_of, undisturbed
from hermes_nb.notebook.execute.collector import Output, OutputCollector, current_run
from hermes_nb.notebook.execute.figures import UserFigures
from hermes_nb.notebook.execute.network import kernel_origin, watched
from hermes_nb.notebook.interrupt import Signals, TimeLimit, has_time_limit, user_code
from hermes_nb.notebook.shell import Foreign, Shell, ours


class NestedCell:
    """Code for `shell`, its input transformed; `problem` is what transforming it raised."""

    def __init__(self, shell: Shell, code: str) -> None:
        self._shell = shell
        self._code = code
        self._open = False
        self._problem: Foreign = None
        try:
            self._transformed = shell.transform_cell(code)
        except Exception:  # noqa: BLE001 - a transformer may raise anything; IPython shows it
            self._transformed, self._problem = code, sys.exc_info()

    @property
    def waits(self) -> bool:
        return bool(
            self._shell.should_run_async(
                self._code,
                transformed_cell=self._transformed,
                preprocessing_exc_tuple=self._problem,
            )
        )

    async def run(self, signals: Signals) -> Foreign:
        """Run and return IPython's result, None if a signal struck outside the code itself.

        A process that the code forked ends here: the agent goes on in its parent.
        """
        pid = os.getpid()
        figures = UserFigures()
        ipython = self._shell.run_cell_async(
            self._code,
            store_history=False,
            transformed_cell=self._transformed,
            preprocessing_exc_tuple=self._problem,
        )
        result = None
        try:
            self._open = True
            signals.raise_pending()
            result = await _in_this_process(ipython, pid)
            self._open = False
            with figures.hidden():
                self._open = True
                self._shell.events.trigger("post_execute")
                self._open = False
        except KeyboardInterrupt:
            self._open = False
        finally:
            self._open = False
            if os.getpid() != pid:
                _leave_child(result)
            if inspect.getcoroutinestate(ipython) == inspect.CORO_CREATED:
                ipython.close()  # a signal came before its first step
            figures.put_back()
        return result

    def may_raise_in(self, frame: types.FrameType | None) -> bool:
        """Say whether `frame` belongs to IPython or the user's code, called by this run."""
        while self._open and frame is not None:
            if frame.f_code is NestedCell.run.__code__:
                return True
            frame = frame.f_back
        return False


@types.coroutine
def _in_this_process(
    run: Coroutine[Foreign, Foreign, Foreign], pid: int
) -> Generator[object, object, Foreign]:
    """Step a coroutine, and end a forked child that waits: the loop it waits on is the parent's."""
    sent: object = None
    thrown: BaseException | None = None
    while True:
        try:
            awaited = run.throw(thrown) if thrown is not None else run.send(sent)
        except StopIteration as end:
            return end.value
        if os.getpid() != pid:
            os._exit(1)
        sent = thrown = None
        try:
            sent = yield awaited
        except BaseException as error:  # noqa: BLE001 - handed on to the coroutine
            thrown = error


def _leave_child(result: Foreign) -> None:
    """End a forked child whose code has come to its end, as its own script would end."""
    with suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    error = result.error_in_exec if result is not None else None
    status = error.code if isinstance(error, SystemExit) else int(error is not None)
    os._exit(status if isinstance(status, int) else int(status is not None))


GRACE = 2.0
"""Seconds that stopped async code has to end; what has not ended by then is left behind."""

_POLL = 0.02
_running: WeakKeyDictionary[Shell, OutputCollector] = WeakKeyDictionary()
"""The innermost nested run of each shell, by what it shows."""


def showing(shell: Shell) -> str | None:
    """Return the end of what nested code has printed so far, None where none runs.

    Any thread may ask, also while the code holds up the event loop.
    """
    running = _running.get(shell)
    return None if running is None else settle_lines(strip_ansi(running.latest()))


class CellError(NamedTuple):
    """How code failed; the traceback's lines are without ANSI codes, and may be missing."""

    ename: str
    evalue: str
    traceback: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What running code gave.

    `outputs` are nbformat outputs, ANSI codes included. `interrupted` says that the user pressed
    stop, also when the code went on regardless; `timed_out` that the time limit struck,
    `networked` that the network was used, `refused` that it would have been.
    """

    outputs: list[Output] = field(default_factory=list)
    error: CellError | None = None
    interrupted: bool = False
    timed_out: bool = False
    networked: bool = False
    refused: bool = False
    seconds: float = 0.0

    @property
    def origin(self) -> Origin:
        """Whose text the outputs are: from outside once this kernel has loaded any."""
        return "outside" if self.networked else kernel_origin()


async def execute(
    shell: Shell,
    code: str,
    *,
    timeout: float | None = None,
    offline: bool = False,
    approved: bool = False,
) -> Execution:
    """Run `code` in `shell`'s namespace; what goes wrong in it is in the result, not raised.

    Call it on the shell's own thread. `timeout` is in seconds; synchronous code has none on Windows
    and off the main thread. `offline` code is refused the network, now and later; `approved` code
    may also use what such code has left behind. A cancellation of the calling task stops the code
    and passes through. A process forked by the code that comes back here ends, so that the agent
    goes on in the parent only.
    """
    started = time.monotonic()
    collector = OutputCollector()
    agent = getattr(ours(shell), "awake", None)  # its mode is not for the code that it runs
    async with _its_turn(shell, collector):
        with (
            agent.permission.held() if agent else nullcontext(),
            watched(offline=offline, approved=approved) as party,
            undisturbed(shell),
            captured(shell, collector, code),
        ):
            cell = NestedCell(shell, code)
            if cell.waits:
                result, signals = await _run_async(cell, timeout)
            else:
                result, signals = _run_sync(cell, timeout)
    error = _verdict(result, signals, collector, timeout)
    interrupted = signals.interrupted or (error is not None and error.ename == "KeyboardInterrupt")
    return Execution(
        outputs=collector.outputs(),
        error=error,
        interrupted=interrupted,
        timed_out=signals.timed_out,
        networked=party.networked,
        refused=party.refused,
        seconds=time.monotonic() - started,
    )


@asynccontextmanager
async def _its_turn(shell: Shell, mark: OutputCollector) -> AsyncIterator[None]:
    """Wait while other code runs nested, except the code around us: hooks unwind like a stack."""
    around = current_run.get()
    # Not an asyncio.Event: the other run may be on another thread's loop.
    while (outer := _running.get(shell)) not in (None, around):  # noqa: ASYNC110
        await asyncio.sleep(_POLL)
    token = current_run.set(mark)
    _running[shell] = mark
    try:
        yield
    finally:
        current_run.reset(token)
        if outer is None:
            del _running[shell]
        else:
            _running[shell] = outer


def _run_sync(cell: NestedCell, timeout: float | None) -> tuple[Foreign, Signals]:
    """Run to the end without giving the event loop a turn."""
    with user_code(timeout, inside=cell.may_raise_in) as signals:
        run = cell.run(signals)
        try:
            run.send(None)
        except StopIteration as end:
            return end.value, signals
    run.close()
    raise RuntimeError("code without `await` waited for the event loop")


async def _run_async(cell: NestedCell, timeout: float | None) -> tuple[Foreign, Signals]:
    """Run as a task of its own, so that stopping it does not cancel the turn it runs in."""
    loop = asyncio.get_running_loop()
    halted = loop.create_future()

    def halt() -> None:
        inner.cancel()
        if not halted.done():
            halted.set_result(None)

    def halt_soon() -> None:
        with suppress(RuntimeError):  # unlike `call_soon` this wakes the loop
            loop.call_soon_threadsafe(halt)

    def time_is_up() -> None:
        signals.timed_out = True
        halt()

    with user_code(timeout, inside=cell.may_raise_in, elsewhere=halt_soon) as signals:
        inner = loop.create_task(cell.run(signals))
        clock = None
        if timeout is not None and not has_time_limit():
            clock = loop.call_later(timeout, time_is_up)
        try:
            await asyncio.wait({inner, halted}, return_when=asyncio.FIRST_COMPLETED)
            await _settled(inner)
        except asyncio.CancelledError:
            inner.cancel()
            await _settled(inner)
            raise
        finally:
            halted.cancel()
            if clock is not None:
                clock.cancel()
    if not inner.done() or inner.cancelled():
        return None, signals
    return inner.result(), signals


async def _settled(task: asyncio.Task[Foreign]) -> None:
    if not task.done():
        await asyncio.wait({task}, timeout=GRACE)
    if not task.done():
        task.add_done_callback(lambda done: done.cancelled() or done.exception())


def _verdict(
    result: Foreign, signals: Signals, collector: OutputCollector, timeout: float | None
) -> CellError | None:
    """Say how the code failed, and bring the error output in line with that."""
    errors = () if result is None else (result.error_before_exec, result.error_in_exec)
    raised = next((error for error in errors if error is not None), None)
    shown = collector.last_error()
    cut_short = result is None or isinstance(raised, asyncio.CancelledError | TimeLimit)
    if signals.timed_out and (cut_short or raised is None):
        ename, evalue = "TimeLimit", f"stopped after {timeout:g} s"
    elif signals.interrupted and cut_short:
        ename, evalue = "KeyboardInterrupt", ""
    elif raised is not None:
        ename, evalue = type(raised).__name__, text_of(raised)
    elif shown is not None:  # by code that caught it
        ename, evalue = shown["ename"], shown["evalue"]
    else:
        return None
    last_line = f"{ename}: {evalue}"
    if shown is None and (cut_short or raised is None):
        collector.error(ename, evalue, [last_line])
    elif shown is not None and cut_short:
        shown.update(ename=ename, evalue=evalue, traceback=[*shown["traceback"][:-1], last_line])
    lines = strip_ansi("\n".join(shown["traceback"])) if shown and shown["ename"] == ename else ""
    return CellError(ename, evalue, tuple(lines.splitlines()))
