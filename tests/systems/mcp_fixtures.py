"""The server that the conformance runner tests: our transport, with the tools that it names.

Prints its address. The runner cannot send a token, so each request gets one here.
"""

from __future__ import annotations

import asyncio
import socket

import uvicorn
from hermes_nb.extras.mcp_server.server import application

PNG = (
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ"
    "AAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
HEADER = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    "required": ["region"],
}
SCHEMAS = {"json_schema_2020_12_tool": SCHEMA, "test_custom_header": HEADER}
ANSWERS = {
    "test_simple_text": {"text": "This is a simple text response for testing."},
    "test_image_content": {"text": "", "images": [{"mime": "image/png", "data": PNG}]},
    "test_error_handling": {
        "status": "error",
        "text": "This tool intentionally returns an error for testing",
    },
    "test_tool_with_progress": {"text": "done"},
    "json_schema_2020_12_tool": {"text": "done"},
    "test_custom_header": {"text": "done"},
}


class Fixtures:
    """Answers as a kernel does."""

    async def ask(self, waits=None, **asked):
        if asked["op"] == "tools":
            return {"tools": [self.described(name) for name in ANSWERS]}
        if asked["name"] == "test_tool_with_progress" and waits:
            for seconds in (1.0, 2.0, 3.0):
                await waits(seconds, "a cell is running")
        unknown = {"status": "error", "text": f"no tool {asked['name']!r}"}
        return {"status": "ok", **ANSWERS.get(asked["name"], unknown)}

    def described(self, name):
        parameters = SCHEMAS.get(name, {"type": "object"})
        return {"name": name, "description": name, "parameters": parameters, "reads": True}


async def main() -> None:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    host = f"127.0.0.1:{listening.getsockname()[1]}"
    async with application(Fixtures(), "token", host) as inner:

        async def known(scope, receive, send):
            headers = [*scope["headers"], (b"authorization", b"Bearer token")]
            await inner({**scope, "headers": headers}, receive, send)

        config = uvicorn.Config(known, lifespan="off", log_level="error", access_log=False)
        print(f"http://{host}/mcp", flush=True)
        await uvicorn.Server(config).serve(sockets=[listening])


asyncio.run(main())
