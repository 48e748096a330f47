"""The kernel side of the bridge to the page that shows the notebook.

A probe opens a comm, and every page that shows a notebook of this kernel answers with a hello. One
of them is chosen for further requests: the page where the running cell was run, otherwise the one
that answered last, otherwise the first. Users open and close pages at any time, so each turn probes
again, and a page that has been silent for a moment is pinged before a request.

A missing page is most likely reloading, so the kernel waits for it. If there has never been a page,
a turn starts a probe and continues; a hello is accepted at any time. Only requests that need a page
wait for an unknown one. They fail quickly, and the probe is not repeated in the same cell.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from hermes_nb.core.errors import ToolError
from hermes_nb.core.messages import Json
from hermes_nb.notebook.document.document import CellConflict
from hermes_nb.notebook.page_discovery import GONE, Channel, Heard, Info, RollCall, comms_heard
from hermes_nb.notebook.shell import Shell, can_ask, has_kernel, request_of

PROTOCOL = 2
"""Message version, as in labextension/static/bridge.js; increased with each change."""
QUICK = 1.5
"""Seconds to wait for a page's first hello."""
SLOW = 8.0
"""Seconds to wait for the first hello if JupyterLab ran the cell and the request needs a page.

JupyterLab usually has the extension, and may be busy rendering a large notebook.
"""
RELOAD = 20.0
"""Seconds to wait for a known page to return after a reload.

Loading takes 1 to 5 s, and several times that on a busy machine or a slow connection.
"""
SILENT = 0.5
"""Seconds to wait for a client (a page's connection) that did not answer the previous probe."""
FRESH = 1.0
"""Seconds after a message during which a page counts as present."""
PING = 1.0
"""Seconds to wait for a ping response."""
LOOK = 2.0
"""Seconds between checks that a page with an open question is still present."""
NO_PAGE = (
    "no open page of this notebook responds; reload the page if it is open in JupyterLab or "
    "Notebook 7 (%hermes doctor shows details)"
)
OLD_PAGE = (
    "the hermes_nb extension in the page has a different version from the package in the "
    "kernel: reload the page, restart the kernel, and restart Jupyter if that does not help"
)


