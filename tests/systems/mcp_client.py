"""The client that the conformance runner starts: ours, with a user who agrees to everything.

The address is the last argument. It lists the tools and calls each of them once.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from pathlib import Path

from hermes_nb.core.errors import ToolError
from hermes_nb.core.messages import ToolCall
from hermes_nb.core.tools import ToolContext
from hermes_nb.models.scripted import ScriptedModel
from hermes_nb.tools.mcp_tools import McpTools
from hermes_nb.tools.mcp_wire import Caller, specs

ARGUMENTS = {"add_numbers": {"a": 5, "b": 3}}


async def agreed(_question):
    return "once"


async def main(url: str) -> None:
    tools = McpTools()
    tools.use(specs({"c": {"url": url}}, {}, ""), home=Path(tempfile.mkdtemp()))
    await tools.servers.settled(30)
    connection = tools.servers.connections["c"]
    if connection.state != "ready":
        sys.exit(connection.error)
    context = ToolContext(call=ToolCall(id="1", name="call"), ask=agreed)
    caller = Caller(context=context, loop=asyncio.get_running_loop(), model=ScriptedModel(["Hi."]))
    for tool in list(connection.tools.values()):
        given = ARGUMENTS.get(tool["name"], {})
        try:
            call = lambda c, tool=tool, given=given: c.call(tool, given, caller)  # noqa: E731
            print(await tools.servers.there("c", call))
        except ToolError as error:
            print(tool["name"], error, file=sys.stderr)
    tools.servers.close()


asyncio.run(main(sys.argv[-1]))
