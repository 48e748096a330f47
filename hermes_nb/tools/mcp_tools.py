"""Offer MCP servers' tools to a session. The list does not change during a session.

The schemas come from each server's last start and are cached in the Hermes directory, so that a
first turn does not wait for a server. The model finds other tools with `mcp_search` and calls them
with `mcp_call`: tools without a cached schema, tools whose text looks like an attack, and all tools
if their schemas would take more than a tenth of the context window.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_nb.core.errors import ToolError
from hermes_nb.core.files import locked, make_private, write_atomic
from hermes_nb.core.json_values import canonical_json, clean, fingerprint
from hermes_nb.core.messages import Image, Json
from hermes_nb.core.protocols import ChatModel
from hermes_nb.core.regular_files import Refused, read_regular
from hermes_nb.core.text import JSON_CHARACTERS_PER_TOKEN, one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Arguments, Risk, Tool, ToolContext, ToolOutput, Toolset
from hermes_nb.safety.scan import scan
from hermes_nb.tools.arguments import Checker
from hermes_nb.tools.schema import tool

if TYPE_CHECKING:
    from mcp import ClientSession

    from hermes_nb.tools.mcp import Connection, Servers
    from hermes_nb.tools.mcp_wire import Document, ServerSpec

FILE = "mcp_tools.json"
"""Name of the cache in the Hermes directory: tools and references by the server's key."""
LOGINS = "mcp_credentials.json"
"""Name of the file with the tokens of logins; tools may not read it."""
VERSION = 1
LARGEST, SERVERS = 30_000_000, 200
"""Maximum size of the cache in bytes and number of servers; the last ones changed are kept."""
SHARE, WINDOW = 0.1, 100_000
"""Maximum fraction of the context window for schemas, and the window in tokens if unknown."""
FOUND, NAMED = 8, 100
"""Number of tools that a search shows with schemas, and by name only."""
WAIT = 10.0
"""Seconds that a search waits for servers that are starting."""
NAME = 64
"""Longest tool name in characters that all providers allow."""
MOST_TEXT, MOST_IMAGES, MOST_IMAGE = 4_000_000, 8, 8_000_000
"""Limits for a result: characters of text, number of images, base64 characters of an image."""
PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
INSTALL = "it needs `pip install 'hermes_nb[mcp]'`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A server's tool, as offered by a session."""

    server: str
    """The server's name."""
    tool: Document
    """The definition of the tool in wire format."""
    plain: bool = True
    """False if the tool's text looks like an attack; in that case it is only offered by search."""

    @property
    def name(self) -> str:
        """The tool's unique name, at most `NAME` characters."""
        whole = re.sub(r"[^\w-]", "_", f"mcp__{self.server}__{self.tool['name']}", flags=re.ASCII)
        mark = fingerprint({"name": [self.server, self.tool["name"]]})[:8]
        return whole if len(whole) <= NAME else f"{whole[: NAME - 9]}_{mark}"

    @property
    def scope(self) -> str:
        """The key of an "always" approval: this tool in its current version."""
        return f"{self.name} ({fingerprint(self.tool)[:8]})"

    @property
    def stays(self) -> bool:
        """Whether the server declares that the tool only reads and contacts no other systems."""
        hints = self.tool.get("annotations") or {}
        return hints.get("readOnlyHint") is True and hints.get("openWorldHint") is False