class FrontEnd:
    """The page that shows this kernel's notebook, if there is one.

    `listeners` are called with every hello, including after a reload between turns. `problem` is
    the reason the last probe found no usable page, or "" if none is known.
    """

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._channel: Channel | None = None
        self._page: Info | None = None
        self._heard = 0.0
        self._probed_in = ""
        self._hellos: asyncio.Queue[Heard] | None = None
        self._one_probe = asyncio.Lock()
        self._search: asyncio.Task[Info | None] | None = None
        self._clients: set[str] = set()
        self._windows: dict[str, Heard] = {}
        self._names: set[str] = set()
        self._awaited: set[str] = set()
        self._silent: dict[str, str] = {}
        self._gone = ""
        self.problem = ""
        self.listeners: list[Callable[[Info], None]] = []

    @property
    def page(self) -> Info | None:
        """The chosen page's last hello, or None without a page."""
        return self._page

    @property
    def expected(self) -> bool:
        """Whether the page that ran this cell has answered before; if now silent, it was closed."""
        return self._parent()[1] in self._clients

    async def probe(self, timeout: float | None = None) -> Info | None:
        """Return the page that answers now, or None if none does within `timeout` seconds.

        By default, `timeout` is `RELOAD` for a page that answered before and `QUICK` otherwise.
        Headless kernels (nbclient) and terminals are not probed. In later cells, a client that
        never answered is probed once per cell, for `SILENT` seconds.
        """
        async with self._one_probe:
            return await self._probe(timeout)

    async def present(self, *, patient: bool = False) -> Info | None:
        """Return the page that answers; ping it only if it has been silent for a moment.

        `patient` waits longer, once per client, for a page that is likely to answer.
        """
        async with self._one_probe:
            if await self._alive():
                return self._usable(self._page)
            client = self._parent()[1]
            slow = patient and not self.expected and self.in_lab and client not in self._awaited
            self._awaited |= {client} if slow else set()
            return await self._probe(SLOW if slow else None)

    def search(self) -> None:
        """Start a probe without waiting for it; a page that answers is `known` from then on."""
        if (self._parent()[0] or self.in_lab) and not self._one_probe.locked():
            self._search = asyncio.create_task(self.present())

    async def known(self) -> Info | None:
        """Return the page as `present` does if one has answered before; otherwise only search."""
        if self.expected or self._windows:
            return await self.present()
        self.search()
        return None

    async def check_page(self) -> Info | None:
        """Return the page that answers now, and make the next request ping again.

        Without that ping, a page that closes right after this check would count as present.
        """
        async with self._one_probe:
            self._heard = -math.inf
            if await self._alive():
                self._heard = -math.inf
                return self._usable(self._page)
            return await self._probe(None)

    async def call(self, op: str, timeout: float = 5.0, **arguments: Json) -> Json:
        """Send a request to the page and return its result.

        If the page reloads before it answers, its unsaved edits are lost, and the request is sent
        again to the page that returns. Returns within `timeout` seconds, or twice that plus the
        time of a probe.

        Raises:
            CellConflict: the cell has changed since it was read
            ToolError: the page is missing, refused or did not answer
        """
        reply = await self._ask(op, timeout, arguments)
        if _is_gone(reply):  # the page did nothing: safe to send again
            self._page = None
            reply = await self._ask(op, timeout, arguments)
        return _result(reply, arguments)

    async def hold(
        self, op: str, absent: float, beside: Mapping[str, Json], **arguments: Json
    ) -> Json:
        """Send a request that waits for the user, and return the result.

        Other windows that show the running cell are asked too, including those opened later; the
        first answer counts. After a reload the request is sent again with `again=True`. When this
        method ends for any reason, pages close the request if it is unanswered.

        Returns None if no page has answered for `absent` seconds. Raises `ToolError` like `call`.

        Args:
            op: the operation's name
            absent: seconds to wait for a page that has disappeared
            beside: replacements for some arguments in requests to the other windows
            **arguments: the operation's arguments; `id` identifies the request
        """
        page = await self.present()
        while page is not None and self._channel is not None:
            channel, reply = self._channel, None
            asked = {page.name: channel.begin(page.name, op, arguments)}
            via = {page.name: channel}
            try:
                while reply is None:
                    for name, its in self._showing().items():
                        if name not in via:
                            via[name] = its
                            asked[name] = its.begin(name, op, {**arguments, **beside})
                    reply = await _first(asked, page)
                    if reply is None and not await _echoes(channel, page):
                        reply = _answer(asked, page)
                        break
            finally:
                told = {"id": arguments["id"], "elsewhere": reply is not None}
                for name, future in asked.items():
                    if not future.done():
                        future.cancel()
                        via[name].tell(name, "drop", told)
            if reply is not None and not _is_gone(reply):
                self._heard = time.monotonic()
                return _result(reply, arguments)
            arguments["again"] = True
            page = await self.probe(absent)
        return None

    def tell(self, op: str, **arguments: Json) -> None:
        """Send a request to the page, if there is one, without waiting for a result."""
        if self._page is not None and self._channel is not None and not self._channel.closed:
            self._channel.tell(self._page.name, op, arguments)

    def _showing(self) -> dict[str, Channel]:
        """Return the pages that show the running cell by name, with their channels.

        A prompt from the panel has no cell, so all windows are returned.
        """
        anywhere = not self._parent()[0]
        return {
            info.name: channel
            for channel, info in self._windows.values()
            if (info.holds or anywhere) and info.protocol == PROTOCOL
        }

    async def _ask(
        self, op: str, timeout: float, arguments: Mapping[str, Json]
    ) -> Mapping[str, Json]:
        page = await self.present()
        if page is None or self._channel is None:
            raise ToolError(self.problem or NO_PAGE)
        known = set(self._clients)
        try:
            reply = await self._channel.ask(page.name, op, arguments, timeout)
        except TimeoutError:
            self._page = None
            other = await self.present()
            if (
                other is not None and other.client not in known
            ):  # a new client: the page was reloaded
                return GONE
            raise ToolError(
                f"the notebook's page did not answer within {timeout:g} s; it may be loading, or a "
                f"dialog may be open in it. Look at the notebook before trying again"
            ) from None
        self._heard = time.monotonic()
        return reply

    async def _alive(self) -> bool:
        page, channel = self._page, self._channel
        if page is None or channel is None or channel.closed:
            return False
        if self._probed_in != self._parent()[2]:
            return False
        if time.monotonic() - self._heard > FRESH:
            if not await _echoes(channel, page):
                return False
            self._heard = time.monotonic()
        return True

    async def _probe(self, timeout: float | None) -> Info | None:
        if not (has_kernel(self._shell) and can_ask(self._shell)):
            return None
        cell, client, request = self._parent()
        if timeout is None:
            timeout = RELOAD if self.expected else QUICK
            if client in self._silent:
                if self._silent[client] == request and not self.expected:
                    return None
                timeout = SILENT
        call = RollCall(
            cell=cell,
            client=client,
            last=self._page.name if self._page else "",
            expected=self.expected,
            left=client == self._gone,
        )
        chosen = await self._call_for_pages(call, timeout)
        self._probed_in = request
        if chosen is None:
            self._page = None
            self._silent[client] = request
            return self._usable(None)
        self._channel, self._page = chosen
        self._heard = time.monotonic()
        if self._page.client != client:
            self._gone = client
        return self._usable(self._page)

    async def _call_for_pages(self, call: RollCall, timeout: float) -> Heard | None:
        """Open comms until a page answers on one of them; close the others."""
        opened = [] if self._channel is None else [self._channel]

        def open_one() -> None:
            opened.append(Channel({"cell": call.cell}, self._on_hello))
            for old in opened[:-2]:
                old.close()

        self._hellos = asyncio.Queue()
        chosen = None
        try:
            async with comms_heard():
                chosen = await call.answer(self._hellos, open_one, timeout)
        finally:
            self._hellos = None
            self._channel = chosen[0] if chosen else next(reversed(opened), None)
            kept = (w for w in self._windows.values() if w[0] is self._channel)
            self._windows = {info.name: (on, info) for on, info in kept}
            for channel in opened:
                if channel is not self._channel:
                    channel.close()
        return chosen

    def _on_hello(self, channel: Channel, info: Info) -> None:
        """Handle a hello: the answer to a probe, or from a page that has just loaded."""
        if channel.closed:
            return
        self._silent.clear()
        self._windows[info.name] = channel, info
        self._clients.add(info.client)
        if info.client == self._gone:
            self._gone = ""
        if self._hellos is not None:
            self._hellos.put_nowait((channel, info))
        elif info.name not in self._names or self._is_better(info):
            self._probed_in = ""  # the chosen page may have reloaded: probe again
        self._names.add(info.name)
        for listener in self.listeners:
            listener(info)

    def _is_better(self, info: Info) -> bool:
        """Return whether a page ran the cell and is not the chosen one."""
        chosen = self._page.name if self._page else ""
        return info.name != chosen and info.client == self._parent()[1]

    def _usable(self, page: Info | None) -> Info | None:
        mismatch = page is not None and page.protocol != PROTOCOL
        self.problem = OLD_PAGE if mismatch else ""
        return None if mismatch else page

    @property
    def in_lab(self) -> bool:
        """Whether JupyterLab or Notebook 7 ran this cell: only they send `recordTiming`."""
        parent = request_of(self._shell)
        return "recordTiming" in (parent.get("metadata") or {})

    def _parent(self) -> tuple[str, str, str]:
        """Return the running cell's id, its client's id, and the request's id."""
        parent = request_of(self._shell)
        header = parent.get("header") or {}
        cell = (parent.get("metadata") or {}).get("cellId") or ""
        return str(cell), str(header.get("session", "")), str(header.get("msg_id", ""))


