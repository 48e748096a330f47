"""The comm between the kernel and the pages that show its notebook, and the choice of a page.

The kernel calls by opening a comm, and a page answers with a hello. A page ignores a comm that was
opened before the page loaded, so calls are repeated until one answers. A page that is still loading
may even close a comm, because its handler is not registered yet.

ipykernel 6 queues comm messages until the running cell ends, so neither a page's answer nor a click
could reach a turn. While a turn waits for one, this module takes them out of the queue. Later
kernels do not need this.
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
"""Seconds between checks of the queue."""
_HEADER = 1
"""Index of the header, after the signature, in a message without identities."""


@asynccontextmanager
async def comms_heard() -> AsyncIterator[None]:
    """Deliver comm messages while this block runs, even if the kernel would queue them."""
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
    """Return whether a kernel queues comm messages while a cell runs."""
    return hasattr(kernel, "msg_queue") and hasattr(kernel, "dispatch_queue")


async def _listen(kernel: Foreign) -> None:
    while True:
        _take(kernel)
        await asyncio.sleep(_PAUSE)


def _take(kernel: Foreign) -> None:
    """Handle the queued comm messages; other messages stay queued, in order."""
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
            # Checks the signature, which works once: a second check would reject it as a replay.
            message = session.deserialize(parts, content=True, copy=False)
            kernel.shell_handlers[message["msg_type"]](kernel.shell_stream, idents, message)
        except Exception:  # like the kernel: one bad message must not stop the others
            kernel.log.exception("Error in message handler")


TARGET = "hermes_nb"
GONE: Mapping[str, Json] = {"error": {"kind": "gone", "message": "the page has closed the comm"}}
"""The answer to a request on a comm closed by the page: the request was not executed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Info:
    """The contents of a hello: a page and one of the notebooks that it shows."""

    path: str
    """The notebook's path relative to the server's root."""
    name: str
    """The address for requests about this notebook in this page."""
    client: str = ""
    """Id of the page's connection to the kernel."""
    holds: bool = False
    """Whether the notebook contains the running cell."""
    dirty: bool = False
    """Whether the notebook has unsaved changes."""
    cells: int = 0
    """Number of cells."""
    active: str = ""
    """Id of the selected cell, or "" if none is selected."""
    app: str = ""
    """Name of the application, such as JupyterLab."""
    version: str = ""
    """Version of the extension."""
    protocol: int = 0
    """Version of the page's messages, or 0 if it sends no version."""
    undoes: bool = False
    """Whether the page has buttons that undo a turn, found by its output metadata."""
    widgets: bool = False
    """Whether the page can show ipywidgets."""

    @classmethod
    def parse(cls, hello: Mapping[str, Json]) -> Info:
        """Parse a hello; older extension versions may omit some fields."""
        known = {name: hello[name] for name in cls.__slots__ if hello.get(name) is not None}
        return cls(**{"path": "", "name": "", **known})


class Channel:
    """One comm and its pending requests."""

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
        # Not on_msg: it runs the shell's pre_execute and post_execute hooks around every message.
        # Those are meant for cells; matplotlib's would flush figures in the middle of one.
        # ipykernel 7.4 delivers answers on the async cell's own loop, which takes 6 ms per call.
        # The page's subshell (`_reply_subshell_for`) took 60 ms instead, and each answer made the
        # page show the kernel as idle. Older kernels do that anyway, on other threads.
        comm.handle_msg = lambda message: self._threadsafe(self._receive, message)
        comm.on_close(lambda _: self._threadsafe(self._end))
        self._comm = comm

    async def ask(
        self, to: str, op: str, arguments: Mapping[str, Json], timeout: float | None
    ) -> Mapping[str, Json]:
        """Send a request and return its answer; raise `TimeoutError` after `timeout` seconds.

        With None, it waits without a limit.
        """
        number = token_hex(16)  # random, so that stale or guessed answers match no request
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
        """Send a request without a time limit, and return a future for its answer."""
        return asyncio.ensure_future(self.ask(to, op, arguments, None))

    def tell(self, to: str, op: str, arguments: Mapping[str, Json]) -> None:
        """Send a request whose answer is ignored."""
        self._comm.send({"id": "", "to": to, "op": op, "args": dict(arguments)})

    def close(self) -> None:
        """Close the comm when no request is pending."""
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
        """Answer all requests with `GONE`, because the page closed the comm.

        Either the page is closing, or it does not have this extension.
        """
        self.closed = True
        for future in self._pending.values():
            if not future.done():
                future.set_result(GONE)

    def _threadsafe(self, callback: Callable[..., None], *arguments: object) -> None:
        """Run a callback in the loop, in the context of the cell that opened the comm."""
        with suppress(RuntimeError):  # the loop is closed, so no request is pending
            self._loop.call_soon_threadsafe(callback, *arguments, context=self._context)


GRACE = 0.25
"""Seconds to wait, after another page's hello, for a hello from the page that ran the cell."""
BUSY = 3.0
"""The same limit if that page has answered before: it may be busy, or in a background tab."""
PAUSES = (0.7, 3.0)
"""Seconds between repeated calls while unanswered: the first pause and the longest."""

Heard = tuple[Channel, Info]
"""The channel on which a hello arrived, and the hello's contents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RollCall:
    """A search for the page to talk to."""

    cell: str
    """Id of the running cell, or "" for none."""
    client: str
    """Id of the page connection that started the running cell (the "client")."""
    last: str = ""
    """Name of the last page to answer, or "" for none."""
    expected: bool = False
    """Whether the client's own page has answered before."""
    left: bool = False
    """Whether the client's own page is known to be closed."""

    async def answer(
        self, hellos: asyncio.Queue[Heard], call: Callable[[], None], timeout: float
    ) -> Heard | None:
        """Repeat `call` until a page answers, and return the best of the answers.

        A page that contains the running cell is preferred, then the page that ran it. After the
        first answer, others are awaited for `GRACE` or `BUSY` seconds unless it is already the best
        one possible. Returns None if no page answers within `timeout` seconds.
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
