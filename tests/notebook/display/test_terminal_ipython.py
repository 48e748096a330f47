"""Plain IPython in a real terminal: streaming text, questions, Ctrl-C."""

from __future__ import annotations

import os
import sys
import time

import pexpect
import pytest

from tests.loopback import Loopback, Reply, chunk, event, stall, stream, text_chunks, tool_chunks
from tests.patience import SOON, ended

pytestmark = pytest.mark.kernel


@pytest.fixture
def terminal(tmp_path):
    """Return a function that starts IPython against a server with these replies."""
    running = []

    def start(*replies):
        server = Loopback(*replies)
        server.__enter__()
        env = {
            **os.environ,
            "HERMES_HOME": str(tmp_path / "home"),
            "IPYTHONDIR": str(tmp_path / "ipython"),
            "HERMES_NB_BASE_URL": server.url,
            "HERMES_NB_MODEL": "loopback-model",
            "TERM": "dumb",
        }
        child = pexpect.spawn(
            sys.executable,
            ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=nocolor"],
            env=env,
            cwd=str(tmp_path),
            encoding="utf-8",
            timeout=90,
            dimensions=(40, 200),
        )
        running.append((child, server))
        child.expect(r"In \[1\]")
        child.sendline("%load_ext hermes_nb")
        child.expect(r"In \[2\]")
        return child, server

    yield start
    for child, server in running:
        ended(child)
        server.__exit__()


def test_an_answer_streams_into_the_terminal(terminal):
    child, _ = terminal(stream(text_chunks("The answer is 42.")))
    child.sendline("%hermes what is it?")
    child.expect("The answer is 42.")
    child.expect("1 request")
    child.expect(r"In \[3\]")


def test_code_asks_in_the_terminal_and_runs_in_the_namespace(terminal):
    child, server = terminal(
        stream(tool_chunks(("run_python", {"code": "made = 7"}))), stream(text_chunks("Made."))
    )
    child.sendline("%hermes make it")
    child.expect("Run it")
    child.sendline("y")
    child.expect("Made.")
    child.expect(r"In \[3\]")
    child.sendline("print('value', made)")
    child.expect("value 7")
    assert len(server.bodies) == 2


def test_ctrl_c_stops_the_turn_and_not_the_shell(terminal):
    child, server = terminal(Reply([event(chunk({"content": "The beginning "})), stall]))
    child.sendline("%hermes tell me a story")
    child.expect("The beginning")
    started = time.monotonic()
    child.sendintr()
    child.expect("stopped")
    child.expect(r"In \[3\]")
    assert time.monotonic() - started < SOON
    server.replies[:] = [stream(text_chunks("Onwards."))]
    child.sendline("%hermes go on")
    child.expect("Onwards.")
    roles = [message["role"] for message in server.bodies[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
