"""Tells the page that a change it sent was taken in, where the kernel leaves that out.

The widgets' front end sends a second change of a field or a tab only when the kernel has said that
it is idle after the first. ipykernel 7.4 does not say so of messages that it handles while a cell
awaits something, as every turn does; ipykernel 6 handles none then but those that we take out of
its queue. The tabs would stand still after one click in a turn, for good.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Tell = Callable[[Mapping[str, Any]], None]
"""Answers a message from the page, a whole Jupyter message."""


def teller(kernel: Any) -> Tell:  # noqa: ANN401 - ipykernel's kernel, or None
    """Return what answers in the name of a kernel; without one there is nobody to answer."""
    if kernel is None:
        return lambda _: None

    def tell(message: Mapping[str, Any]) -> None:
        # Busy again, as far as anybody else is concerned: an idle of the kernel's own follows, when
        # it is through with this message or with the cell that runs.
        for state in ("idle", "busy"):
            content = {"execution_state": state}
            topic = f"kernel.{kernel.ident}.status".encode()
            kernel.session.send(kernel.iopub_socket, "status", content, parent=message, ident=topic)

    return tell


def answered(widget: Any, tell: Tell) -> None:  # noqa: ANN401 - ipywidgets has no types
    """Have each message about a widget answered, once it is handled."""
    handle = widget._handle_msg  # noqa: SLF001 - what ipywidgets gives its comm; no other name

    def heard(message: Mapping[str, Any]) -> None:
        try:
            handle(message)
        finally:
            tell(message)

    widget.comm.on_msg(heard)
