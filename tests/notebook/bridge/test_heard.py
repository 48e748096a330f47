"""A change that a page sends to the panel is answered, or the page would send no second one."""

from __future__ import annotations

from unittest.mock import Mock

import pytest
from hermes_nb.notebook.widget_messages import answered, teller

MESSAGE = {"header": {"msg_id": "m", "msg_type": "comm_msg"}}


class Kernel:
    """Records what a kernel would publish."""

    ident, iopub_socket = "k", "iopub"

    def __init__(self):
        self.session, self.sent = self, []

    def send(self, socket, kind, content, *, parent, ident):
        self.sent.append((socket, kind, content["execution_state"], parent, ident))


def received(handle, kernel):
    """Receive a message of the page's as a widget whose handler this is."""
    comm = Mock()
    answered(Mock(comm=comm, _handle_msg=handle), teller(kernel))
    comm.on_msg.call_args.args[0](MESSAGE)


def test_idle_is_told_after_the_message_and_busy_again_for_what_still_runs():
    kernel = Kernel()
    received(kernel.sent.append, kernel)
    states = [("iopub", "status", s, MESSAGE, b"kernel.k.status") for s in ("idle", "busy")]
    assert kernel.sent == [MESSAGE, *states]
    kernel.sent.clear()
    with pytest.raises(LookupError):
        received(Mock(side_effect=LookupError), kernel)
    assert kernel.sent == states


def test_without_a_kernel_there_is_nobody_to_answer():
    seen = []
    received(seen.append, None)
    assert seen == [MESSAGE]
