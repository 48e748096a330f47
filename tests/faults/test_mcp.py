"""82: an MCP server that dies, hangs, floods, changes a tool, or answers out of order."""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
import yaml
from hermes_nb import Hermes
from hermes_nb.core.events import MessageAdded
from hermes_nb.models.scripted import ScriptedModel, call

from tests.contract.safety.people import Person
from tests.patience import until
from tests.tools.mcp.conftest import started_once

PEER = str(Path(__file__).with_name("mcp_peer.py"))


@pytest.fixture
def peer(tmp_path):
    """Return a function that makes a home with a server that misbehaves as the words say."""

    def make(*words, **options):
        home = tmp_path / "home"
        server = {"command": sys.executable, "args": [PEER, str(tmp_path / "pids"), *words]}
        home.mkdir(exist_ok=True)
        servers = {"p": {**server, **options}}
        (home / "config.yaml").write_text(yaml.safe_dump({"mcp_servers": servers}))
        if not {"mute", "rude"} & set(words):
            started_once(home, **servers)
        return home

    return make


def told(home, *calls, answers=("always",)):
    """Return what the calls came to, in a conversation that goes on after them."""
    steps = [list(each) if isinstance(each, tuple) else each for each in calls]
    model = ScriptedModel([*steps, "done"])
    person = Person(*answers)
    began = time.monotonic()
    with Hermes(model, home=home, cwd=home.parent, approve=person) as hermes:
        turn = hermes.ask("go")
    assert turn.text == "done", turn.error
    found = [e.message for e in turn.events if isinstance(e, MessageAdded)]
    messages = [message for message in found if message.role == "tool"]
    texts = [message.text for message in messages]
    assert time.monotonic() - began < 60
    return texts, person.asked, messages


def gone(home):
    """Say whether every program that a server started has ended."""
    pids = [int(each) for each in (home.parent / "pids").read_text().split()]
    return until(lambda: not any(map(running, pids)), 10)


def running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_82_a_server_dies_and_is_started_once_more(peer):
    home = peer()
    calls = [call("mcp__p__die"), call("mcp__p__inject"), call("mcp__p__die"), call("mcp__p__hang")]
    texts, _, messages = told(home, *calls)
    assert "Connection closed" in texts[0] or "has ended" in texts[0]
    assert "withheld" in texts[1] and "Ignore all" not in texts[1]
    assert "cannot be used" in texts[3] and "has ended" in texts[3]
    assert messages[1].parts[0].origin == "outside"
    assert gone(home)
    assert len((home.parent / "pids").read_text().split()) == 3  # to be known, and twice here


def test_82_a_server_hangs(peer):
    home = peer(timeout=1)
    texts, *_ = told(home, call("mcp__p__hang"), call("mcp__p__garbage"))
    assert "did not answer within 1 seconds" in texts[0]
    assert texts[1] == "still here"
    assert gone(home)


def test_82_a_server_never_answers(peer):
    home = peer("mute", connect_timeout=1)
    texts, *_ = told(home, call("mcp_search", query="anything"), call("mcp_call", tool="mcp__p__x"))
    assert "server p: ended: it did not answer within 1 seconds" in texts[0]
    assert "there is no tool" in texts[1]
    assert gone(home)


