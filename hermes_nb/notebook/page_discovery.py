"""The comm between the kernel and the pages that show its notebook, and which of them to talk to.

A page takes no notice of a comm that was opened before it was loaded, so a call is repeated until
somebody answers; a page that is being loaded may even close a comm that it has no handler for yet.

ipykernel 6 keeps comm messages waiting behind the running cell, so neither a page's answer nor a
click would ever reach a turn. While a turn waits for one, they are taken out of the queue; later
kernels need nothing of this.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from secrets import token_hex

from hermes_nb.core.messages import Json
from hermes_nb.notebook.shell import Foreign

_PAUSE = 0.02
"""Seconds between looks into the queue."""
_HEADER = 1
"""Where the header is in a message whose identities are off: after the signature."""


@asynccontextmanager
async def comms_heard() -> AsyncIterator[None]:
    """Let comm messages reach the running cell in this block."""
    from IPython.core.getipython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    if not holds_back(kernel):
        yield
        return
    task = asyncio.create_task(_listen(kernel))
    try:
        yield
    finally:
        task.cancel()


def holds_back(kernel: object) -> bool:
    """Say whether a kernel keeps comm messages waiting while a cell runs."""
    return hasattr(kernel, "msg_queue") and hasattr(kernel, "dispatch_queue")


async def _listen(kernel: Foreign) -> None:
    while True:
        _take(kernel)
        await asyncio.sleep(_PAUSE)


def _take(kernel: Foreign) -> None:
    """Handle the comm messages that wait; the others go on waiting, in their order."""
    queue, session = kernel.msg_queue, kernel.session
    waiting = [queue.get_nowait() for _ in range(queue.qsize())]
    comms = []
    for item in waiting:
        _, dispatch, frames = item
        if dispatch != kernel.dispatch_shell:
            queue.put_nowait(item)
            continue
        idents, parts = session.feed_identities(frames[0], copy=False)
        if session.unpack(parts[_HEADER].bytes)["msg_type"] in ("comm_msg", "comm_close"):
            comms.append((idents, parts))
        else:
            queue.put_nowait(item)
    for idents, parts in comms:
        try:
            # Checked for its signature here, once: a second time it would pass for a replay.
            message = session.deserialize(parts, content=True, copy=False)
            kernel.shell_handlers[message["msg_type"]](kernel.shell_stream, idents, message)
        except Exception:  # as for the kernel's own: one bad message must not end the others
            kernel.log.exception("Error in message handler")


TARGET = "hermes_nb"
GONE: Mapping[str, Json] = {"error": {"kind": "gone", "message": "the page has closed the comm"}}
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
    def parse(cls, hello: Mapping[str, Json]) -> Info:
        """Return what a hello says; an older extension may leave things out."""
        known = {name: hello[name] for name in cls.__slots__ if hello.get(name) is not None}
        return cls(**{"path": "", "name": "", **known})


class Channel:
    """One comm, and the answers that are awaited on it."""

    def __init__(
        self, opening: Mapping[str, Json], on_hello: Callable[[Channel, Info], None]
    ) -> None:
        from comm import create_comm

        self.closed = False
        self._pending: dict[str, asyncio.Future[Mapping[str, Json]]] = {}
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._on_hello = on_hello
        comm: Foreign = create_comm(target_name=TARGET, data=dict(opening))
        # Not on_msg: it runs the shell's pre_execute and post_execute hooks around every message,
        # which are about cells (matplotlib's would flush figures in the midst of one).
        # ipykernel 7.4 brings answers to the async cell's own loop by itself: 6 ms a call. Sending
        # them to the page's subshell instead (`_reply_subshell_for`) took 60 ms, and each one made
        # the page believe that the kernel was idle. Older ones do that anyway, on other threads.
        comm.handle_msg = lambda message: self._threadsafe(self._receive, message)
        comm.on_close(lambda _: self._threadsafe(self._end))
        self._comm = comm

    async def ask(
        self, to: str, op: str, arguments: Mapping[str, Json], timeout: float | None
    ) -> Mapping[str, Json]:
        """Send a request and return its answer; raise `TimeoutError`, after None never."""
        number = token_hex(16)  # what answers an earlier request, or guesses, answers nothing
        future: asyncio.Future[Mapping[str, Json]] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        try:
            self._comm.send({"id": number, "to": to, "op": op, "args": dict(arguments)})
            async with comms_heard(), asyncio.timeout(timeout):
                return await future
        finally:
            self._pending.pop(number, None)
            if self.closed:
                self.close()

    def begin(
        self, to: str, op: str, arguments: Mapping[str, Json]
    ) -> asyncio.Future[Mapping[str, Json]]:
        """Send a request that is answered some time, and return what its answer is awaited by."""
        return asyncio.ensure_future(self.ask(to, op, arguments, None))

    def tell(self, to: str, op: str, arguments: Mapping[str, Json]) -> None:
        """Send a request whose answer nobody needs."""
        self._comm.send({"id": "", "to": to, "op": op, "args": dict(arguments)})

    def close(self) -> None:
        """End the comm, once nothing is awaited on it any more."""
        self.closed = True
        if not self._pending:
            self._comm.close()

    def _receive(self, message: Mapping[str, Json]) -> None:
        data = message["content"]["data"]
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
        """Call in the loop, and for the cell that opened the comm: not for the page's message."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(callback, *arguments, context=self._context)


GRACE = 0.25
"""Seconds that the first hello is kept waiting for one from the page that ran the cell."""
BUSY = 3.0
"""The same where that page has answered before: it may be drawing, or hidden behind another."""
PAUSES = (0.7, 3.0)
"""Seconds between two calls that nobody answers, at first and at most."""

Heard = tuple[Channel, Info]


@dataclass(frozen=True, slots=True, kw_only=True)
class RollCall:
    """What is known before the call.

    `cell` is the running cell's id and `client` the connection that runs it; `last` names the page
    that answered last; `expected` says that the client's own page has answered before, `left` that
    it is known to be no more.
    """

    cell: str
    client: str
    last: str = ""
    expected: bool = False
    left: bool = False

    async def answer(
        self, hellos: asyncio.Queue[Heard], call: Callable[[], None], timeout: float
    ) -> Heard | None:
        """Call until somebody says hello; return the best of those who do so at about that time.

        None when nobody has within `timeout` seconds.
        """
        now = asyncio.get_running_loop().time
        best: Heard | None = None
        until, due, pause = now() + timeout, now(), PAUSES[0]
        grace = BUSY if self.expected and not self.left else GRACE
        while best is None or not self._settles(best[1]):
            if best is None and now() >= due:
                call()
                due, pause = now() + pause, min(pause * 1.5, PAUSES[1])
            try:
                async with asyncio.timeout_at(until if best else min(until, due)):
                    heard = await hellos.get()
            except TimeoutError:
                if now() >= until:
                    break
                continue
            if best is None:
                until = min(until, now() + grace)
            if best is None or self._rank(heard[1]) > self._rank(best[1]):
                best = heard
        return best

    def _rank(self, info: Info) -> tuple[bool, bool, bool]:
        return info.holds or not self.cell, info.client == self.client, info.name == self.last

    def _settles(self, info: Info) -> bool:
        holds, same, known = self._rank(info)
        return holds and (same or (self.left and known))
