"""A turn goes on in a page that is reloaded.

A front end forgets at a reload which outputs belong to a running cell, and shows what was last
saved. It cannot say that it is back either: what it asks a busy kernel waits for the cell's end. So
the kernel looks now and then who is there, and gives a page that did not run the cell the turn
through the bridge. What was saved of the running view is replaced; what an earlier run had left,
and running the cell had cleared, goes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

from hermes_nb.core.errors import ToolError
from hermes_nb.core.messages import Json
from hermes_nb.notebook.display.drawings import MOST, is_drawing
from hermes_nb.notebook.display.transcript import ANSWER, Transcript
from hermes_nb.notebook.display.views import STILL_RUNNING, bundle, footer
from hermes_nb.notebook.frontend import FrontEnd
from hermes_nb.notebook.page_discovery import Info
from hermes_nb.notebook.shell import Shell, can_ask, has_kernel, next_number, running_cell

logger = logging.getLogger(__name__)

EVERY = 2.0
"""Seconds between two looks; each costs a message, or makes a page that came back draw the turn."""
SURE = 2.0
"""Seconds after which another page is looked at again before it is given the turn: the one that ran
the cell may only be busy, and two pages that both change the notebook meet in a conflict."""
SELDOM = 60.0
"""Seconds between two looks for a page that stays away."""
AFTERWARDS = 30.0
"""Seconds after a turn in which a page that was being loaded at its end is still given it, unless
its cell is run again."""
PATIENCE = 8.0
"""Seconds that the end of a turn waits for a page that came back to take it; it may do so later."""


LOST = {
    "text/markdown": "*This page was reloaded while the cell ran: what its other code printed "
    "since then is not shown here.*",
    "text/plain": "(the page was reloaded while the cell ran: what other code printed is missing)",
}
"""Said of a cell with more code in it than the turn: no page that was reloaded gets its output."""


@asynccontextmanager
async def rejoined(shell: Shell, frontend: FrontEnd, transcript: Transcript) -> AsyncIterator[None]:
    """See to it that a page which is reloaded in this block shows the turn, and how it ended."""
    cell = running_cell(shell)
    if not (has_kernel(shell) and can_ask(shell) and cell):
        yield
        return
    joining = _Joining(shell, frontend, transcript, cell)
    frontend.listeners.append(joining.hear)
    try:
        yield
    finally:
        await joining.end()
        asyncio.get_running_loop().call_later(AFTERWARDS, joining.leave)


class _Joining:
    def __init__(self, shell: Shell, frontend: FrontEnd, transcript: Transcript, cell: str) -> None:
        self._shell = shell
        self._frontend = frontend
        self._transcript = transcript
        self._cell = cell
        self._count = next_number(shell)
        parent = shell.kernel.get_parent()
        code = str((parent.get("content") or {}).get("code", "")).strip()
        # What code beside the turn shows goes nowhere after a reload.
        self._more_code = not code.startswith("%%hermes") and "\n" in code
        self._client = str((parent.get("header") or {}).get("session", ""))
        self._pictures: list[Mapping[str, Json]] = []
        self._over = self._came_back = self._others = False
        shell.display_pub.register_hook(self._displayed)
        self._tasks: set[asyncio.Task[object]] = {asyncio.create_task(self._watch())}

    def hear(self, page: Info) -> None:
        """Note that another page is there; show it the turn if that is over."""
        if not self._is_another(page):
            return
        self._others = True
        if self._over:
            self._tasks.add(asyncio.get_running_loop().create_task(self._show()))

    async def end(self) -> None:
        """Show the end to the page that came back, if one did."""
        self._shell.display_pub.unregister_hook(self._displayed)
        self._over, self._count = True, next_number(self._shell)
        self._shell.events.register("pre_run_cell", self._begin)
        self._cancel()
        if self._came_back or self._others:
            self._tasks = {asyncio.create_task(self._show())}
            await asyncio.wait(self._tasks, timeout=PATIENCE)

    def leave(self) -> None:
        """Show nothing more, but what is being shown."""
        with suppress(ValueError):
            self._frontend.listeners.remove(self.hear)
            self._shell.events.unregister("pre_run_cell", self._begin)

    def _begin(self, _: object) -> None:
        """Leave the cell to what it shows now that it is run again."""
        if running_cell(self._shell) == self._cell:
            self._cancel()
            self.leave()

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _watch(self) -> None:
        pause = EVERY
        while True:
            await asyncio.sleep(pause)
            if self._frontend.expected:
                there = await self._show()
                pause = EVERY if there else min(2 * pause, SELDOM)

    async def _show(self) -> bool:
        """Show the turn to a page other than the one that ran it; say whether there is a page."""
        try:
            page = await self._frontend.look()
            if self._is_another(page) and not self._came_back:
                await asyncio.sleep(SURE)
                page = await self._frontend.look()
            if not self._is_another(page):
                return page is not None
            self._came_back = True
            over = self._over
            shown = bundle(self._transcript, running=not over)
            drew = self._transcript.drew
            if over:  # a failure's text stands in it: no error of the cell follows here
                shown["text/markdown"] = self._transcript.finished(
                    room=ANSWER, page=True, status=not drew
                )
            outputs = [_output(shown), *(self._pictures if over else ())]
            outputs += [_output(footer(self._transcript))] if over and drew else []
            outputs += [_output(LOST)] if over and self._more_code else []
            await self._frontend.call(
                "show",
                id=self._cell,
                over=over,
                outputs=outputs,
                running=STILL_RUNNING,
                execution_count=self._count,
            )
        except ToolError as error:  # the page went again, or the cell did; nobody waits for this
            logger.info("the turn could not be shown in its page: %s", error)
        return True

    def _is_another(self, page: Info | None) -> bool:
        return page is not None and page.client != self._client

    def _displayed(self, message: dict[str, Json]) -> dict[str, Json]:
        """Remember a picture that the turn shows below itself; `message` goes its way."""
        content = message.get("content") or {}
        if message.get("msg_type") == "display_data" and is_drawing(content.get("data") or {}):
            self._transcript.drew = True
            self._pictures.append(_output(content["data"], content.get("metadata")))
            del self._pictures[:-MOST]
        return message


def _output(data: Mapping[str, Json], metadata: object = None) -> dict[str, Json]:
    return {"output_type": "display_data", "data": dict(data), "metadata": metadata or {}}