async def _first(
    asked: Mapping[str, asyncio.Future[Mapping[str, Json]]], page: Info
) -> Mapping[str, Json] | None:
    """Return the first answer, or None if there is none within `LOOK` seconds."""
    if (answer := _answer(asked, page)) is None:  # it may have arrived during the probe
        waiting = [future for future in asked.values() if not future.done()]
        await asyncio.wait(waiting, timeout=LOOK, return_when=asyncio.FIRST_COMPLETED)
        answer = _answer(asked, page)
    return answer


def _answer(
    asked: Mapping[str, asyncio.Future[Mapping[str, Json]]], page: Info
) -> Mapping[str, Json] | None:
    for name, future in asked.items():
        if future.done() and (name == page.name or "error" not in future.result()):
            return future.result()
    return None


async def _echoes(channel: Channel, page: Info) -> bool:
    """Return whether a page still answers."""
    with suppress(TimeoutError):
        return not _is_gone(await channel.ask(page.name, "info", {}, PING))
    return False


def _is_gone(reply: Mapping[str, Json]) -> bool:
    """Return whether the request failed because the page has closed the notebook or the comm."""
    return (reply.get("error") or {}).get("kind") == "gone"


def _result(reply: Mapping[str, Json], arguments: Mapping[str, Json]) -> Json:
    """Return the result in a page's answer; raise the error for a refusal."""
    if error := reply.get("error"):
        raise _refusal(error, arguments)
    return reply.get("result")


def _refusal(error: Mapping[str, Json], arguments: Mapping[str, Json]) -> ToolError:
    message = str(error.get("message", ""))
    match error.get("kind"):
        case "conflict":
            source = error.get("source", "")
            return CellConflict(
                f"cell {arguments.get('id')!r} has changed since you read it, so it was not "
                f"edited; it now contains:\n{source}"
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
