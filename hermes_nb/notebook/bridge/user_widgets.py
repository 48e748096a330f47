"""The user's own widgets go on working while a turn awaits its model or its tools.

ipykernel 7.4 handles their messages while a cell awaits, but does not say that it is through with
one, and a page sends the next change of a slider or a field only then: they would stand still after
one. ipykernel 6 keeps the messages waiting; they are taken out of its queue. With kernels between
those a page uses subshells, which need nothing of this. Code that runs holds widgets up, as always.
"""

from __future__ import annotations

import inspect
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from hermes_nb.notebook.bridge.heard import teller
from hermes_nb.notebook.bridge.older import comms_heard, holds_back
from hermes_nb.notebook.interrupt import user_code
from hermes_nb.notebook.values.kinds import Foreign

MESSAGE = "comm_msg"
WIDGETS = "jupyter.widget"
"""What the comms of widgets are opened for."""


@asynccontextmanager
async def widgets_live(shell: Foreign) -> AsyncIterator[None]:
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


def _is_widgets(message: Mapping[str, Any]) -> bool:
    """Say whether a message is about a widget: what our own comms get is answered in their way."""
    from comm import get_comm_manager

    comms: Any = getattr(get_comm_manager(), "comms", {})
    comm = comms.get(message["content"].get("comm_id"))
    return getattr(comm, "target_name", "") == WIDGETS


def _is_silent(kernel: Foreign) -> bool:
    """Say whether a kernel handles messages beside a running cell without saying so."""
    dispatch = getattr(kernel, "dispatch_shell", None)
    return dispatch is not None and "concurrent" in inspect.signature(dispatch).parameters
