"""What a session is offered of MCP servers: tools that never change while it lasts.

The schemas are those of the servers' last start, kept in the home by what starts a server, so that
a first turn waits for none. What came later or has no schema yet is found by `mcp_search` and
called by `mcp_call`, and so is everything where the schemas would take more than a tenth of the
window, or where a tool's own words read like an attack.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

from hermes_nb.core.errors import ToolError
from hermes_nb.core.files import Refused, locked, make_private, read_regular, write_atomic
from hermes_nb.core.messages import Image, Json
from hermes_nb.core.protocols import ChatModel
from hermes_nb.core.text import JSON_CHARACTERS_PER_TOKEN, canonical_json, clean, one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Arguments, Risk, Tool, ToolContext, ToolOutput, Toolset
from hermes_nb.safety.scan import scan
from hermes_nb.tools.arguments import Checker
from hermes_nb.tools.mcp import Connection, Servers
from hermes_nb.tools.mcp_wire import Caller, Document, ServerSpec, fingerprint

FILE = "mcp_tools.json"
"""In the home: what servers told of their tools, by the key of a server."""
VERSION = 1
LARGEST, SERVERS = 30_000_000, 200
"""Bytes of that file, and servers in it; those that were not started for the longest time go."""
SHARE, WINDOW = 0.1, 100_000
"""Of the window, for schemas; and the window of a model that does not tell."""
FOUND, NAMED = 8, 100
"""Tools that a search shows whole, and by name."""
WAIT = 10.0
"""Seconds that a search waits for servers that are being started."""
NAME = 64
"""Characters that providers allow."""
MOST_TEXT, MOST_IMAGES, MOST_IMAGE = 4_000_000, 8, 8_000_000
"""Characters and pictures of one result, and characters of a picture in base64."""
PICTURES = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
INSTALL = "it needs `pip install 'hermes_nb[mcp]'`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """A tool as a session knows it. `plain` says that its words read like no attack."""

    server: str
    tool: Document
    plain: bool = True

    @property
    def name(self) -> str:
        """Its name among all tools."""
        whole = re.sub(r"[^\w-]", "_", f"mcp__{self.server}__{self.tool['name']}", flags=re.ASCII)
        mark = fingerprint({"name": [self.server, self.tool["name"]]})[:8]
        return whole if len(whole) <= NAME else f"{whole[: NAME - 9]}_{mark}"

    @property
    def scope(self) -> str:
        """What "always" covers: this tool, as it is now."""
        return f"{self.name} ({fingerprint(self.tool)[:8]})"

    @property
    def stays(self) -> bool:
        """Whether the server says that it only reads, and reaches nobody else."""
        hints = self.tool.get("annotations") or {}
        return hints.get("readOnlyHint") is True and hints.get("openWorldHint") is False


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """What a session knows: servers, and tools; `direct` says that these are few enough to send."""

    servers: tuple[str, ...]
    offers: tuple[Offer, ...]
    direct: bool


class McpTools:
    """The tools of MCP servers for one agent; `servers` runs them.

    What `listing` returned first stands until `thaw`. `allowed` are names of servers and of
    `server/tool` that the user lets run without a question.
    """

    def __init__(self) -> None:
        self.servers = Servers(self._listed)
        self._file = Path()
        self._allowed: frozenset[str] = frozenset()
        self._listing: Listing | None = None
        self._seen: dict[str, Offer] = {}

    def use(
        self, specs: Mapping[str, ServerSpec], *, home: Path, allowed: Collection[str] = ()
    ) -> None:
        """Run these servers, and offer their tools; nothing is waited for."""
        self._file, self._allowed = home / FILE, frozenset(allowed)
        if specs and find_spec("mcp") is None:
            specs = {n: replace(s, problem=s.problem or INSTALL) for n, s in specs.items()}
        self.servers.use(specs)

    def thaw(self) -> bool:
        """Let the next session have what servers have told since; say whether there are any."""
        self._listing = None
        return bool(self.servers.connections)

    def listing(self, window: int | None) -> Listing:
        """Return what the session knows, by the servers' last start, as it was asked for first."""
        if self._listing is None:
            cache = read_cache(self._file)
            found: dict[str, Offer] = {}
            for name, connection in self.servers.connections.items():
                for offer in _offers(name, cache.get(connection.spec.key)):
                    if not connection.spec.problem:
                        found.setdefault(offer.name, offer)
            size = sum(len(canonical_json(offer.tool)) for offer in found.values())
            self._listing = Listing(
                servers=tuple(self.servers.connections),
                offers=tuple(found.values()),
                direct=size / JSON_CHARACTERS_PER_TOKEN <= SHARE * (window or WINDOW),
            )
        return self._listing

    def tools(self, model: ChatModel) -> Toolset:
        """Return the session's tools; `model` answers what servers ask of one."""
        listing = self.listing(model.window)
        if not listing.servers:
            return Toolset()
        direct = [each for each in listing.offers if each.plain and listing.direct]
        return Toolset([*(self._tool(offer, model) for offer in direct), *self._finding(model)])

    def known(self, name: str) -> Offer | None:
        """Return a tool by its whole name, as it was when this kernel first saw it."""
        for offer in (*self._offered, *self._live()):
            if offer.name == name:
                return self._seen.setdefault(name, offer)
        return None

    @property
    def _offered(self) -> tuple[Offer, ...]:
        return self._listing.offers if self._listing is not None else ()

    def _live(self) -> Iterable[Offer]:
        for name, connection in self.servers.connections.items():
            for tool in list(connection.tools.values()):
                yield Offer(server=name, tool=tool)

    def _listed(self, connection: Connection) -> None:
        """Keep what a server tells of its tools, for the next session."""
        facts = {
            "tools": [{**tool, "plain": _plain(tool)} for tool in connection.tools.values()],
        }
        with suppress(OSError, TimeoutError):  # then the next session finds them by search
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
        connection = self.servers.connections.get(offer.server)
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
        caller = Caller(context=context, loop=asyncio.get_running_loop(), model=model)
        result = await self.servers.there(
            offer.server, lambda connection: connection.call(offer.tool, arguments, caller)
        )
        output = shown(result.get("content") or [], result.get("structuredContent"))
        if result.get("isError"):
            raise _failed(output.text or f"{offer.name} failed")
        return output

    def _finding(self, model: ChatModel) -> Sequence[Tool]:
        """Return the tools that reach everything else."""
        names = ", ".join(self._listing.servers) if self._listing is not None else ""

        async def search(_: ToolContext, arguments: Arguments) -> ToolOutput:
            await self.servers.settled(WAIT)
            return await in_thread(self._found, str(arguments["query"]))

        async def call(context: ToolContext, arguments: Arguments) -> ToolOutput:
            name = str(arguments["tool"])
            offer = self.known(name)
            if offer is None:
                await self.servers.settled(WAIT)
                offer = self.known(name)
            if offer is None:
                raise ToolError(f"there is no tool {one_line(name)!r}; mcp_search finds them")
            given = arguments.get("arguments") or {}
            if problem := Checker(name, offer.tool["inputSchema"])(given):
                raise ToolError(problem)
            return await self._call(offer, given, context, model)

        def scope(arguments: Arguments) -> str:
            offer = self.known(str(arguments.get("tool")))
            return offer.scope if offer else str(arguments.get("tool"))

        async def resource(_: ToolContext, arguments: Arguments) -> ToolOutput:
            return await self.resource(str(arguments["server"]), str(arguments.get("uri") or ""))

        make = partial(Tool, toolset="mcp")
        return [
            make(
                name="mcp_search",
                description=f"Find tools of the MCP servers ({names}) and their schemas.",
                parameters=_object(query="words of the name or purpose; empty lists all"),
                run=search,
                origin=lambda _: "",
                check=Checker("mcp_search", _object(query="")),
            ),
            make(
                name="mcp_call",
                description="Call a tool that mcp_search found.",
                parameters=CALL,
                run=call,
                risk=Risk.NETWORK,
                check=Checker("mcp_call", CALL),
                scope=scope,
            ),
            make(
                name="mcp_resource",
                description="Read a resource of an MCP server; without a uri, list them.",
                parameters=RESOURCE,
                run=resource,
                risk=Risk.NETWORK,
                check=Checker("mcp_resource", RESOURCE),
                scope=lambda arguments: f"resources of {arguments.get('server')}",
            ),
        ]

    def _found(self, query: str) -> ToolOutput:
        """Return the tools that fit, the best ones with their schemas, and what is not there.

        Schemas are what a session's tools consist of; those that read like an attack are not.
        """
        offers = {offer.name: offer for offer in (*self._live(), *self._offered)}
        words = re.findall(r"\w+", query.casefold())

        def score(offer: Offer) -> int:
            name, text = offer.name.casefold(), offer.tool["description"].casefold()
            return sum(2 * (word in name) + (word in text) for word in words)

        fits = [offer for offer in offers.values() if not words or score(offer)]
        fits.sort(key=score, reverse=True)
        whole = fits[:FOUND] if words else []
        lines = [_told(self._seen.setdefault(offer.name, offer)) for offer in whole]
        if more := [offer.name for offer in fits[len(whole) : NAMED]]:
            lines.append(f"{'also' if whole else 'all'}: {', '.join(more)}")
        if not fits:
            lines.append(f"no tool fits; there are {len(offers)}, and an empty query lists them")
        for name, connection in self.servers.connections.items():
            if connection.state != "ready":
                state = f": {connection.error}" if connection.error else ""
                lines.append(f"server {name}: {connection.state}{state}")
        plain = all(_plain(offer.tool) for offer in whole)
        return ToolOutput("\n\n".join(lines), origin="workspace" if plain else "outside")

    async def resource(self, server: str, uri: str) -> ToolOutput:
        """Return what a resource holds, or without `uri` the list of them; raise `ToolError`."""

        async def ask(connection: Connection) -> dict[str, Json]:
            await connection.ready()
            if "resources" not in connection.capabilities:
                raise ToolError(f"the MCP server {server!r} has no resources")
            if uri:
                read = connection.bridge.read_resource
                return await connection.request(lambda session: read(session, uri))
            listed = await connection.request(lambda session: session.list_resources())
            templates: dict[str, Json] = {}
            with suppress(ToolError):  # they are optional
                templates = await connection.request(lambda s: s.list_resource_templates())
            return {**listed, **templates}

        result = await self.servers.there(server, ask)
        if uri:
            return shown([{"type": "resource", "resource": r} for r in result.get("contents", [])])
        listed = [*result.get("resources", []), *result.get("resourceTemplates", [])]
        lines = [
            f"{each.get('uri') or each.get('uriTemplate')} {each.get('name', '')}: "
            f"{one_line(str(each.get('description') or each.get('mimeType') or ''), 200)}"
            for each in listed[:NAMED]
        ]
        return ToolOutput("\n".join(lines) or "there are none", origin="outside")

    async def prompt(self, server: str, name: str, arguments: Mapping[str, str]) -> ToolOutput:
        """Return the text of a server's prompt, without `name` the list; raise `ToolError`."""

        async def ask(connection: Connection) -> dict[str, Json]:
            await connection.ready()
            if "prompts" not in connection.capabilities:
                raise ToolError(f"the MCP server {server!r} has no prompts")
            if name:
                given = dict(arguments)
                return await connection.request(lambda session: session.get_prompt(name, given))
            return await connection.request(lambda session: session.list_prompts())

        result = await self.servers.there(server, ask)
        if name:
            return shown([each.get("content") or {} for each in result.get("messages", [])])
        lines = []
        for each in result.get("prompts", [])[:NAMED]:
            takes = " ".join(f"{a.get('name')}=…" for a in each.get("arguments") or ())
            about = one_line(str(each.get("description") or ""), 200)
            lines.append(f"{server}:{each.get('name')} {takes}: {about}")
        return ToolOutput("\n".join(lines) or "there are none", origin="outside")


