"""The kernel is restarted in the middle of a turn: the next one offers to go on from there."""

from __future__ import annotations

import time

import pytest

from tests.faults.cells import calls, environment, says
from tests.faults.provider import check_request
from tests.kernels import kernel
from tests.loopback import Reply, chunk, event, stall

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

MOMENTS = {
    "in the answer": (Reply([event(chunk({"content": "The beginning"})), stall]), 0),
    "in a command": (calls(("terminal", {"command": "touch begun; sleep 600"})), 1),
    "in code that ends the kernel": (calls(("run_python", {"code": "import os; os._exit(1)"})), 1),
}


@pytest.mark.parametrize(("reply", "results"), MOMENTS.values(), ids=MOMENTS)
def test_52_it_goes_on_from_there(server, tmp_path, reply, results):
    notebook = tmp_path / "work.ipynb"
    notebook.write_text("{}", encoding="utf-8")
    env = environment(server, tmp_path, JPY_SESSION_NAME=str(notebook))
    with kernel(env, cwd=str(tmp_path)) as first:
        first.run("%load_ext hermes_nb")
        server.replies[:] = [reply]
        first.client.execute("%%hermes --approve all\nmy colour is blue, do it")
        deadline = time.monotonic() + 60
        while not (server.exchanges and (not results or _begun(tmp_path, first))):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        second = first.killed_and_restarted()
        try:
            server.exchanges.clear()
            server.replies[:] = [says("Blue it is.")]
            second.run("%load_ext hermes_nb")
            result = second.run("%hermes which colour?")
            assert result.status == "ok", result.error
            assert "Resumed" in result.markdown and "%hermes new" in result.markdown
            assert "Blue it is." in result.markdown
        finally:
            second.client.stop_channels()
    (body,) = server.bodies
    check_request(body)
    assert "my colour is blue" in body["messages"][1]["content"]
    told = [each["content"] for each in body["messages"] if each["role"] == "tool"]
    assert len(told) == results
    assert all("the process ended" in each for each in told)


def _begun(folder, running):
    return (folder / "begun").exists() or not running.manager.is_alive()
