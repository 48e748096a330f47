"""Widgets go on working while a turn waits.

A page sends a second change of a field, a slider or a tab only when the kernel has said that it is
idle after the first. ipykernel 7.4 does not say so of messages that it handles while a cell awaits
something, as every turn does; ipykernel 6 handles none then but those that are taken out of its
queue. They would stand still after one click; with kernels between those a page uses subshells,
which need nothing of this. Code that runs holds widgets up, as always.
"""

from __future__ import annotations

import inspect
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from hermes_nb.core.messages import Json
from hermes_nb.notebook.interrupt import user_code
from hermes_nb.notebook.page_discovery import comms_heard, holds_back
from hermes_nb.notebook.shell import Foreign, Shell

Tell = Callable[[Mapping[str, Json]], None]
"""Answers a message from the page, a whole Jupyter message."""


def teller(kernel: Foreign) -> Tell:
    """Return what answers in the name of a kernel; without one there is nobody to answer."""
    if kernel is None:
        return lambda _: None

    def tell(message: Mapping[str, Json]) -> None:
        # Busy again, as far as anybody else is concerned: an idle of the kernel's own follows, when
        # it is through with this message or with the cell that runs.
        for state in ("idle", "busy"):
            content = {"execution_state": state}
            topic = f"kernel.{kernel.ident}.status".encode()
            kernel.session.send(kernel.iopub_socket, "status", content, parent=message, ident=topic)

    return tell


def answered(widget: Foreign, tell: Tell) -> None:
    """Have each message about a widget answered, once it is handled."""
    handle = widget._handle_msg  # noqa: SLF001 - what ipywidgets gives its comm; no other name

    def heard(message: Mapping[str, Json]) -> None:
        try:
            handle(message)
        finally:
            tell(message)

    widget.comm.on_msg(heard)


MESSAGE = "comm_msg"
WIDGETS = "jupyter.widget"
"""What the comms of widgets are opened for."""


@asynccontextmanager
async def widgets_live(shell: Shell) -> AsyncIterator[None]:
    """Let the messages of widgets be handled, and answered, in this block."""
    kernel = getattr(shell, "kernel", None)
    handlers = getattr(kernel, "shell_handlers", {})
    handle = handlers.get(MESSAGE)
    if handle is None or not (_is_silent(kernel) or holds_back(kernel)):
        yield
        return
    tell = teller(kernel)

    def answered(stream: Foreign, identities: Foreign, message: Foreign) -> Foreign:
        try:
            with user_code():
                return handle(stream, identities, message)
        except KeyboardInterrupt:  # in a handler of the user's that hung: now to the turn as well
            signal.raise_signal(signal.SIGINT)
        finally:
            if _is_widgets(message):
                tell(message)

    handlers[MESSAGE] = answered
    try:
        async with comms_heard():
            yield
    finally:
        if handlers.get(MESSAGE) is answered:
            handlers[MESSAGE] = handle


def _is_widgets(message: Mapping[str, Json]) -> bool:
    """Say whether a message is about a widget: what our own comms get is answered in their way."""
    from comm import get_comm_manager

    comms: Foreign = getattr(get_comm_manager(), "comms", {})
    comm = comms.get(message["content"].get("comm_id"))
    return getattr(comm, "target_name", "") == WIDGETS


def _is_silent(kernel: Foreign) -> bool:
    """Say whether a kernel handles messages beside a running cell without saying so."""
    dispatch = getattr(kernel, "dispatch_shell", None)
    return dispatch is not None and "concurrent" in inspect.signature(dispatch).parameters
