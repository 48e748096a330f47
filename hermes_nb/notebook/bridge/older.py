"""Comm messages on ipykernel 6, which keeps all of them waiting until the running cell is over.

There they queue behind the cell, so neither a page's answer nor a click would ever reach a turn.
While a turn waits for one, they are taken out of the queue; later kernels need nothing of this.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

_PAUSE = 0.02
"""Seconds between looks into the queue."""
_HEADER = 1
"""Where the header is in a message whose identities are off: after the signature."""


@asynccontextmanager
async def comms_heard() -> AsyncIterator[None]:
    """Let comm messages reach the running cell in this block."""
    kernel = _kernel()
    if kernel is None:
        yield
        return
    task = asyncio.create_task(_listen(kernel))
    try:
        yield
    finally:
        task.cancel()


def _kernel() -> Any:  # noqa: ANN401 - ipykernel's kernel, or None
    """Return the kernel if it holds comm messages back while a cell runs."""
    from IPython.core.getipython import get_ipython

    kernel = getattr(get_ipython(), "kernel", None)
    return kernel if holds_back(kernel) else None


def holds_back(kernel: object) -> bool:
    """Say whether a kernel keeps comm messages waiting while a cell runs."""
    return hasattr(kernel, "msg_queue") and hasattr(kernel, "dispatch_queue")


async def _listen(kernel: Any) -> None:  # noqa: ANN401 - ipykernel's kernel
    while True:
        _take(kernel)
        await asyncio.sleep(_PAUSE)


def _take(kernel: Any) -> None:  # noqa: ANN401 - ipykernel's kernel
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