class McpTools:
    """An agent's MCP tools; `servers` is created when the first server is configured.

    A session's tools come from each server's last start and don't change until `thaw()`. The names
    in `allowed` (`server` or `server/tool`) need no approval.
    """

    def __init__(self) -> None:
        self._servers: Servers | None = None
        self._file = Path()
        self._allowed: frozenset[str] = frozenset()
        self._sent: tuple[Offer, ...] | None = None
        self._offers: dict[str, Offer] = {}
        self._names: dict[str, Sequence[str]] = {}

    @property
    def servers(self) -> Servers:
        if self._servers is None:
            from hermes_nb.tools.mcp import Servers  # slow to import, and needed only by servers

            self._servers = Servers(self._listed)
        return self._servers

    @property
    def connections(self) -> Mapping[str, Connection]:
        """The configured servers by name."""
        return {} if self._servers is None else self._servers.connections

    def close(self) -> None:
        """Stop all servers."""
        if self._servers is not None:
            self._servers.close()

    def use(
        self, specs: Mapping[str, ServerSpec], *, home: Path, allowed: Collection[str] = ()
    ) -> None:
        """Run these servers and offer their tools; does not wait for them."""
        self._file, self._allowed = home / FILE, frozenset(allowed)
        if specs and find_spec("mcp") is None:
            specs = {n: replace(s, problem=s.problem or INSTALL) for n, s in specs.items()}
        specs = {n: replace(s, logins=home / LOGINS) if s.url else s for n, s in specs.items()}
        if specs or self._servers is not None:
            self.servers.use(specs)

    def thaw(self) -> bool:
        """Let the next session use the current tools; return whether there are any servers."""
        self._sent, self._offers = None, {}
        return bool(self.connections)

    def tools(self, model: ChatModel) -> Toolset:
        """Return the session's tools; `model` answers the servers' sampling requests."""
        if not self.connections:
            return Toolset()
        if self._sent is None:
            self._sent = self._remembered(SHARE * (model.window or WINDOW))
        return Toolset([*(self._tool(offer, model) for offer in self._sent), *self._finding(model)])

    def _remembered(self, most: float) -> tuple[Offer, ...]:
        """Load the cached tools; return those to send to the model.

        None are sent if their schemas would take more than `most` tokens.
        """
        cache = read_cache(self._file)
        offers: dict[str, Offer] = {}
        for name, connection in self.connections.items():
            facts = cache.get(connection.spec.key, {})
            self._names[name] = [r for r in facts.get("references", ()) if isinstance(r, str)]
            for offer in _offers(name, () if connection.spec.problem else facts.get("tools", ())):
                offers.setdefault(offer.name, offer)
        self._offers = offers
        size = sum(len(canonical_json(offer.tool)) for offer in offers.values())
        few = size / JSON_CHARACTERS_PER_TOKEN <= most
        return tuple(offer for offer in offers.values() if few and offer.plain)

    @property
    def references(self) -> Mapping[str, Sequence[str]]:
        """What a user can attach to a prompt, by server: resource URIs, and prompts.

        Does not wait for servers.
        """
        live = self.connections.items()
        return {name: each.references or self._names.get(name, ()) for name, each in live}

    @property
    def known(self) -> Mapping[str, Offer]:
        """All known tools by unique name, each as this session first saw it."""
        for name, connection in self.connections.items():
            for each in list(connection.tools.values()):
                offer = Offer(server=name, tool=each)
                self._offers.setdefault(offer.name, offer)
        return self._offers

    def _listed(self, connection: Connection) -> None:
        """Cache a server's tools and references for the next session."""

        def plain(tool: Document) -> bool:
            words = f"{tool['description']}\n{canonical_json(tool['inputSchema'])}"
            return scan(words).verdict == "clean"

        tools = [{**tool, "plain": plain(tool)} for tool in connection.tools.values()]
        facts = {"tools": tools, "references": list(connection.references)}
        with suppress(OSError, TimeoutError):  # without a cache, mcp_search still finds them
            make_private(self._file.parent)
            with locked(self._file):
                cache = read_cache(self._file)
                if cache.get(connection.spec.key) == facts:
                    return
                cache.pop(connection.spec.key, None)
                cache[connection.spec.key] = facts
                last = dict(list(cache.items())[-SERVERS:])
                document = {"version": VERSION, "servers": last}
                write_atomic(self._file, json.dumps(document).encode(), mode=0o600)

    def _free(self, offer: Offer) -> bool:
        name = f"{offer.server}/{offer.tool['name']}"
        connection = self.connections.get(offer.server)
        mine = connection is not None and connection.spec.source != PROJECT
        return mine and not self._allowed.isdisjoint((offer.server, name))

    def _tool(self, offer: Offer, model: ChatModel) -> Tool:
        name, schema = offer.name, offer.tool["inputSchema"]

        async def run(context: ToolContext, arguments: Arguments) -> ToolOutput:
            return await self._call(offer, arguments, context, model)

        return Tool(
            name=name,
            description=offer.tool["description"] or name,
            parameters=schema,
            run=run,
            toolset="mcp",
            risk=Risk.READ if self._free(offer) else Risk.NETWORK,
            check=Checker(name, schema),
            scope=lambda _: offer.scope,
            stays=offer.stays,
        )

    async def _call(
        self, offer: Offer, arguments: Arguments, context: ToolContext, model: ChatModel
    ) -> ToolOutput:
        from hermes_nb.tools.mcp_wire import Caller

        caller = Caller(context=context, loop=asyncio.get_running_loop(), model=model)
        result = await self.servers.there(
            offer.server, lambda connection: connection.call(offer.tool, arguments, caller)
        )
        output = shown(result.get("content") or [], result.get("structuredContent"))
        if result.get("isError"):
            failed = ToolError(output.text or f"{offer.name} failed")
            failed.origin = "outside"
            raise failed
        return output

    def _finding(self, model: ChatModel) -> Sequence[Tool]:
        """Return the tools that find and call all other MCP tools, and read resources."""

        async def mcp_search(query: str) -> ToolOutput:
            """Find tools of the MCP servers (NAMES) and their schemas.

            Args:
                query: words of the name or purpose; empty lists all
            """
            await self.servers.settled(WAIT)
            return await in_thread(self._found, query)

        async def mcp_call(
            context: ToolContext, tool: str, arguments: Mapping[str, Json] | None = None
        ) -> ToolOutput:
            """Call a tool that mcp_search found."""
            if tool not in self.known:
                await self.servers.settled(WAIT)
            if (offer := self.known.get(tool)) is None:
                raise ToolError(f"there is no tool {one_line(tool)!r}; mcp_search finds them")
            if problem := Checker(tool, offer.tool["inputSchema"])(arguments or {}):
                raise ToolError(problem)
            return await self._call(offer, arguments or {}, context, model)

        def scope(arguments: Arguments) -> str:
            offer = self.known.get(name := str(arguments.get("tool")))
            return offer.scope if offer else name

        def risk(arguments: Arguments) -> Risk:
            offer = self.known.get(str(arguments.get("tool")))
            return Risk.READ if offer and self._free(offer) else Risk.NETWORK

        def of_a_server(arguments: Arguments) -> str:
            return f"resources of {arguments.get('server')}"

        search = tool(toolset="mcp", origin=lambda _: "")(mcp_search)
        names = ", ".join(self.connections)
        call = tool(toolset="mcp", risk=Risk.NETWORK, risk_of=risk)(mcp_call)
        resource = tool(name="mcp_resource", toolset="mcp", risk=Risk.NETWORK)(self.resource)
        return [
            replace(search, description=search.description.replace("NAMES", names)),
            replace(call, scope=scope),
            replace(resource, scope=of_a_server),
        ]

    def _found(self, query: str) -> ToolOutput:
        """Return the matching tools, the best with schemas, and the servers that are not ready.

        The result is trusted like any tool definition, unless its text looks like an attack.
        """
        offers = dict(self.known)
        words = re.findall(r"\w+", query.casefold())

        def score(offer: Offer) -> int:
            name, text = offer.name.casefold(), offer.tool["description"].casefold()
            return sum(2 * (word in name) + (word in text) for word in words)

        fits = [offer for offer in offers.values() if not words or score(offer)]
        fits.sort(key=score, reverse=True)
        whole = fits[:FOUND] if words else []
        lines = [_tool_description(offer) for offer in whole]
        if more := [offer.name for offer in fits[len(whole) : NAMED]]:
            lines.append(f"{'also' if whole else 'all'}: {', '.join(more)}")
        if not fits:
            lines.append(f"no tool fits; there are {len(offers)}, and an empty query lists them")
        for name, connection in self.connections.items():
            if connection.state != "ready":
                state = f": {connection.error}" if connection.error else ""
                lines.append(f"server {name}: {connection.state}{state}")
        text = "\n\n".join(lines)
        return ToolOutput(text, origin="workspace" if scan(text).verdict == "clean" else "outside")

    async def resource(self, server: str, uri: str = "") -> ToolOutput:
        """Read a resource of an MCP server; without a uri, list them."""
        if uri:
            read = await self._request_list(server, "resources", lambda s: s.read_resource(uri))  # type: ignore[arg-type]
            return shown([{"type": "resource", "resource": r} for r in read.get("contents", [])])
        listed = await self._request_list(server, "resources", lambda s: s.list_resources())
        found = list(listed.get("resources", []))
        with suppress(ToolError):  # servers don't have to support templates
            listed = await self._request_list(
                server, "resources", lambda s: s.list_resource_templates()
            )
            found += listed.get("resourceTemplates", [])
        return _listing(
            (f"{r.get('uri') or r.get('uriTemplate')} {r.get('name', '')}", r) for r in found
        )

    async def prompt(self, server: str, name: str, arguments: Mapping[str, str]) -> ToolOutput:
        """Render a server's prompt, or list its prompts without `name`; raise `ToolError`."""
        if name:
            got = await self._request_list(
                server, "prompts", lambda s: s.get_prompt(name, dict(arguments))
            )
            return shown([each.get("content") or {} for each in got.get("messages", [])])
        listed = await self._request_list(server, "prompts", lambda s: s.list_prompts())
        found = listed.get("prompts", [])
        takes = [" ".join(f"{a.get('name')}=…" for a in p.get("arguments") or ()) for p in found]
        return _listing(
            (f"{server}:{p.get('name')} {taken}", p) for p, taken in zip(found, takes, strict=True)
        )

    async def _request_list(
        self, server: str, what: str, send: Callable[[ClientSession], Awaitable[object]]
    ) -> dict[str, Json]:
        """Request a server's resources or prompts; raise `ToolError` if it has none."""
        from hermes_nb.tools.mcp_wire import wire

        async def ask(connection: Connection) -> dict[str, Json]:
            await connection.ready()
            if what not in connection.capabilities:
                raise ToolError(f"the MCP server {server!r} has no {what}")
            return wire(await connection.request(send))

        return await self.servers.there(server, ask)


