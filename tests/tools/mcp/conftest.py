"""Homes with MCP servers, and what their last start has left there."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hermes_nb.core.threads import LoopThread
from hermes_nb.tools.mcp_tools import FILE, McpTools
from hermes_nb.tools.mcp_wire import specs

from tests.patience import until

SERVER = str(Path(__file__).with_name("server.py"))
STDIO = {"command": sys.executable, "args": [SERVER, "stdio"], "env": {"TOKEN": "abc"}}


def written(home, **servers):
    """Write a configuration with these servers."""
    home.mkdir(parents=True, exist_ok=True)
    (home / "config.yaml").write_text(yaml.safe_dump({"mcp_servers": servers}))
    return home


def started_once(home, **servers):
    """Let servers tell of their tools, as an earlier kernel did."""
    tools = McpTools()
    tools.use(specs(servers, {}, "config.yaml"), home=home)
    loop = LoopThread("settling")  # a thread that drives a browser has a loop of its own
    try:
        loop.run(tools.servers.settled(60))
    finally:
        loop.close()
    connections = tools.servers.connections
    states = {name: each.state for name, each in connections.items()}
    named = [c for c in connections.values() if {"resources", "prompts"} & set(c.capabilities)]
    assert until(lambda: all(each.references for each in named))
    tools.servers.close()
    assert set(states.values()) == {"ready"}, states


@pytest.fixture(scope="session")
def known(tmp_path_factory):
    """Return what the test server has left in a home."""
    home = tmp_path_factory.mktemp("known")
    started_once(home, t=STDIO)
    return home / FILE


@pytest.fixture
def with_server(tmp_path, known):
    """Return a home whose server has been started before."""
    home = written(tmp_path / "home", t=STDIO)
    shutil.copy(known, home / FILE)
    return home


@pytest.fixture
def address():
    """Yield the address of a server that speaks streamable HTTP."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, SERVER, "http", str(port)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:

        def answers():
            with socket.socket() as tried:
                return tried.connect_ex(("127.0.0.1", port)) == 0

        assert until(answers, 60)
        yield f"http://127.0.0.1:{port}/mcp"
        server.kill()
