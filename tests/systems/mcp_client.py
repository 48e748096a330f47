"""The client that the conformance runner starts: ours, with a user who agrees to everything.

The address is the last argument. It lists the tools and calls each of them, with the arguments that
the scenario names; then it reads the first resource and the first prompt.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path

from hermes_nb.core.errors import ToolError
from hermes_nb.core.messages import ToolCall
from hermes_nb.core.tools import ToolContext
from hermes_nb.models.scripted import ScriptedModel
from hermes_nb.tools.mcp import PROMPT
from hermes_nb.tools.mcp_login import login
from hermes_nb.tools.mcp_tools import McpTools
from hermes_nb.tools.mcp_wire import Caller, specs

from tests.patience import until
from tests.tools.mcp.authority import visited

GIVEN = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
DOCUMENT = "https://conformance-test.local/client-metadata.json"


async def agreed(_question):
    return "once"


def arguments(connection, name):
    """Return what a tool is called with, once for each call."""
    named = [each["arguments"] for each in GIVEN.get("toolCalls", []) if each["name"] == name]
    if name == "json_schema_echo":
        schemas = (
            tool["inputSchema"] for tool in connection.tools.values() if tool["name"] != name
        )
        return [{"schema": next(schemas)}]
    return named or [{"a": 5, "b": 3} if name == "add_numbers" else {}]


async def main(url: str) -> None:
    tools = McpTools()
    oauth = {key: GIVEN[key] for key in ("client_id", "client_secret") if key in GIVEN}
    oauth = oauth or {"client_metadata_url": DOCUMENT}
    tools.use(specs({"c": {"url": url, "oauth": oauth}}, {}, ""), home=Path(tempfile.mkdtemp()))
    await tools.servers.settled(30)
    connection = tools.servers.connections["c"]
    logs_in = "requires a login" in connection.error
    if logs_in:
        try:
            await login(connection.spec, visited)
        except ToolError as error:
            sys.exit(str(error))
        await tools.servers.again("c")
    if logs_in and connection.state != "ready":
        return  # the servers of some login scenarios speak no further; the runner judges the login
    if connection.state != "ready":
        sys.exit(connection.error)
    context = ToolContext(call=ToolCall(id="1", name="call"), ask=agreed)
    caller = Caller(context=context, loop=asyncio.get_running_loop(), model=ScriptedModel(["Hi."]))
    for tool in list(connection.tools.values()):
        for given in arguments(connection, tool["name"]):
            try:
                call = lambda c, tool=tool, given=given: c.call(tool, given, caller)  # noqa: E731
                print(await tools.servers.there("c", call))
            except ToolError as error:
                print(tool["name"], error, file=sys.stderr)
                if "requires a login" in str(error):  # the user logs in again
                    await login(connection.spec, visited)
                    await tools.servers.again("c")
                    print(await tools.servers.there("c", call))
    if "resources" in connection.capabilities or "prompts" in connection.capabilities:
        await asyncio.to_thread(until, lambda: connection.references, 5)
    for name in connection.references:
        what = tools.prompt("c", name.removeprefix(PROMPT), {})
        try:
            print((await (what if name.startswith(PROMPT) else tools.resource("c", name))).text)
        except ToolError as error:
            print(name, error, file=sys.stderr)
    tools.servers.close()


asyncio.run(main(sys.argv[-1]))
