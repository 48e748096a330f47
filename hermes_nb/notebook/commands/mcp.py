"""`%hermes mcp`: list, change and test MCP servers, log in to them, and run their prompts."""

from __future__ import annotations

import re
import shlex
import time
import urllib.parse
from argparse import Namespace

from hermes_nb.agent.settings.files import write_server
from hermes_nb.core.errors import ConfigError, ToolError
from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Json
from hermes_nb.core.text import both_ends, one_line
from hermes_nb.notebook.approval import ask_user
from hermes_nb.notebook.display.tables import grid
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.notebook.shell import can_ask
from hermes_nb.safety.markup import code_block, code_span, escape
from hermes_nb.safety.redact import redact
from hermes_nb.tools.mcp import PROMPT, Connection

_PAIR = re.compile(r"[A-Za-z_]\w*=")
NEXT = "`%hermes new` begins a session that has its tools."


async def mcp(agent: KernelAgent, given: Namespace) -> str:
    """List the servers; add, remove, test or log in to one; show its log; or run its prompt."""
    use_servers(agent)
    match given.action:
        case "" | "list":
            return _listed(agent)
        case "add":
            told = _add(agent, given.rest)
            use_servers(agent)
            return told
        case "remove":
            return await _remove(agent, given.server)
        case "login":
            return await _login(agent, given.server, pastes=given.which == "paste")
        case "test":
            return await _tested(agent, given.server)
        case "logs":
            return _log(_connection(agent, given.server))
        case _:
            return await _prompt(agent, given.rest)


def use_servers(agent: KernelAgent) -> None:
    """Start the servers in the current settings, and stop all others."""
    settings = agent.settings()
    servers = agent.knowledge.mcp_servers(settings.mcp)
    agent.mcp.use(servers, home=settings.home, allowed=settings.mcp.allow)


def _listed(agent: KernelAgent) -> str:
    rows = [
        (
            code_span(name),
            each.summary,
            code_span(both_ends(visible(redact(each.spec.target)), 60)),
            each.spec.source,
            escape(each.error),
        )
        for name, each in agent.mcp.connections.items()
    ]
    ways = (
        "`%hermes mcp add NAME COMMAND ARGS…` or `add NAME URL`; "
        "`remove`, `test`, `login`, `logs` NAME"
    )
    if not rows:
        return f"No MCP servers yet. {ways}"
    return f"{grid(('server', 'state', 'what', 'from', 'last problem'), rows)}\n\n{ways}"


def _add(agent: KernelAgent, rest: str) -> str:
    """Add a server to config.yaml: `NAME [KEY=VALUE…] COMMAND ARGS…`, or `NAME URL`."""
    try:
        name, *words = shlex.split(rest)
    except ValueError as error:
        message = "use `%hermes mcp add NAME [KEY=VALUE…] COMMAND ARGS…` or `add NAME URL`"
        raise ConfigError(message) from error
    pairs = []
    while words and _PAIR.match(words[0]):
        pairs.append(words.pop(0).split("=", 1))
    if not words or not re.fullmatch(r"[A-Za-z0-9][\w.-]{0,63}", name) or "__" in name:
        raise ConfigError("a server needs a name of letters, digits and -, and a command or a URL")
    server: dict[str, Json] = {"command": words[0], "args": words[1:]}
    if words[0].startswith(("http://", "https://")):
        server = {"url": words[0]}
    elif pairs:
        server["env"] = dict(pairs)
    _written(agent, name, server)
    where = code_span(str(agent.settings().home / "config.yaml"))
    return f"{code_span(name)} stands in {where} and is being started. {NEXT}"


async def _remove(agent: KernelAgent, name: str) -> str:
    from hermes_nb.tools.mcp_login import revoke, stored_login

    there = agent.mcp.connections.get(name)
    _written(agent, name, None)
    use_servers(agent)
    if there is None or not stored_login(there.spec):
        return f"{code_span(name)} is removed, and ended."
    problem = await revoke(there.spec)
    revoked = f"They were not revoked: {escape(problem)}." if problem else "They are revoked."
    return f"{code_span(name)} is removed, and ended. Its tokens are deleted. {revoked}"


async def _login(agent: KernelAgent, name: str, *, pastes: bool) -> str:
    """Log in to a server in the user's browser, and start it."""
    from hermes_nb.tools.mcp_login import PATIENCE, login

    spec = _connection(agent, name).spec
    if spec.problem or not spec.url:
        raise ConfigError(f"{name} has no login: {spec.problem or 'it is a program, not a URL'}")
    if pastes and not can_ask(agent.shell):
        raise ConfigError("not interactive: log in where a prompt can be answered")

    def show(url: str) -> None:
        after = (
            "Your browser then shows an address that it cannot open. Paste that address below."
            if pastes
            else f"Hermes waits {PATIENCE / 60:g} minutes. If your browser runs on another machine "
            f"than this kernel, stop this cell and use `%hermes mcp login {name} paste`."
        )
        agent.note(f"Log in at <{url}>\n\n{after}")

    def paste(question: str) -> str:
        return ask_user(question) or ""

    try:
        await login(spec, show, paste if pastes else None)
    except (ToolError, OSError) as error:
        raise ConfigError(f"{name}: {error}") from error
    found = await agent.mcp.servers.again(name)
    return (
        f"You are logged in. {code_span(name)} is {found.summary}. {escape(found.error)}".rstrip()
    )


def _written(agent: KernelAgent, name: str, server: dict[str, Json] | None) -> None:
    try:
        write_server(agent.settings().home, name, server)
    except OSError as error:
        raise ConfigError(f"config.yaml cannot be written: {error}") from error


def _connection(agent: KernelAgent, name: str) -> Connection:
    servers = agent.mcp.connections
    if name not in servers:
        known = ", ".join(servers) or "none"
        raise ConfigError(f"there is no MCP server {name!r}; the servers are: {known}")
    return servers[name]


async def _tested(agent: KernelAgent, name: str) -> str:
    began, there = time.monotonic(), _connection(agent, name)
    if there.spec.problem:
        raise ConfigError(f"{name} cannot be used: {there.spec.problem}")
    found = await agent.mcp.servers.again(name)
    if found.state != "ready":
        return f"{code_span(name)} is not ready: {escape(found.error)}\n\n{_log(found)}"
    rows = [
        (
            code_span(tool["name"]),
            escape(one_line(visible(tool["description"]), 100)),
            escape(", ".join(key for key, value in tool["annotations"].items() if value)),
        )
        for tool in found.tools.values()
    ]
    seconds = f"{time.monotonic() - began:.1f} s"
    head = f"{code_span(name)} is {found.summary} · {seconds}"
    return f"{head}\n\n{grid(('tool', 'what for', 'it says that'), rows)}" if rows else head


def _log(connection: Connection) -> str:
    lines = [redact(visible(line)) for line in connection.log]
    return code_block("\n".join(lines), "text") if lines else "It has written nothing."


async def _prompt(agent: KernelAgent, words: str) -> str:
    """Run a turn with a server's prompt (`SERVER:NAME key=value…`), or list its prompts."""
    named, *pairs = shlex.split(words) or [""]
    server, _, name = named.partition(":")
    _connection(agent, server)
    if not name:
        try:
            return code_block((await agent.mcp.prompt(server, "", {})).text, "text")
        except ToolError as error:
            raise ConfigError(str(error)) from error
    query = urllib.parse.urlencode([pair.partition("=")[::2] for pair in pairs])
    what = f"{PROMPT}{urllib.parse.quote(name)}{'?' if query else ''}{query}"
    await agent.ask(f"Do what is asked in @{server}:{what}")
    return ""
