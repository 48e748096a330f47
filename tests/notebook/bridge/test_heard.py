"""A change that a page sends to the panel is answered, or the page would send no second one."""

from __future__ import annotations

import pytest
from hermes_nb.notebook.page_reload import answered, teller

MESSAGE = {"header": {"msg_id": "m", "msg_type": "comm_msg"}}


class Kernel:
    """Records what a kernel would publish."""

    ident, iopub_socket = "k", "iopub"

    def __init__(self):
        self.session, self.sent = self, []

    def send(self, socket, kind, content, *, parent, ident):
        self.sent.append((socket, kind, content["execution_state"], parent, ident))


class Comm:
    def on_msg(self, callback):
        self.callback = callback


class Widget:
    def __init__(self, handle):
        self.comm, self._handle_msg = Comm(), handle


def test_idle_is_told_after_the_message_and_busy_again_for_what_still_runs():
    kernel = Kernel()
    widget = Widget(kernel.sent.append)
    answered(widget, teller(kernel))
    widget.comm.callback(MESSAGE)
    states = [("iopub", "status", s, MESSAGE, b"kernel.k.status") for s in ("idle", "busy")]
    assert kernel.sent == [MESSAGE, *states]

    def fails(_):
        raise LookupError

    kernel.sent.clear()
    widget = Widget(fails)
    answered(widget, teller(kernel))
    with pytest.raises(LookupError):
        widget.comm.callback(MESSAGE)
    assert kernel.sent == states


def test_without_a_kernel_there_is_nobody_to_answer():
    seen = []
    widget = Widget(seen.append)
    answered(widget, teller(None))
    widget.comm.callback(MESSAGE)
    assert seen == [MESSAGE]
