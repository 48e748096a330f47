"""Converts the protocol's prompts and servers to our own messages and settings."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias
from urllib.parse import unquote, urlsplit

from acp import schema

from hermes_nb.agent.settings.config import Settings
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.messages import Image, Json, Message, Origin, Part, Text
from hermes_nb.core.text import one_line
from hermes_nb.safety.marks import marks_of
from hermes_nb.tools.consult import KINDS, MOST_BYTES
from hermes_nb.tools.encodings import SAMPLE, kind_of

Block: TypeAlias = (
    schema.TextContentBlock
    | schema.ImageContentBlock
    | schema.AudioContentBlock
    | schema.ResourceContentBlock
    | schema.EmbeddedResourceContentBlock
)
Server: TypeAlias = (
    schema.HttpMcpServer | schema.SseMcpServer | schema.AcpMcpServer | schema.McpServerStdio
)


def message_of(blocks: Sequence[Block], root: Path, home: Path) -> Message:
    """Return the user's message; raise `ConfigError` if a block cannot be used.

    Attached text is not the user's own words: files below `root` are the workspace's, all others
    are untrusted content.
    """
    said: list[Part] = []
    attached: list[Part] = []
    for block in blocks:
        match block:
            case schema.TextContentBlock():
                said.append(Text(block.text, "user"))
            case schema.ImageContentBlock():
                attached.append(_image(block.data))
            case schema.ResourceContentBlock():
                name = one_line(f"[Attached: {block.uri}]", 2_000)
                attached.append(Text(name, _origin(block.uri, root, home)))
            case schema.EmbeddedResourceContentBlock(resource=found):
                attached.append(_resource(found, root, home))
            case _:
                raise ConfigError("audio cannot be used in a prompt")
    if not any(isinstance(part, Text) and part.text.strip() for part in said) and not attached:
        raise ConfigError("the prompt is empty")
    return Message(role="user", parts=(*(said or [Text("", "user")]), *attached))


def _resource(
    found: schema.TextResourceContents | schema.BlobResourceContents, root: Path, home: Path
) -> Part:
    origin = _origin(found.uri, root, home)
    name = one_line(f"[Attached: {found.uri}]", 2_000)
    if isinstance(found, schema.TextResourceContents):
        return Text(f"{name}\n{found.text}", origin)
    if (found.mime_type or "").startswith("image/"):
        return _image(found.blob)
    return Text(f"{name} (binary, not readable)", origin)


def _image(data: str) -> Image:
    try:
        found = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError(f"an image is not valid base64: {error}") from error
    mime = KINDS.get(kind_of(Path("image"), found[:SAMPLE]))
    if mime is None or len(found) > MOST_BYTES:
        raise ConfigError(f"images must be PNG, JPEG or GIF, and have at most {MOST_BYTES:,} bytes")
    return Image(data, mime)


def _origin(uri: str, root: Path, home: Path) -> Origin:
    parts = urlsplit(uri)
    path = Path(unquote(parts.path)).resolve() if parts.scheme in ("file", "") else None
    if path is None or not path.is_relative_to(root.resolve()) or marks_of(home).holds(path):
        return "outside"
    return "workspace"


def with_servers(settings: Settings, given: Sequence[Server]) -> Settings:
    """Return the settings with a client's MCP servers.

    Servers in config.yaml override those with the same name. What `mcp.allow` says about a name
    does not apply to a client's server.
    """
    made: dict[str, Json] = {}
    for server in given:
        match server:
            case schema.McpServerStdio():
                env = {each.name: each.value for each in server.env}
                made[server.name] = {"command": server.command, "args": server.args, "env": env}
            case schema.HttpMcpServer():
                headers = {each.name: each.value for each in server.headers}
                made[server.name] = {"url": server.url, "headers": headers}
            case _:
                raise ConfigError(
                    f"the MCP server {one_line(server.name)!r} must use stdio or streamable HTTP"
                )
    mcp = settings.mcp
    made = {name: spec for name, spec in made.items() if name not in mcp.servers}
    allow = tuple(name for name in mcp.allow if name.partition("/")[0] not in made)
    return replace(settings, mcp=replace(mcp, servers={**mcp.servers, **made}, allow=allow))