PROJECT = ".mcp.json"
CALL: dict[str, Json] = {
    "type": "object",
    "properties": {"tool": {"type": "string"}, "arguments": {"type": "object"}},
    "required": ["tool"],
    "additionalProperties": False,
}
RESOURCE: dict[str, Json] = {
    "type": "object",
    "properties": {"server": {"type": "string"}, "uri": {"type": "string"}},
    "required": ["server"],
    "additionalProperties": False,
}


def _object(**texts: str) -> dict[str, Json]:
    """Return the schema of texts that are all needed, by their descriptions."""
    properties = {name: {"type": "string", "description": text} for name, text in texts.items()}
    required = list(texts)
    return {"type": "object", "properties": properties, "required": required}


def read_cache(file: Path) -> dict[str, Document]:
    """Return what servers told of their tools, by key; a file that cannot be read is empty."""
    try:
        document = json.loads(read_regular(file, LARGEST)[0])
        servers = document["servers"] if document["version"] == VERSION else {}
    except (OSError, Refused, ValueError, KeyError, TypeError, RecursionError):
        return {}
    return servers if isinstance(servers, dict) else {}


def _offers(server: str, facts: Document | None) -> Iterable[Offer]:
    for each in (facts or {}).get("tools", ()):
        with suppress(KeyError, TypeError, AttributeError):  # somebody else wrote it
            tool = {key: each[key] for key in ("name", "description", "inputSchema", "annotations")}
            yield Offer(server=server, tool=tool, plain=each["plain"] is True)


def _plain(tool: Document) -> bool:
    """Say whether a tool's own words read like no attack; what does is found by search alone."""
    return scan(f"{tool['description']}\n{canonical_json(tool['inputSchema'])}").verdict == "clean"


def _told(offer: Offer) -> str:
    hints = ", ".join(k for k, v in (offer.tool.get("annotations") or {}).items() if v)
    schema = canonical_json(offer.tool["inputSchema"])
    says = f"\n(its server says: {hints})" if hints else ""
    return f"{offer.name}: {offer.tool['description']}\narguments: {schema}{says}"


def _failed(text: str) -> ToolError:
    error = ToolError(text[:MOST_TEXT])
    error.origin = "outside"
    return error


def shown(content: Sequence[Json], structured: Json = None) -> ToolOutput:
    """Return blocks of content as the model reads them, bounded; it is all text from outside."""
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
