"""Run code in the user's namespace from within a running cell, without other side effects.

Afterwards the execution counter, history, `_` and `Out`, last error, payloads, hooks and streams
are restored. Output is returned and does not reach the front end. All nested runs go through this
module; `capture.py` handles outputs and `interrupt.py` signals.

While IPython's or the user's code is running, an interrupt or timeout is raised right there, as in
any Jupyter cell. It is never raised in the agent's frames, which would be left in an inconsistent
state.
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
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary

from hermes_nb.core.messages import Origin
from hermes_nb.core.tools import Place
from hermes_nb.notebook.document.outputs import settle_lines, strip_ansi
from hermes_nb.notebook.execute.capture import captured, text_of, undisturbed
from hermes_nb.notebook.execute.code_lock import agent_code
from hermes_nb.notebook.execute.collector import Output, OutputCollector, current_run
from hermes_nb.notebook.execute.figures import UserFigures
from hermes_nb.notebook.execute.network import kernel_origin, watched
from hermes_nb.notebook.execute.variable_history import TurnVariables, history_of
from hermes_nb.notebook.interrupt import Signals, TimeLimit, has_time_limit, user_code
from hermes_nb.notebook.shell import Foreign, Shell, TurnCell, hermes_magics


class NestedCell:
    """Code to run in `shell`, after input transformation; `_problem` is any error raised by it."""

    def __init__(self, shell: Shell, code: str) -> None:
        self._shell = shell
        self._code = code
        self._open = False
        self._problem: Foreign = None
        try:
            self._transformed = shell.transform_cell(code)
        except Exception:  # noqa: BLE001 - a transformer may raise anything; IPython reports it
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

    def recorded(self, place: Place | None) -> AbstractContextManager[TurnVariables]:
        """Record the variables that the code changes."""
        if place is None:
            return nullcontext(TurnVariables())
        history = history_of(self._shell)
        return history.recording(place.session, place.turn, self._transformed)

    async def run(self, signals: Signals) -> Foreign:
        """Run the code; return IPython's result, or None if a signal arrived outside the code.

        A child process forked by the code ends here; the agent continues only in the parent.
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
                ipython.close()  # a signal arrived before its first step
            figures.put_back()
        return result

    def may_raise_in(self, frame: types.FrameType | None) -> bool:
        """Return whether `frame` belongs to IPython or the user's code, called by this run."""
        while self._open and frame is not None:
            if frame.f_code is NestedCell.run.__code__:
                return True
            frame = frame.f_back
        return False


@types.coroutine
def _in_this_process(
    run: Coroutine[Foreign, Foreign, Foreign], pid: int
) -> Generator[object, object, Foreign]:
    """Step a coroutine; end a forked child that awaits, because its loop is the parent's."""
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
        except BaseException as error:  # noqa: BLE001 - passed on to the coroutine
            thrown = error


def _leave_child(result: Foreign) -> None:
    """End a forked child that has finished the code, with a script's exit status."""
    with suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    error = result.error_in_exec if result is not None else None
    status = error.code if isinstance(error, SystemExit) else int(error is not None)
    os._exit(status if isinstance(status, int) else int(status is not None))


GRACE = 2.0
"""Seconds that interrupted async code has to end; after that it is abandoned."""

_POLL = 0.02
_running: WeakKeyDictionary[Shell, OutputCollector] = WeakKeyDictionary()
"""The collector of each shell's innermost nested run."""


def showing(shell: Shell, cell: TurnCell | None) -> str | None:
    """Return the end of the output of a turn's running code; None if none is running.

    Can be called from any thread, even while the code blocks the event loop.
    """
    running = _running.get(shell)
    if running is None or running.cell is not cell:
        return None
    return settle_lines(strip_ansi(running.latest()))


class CellError(NamedTuple):
    """A run's error."""

    ename: str
    """The exception's name."""
    evalue: str
    """The exception's text."""
    traceback: tuple[str, ...] = ()
    """Lines of the traceback without ANSI codes; empty if there is no traceback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """The result of running code."""

    outputs: list[Output] = field(default_factory=list)
    """nbformat outputs, which may contain ANSI codes."""
    error: CellError | None = None
    """The error; None if the code succeeded."""
    interrupted: bool = False
    """True if the user interrupted it, even if the code ignored the interrupt."""
    timed_out: bool = False
    """True if it reached its timeout."""
    networked: bool = False
    """True if it used the network."""
    refused: bool = False
    """True if it tried to use the network and was refused."""
    seconds: float = 0.0
    """Duration in seconds."""
    variables: TurnVariables = field(default_factory=TurnVariables)
    """The variables that it changed; empty without a turn."""

    @property
    def origin(self) -> Origin:
        """Origin of the outputs: untrusted if this kernel has loaded untrusted content."""
        return "outside" if self.networked else kernel_origin()


async def execute(
    shell: Shell,
    code: str,
    *,
    timeout: float | None = None,
    offline: bool = False,
    approved: bool = False,
    place: Place | None = None,
) -> Execution:
    """Run `code` in `shell`'s namespace; its errors are returned, not raised.

    Call it in the shell's own thread. Cancelling the calling task interrupts the code and
    propagates. A child process forked by the code ends here, so that the agent continues only in
    the parent.

    Args:
        shell: the IPython shell.
        code: the code, which may contain magics.
        timeout: limit in seconds; has no effect on synchronous code on Windows or outside the main
            thread.
        offline: deny network access to this code, to everything that it leaves running, and to what
            it displays.
        approved: whether the user has allowed network access; the code may then also call functions
            that were defined by offline code.
        place: the turn for which changed variables are recorded, so that undo can restore them.
    """
    collector = OutputCollector(offline=offline)
    agent = getattr(
        hermes_magics(shell), "awake", None
    )  # its permission mode does not apply to the code
    async with _its_turn(shell, collector):
        started = time.monotonic()
        with (
            agent.permission.held() if agent else nullcontext(),
            watched(offline=offline, approved=approved) as party,
            undisturbed(shell),
            captured(shell, collector, code),
        ):
            cell = NestedCell(shell, code)
            with cell.recorded(place) as variables:
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
        variables=variables,
    )


@asynccontextmanager
async def _its_turn(shell: Shell, mark: OutputCollector) -> AsyncIterator[None]:
    """Wait until no cell and no other nested code is running, except code that contains this run.

    Otherwise hooks would be restored in the wrong order.
    """
    around = current_run.get()
    lock = nullcontext() if around is not None else agent_code(shell)
    async with lock, _innermost(shell, mark, around):
        yield


@asynccontextmanager
async def _innermost(
    shell: Shell, mark: OutputCollector, around: OutputCollector | None
) -> AsyncIterator[None]:
    # Not an asyncio.Event, as the other run may use another thread's loop.
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
    """Run to the end without yielding to the event loop."""
    with user_code(timeout, inside=cell.may_raise_in) as signals:
        run = cell.run(signals)
        try:
            run.send(None)
        except StopIteration as end:
            return end.value, signals
    run.close()
    raise RuntimeError("code without `await` waited for the event loop")


async def _run_async(cell: NestedCell, timeout: float | None) -> tuple[Foreign, Signals]:
    """Run as a separate task, so that an interrupt does not cancel the turn."""
    loop = asyncio.get_running_loop()
    halted = loop.create_future()

    def halt() -> None:
        inner.cancel()
        if not halted.done():
            halted.set_result(None)

    def halt_soon() -> None:
        with suppress(RuntimeError):  # threadsafe, because `call_soon` would not wake the loop
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
    """Return the code's error, and make the error output consistent with it."""
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
    elif shown is not None:  # displayed by code that caught the exception
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
