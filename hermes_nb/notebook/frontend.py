"""The kernel's end of the bridge to the page that shows the notebook.

A probe opens a comm; every page that shows a notebook of this kernel says hello on it, and one of
them is chosen to answer what follows: the one where the running cell was run, else the one that
answered last, else the first. A page comes and goes as its user likes, so nothing is cached beyond
a cell: each turn probes afresh. Where nobody answers, that is said soon and never waited for again
in the same cell.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hermes_nb.core.errors import ToolError
from hermes_nb.notebook.document import CellConflict
from hermes_nb.notebook.older import comms_heard
from hermes_nb.notebook.view import can_ask, has_kernel

TARGET = "hermes_nb"
PROTOCOL = 1
"""The same number as in labextension/static/remoteEntry.js; raised when a message changes."""
GRACE = 0.25
"""Seconds that the first hello is kept waiting for one from the page that ran the cell."""
SILENT = 0.5
"""Seconds for a client that has let a whole probe pass without an answer before."""
NO_PAGE = (
    "no open page of this notebook answers; reload the page if it is open in JupyterLab or "
    "Notebook 7 (%hermes doctor says more)"
)
OLD_PAGE = (
    "the hermes_nb extension in the page speaks another version than the package in the kernel: "
    "reload the page, restart the kernel, and restart Jupyter if that does not help"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """What a page says about one notebook that it shows.

    `path` is relative to the server's root, `active` the selected cell's id or "". `name` addresses
    this notebook in this page, `client` is the page's connection to the kernel, `holds` says
    whether the running cell is in it, `widgets` whether the page shows ipywidgets.
    """

    path: str
    name: str
    client: str = ""
    holds: bool = False
    dirty: bool = False
    cells: int = 0
    active: str = ""
    app: str = ""
    version: str = ""
    protocol: int = 0
    widgets: bool = False

    @classmethod
    def parse(cls, hello: Mapping[str, Any]) -> Info:
        """Return what a hello says; an older extension may leave things out."""
        known = {name: hello[name] for name in cls.__slots__ if hello.get(name) is not None}
        return cls(**{"path": "", "name": "", **known})


class Channel:
    """One comm, and the answers that are awaited on it."""

    def __init__(
        self, opening: Mapping[str, Any], on_hello: Callable[[Channel, Info], None]
    ) -> None:
        from comm import create_comm

        self.closed = False
        self._pending: dict[str, asyncio.Future[Mapping[str, Any]]] = {}
        self._numbers = itertools.count()
        self._loop = asyncio.get_running_loop()
        self._on_hello = on_hello
        comm: Any = create_comm(target_name=TARGET, data=dict(opening))
        # Not on_msg: it runs the shell's pre_execute and post_execute hooks around every message,
        # which are about cells (matplotlib's would flush figures in the midst of one).
        # ipykernel 7.4 brings answers to the async cell's own loop by itself: 6 ms a call. Sending
        # them to the page's subshell instead (`_reply_subshell_for`) took 60 ms, and each one made
        # the page believe that the kernel was idle. Older ones do that anyway, on other threads.
        comm.handle_msg = self._on_msg
        comm.on_close(lambda _: self._threadsafe(self._end))
        self._comm = comm

    async def ask(
        self, to: str, op: str, arguments: Mapping[str, Any], timeout: float
    ) -> Mapping[str, Any]:
        """Send a request and return its answer; raise `TimeoutError`."""
        number = str(next(self._numbers))
        future: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        try:
            self._comm.send({"id": number, "to": to, "op": op, "args": dict(arguments)})
            async with comms_heard(), asyncio.timeout(timeout):
                return await future
        finally:
            self._pending.pop(number, None)
            if self.closed:
                self.close()

    def close(self) -> None:
        """End the comm, once nothing is awaited on it any more."""
        self.closed = True
        if not self._pending:
            self._comm.close()

    def _on_msg(self, message: Mapping[str, Any]) -> None:
        """Take in a message, on whatever thread the kernel has it."""
        self._threadsafe(self._receive, message["content"]["data"])

    def _receive(self, data: Mapping[str, Any]) -> None:
        if "hello" in data:
            self._on_hello(self, Info.parse(data["hello"]))
            return
        future = self._pending.get(str(data.get("id")))
        if future is not None and not future.done():
            future.set_result(data)

    def _end(self) -> None:
        """Note that the page closed the comm: it goes away, or has no such extension."""
        self.closed = True
        for future in self._pending.values():
            if not future.done():
                future.set_result({"error": {"kind": "gone", "message": NO_PAGE}})

    def _threadsafe(self, callback: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback, *arguments)


class FrontEnd:
    """The page that shows this kernel's notebook, as far as there is one.

    `listeners` are called with every hello, also with one between turns after a page was reloaded.
    `problem` says why the last probe found nobody who can be talked to, where there is a reason.
    """

    def __init__(self, shell: Any) -> None:  # noqa: ANN401 - IPython's shell
        self._shell = shell
        self._channel: Channel | None = None
        self._page: Info | None = None
        self._probed_in = ""
        self._hellos: asyncio.Queue[Info] | None = None
        self._silent: dict[str, str] = {}
        self._gone = ""
        self._met_in = ""
        self.problem = ""
        self.listeners: list[Callable[[Info], None]] = []

    @property
    def page(self) -> Info | None:
        """What the chosen page said when it was last heard."""
        return self._page

    async def probe(self, timeout: float = 1.5) -> Info | None:
        """Return who answers now, None when nobody does within `timeout` seconds.

        Where nobody could answer a question either (nbclient, a terminal) it does not even try. A
        client that never answered costs `SILENT` seconds in later cells, and that once a cell.
        """
        if not (has_kernel(self._shell) and can_ask(self._shell)):
            return None
        cell, client, request = self._parent()
        if client in self._silent:
            if self._silent[client] == request:
                return None
            timeout = min(timeout, SILENT)
        before, self._hellos = self._channel, asyncio.Queue()
        self._channel = Channel({"cell": cell}, self._hear)
        try:
            async with comms_heard():
                page = await self._choose(self._hellos, cell, client, timeout)
        finally:
            self._hellos = None
            if before is not None:
                before.close()
        self._probed_in = request
        self._page = page
        if page is None:
            self._silent[client] = request
        elif page.client != client:
            self._gone = client
        else:
            self._met_in = request
        return self._usable(page)

    @property
    def reloaded(self) -> bool:
        """Whether the page that ran this cell has been left since: it shows no new output of it."""
        _, client, request = self._parent()
        page = self._page
        return self._met_in == request and page is not None and page.client != client

    async def call(self, op: str, timeout: float = 5.0, **arguments: Any) -> Any:  # noqa: ANN401
        """Have the page do something and return what it says.

        Raises `CellConflict` or `ToolError`; it returns within `timeout` seconds, plus a probe's
        where the page had to be found first.
        """
        reply = await self._ask(op, timeout, arguments)
        if (reply.get("error") or {}).get("kind") == "gone":  # and so has done nothing
            self._page = None
            reply = await self._ask(op, timeout, arguments)
        if error := reply.get("error"):
            raise _refusal(error, arguments)
        return reply.get("result")

    async def _ask(
        self, op: str, timeout: float, arguments: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        known = self._page is not None and self._channel is not None and not self._channel.closed
        if not known or self._probed_in != self._parent()[2]:
            await self.probe()
        if self._channel is None or self._usable(self._page) is None or self._page is None:
            raise ToolError(self.problem or NO_PAGE)
        try:
            return await self._channel.ask(self._page.name, op, arguments, timeout)
        except TimeoutError:
            self._page = None
            message = (
                f"the notebook's page did not answer within {timeout:g} s; it may be loading, or a "
                f"dialog may be open in it. Look at the notebook before trying again"
            )
            raise ToolError(message) from None

    async def _choose(
        self, hellos: asyncio.Queue[Info], cell: str, client: str, timeout: float
    ) -> Info | None:
        """Return the best of those who say hello, soon after the first of them."""
        last = self._page.name if self._page else ""
        alone = client == self._gone

        def rank(info: Info) -> tuple[bool, bool, bool]:
            return info.holds or not cell, info.client == client, info.name == last

        best: Info | None = None
        until = asyncio.get_running_loop().time() + timeout
        with suppress(TimeoutError):
            while (
                best is None
                or not rank(best)[0]
                or not (rank(best)[1] or (alone and rank(best)[2]))
            ):
                async with asyncio.timeout_at(until):
                    info = await hellos.get()
                if best is None:
                    until = min(until, asyncio.get_running_loop().time() + GRACE)
                if best is None or rank(info) > rank(best):
                    best = info
        return best

    def _hear(self, channel: Channel, info: Info) -> None:
        """Take in a hello: an answer to a probe, or a page that was just loaded."""
        if channel is not self._channel:
            return
        self._silent.clear()
        if self._hellos is not None:
            self._hellos.put_nowait(info)
        elif self._page is None or info.name != self._page.name:
            self._probed_in = ""  # the chosen page may be the one that was reloaded: look again
        for listener in self.listeners:
            listener(info)

    def _usable(self, page: Info | None) -> Info | None:
        mismatch = page is not None and page.protocol != PROTOCOL
        self.problem = OLD_PAGE if mismatch else ""
        return None if mismatch else page

    def _parent(self) -> tuple[str, str, str]:
        """Return the running cell's id, the client that runs it, and the request's own id."""
        parent = self._shell.kernel.get_parent() if has_kernel(self._shell) else {}
        header = parent.get("header") or {}
        cell = (parent.get("metadata") or {}).get("cellId") or ""
        return str(cell), str(header.get("session", "")), str(header.get("msg_id", ""))


def _refusal(error: Mapping[str, Any], arguments: Mapping[str, Any]) -> ToolError:
    """Return what a page's refusal means for whoever asked."""
    message = str(error.get("message", ""))
    match error.get("kind"):
        case "conflict":
            source = error.get("source", "")
            return CellConflict(
                f"cell {arguments.get('id')!r} was changed since it was read, and was left as it "
                f"is; it now holds:\n{source}"
            )
        case "missing":
            return ToolError(f"{message} in the open notebook; list its cells again")
        case "unknown_op":
            return ToolError(f"{message}: {OLD_PAGE}")
        case "invalid":
            return ToolError(f"{message}, so it was left as it is")
        case "gone":
            return ToolError(NO_PAGE)
        case _:
            return ToolError(f"the notebook's page could not do it: {message}")