PROJECT = ".mcp.json"


def _listing(found: Iterable[tuple[str, Document]]) -> ToolOutput:
    lines = [
        f"{name}: {one_line(str(each.get('description') or each.get('mimeType') or ''), 200)}"
        for name, each in itertools.islice(found, NAMED)
    ]
    return ToolOutput("\n".join(lines) or "there are none", origin="outside")


def read_cache(file: Path) -> dict[str, Document]:
    """Return the cached tools and references by server key; {} if the file cannot be read."""
    try:
        document = json.loads(read_regular(file, LARGEST)[0])
        servers = document["servers"].items() if document["version"] == VERSION else ()
    except (OSError, Refused, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}
    return {key: facts for key, facts in servers if isinstance(facts, dict)}


def _offers(server: str, tools: Iterable[Document]) -> Iterable[Offer]:
    for each in tools:
        with suppress(KeyError, TypeError, AttributeError):  # the file may have been edited
            tool = {key: each[key] for key in ("name", "description", "inputSchema", "annotations")}
            yield Offer(server=server, tool=tool, plain=each["plain"] is True)


def _tool_description(offer: Offer) -> str:
    hints = ", ".join(k for k, v in (offer.tool.get("annotations") or {}).items() if v)
    schema = canonical_json(offer.tool["inputSchema"])
    says = f"\n(its server says: {hints})" if hints else ""
    return f"{offer.name}: {offer.tool['description']}\narguments: {schema}{says}"


