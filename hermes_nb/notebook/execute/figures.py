"""The user's matplotlib figures, kept apart from those that nested code draws."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hermes_nb.notebook.shell import Foreign


class UserFigures:
    """The user's matplotlib figures that were open, and due to be shown, when this was made.

    The inline backend shows and closes *all* open figures when a cell ends. A figure that the
    user's own cell has begun must wait for that cell's end, also when the agent plots in between.
    """

    def __init__(self) -> None:
        # matplotlib is looked up, never imported: without it there are no figures.
        self._gcf: Foreign = getattr(sys.modules.get("matplotlib._pylab_helpers"), "Gcf", None)
        backend = sys.modules.get("matplotlib_inline.backend_inline")
        self._show: Foreign = getattr(backend, "show", None)
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
        if self._show:
            self._set_due(self._due, called=self._called)

    def _set_due(self, figures: list[Foreign], *, called: bool) -> None:
        self._show._to_draw = figures  # noqa: SLF001
        self._show._draw_called = called  # noqa: SLF001
