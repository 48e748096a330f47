"""The MCP server over HTTP: for whoever has the token, and for no web page."""

from __future__ import annotations

import subprocess
import sys

import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from tests.extras.mcp_server.doors import call, served

pytestmark = pytest.mark.kernel


async def test_http_takes_the_token_and_refuses_web_pages(tmp_path, home):
    with served(tmp_path, home) as door:
        door.serve()
        command = [sys.executable, "-m", "hermes_nb.cli", "mcp", "--http", "0"]
        with subprocess.Popen(command, env=door.env, stdout=subprocess.PIPE, text=True) as server:
            try:
                url, line = (server.stdout.readline().strip() for _ in range(2))
                headers = dict([line.split(": ", 1)])
                async with httpx.AsyncClient() as anyone:
                    ways = ({}, {"Authorization": "Bearer x"}, {**headers, "Origin": "http://a.b"})
                    ways += ({**headers, "Host": "a.b"},)
                    replies = [await anyone.post(url, headers=way, json={}) for way in ways]
                assert [reply.status_code for reply in replies] == [401, 401, 403, 403]
                async with (
                    httpx.AsyncClient(headers=headers) as known,
                    streamable_http_client(url, http_client=known) as (read, write, _),
                    ClientSession(read, write) as session,
                ):
                    await session.initialize()
                    assert "oak = 1" in await call(session, "list_variables")
            finally:
                server.terminate()
