"""Memory runs out: the call or the turn fails in one line, and the kernel lives."""

from __future__ import annotations

import json

import pytest

from tests.faults.cells import calls, says, served_kernel
from tests.faults.stores import finished, run_python
from tests.loopback import DONE, Loopback, Reply, chunk, event

SCRIPT = """
import json, resource, sys
from pathlib import Path
from hermes_nb import Hermes
from hermes_nb.tools.schema import tool

@tool
def hoards() -> str:
    '''Take more than there is.'''
    return "x" * 10**10

url, work, home = sys.argv[1:]
told = []
options = {"cwd": work, "home": home, "approve": "all", "tools": ["files", hoards]}
with Hermes("m", base_url=url, **options) as hermes:
    hermes.progress = False
    told.append(hermes.ask("warm up").reason)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 200 * 2**20, resource.RLIM_INFINITY))
    turn = hermes.ask("hoard")
    told.append([turn.reason, [m.text for m in turn.messages if m.role == "tool"]])
    turn = hermes.ask("say much")
    told.append([turn.reason, turn.error])
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    turn = hermes.ask("and now?")
    told.append([turn.reason, turn.text])
print(json.dumps(told))
"""


def much():
    """Return a reply of 60 MB in large pieces, more than a process with little left can read."""
    piece = event(
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": "x" * 30_000_000}}]})
    )
    return Reply([piece, piece, DONE])


def test_57_a_tool_and_a_reply(home, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    replies = [says("Hello."), calls(("hoards", {})), says("Too much.")]

    class Answers(Loopback):
        def take(self, exchange):
            super().take(exchange)
            last = exchange.json["messages"][-1]["content"]
            if "say much" in last:
                return much()
            return replies.pop(0) if replies else says("All is well.")

    with Answers(says("unset")) as server:
        (line,) = finished(run_python(SCRIPT, server.url, work, home))
    first, hoarded, said, last = json.loads(line)
    assert first == "answered"
    assert hoarded[0] == "answered" and "MemoryError" in hoarded[1][0]
    assert said[0] in ("answered", "failed") and "\n" not in said[1], "cut, or out of memory"
    assert last == ["answered", "All is well."]


@pytest.mark.kernel
def test_57_in_the_kernel(cells):
    result = cells.ask(
        calls(("run_python", {"code": "x = bytearray(10**15)"})),
        calls(("run_python", {"code": "y = [[0] * 10**14 for _ in range(9)]"})),
        calls(("run_python", {"code": "print('x' * 10**15)"})),
        calls(("run_python", {"code": "print(6 * 7)"})),
        says("It lives."),
        options="--approve all",
    )
    assert result.status == "ok"
    assert "It lives." in result.markdown
    memory, lists, text, fine = cells.results
    assert all("MemoryError" in each for each in (memory, lists, text))
    assert "42" in fine


@pytest.mark.kernel
@pytest.mark.slow
def test_57_little_is_left_in_the_kernel(server, tmp_path):
    limit = (
        "import resource\nfrom pathlib import Path\n"
        "used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 300 * 2**20, resource.RLIM_INFINITY))"
    )
    with served_kernel(server, tmp_path) as kernel:
        server.replies[:] = [says("Hello.")]
        kernel.run("%hermes hello")
        kernel.run(limit)
        server.exchanges.clear()
        hoard = "kept = []\nwhile True: kept.append(bytearray(50 * 2**20))"
        server.replies[:] = [
            calls(("run_python", {"code": hoard})),
            calls(("run_python", {"code": "del kept"})),
            says("It lives."),
        ]
        result = kernel.run("%%hermes --approve all\nhoard")
        assert result.status == "ok", result.error
        assert "It lives." in result.markdown
        results = [m["content"] for m in server.bodies[-1]["messages"] if m["role"] == "tool"]
        assert "MemoryError" in results[0]
