"""An editor's session in a live notebook."""

from __future__ import annotations

import json

import pytest

from tests.extras.acp.clients import editor, opened, said
from tests.extras.mcp_server.doors import served
from tests.loopback import Loopback, calls, says

pytestmark = pytest.mark.kernel


async def test_a_session_uses_the_notebook_of_a_kernel(tmp_path, home):
    """The notebook decides: it is open in no page, so that its kernel runs nothing."""
    tool = "mcp__notebook__{}".format
    asked = [
        *[("mcp_search", {"query": "list variables"})] * 3,  # each waits for a slow start
        ("mcp_call", {"tool": tool("list_variables"), "arguments": {}}),
        ("mcp_call", {"tool": tool("run_python"), "arguments": {"code": "oak = 2"}}),
    ]
    with served(tmp_path, home) as door, Loopback(*map(calls, asked), says("done")) as model:
        door.serve()
        env = door.env | {"HERMES_NB_BASE_URL": model.url, "HERMES_NB_MODEL": "loopback-model"}
        name = door.socket.stem
        async with editor(words=["--kernel", name], **env) as (
            client,
            agent,
            _,
        ):
            session = await opened(agent, tmp_path)
            await said(agent, session, "look")
            assert client.text == "done" and not client.asked
        results = [m["content"] for m in model.bodies[-1]["messages"] if m["role"] == "tool"]
        assert "oak" in json.dumps(results[-2]) and "not open in a page" in json.dumps(results[-1])
        assert "1" in door.kernel.run("print(oak)").text