def shown(content: Sequence[Json], structured: Json = None) -> ToolOutput:
    """Render content blocks for the model, within the limits, as untrusted content."""
    texts: list[str] = []
    images: list[Image] = []
    for block in content:
        if not isinstance(block, Mapping):
            continue
        found = block.get("resource") if block.get("type") == "resource" else block
        facts: Document = found if isinstance(found, Mapping) else {}
        data, kind = str(facts.get("data") or facts.get("blob") or ""), str(facts.get("mimeType"))
        if "text" in facts:
            texts.append(str(facts["text"]))
        elif kind in PICTURES and len(images) < MOST_IMAGES and 0 < len(data) <= MOST_IMAGE:
            images.append(Image(data, kind))
        elif data:
            texts.append(f"[{kind}, {len(data) * 3 // 4:,} bytes, not shown]")
        else:
            texts.append(f"[{facts.get('type')} {facts.get('uri')} {facts.get('name') or ''}]")
    if structured is not None and not texts:
        texts.append(canonical_json(clean(structured)))
    text = "\n".join(texts)
    if len(text) > MOST_TEXT:
        text = f"{text[:MOST_TEXT]}\n[{len(text) - MOST_TEXT:,} characters more were dropped]"
    return ToolOutput(text, tuple(images), "outside")
