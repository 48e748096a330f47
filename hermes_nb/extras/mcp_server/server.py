"""The MCP server in front of a kernel, over standard input and output, or HTTP on this computer.

It knows no tool itself: the list and every call go to the kernel. Works with versions 1 and 2 of
the MCP SDK, which differ in names only.
"""

from __future__ import annotations

import hmac
import os
import secrets
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
import uvicorn
from mcp import types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

import hermes_nb
from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.messages import Json
from hermes_nb.extras.mcp_server.link import Kernel, Waits

VARIABLE = "HERMES_NB_MCP_TOKEN"
"""Environment variable with the token for HTTP; without it, a new token each time."""
ABOUT = (
    "A live Jupyter notebook and its kernel, which the user has open. Look at the cells and "
    "variables first. Code and changes may need the user's approval in the notebook; do not try to "
    "get around a denial."
)
_FIRST = hasattr(Server, "list_tools")
"""Whether this is version 1 of the SDK."""


def server_for(kernel: Kernel) -> Server[Json]:
    """Return an MCP server that passes everything on to a kernel."""
    if not _FIRST:

        async def listed(context: Json, _: Json) -> Json:
            return types.ListToolsResult(tools=await _tools(kernel, _client(context)))

        async def called(context: Json, params: Json) -> Json:
            given = params.arguments
            return await _call(kernel, context, params.name, given)

        make: Callable[..., Server[Json]] = Server
        return make(
            "hermes_nb",
            version=hermes_nb.__version__,
            instructions=ABOUT,
            on_list_tools=listed,
            on_call_tool=called,
        )
    server: Server[Json] = Server("hermes_nb", version=hermes_nb.__version__, instructions=ABOUT)

    async def tools() -> list[types.Tool]:
        return await _tools(kernel, _client(server.request_context))

    async def call(name: str, arguments: dict[str, Json]) -> types.CallToolResult:
        return await _call(kernel, server.request_context, name, arguments)

    server.list_tools()(tools)
    server.call_tool(validate_input=False)(call)
    return server


async def _tools(kernel: Kernel, client: str) -> list[types.Tool]:
    schema, reads = (
        ("inputSchema", "readOnlyHint") if _FIRST else ("input_schema", "read_only_hint")
    )
    answer = await kernel.ask(op="tools", client=client)
    return [
        types.Tool(
            name=each["name"],
            description=each["description"],
            annotations=types.ToolAnnotations(**{reads: each["reads"]}),
            **{schema: each["parameters"]},
        )
        for each in answer.get("tools", ())
    ]


async def _call(
    kernel: Kernel, context: Json, name: str, arguments: dict[str, Json] | None
) -> types.CallToolResult:
    try:
        answer = await kernel.ask(
            _progress(context),
            op="call",
            name=name,
            arguments=arguments or {},
            client=_client(context),
        )
    except HermesError as error:
        answer = {"status": "error", "text": str(error)}
    mime, failed = ("mimeType", "isError") if _FIRST else ("mime_type", "is_error")
    text = str(answer["text"]).encode("utf-8", "replace").decode()
    content: list[Json] = [types.TextContent(type="text", text=text)]
    for image in answer.get("images", ()):
        kind = {mime: image["mime"]}
        content.append(types.ImageContent(type="image", data=image["data"], **kind))
    return types.CallToolResult(content=content, **{failed: answer["status"] != "ok"})


def _client(context: Json) -> str:
    """Return the name by which a client introduced itself."""
    params = context.session.client_params
    info = params and (params.clientInfo if _FIRST else params.client_info)
    return str(info.name) if info else ""


def _progress(context: Json) -> Waits | None:
    """Return a function that tells a client why its call waits, or None if it wants no reports."""
    meta = context.meta
    if not meta or (token := meta.progressToken if _FIRST else meta.get("progress_token")) is None:
        return None

    async def told(seconds: float, why: str) -> None:
        about = str(context.request_id)
        text = f"waiting for {seconds:g} s: {why}"
        send = context.session.send_progress_notification
        await send(token, seconds, message=text, related_request_id=about)

    return told


async def over_stdio(kernel: Kernel) -> None:
    """Serve until standard input ends."""
    await kernel.ask(op="info")  # ends here if there is no kernel
    for number in (signal.SIGTERM, signal.SIGINT):  # a thread waits for input: end at once
        signal.signal(number, signal.SIG_DFL)
    server = server_for(kernel)
    output = anyio.wrap_file(os.fdopen(os.dup(1), "w", encoding="utf-8"))  # the SDK closes it
    async with stdio_server(stdout=output) as (read, write):
        await server.run(read, write, server.create_initialization_options())


Application = Callable[[Json, Json, Json], Awaitable[None]]


async def over_http(kernel: Kernel, port: int) -> None:
    """Serve on 127.0.0.1 until stopped, for clients that send the token."""
    await kernel.ask(op="info")
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        raise ConfigError(f"port {port} cannot be used: {error}") from error
    token = os.environ.get(VARIABLE) or secrets.token_urlsafe(32)
    host = f"127.0.0.1:{listening.getsockname()[1]}"
    print(f"http://{host}/mcp", flush=True)
    if not os.environ.get(VARIABLE):
        print(f"Authorization: Bearer {token}", flush=True)
    async with application(kernel, token, host) as served:
        config = uvicorn.Config(served, lifespan="off", log_level="error", access_log=False)
        await uvicorn.Server(config).serve(sockets=[listening])


@asynccontextmanager
async def application(kernel: Kernel, token: str, host: str) -> AsyncIterator[Application]:
    """Yield the ASGI application that serves a kernel to clients that send the token."""
    manager = StreamableHTTPSessionManager(server_for(kernel))
    async with manager.run():
        yield _guarded(manager.handle_request, token, host)


def _guarded(application: Application, token: str, host: str) -> Application:
    """Let through requests with the token, for our own address, from no page of another site."""
    wanted = f"Bearer {token}".encode()
    hosts = {host.encode(), host.replace("127.0.0.1", "localhost").encode()}

    async def checked(scope: Json, receive: Json, send: Json) -> None:
        headers = dict(scope["headers"])
        allowed = hmac.compare_digest(headers.get(b"authorization", b""), wanted)
        origin = headers.get(b"origin", b"http://" + host.encode())
        ours = headers.get(b"host") in hosts and origin.removeprefix(b"http://") in hosts
        status = 401 if not allowed else 403 if not ours else 404 if scope["path"] != "/mcp" else 0
        if not status:
            await application(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    return checked
