"""Show a running turn in a page that was reloaded.

After a reload, a front end no longer knows which outputs belong to a running cell, and shows the
saved ones. It cannot announce itself, because its requests to a busy kernel wait until the cell
ends. So the kernel checks from time to time which page is open. A page that did not run the cell
receives the turn through the bridge. It replaces the saved part of the running view, and removes
outputs from an earlier run.
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
from hermes_nb.notebook.shell import (
    Shell,
    can_ask,
    has_kernel,
    next_number,
    publisher_of,
    request_of,
    running_cell,
    turn_cell,
)

logger = logging.getLogger(__name__)

EVERY = 2.0
"""Seconds between checks; each costs a message, or an update to the turn in a reloaded page."""
SURE = 2.0
"""Seconds after which another page is checked again before it receives the turn.

The page that ran the cell may only be busy. Two pages that both change the notebook would cause a
conflict.
"""
SELDOM = 60.0
"""Maximum seconds between checks while the page is missing."""
AFTERWARDS = 30.0
"""Seconds after a turn during which a page that is still loading can receive it.

Running its cell again ends that period.
"""
PATIENCE = 8.0
"""Seconds for which a finished turn waits until a reloaded page has accepted it."""


LOST = {
    "text/markdown": (
        "*This page was reloaded while the cell ran: output of its other code since then is not "
        "displayed here.*"
    ),
    "text/plain": "(the page was reloaded while the cell ran: output of its other code is missing)",
}
"""Shown if the cell contains more code than the turn: its output is lost after a reload."""


@asynccontextmanager
async def rejoined(shell: Shell, frontend: FrontEnd, transcript: Transcript) -> AsyncIterator[None]:
    """Show the turn and its result in a page that reloads during this block."""
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
        self._count = self._number()
        parent = request_of(shell)
        code = str((parent.get("content") or {}).get("code", "")).strip()
        # Output from other code in the cell is lost after a reload.
        self._more_code = not code.startswith("%%hermes") and "\n" in code
        self._client = str((parent.get("header") or {}).get("session", ""))
        self._pictures: list[Mapping[str, Json]] = []
        self._over = self._came_back = self._others = False
        publisher_of(shell).register_hook(self._displayed)
        self._tasks: set[asyncio.Task[object]] = {asyncio.create_task(self._watch())}

    def hear(self, page: Info) -> None:
        """Record another page; show it the turn if that has ended."""
        if not self._is_another(page):
            return
        self._others = True
        if self._over:
            self._tasks.add(asyncio.get_running_loop().create_task(self._show()))

    async def end(self) -> None:
        """Show the end of the turn in the reloaded page, if there is one."""
        publisher_of(self._shell).unregister_hook(self._displayed)
        self._over, self._count = True, self._number()
        self._shell.events.register("pre_run_cell", self._begin)
        self._cancel()
        if self._came_back or self._others:
            self._tasks = {asyncio.create_task(self._show())}
            await asyncio.wait(self._tasks, timeout=PATIENCE)

    def _number(self) -> int:
        """Return the cell's execution count."""
        cell = turn_cell.get()
        return cell.count if cell is not None and cell.over else next_number(self._shell)

    def leave(self) -> None:
        """Stop, but finish showing the turn if that has already begun."""
        with suppress(ValueError):
            self._frontend.listeners.remove(self.hear)
            self._shell.events.unregister("pre_run_cell", self._begin)

    def _begin(self, _: object) -> None:
        """Stop when the cell is run again, because its output then belongs to the new run."""
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
        """Show the turn in a page other than the one that ran it; return whether a page exists."""
        try:
            page = await self._frontend.check_page()
            if self._is_another(page) and not self._came_back:
                await asyncio.sleep(SURE)
                page = await self._frontend.check_page()
            if not self._is_another(page):
                return page is not None
            self._came_back = True
            over = self._over
            shown = bundle(self._transcript, running=not over)
            drew = self._transcript.drew
            if over:  # includes a failure's text: the page gets no separate error output
                shown["text/markdown"] = self._transcript.finished(
                    room=ANSWER, page=True, status=not drew
                )
            marks = self._transcript.metadata if over else None
            outputs = [_output(shown, marks), *(self._pictures if over else ())]
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
        except ToolError as error:  # the page or the cell no longer exists
            logger.info("the turn could not be displayed in its page: %s", error)
        return True

    def _is_another(self, page: Info | None) -> bool:
        return page is not None and page.client != self._client

    def _displayed(self, message: dict[str, Json]) -> dict[str, Json]:
        """Store an image that the turn shows below itself; return `message` unchanged."""
        content = message.get("content") or {}
        if running_cell(self._shell) != self._cell:  # shown by another cell meanwhile
            return message
        if message.get("msg_type") == "display_data" and is_drawing(content.get("data") or {}):
            self._transcript.drew = True
            self._pictures.append(_output(content["data"], content.get("metadata")))
            del self._pictures[:-MOST]
        return message


def _output(data: Mapping[str, Json], metadata: object = None) -> dict[str, Json]:
    return {"output_type": "display_data", "data": dict(data), "metadata": metadata or {}}
