"""One comm between the kernel and the pages that show its notebook, and what is awaited on it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hermes_nb.notebook.bridge.older import comms_heard

TARGET = "hermes_nb"
GONE: Mapping[str, Any] = {"error": {"kind": "gone", "message": "the page has closed the comm"}}
"""The answer to what was asked on a comm that the page then closed: nothing was done."""


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
        self, to: str, op: str, arguments: Mapping[str, Any], timeout: float | None
    ) -> Mapping[str, Any]:
        """Send a request and return its answer; raise `TimeoutError`, after None never."""
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

    def tell(self, to: str, op: str, arguments: Mapping[str, Any]) -> None:
        """Send a request whose answer nobody needs."""
        self._comm.send({"id": "", "to": to, "op": op, "args": dict(arguments)})

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
                future.set_result(GONE)

    def _threadsafe(self, callback: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback, *arguments)
