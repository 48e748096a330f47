"""A map where it runs: a bar while it does, a table when it is over.

As with a turn, a cell is updated at most every `INTERVAL` seconds, a terminal that can draw has the
bar on its last lines until the table takes its place, and where nobody is there (nbclient, nbval,
papermill) there is one display at the end.
"""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

from hermes_nb.app.maps.fanout import Fanout
from hermes_nb.app.maps.items import Item
from hermes_nb.app.maps.table import rows_of, table_markdown
from hermes_nb.core.text import both_ends, used
from hermes_nb.notebook.display.showing import can_draw, show
from hermes_nb.notebook.display.transcript import plain_text
from hermes_nb.notebook.display.view import INTERVAL, STILL_RUNNING, TICK, can_ask, has_kernel
from hermes_nb.safety.markup import escape
from hermes_nb.safety.visible import visible

if TYPE_CHECKING:
    from rich.live import Live

WIDTH = 24
"""Cells of the bar."""
NAMED = 4
"""Inputs in work that are named."""
ENDS = ("done", "failed", "unknown", "stopped", "budget")
WORDS = {"budget": "not begun for want of budget"}


class MapView:
    """Shows one map; `moved` is called at each change, on the map's loop."""

    def __init__(self, shell: Any, fanout: Fanout) -> None:  # noqa: ANN401 - IPython's shell
        self._fanout = fanout
        self._cell = has_kernel(shell) and can_ask(shell)
        self._screen = None if has_kernel(shell) or not can_draw(sys.stdout) else _screen()
        self._began = time.monotonic()
        self._shown = 0.0
        self._handle: Any = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = False
        self._closed = False

    def moved(self) -> None:
        """See to it that a change is shown soon."""
        if self._closed or self._due or not (self._cell or self._screen):
            return
        self._due = True
        self._wait(max(self._shown + INTERVAL - time.monotonic(), 0.0))

    def close(self) -> None:
        """Show what it came to, once."""
        if not self._closed:
            self._closed = True
            self._wait(None)
            if self._screen is not None:
                self._screen.stop()
            self._display(finished(self._fanout, time.monotonic() - self._began))

    def _tick(self) -> None:
        self._due = False
        self._shown = time.monotonic()
        shown = running(self._fanout, self._shown - self._began)
        if self._screen is None:
            self._display(shown, over=False)
        else:
            _draw(self._screen, shown)
        self._wait(TICK)  # so that its clock runs

    def _wait(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop = asyncio.get_running_loop() if seconds is not None else None
        self._timer = loop.call_later(seconds or 0.0, self._tick) if loop is not None else None

    def _display(self, markdown: str, *, over: bool = True) -> None:
        from IPython.display import display

        plain = plain_text(markdown) if over else STILL_RUNNING
        data = {"text/markdown": markdown, "text/plain": plain}
        if self._handle is None:
            self._handle = display(data, raw=True, display_id=True) if self._cell else None
            if not self._cell:
                show(data)
        else:
            self._handle.update(data, raw=True)


def _screen() -> Live:
    """Return the last lines of the terminal, to be drawn on; they are gone once it stops."""
    from rich.console import Console
    from rich.live import Live

    return Live(
        console=Console(highlight=False, force_terminal=True), auto_refresh=False, transient=True
    )


def _draw(screen: Live, markdown: str) -> None:
    """Draw the state of a map, a line of the terminal for each of its own."""
    from rich.text import Text

    lines = filter(None, plain_text(markdown).split("\n"))
    screen.update(Text("\n".join(lines), no_wrap=True, overflow="ellipsis"))
    screen.start()
    screen.refresh()


def running(fanout: Fanout, seconds: float) -> str:
    """Return a bar, what is in work, and what was used, as Markdown."""
    items = fanout.items
    over = sum(item.status in ENDS for item in items)
    filled = WIDTH * over // len(items)
    names = [item.name for item in items if item.status == "running"]
    shown = [escape(visible(both_ends(name, 40))) for name in names[:NAMED]]
    shown += [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    bar = "▰" * filled + "▱" * (WIDTH - filled)
    work = f"> {', '.join(shown)}\n\n" if shown else ""
    parts = [*([_counted(items)] if over else ()), *used(fanout.usage), f"{seconds:.0f} s"]
    return f"{bar} {over} of {len(items)}\n\n{work}<sub>◌ {' · '.join(parts)}</sub>"


def finished(fanout: Fanout, seconds: float) -> str:
    """Return the table, what it took, and how to go on, as Markdown."""
    items = fanout.items
    mark = "✓" if all(item.status == "done" for item in items) else "◔"
    kept = sum(item.kept and item.status == "done" for item in items)
    parts = [f"{mark} {_counted(items)}"]
    parts += [f"{kept} from an earlier run"] if kept else []
    parts += [*used(fanout.usage), f"{seconds:.1f} s"]
    blocks = [table_markdown(rows_of(items)), _advice(items), f"<sub>{' · '.join(parts)}</sub>"]
    return "\n\n".join(filter(None, blocks))


def _counted(items: list[Item]) -> str:
    """Return how many items are in which state, leaving out what does not occur."""
    counts = {state: sum(item.status == state for item in items) for state in ENDS}
    told = [f"{count} {WORDS.get(state, state)}" for state, count in counts.items() if count]
    return ", ".join(told) or f"0 of {len(items)}"


def _advice(items: list[Item]) -> str:
    """Return what to do about inputs without an answer, "" if there are none."""
    states = {item.status for item in items}
    told = []
    if states & {"stopped", "budget"}:
        told.append("The same command goes on with what was not begun.")
    if states & {"failed", "unknown"}:
        told.append("`--retry` runs again what failed or is unknown.")
    return " ".join(told)
