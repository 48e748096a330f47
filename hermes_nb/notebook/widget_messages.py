"""Keep widgets working while a turn waits.

A page sends the second change to a field, slider or tab only after the kernel has reported that it
is idle after the first. ipykernel 7.4 does not report that for messages it handles while a cell
awaits, which is the case in every turn. ipykernel 6 then handles only messages that are taken out
of its queue. With both versions, widgets would freeze after one click. For kernel versions in
between, pages use subshells, which need no help. As always, running code blocks widgets.
"""

from __future__ import annotations

import inspect
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from weakref import WeakKeyDictionary

from hermes_nb.core.messages import Json
from hermes_nb.notebook.interrupt import user_code
from hermes_nb.notebook.page_discovery import comms_heard, holds_back
from hermes_nb.notebook.shell import Foreign, Shell

Tell = Callable[[Mapping[str, Json]], None]
"""Reports idle for a Jupyter message from the page."""


def teller(kernel: Foreign) -> Tell:
    """Return a function that reports a kernel as idle, or does nothing without a kernel."""
    if kernel is None:
        return lambda _: None

    def tell(message: Mapping[str, Json]) -> None:
        # Then busy again for all other clients: the kernel reports idle itself at the end of this
        # message or of the running cell.
        for state in ("idle", "busy"):
            content = {"execution_state": state}
            topic = f"kernel.{kernel.ident}.status".encode()
            kernel.session.send(kernel.iopub_socket, "status", content, parent=message, ident=topic)

    return tell


def answered(widget: Foreign, tell: Tell) -> None:
    """Make the kernel report idle after each message about a widget."""
    handle = widget._handle_msg  # noqa: SLF001 - ipywidgets' own callback; no public name

    def heard(message: Mapping[str, Json]) -> None:
        try:
            handle(message)
        finally:
            tell(message)

    widget.comm.on_msg(heard)


MESSAGE = "comm_msg"
"""The message type that is handled here."""
WIDGETS = "jupyter.widget"
"""Target name of widget comms."""


_answering: WeakKeyDictionary[Foreign, tuple[ExitStack, int]] = WeakKeyDictionary()
"""Each kernel's cleanup, and the number of turns that use it."""


@asynccontextmanager
async def widgets_live(shell: Shell) -> AsyncIterator[None]:
    """Handle widget messages during this block; after each one, report that the kernel is idle."""
    kernel = getattr(shell, "kernel", None)
    handle = getattr(kernel, "shell_handlers", {}).get(MESSAGE)
    if handle is None or not (_is_silent(kernel) or holds_back(kernel)):
        yield
        return
    ending, turns = _answering.get(kernel) or (ExitStack(), 0)
    if not turns:
        ending.enter_context(_answered(kernel, handle))
    _answering[kernel] = ending, turns + 1
    try:
        async with comms_heard():
            yield
    finally:
        _, turns = _answering.pop(kernel)
        if turns > 1:  # turns that run side by side may end in any order
            _answering[kernel] = ending, turns - 1
        else:
            ending.close()


@contextmanager
def _answered(kernel: Foreign, handle: Foreign) -> Iterator[None]:
    tell, handlers = teller(kernel), kernel.shell_handlers

    def answered(stream: Foreign, identities: Foreign, message: Foreign) -> Foreign:
        try:
            with user_code():
                return handle(stream, identities, message)
        except KeyboardInterrupt:  # it stopped a hanging widget handler: interrupt the turn too
            signal.raise_signal(signal.SIGINT)
        finally:
            if _is_widgets(message):
                tell(message)

    handlers[MESSAGE] = answered
    try:
        yield
    finally:
        if handlers.get(MESSAGE) is answered:
            handlers[MESSAGE] = handle


def _is_widgets(message: Mapping[str, Json]) -> bool:
    """Return whether a message is about a widget, not about our own comms."""
    from comm import get_comm_manager

    comms: Foreign = getattr(get_comm_manager(), "comms", {})
    comm = comms.get(message["content"].get("comm_id"))
    return getattr(comm, "target_name", "") == WIDGETS


def _is_silent(kernel: Foreign) -> bool:
    """Return whether a kernel handles messages during a cell without reporting idle."""
    dispatch = getattr(kernel, "dispatch_shell", None)
    return dispatch is not None and "concurrent" in inspect.signature(dispatch).parameters
