"""Running code in the user's namespace from inside a running cell, so that only its effects stay.

The outer cell's counter, history, `_` and `Out`, last error, payloads, hooks and streams are the
same afterwards. What the code shows is returned, nothing reaches the front end. One place does
this; `capture.py` knows what an output is, `interrupt.py` what a signal does.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
import types
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from hermes_nb.notebook.collector import Collector, Output
from hermes_nb.notebook.figures import UserFigures
from hermes_nb.notebook.interrupt import Signals, TimeLimit, has_time_limit, user_code
from hermes_nb.notebook.kinds import Foreign
from hermes_nb.notebook.outputs import strip_ansi
from hermes_nb.notebook.shellstate import captured, text_of, undisturbed

GRACE = 2.0
"""Seconds that stopped async code has to end; what has not ended by then is left behind."""


_POLL = 0.02
_running: WeakKeyDictionary[Any, object] = WeakKeyDictionary()
"""The innermost nested run of each shell."""
_around: ContextVar[object] = ContextVar("hermes_nb_nested_run", default=None)
"""The nested run that the current code is part of."""


class CellError(NamedTuple):
    """How code failed; the traceback's lines are without ANSI codes, and may be missing."""

    ename: str
    evalue: str
    traceback: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """What running code gave.

    `outputs` are nbformat outputs, ANSI codes included. `interrupted` says that the user pressed
    stop, also when the code went on regardless; `timed_out` that the time limit struck.
    """

    outputs: list[Output] = field(default_factory=list)
    error: CellError | None = None
    interrupted: bool = False
    timed_out: bool = False
    seconds: float = 0.0


async def execute(
    shell: Foreign,
    code: str,
    *,
    timeout: float | None = None,
    on_output: Callable[[str], None] | None = None,
) -> Execution:
    """Run `code` in `shell`'s namespace; what goes wrong in it is in the result, not raised.

    Call it on the shell's own thread. `timeout` is in seconds; synchronous code has none on Windows
    and off the main thread. `on_output` hears of the latest text now and then. A cancellation of
    the calling task stops the code and passes through. A process forked by the code that comes back
    here ends, so that the agent goes on in the parent only.
    """
    started = time.monotonic()
    collector = Collector(on_output)
    async with _its_turn(shell):
        with undisturbed(shell), captured(shell, collector, code):
            result, signals = await _run(shell, code, timeout)
    error = _verdict(result, signals, collector, timeout)
    return Execution(
        outputs=collector.outputs(),
        error=error,
        interrupted=signals.interrupted
        or (error is not None and error.ename == "KeyboardInterrupt"),
        timed_out=signals.timed_out,
        seconds=time.monotonic() - started,
    )


@asynccontextmanager
async def _its_turn(shell: Foreign) -> AsyncIterator[None]:
    """Wait while other code runs nested, except the code around us: hooks unwind like a stack."""
    around = _around.get()
    # Not an asyncio.Event: the other run may be on another thread's loop.
    while (outer := _running.get(shell)) not in (None, around):  # noqa: ASYNC110
        await asyncio.sleep(_POLL)
    mark = object()
    token = _around.set(mark)
    _running[shell] = mark
    try:
        yield
    finally:
        _around.reset(token)
        if outer is None:
            del _running[shell]
        else:
            _running[shell] = outer


async def _run(shell: Foreign, code: str, timeout: float | None) -> tuple[Foreign, Signals]:
    problem = None
    try:
        transformed = shell.transform_cell(code)
    except Exception:  # noqa: BLE001 - an input transformer may raise anything; IPython shows it
        transformed, problem = code, sys.exc_info()
    cell = _Cell(shell, code, transformed, problem)
    if shell.should_run_async(code, transformed_cell=transformed, preprocessing_exc_tuple=problem):
        return await _run_async(cell, timeout)
    return _run_sync(cell, timeout)


def _run_sync(cell: _Cell, timeout: float | None) -> tuple[Foreign, Signals]:
    """Run to the end without giving the event loop a turn."""
    with user_code(timeout, inside=cell.runs_below) as signals:
        run = cell.run(signals)
        try:
            run.send(None)
        except StopIteration as end:
            return end.value, signals
    run.close()
    message = "code without `await` waited for the event loop"
    raise RuntimeError(message)


async def _run_async(cell: _Cell, timeout: float | None) -> tuple[Foreign, Signals]:
    """Run as a task of its own, so that stopping it does not cancel the turn it runs in."""
    loop = asyncio.get_running_loop()
    halted = loop.create_future()

    def halt() -> None:
        inner.cancel()
        if not halted.done():
            halted.set_result(None)

    def time_is_up() -> None:
        signals.timed_out = True
        halt()

    clock = None
    with user_code(timeout, inside=inside, elsewhere=lambda: _soon(loop, halt)) as signals:
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


def _soon(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """Call back from the loop; unlike `call_soon` this wakes it from a signal handler."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback)


async def _settled(task: asyncio.Task[Any]) -> None:
    """Wait until a task that was told to end has ended, or leave it behind."""
    if not task.done():
        await asyncio.wait({task}, timeout=GRACE)
    if not task.done():
        task.add_done_callback(lambda done: done.cancelled() or done.exception())


async def _drive(shell: Foreign, code: str, transformed: str, problem: Foreign) -> Foreign:
    """Run the cell; this frame also marks where the agent's own frames end."""
    pid = os.getpid()
    figures = UserFigures()
    result = None
    try:
        cell = shell.run_cell_async(
            code,
            store_history=False,
            transformed_cell=transformed,
            preprocessing_exc_tuple=problem,
        )
        result = await _in_this_process(cell, pid)
        with figures.hidden():
            _show_figures(shell)
        return result
    finally:
        if os.getpid() != pid:
            _leave_child(result)
        figures.put_back()


@types.coroutine
def _in_this_process(run: Coroutine[Any, Any, Any], pid: int) -> Generator[object, object, Foreign]:
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


def _show_figures(shell: Foreign) -> None:
    """Give the callbacks that nested code keeps their end-of-cell event."""
    shell.events.trigger("post_execute")


def _leave_child(result: Foreign) -> None:
    """End a forked child whose code has come to its end, as its own script would end."""
    with suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    error = result.error_in_exec if result is not None else None
    status = error.code if isinstance(error, SystemExit) else int(error is not None)
    os._exit(status if isinstance(status, int) else int(status is not None))


def _in_user_code(frame: types.FrameType | None, run_code: types.CodeType) -> bool:
    """Say whether a signal may be raised in `frame`: below IPython's own `try`, inside our run.

    Anywhere else (IPython's bookkeeping, the event loop, the agent) an exception would leave
    things half done.
    """
    below: types.FrameType | None = None
    found = False
    while frame is not None:
        code = frame.f_code
        if code is run_code:
            found = below is not None and below.f_code.co_filename != code.co_filename
        elif code is _show_figures.__code__:
            found = True
        elif code is _drive.__code__:
            return found
        below, frame = frame, frame.f_back
    return False


def _verdict(
    result: Foreign, signals: Signals, collector: Collector, timeout: float | None
) -> CellError | None:
    """Say how the code failed, and bring the error output in line with that."""
    raised = result and (result.error_before_exec or result.error_in_exec)
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
