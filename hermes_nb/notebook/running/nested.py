"""One cell run inside another, and where a signal may strike in it.

While IPython or the user's code runs, a stop or an alarm is raised right there, as in any cell of
Jupyter's. In the frames of the agent it is not: those would be left half done.
"""

from __future__ import annotations

import inspect
import os
import sys
import types
from collections.abc import Coroutine, Generator, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from hermes_nb.notebook.interrupt import Signals
from hermes_nb.notebook.values.kinds import Foreign


class NestedCell:
    """Code for `shell`, its input transformed; `problem` is what transforming it raised."""

    def __init__(self, shell: Foreign, code: str) -> None:
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
        """Whether the code has an `await` of its own."""
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
        ipython = self._ipython()
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

    def _ipython(self) -> Coroutine[Any, Any, Any]:
        run: Coroutine[Any, Any, Any] = self._shell.run_cell_async(
            self._code,
            store_history=False,
            transformed_cell=self._transformed,
            preprocessing_exc_tuple=self._problem,
        )
        return run


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


def _leave_child(result: Foreign) -> None:
    """End a forked child whose code has come to its end, as its own script would end."""
    with suppress(BaseException):
        sys.stdout.flush()
        sys.stderr.flush()
    error = result.error_in_exec if result is not None else None
    status = error.code if isinstance(error, SystemExit) else int(error is not None)
    os._exit(status if isinstance(status, int) else int(status is not None))


class UserFigures:
    """The user's matplotlib figures that were open, and due to be shown, when this was made.

    The inline backend shows and closes *all* open figures when a cell ends. A figure that the
    user's own cell has begun must wait for that cell's end, also when the agent plots in between.
    """

    def __init__(self) -> None:
        # matplotlib is looked up, never imported: without it there are no figures.
        self._gcf: Any = getattr(sys.modules.get("matplotlib._pylab_helpers"), "Gcf", None)
        backend = sys.modules.get("matplotlib_inline.backend_inline")
        self._show: Any = getattr(backend, "show", None)
        self._managers = list(self._gcf.figs.values()) if self._gcf else []
        if self._show:
            self._due = list(self._show._to_draw)  # noqa: SLF001 - the backend has no other door
            self._called = self._show._draw_called  # noqa: SLF001
            self._set_due([], called=False)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Take these figures from the list of open ones while others are shown and closed."""
        if not self._gcf:
            yield
            return
        figs = self._gcf.figs
        mine = {n: m for n, m in figs.items() if m in self._managers}
        for number in mine:
            del figs[number]
        try:
            yield
        finally:
            others = dict(figs)
            figs.clear()
            figs.update(mine | others)

    def put_back(self) -> None:
        """Let them be due again, as they were."""
        if self._show:
            self._set_due(self._due, called=self._called)

    def _set_due(self, figures: list[Any], *, called: bool) -> None:
        self._show._to_draw = figures  # noqa: SLF001
        self._show._draw_called = called  # noqa: SLF001
