"""Separate the user's matplotlib figures from those drawn by nested code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hermes_nb.notebook.shell import Foreign


class UserFigures:
    """The user's matplotlib figures that were open, or due for display, when this was created.

    The inline backend displays and closes *all* open figures when a cell ends. A figure from the
    user's running cell must stay open until that cell ends, even if the agent plots in the
    meantime.
    """

    def __init__(self) -> None:
        # matplotlib is never imported here: if it is not loaded, there are no figures.
        self._gcf: Foreign = getattr(sys.modules.get("matplotlib._pylab_helpers"), "Gcf", None)
        backend = sys.modules.get("matplotlib_inline.backend_inline")
        self._show: Foreign = getattr(backend, "show", None)
        self._managers = list(self._gcf.figs.values()) if self._gcf else []
        if self._show:
            self._due = list(self._show._to_draw)  # there is no public API
            self._called = self._show._draw_called
            self._set_due([], called=False)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide these figures while other figures are displayed and closed."""
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
        if self._show:
            self._set_due(self._due, called=self._called)

    def _set_due(self, figures: list[Foreign], *, called: bool) -> None:
        self._show._to_draw = figures
        self._show._draw_called = called