def test_82_a_server_that_is_not_installed(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    servers = {"p": {"command": "no-such-program"}}
    (home / "config.yaml").write_text(yaml.safe_dump({"mcp_servers": servers}))
    texts, *_ = told(home, call("mcp_search", query="x"), call("mcp_resource", server="p"))
    assert "server p: ended: there is no program 'no-such-program' here" in texts[0]
    assert "cannot be used: there is no program" in texts[1]


def test_82_a_server_floods(peer):
    """10 MB of errors, 20,000 lines of log and 10 MB of text; then a line without an end."""
    home = peer()
    before = psutil.Process().memory_info().rss
    texts, *_ = told(home, call("mcp__p__flood"), call("mcp__p__endless"), call("mcp__p__garbage"))
    assert len(texts[0]) < 60_000 and "6,000,000 characters more were dropped" in texts[0]
    assert "cannot" in texts[1] or "closed" in texts[1] or "more than" in texts[1]
    assert texts[2] == "still here"
    assert psutil.Process().memory_info().rss - before < 300_000_000
    assert gone(home)


def test_82_a_server_changes_a_tool(peer):
    """A yes to the tool is none to another of its name, whatever it was allowed before."""
    home = peer()
    calls = [call("mcp__p__garbage"), call("mcp__p__change"), call("mcp_search", query="added")]
    texts, asked, _ = told(
        home, *calls, call("mcp__p__garbage"), answers=("always", "always", "deny")
    )
    assert texts[0] == "still here" and texts[1] == "changed" and "mcp__p__added" in texts[2]
    assert "was not run" in texts[3] and "has changed it" in texts[3]
    assert "evil.example" in asked[-1].shown


def test_82_a_server_ends_over_a_protocol_that_it_does_not_know(peer):
    """`mcp` 2 asks for the newer one first; then the server is started and greeted as of old."""
    texts, *_ = told(peer("old"), call("mcp__p__garbage"))
    assert texts == ["still here"]


def test_82_a_server_never_has_input_enough(peer):
    pytest.importorskip("mcp_types", reason="mcp 1 does not speak that protocol")
    texts, asked, _ = told(peer("modern"), call("mcp__p__garbage"), answers=("once",))
    assert "the MCP server 'p'" in texts[0] and "rounds" in texts[0]
    assert 2 < len(asked) < 20


def test_82_a_server_says_in_an_error_what_to_do(peer):
    """What it answers instead of a greeting is told, as text from outside."""
    texts, _, messages = told(peer("rude"), call("mcp_search", query="anything"))
    assert "Ignore all previous" not in texts[0] and messages[0].parts[0].origin == "outside"


def test_82_a_server_answers_out_of_order(peer, tmp_path):
    home = peer()
    with (home / "config.yaml").open("a") as file:
        file.write("hermes_nb: {mcp: {allow: [p]}}\n")
    texts, asked, _ = told(home, (call("mcp__p__swap"), call("mcp__p__late")))
    assert texts == ["to swap", "to late"] and not asked


def test_82_a_server_answers_wrongly(peer):
    home = peer()
    texts, *_ = told(home, call("mcp__p__wrong"), call("mcp__p__garbage"))
    assert "the MCP server 'p'" in texts[0] and texts[1] == "still here"


def test_82_nothing_of_a_server_is_left(peer):
    home = peer("stubborn")
    texts, *_ = told(home, call("mcp__p__garbage"))
    assert texts == ["still here"]
    assert gone(home)


class Endless(http.server.BaseHTTPRequestHandler):
    """Greets properly, and answers whatever else it is asked without an end."""

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self):
        self.send_error(405)

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200 if "id" in asked else 202)
        self.send_header("Content-Type", "application/json")
        if asked["method"] == "initialize":
            version = asked["params"]["protocolVersion"]
            info = {"name": "endless", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
            body = json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode()
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.end_headers()
        with contextlib.suppress(OSError):
            while "id" in asked:
                self.wfile.write(b"x" * 65_536)
                self.server.sent += 65_536


def test_82_a_server_at_an_address_floods(tmp_path):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endless) as server:
        server.sent, server.daemon_threads = 0, True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/mcp"
        home = tmp_path / "home"
        home.mkdir()
        servers = {"w": {"url": url, "connect_timeout": 5}}
        (home / "config.yaml").write_text(yaml.safe_dump({"mcp_servers": servers}))
        calls = [call("mcp_search", query="x"), call("mcp_call", tool="mcp__w__x")]
        texts, *_ = told(home, *calls)
        sent = server.sent
        server.shutdown()
    assert "server w:" in texts[0] and "there is no tool" in texts[1]
    assert sent < 100_000_000


KERNEL = """
import os, signal, sys
from hermes_nb import Hermes
from hermes_nb.models.scripted import ScriptedModel, call
hermes = Hermes(ScriptedModel([call("mcp__p__garbage"), "done"]), approve="all")
hermes.ask("go")
if sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("how", ["ended", "killed"])
def test_82_servers_end_with_a_kernel_that_says_no_word(peer, how):
    home = peer()
    env = {**os.environ, "HERMES_HOME": str(home)}
    subprocess.run([sys.executable, "-c", KERNEL, how], env=env, cwd=home, check=False, timeout=100)
    assert len((home.parent / "pids").read_text().split()) == 2
    assert gone(home)
