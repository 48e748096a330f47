"""Run MCP servers, programs or URLs that provide tools, for the lifetime of the kernel.

A server is third-party code: it may crash, hang, flood its output, change its tools or ask
questions. Therefore its output is limited and treated as untrusted content, it is restarted once
after a crash, each call has a timeout, and interrupts are passed on. Servers run on their own event
loop, so they never block a turn. Without servers, nothing is started and `mcp` is not imported.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Literal, TypeVar
from urllib.parse import quote

from hermes_nb.core.errors import ToolDenied, ToolError
from hermes_nb.core.escapes import visible
from hermes_nb.core.json_values import canonical_json, fingerprint
from hermes_nb.core.messages import Json
from hermes_nb.core.text import number_of, one_line
from hermes_nb.core.threads import LoopThread
from hermes_nb.core.tools import Question
from hermes_nb.tools.mcp_login import over_http
from hermes_nb.tools.mcp_wire import (
    GRACE,
    Caller,
    Document,
    ServerSpec,
    Wire,
    first,
    program,
    sampling_message,
    told_error,
    usable_definition,
    wire,
)

if TYPE_CHECKING:
    from mcp import ClientSession

Result = TypeVar("Result")
State = Literal["waiting", "starting", "ready", "ended"]

QUIET, BUSY, LATEST = 0.3, 0.05, 15.0
"""Servers start when the process is idle, so as not to slow down the first turn: when its CPU use
has been below the fraction `BUSY` for `QUIET` seconds, or after `LATEST` seconds."""
MOST_TOOLS = 256
LINES, WIDTH = 300, 500
"""Maximum number of log lines stored per server, and maximum characters in each."""
PATIENCE = 10
"""A call that reports progress may take up to this many times the timeout in total."""
PROGRESS = 0.1
"""Minimum seconds between progress updates."""
LAST = 0.2
"""Seconds to keep reading pending replies after a program has ended."""
NAME = "hermes_nb"
PROMPT = "prompt/"
"""Prefix that marks a reference as a prompt; a resource is referenced by its URI."""
REFUSED = -1
"""Error code for the reply to a sampling request that the user declined."""
CLOSED = (-32000, 32600)
"""Error codes that the SDK uses to report a closed connection or an expired session."""


class Connection:
    """One server and its session; runs entirely on the servers' event loop.

    Attributes:
        state: "waiting" (not started yet), "starting", "ready" or "ended".
        error: the reason it is not ready; empty if there was no error.
        tools: its current tools by their own names.
        references: resource URIs and `prompt/NAME` for prompts, for completion in a prompt.
        capabilities: the features that the server reported.
        log: its last log lines.

    `listed(connection)` is called when its tools or references have changed.
    """

    def __init__(self, spec: ServerSpec, listed: Callable[[Connection], None]) -> None:
        self.spec = spec
        self.state: State = "ended" if spec.problem else "waiting"
        self.error = spec.problem
        self.tools: dict[str, dict[str, Json]] = {}
        self.references: tuple[str, ...] = ()
        self.capabilities: Document = {}
        self.log: deque[str] = deque(maxlen=LINES)
        self._listed = listed
        self._session: ClientSession | None = None
        self._task: asyncio.Task[None] | None = None
        self._settled, self._died = asyncio.Event(), asyncio.Event()
        self._why = ""  # the reason for the last end
        self._old = self._stale = False
        self._tells = True
        self._agreed: set[str] = set()
        self._limits: dict[asyncio.Timeout, Caller | None] = {}
        self._asking = asyncio.Lock()

    @property
    def summary(self) -> str:
        """The state and the number of tools, for display."""
        return f"ready · {number_of(len(self.tools), 'tool')}" if self._session else self.state

    def start(self, bridge: Wire) -> None:
        """Start the server unless it is running."""
        if not self.spec.problem and (self._task is None or self._task.done()):
            self.bridge, self.state, self.error = bridge, "starting", ""
            self._settled.clear()
            self._task = asyncio.create_task(self._serve(), name=f"mcp {self.spec.name}")

    async def ready(self) -> ClientSession:
        """Wait for the session and return it; raise `ToolError` if the server cannot be used."""
        if not self.spec.problem:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.spec.connect_timeout + 5 * GRACE):
                    await self._settled.wait()
        if self._session is None:
            why = self.error or "it has not answered yet"
            raise ToolError(f"the MCP server {self.spec.name!r} cannot be used: {why}")
        return self._session

    async def fresh(self) -> None:
        """Wait until the tool list is up to date; raise `ToolError` if that fails."""
        await self.ready()
        if self._stale and "tools" in self.capabilities:
            await self.request(self._list)

    async def end(self) -> None:
        """Stop the server, its program and all child processes."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=6 * GRACE)

    async def _serve(self) -> None:
        """Run the server until it ends permanently. If it was ready before, restart it once.

        A program that exits when offered the newer protocol is restarted with the older one.
        """
        again = True
        try:
            while True:
                was_ready = False
                try:
                    async with AsyncExitStack() as stack:
                        self._session = await self._opened(stack)
                        self.state, was_ready = "ready", True
                        self._settled.set()
                        stack.callback(asyncio.create_task(self._refer()).cancel)
                        await self._died.wait()
                        self._session = None
                        self._settled.clear()  # new callers wait for the restart
                        for limit in self._limits:
                            self._move(limit, LAST)
                        await asyncio.sleep(2 * LAST)
                except Exception as error:  # noqa: BLE001 - an SDK can raise anything
                    why = told_error(error)
                    self.error = why if isinstance(first(error), ToolError) else self.error or why
                self.error = self.error or "it has ended"
                if was_ready and again:
                    again = False
                elif not was_ready and self._died.is_set() and self.bridge.modern and not self._old:
                    self._old = True
                else:
                    break
                self.log.append(f"[{self.error}; it is started once more]")
        finally:
            self.state, self._session = "ended", None
            self._settled.set()

    async def _opened(self, stack: AsyncExitStack) -> ClientSession:
        self.state, self.error = "starting", ""
        self._died = asyncio.Event()  # requests of the previous start keep theirs
        spec, bridge = self.spec, self.bridge
        over = (
            over_http(spec, bridge, self._dead)
            if spec.url
            else program(spec, bridge, self._note, self._dead)
        )
        try:
            async with asyncio.timeout(spec.connect_timeout):
                from hermes_nb.models.recording import own_version

                session, self.capabilities, self._tells = await stack.enter_async_context(
                    bridge.greeted(
                        over,
                        old=self._old,
                        sampling_callback=self._sample,
                        elicitation_callback=self._elicit,
                        logging_callback=self._logged,
                        message_handler=self._heard,
                        client_info=bridge.types.Implementation(
                            name=NAME, version=own_version() or "unknown"
                        ),
                    )
                )
                await self._list(session)
        except TimeoutError:
            raise ToolError(f"it did not answer within {spec.connect_timeout:g} seconds") from None
        return session

    async def _list(self, session: ClientSession) -> None:
        found: dict[str, dict[str, Json]] = {}
        cursor: str | None = None
        for _ in range(MOST_TOOLS if "tools" in self.capabilities else 0):
            told = wire(await session.list_tools(cursor=cursor))
            for tool in filter(None, map(usable_definition, told.get("tools", []))):
                found.setdefault(tool["name"], tool)
            cursor = told.get("nextCursor")
            if not cursor or len(found) >= MOST_TOOLS:
                break
        self._stale = not self._tells
        tools = dict(list(found.items())[:MOST_TOOLS])
        if tools != self.tools:
            self.tools = tools
            self._listed(self)

    async def _refer(self) -> None:
        """List the names of resources and prompts, for completion in a prompt."""
        names: list[str] = []
        try:
            if "resources" in self.capabilities:
                told = wire(await self.request(lambda session: session.list_resources()))
                names += [str(each.get("uri")) for each in told.get("resources", [])]
            if "prompts" in self.capabilities:
                told = wire(await self.request(lambda session: session.list_prompts()))
                names += [f"{PROMPT}{quote(str(p.get('name')))}" for p in told.get("prompts", [])]
        except ToolError as error:
            self._note(f"[{error}]")
        fit = [each for each in names if re.fullmatch(r"[^\s\"`]{1,300}", each)]
        if fit and self.references != (found := tuple(fit[:MOST_TOOLS])):
            self.references = found
            self._listed(self)

    async def call(self, tool: Document, arguments: Document, caller: Caller) -> dict[str, Json]:
        """Call a tool and return its result in wire format; raise `ToolError`.

        `tool` is the definition that the session uses. If the server has changed it since, the user
        has to approve the new one.
        """
        name = str(tool["name"])
        await self.fresh()
        live = self.tools.get(name)
        if live is None:
            raise ToolError(f"the MCP server {self.spec.name!r} has no tool {name!r} any more")
        if (mark := fingerprint(live)) != fingerprint(tool) and mark not in self._agreed:
            why = f"the MCP server {self.spec.name!r} has changed it since this session began"
            shown = f"before: {canonical_json(tool)}\n\nnow: {canonical_json(live)}"
            if not await caller.agrees(Question(why=why, shown=visible(shown, lines=True))):
                raise ToolDenied(f"{name} was not run: {why}, and the user did not agree")
            self._agreed.add(mark)
        limit, time_of = asyncio.timeout(self.spec.timeout), asyncio.get_running_loop().time
        told, latest = 0.0, time_of() + PATIENCE * self.spec.timeout

        async def heard(progress: float, total: float | None, message: str | None) -> None:
            nonlocal told
            self._move(limit, min(self.spec.timeout, latest - time_of()))
            if time_of() - told >= PROGRESS or progress == total:
                told = time_of()
                share = f"{progress / total:.0%}" if total else f"{progress:g}"
                caller.context.progress(one_line(visible(f"{share} {message or ''}"), 120))

        try:
            sent = await self.request(
                lambda session: session.call_tool(name, dict(arguments), progress_callback=heard),
                limit,
                caller,
            )
            return wire(sent)
        finally:
            caller.over()

    async def request(
        self,
        send: Callable[[ClientSession], Awaitable[Result]],
        limit: asyncio.Timeout | None = None,
        caller: Caller | None = None,
    ) -> Result:
        """Send a request and return its result; raise `ToolError`.

        The time that the user takes to answer a question doesn't count toward the timeout. After a
        timeout or cancellation, the server is notified.
        """
        session, died = await self.ready(), self._died
        number = getattr(session, "_request_id", None)
        limit = limit or asyncio.timeout(self.spec.timeout)
        self._limits[limit] = caller
        try:
            async with limit:
                return await send(session)
        except (TimeoutError, asyncio.CancelledError) as error:
            why = f"did not answer within {self.spec.timeout:g} seconds"
            why = f"cannot answer: {self._why or 'it has ended'}" if died.is_set() else why
            with suppress(Exception):  # the server may have ended, or may not read its input
                async with asyncio.timeout(GRACE):
                    await self.bridge.give_up(session, number)
            if isinstance(error, asyncio.CancelledError):
                raise
            raise ToolError(f"the MCP server {self.spec.name!r} {why}") from None
        except Exception as error:
            why = (self._why if died.is_set() else "") or told_error(error)
            if getattr(getattr(error, "error", None), "code", 0) in CLOSED:
                died.set()
            failed = ToolError(f"the MCP server {self.spec.name!r}: {why}")
            failed.origin = "outside"
            raise failed from error
        finally:
            del self._limits[limit]

    def _move(self, limit: asyncio.Timeout, seconds: float | None) -> None:
        """Reschedule the timeout of a running request to `seconds` from now; None disables it."""
        if limit in self._limits and not limit.expired():
            now = asyncio.get_running_loop().time()
            limit.reschedule(None if seconds is None else now + seconds)

    async def _asked(self, question: Question, given: Document | None = None) -> str | None:
        """Ask the user a question from the server, during the latest call that is still running.

        If the user agrees, return the model's reply to the sampling request `given`, or "" if there
        is none. Return None if the user declines, or if no call is running.
        """
        async with self._asking:
            callers = [(limit, caller) for limit, caller in self._limits.items() if caller]
            if not callers:
                return None
            limit, caller = callers[-1]
            self._move(limit, None)
            try:
                if not await caller.agrees(question):
                    return None
                return await caller.there(caller.complete(given)) if given else ""
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():
                    raise
                return None  # the call that caused the question was interrupted
            except Exception as error:  # noqa: BLE001 - the approver, or the model, has failed
                self._note(f"[a question was not answered: {told_error(error)}]")
                return None
            finally:
                self._move(limit, self.spec.timeout)

    async def _sample(self, _context: object, params: object) -> object:
        """Let the session's model answer a sampling request if the user agrees."""
        given, types = wire(params), self.bridge.types
        texts = [f"{m.get('role')}: {sampling_message(m).text}" for m in given.get("messages", [])]
        shown = "\n\n".join(filter(None, [given.get("systemPrompt"), *texts]))
        why = f"the MCP server {self.spec.name!r} wants the model's answer to this, and gets it"
        question = Question(why=why, shown=visible(shown, lines=True), yes="Answer it")
        text = await self._asked(question, given)
        if text is None:
            return types.ErrorData(code=REFUSED, message="the user declined")
        content = types.TextContent(type="text", text=text)
        return types.CreateMessageResult(role="assistant", model="hermes", content=content)

    async def _elicit(self, _context: object, params: object) -> object:
        """Answer a form from the server with its default values if the user agrees."""
        given, types = wire(params), self.bridge.types
        schema = given.get("requestedSchema") or {}
        fields = schema.get("properties") or {}
        content = {name: each["default"] for name, each in fields.items() if "default" in each}
        missing = [name for name in schema.get("required") or () if name not in content]
        if missing or given.get("mode") == "url":
            what = ", ".join(missing) or "a visit to a page"
            self._note(f"[it asked for {what}, which has no default: declined]")
            return types.ElicitResult(action="decline")
        why = f"the MCP server {self.spec.name!r} asks, and would get this"
        shown = f"{given.get('message', '')}\n\n{canonical_json(content)}"
        question = Question(why=why, shown=visible(shown, lines=True), yes="Send")
        if await self._asked(question) is None:
            return types.ElicitResult(action="decline")
        return types.ElicitResult(action="accept", content=content)

    async def _logged(self, params: object) -> None:
        told = wire(params)
        data = told.get("data")
        text = data if isinstance(data, str) else canonical_json(data)
        self._note(f"{told.get('level')}: {text}")

    async def _heard(self, message: object) -> None:
        """Record that the tool list has changed, so that it is reread before the next call."""
        method = getattr(getattr(message, "root", message), "method", "")
        self._stale = self._stale or method == "notifications/tools/list_changed"

    def _note(self, line: str) -> None:
        self.log.append(one_line(line, WIDTH))

    def _dead(self, why: str) -> None:
        self.error = self._why = self.error or why
        self._died.set()


async def _quiet(hurry: asyncio.Event) -> None:
    """Wait until this process is nearly idle, or `hurry` is set."""
    latest = time.monotonic() + LATEST
    used = QUIET
    while used > BUSY * QUIET and time.monotonic() < latest and not hurry.is_set():
        before = time.process_time()
        with suppress(TimeoutError):
            async with asyncio.timeout(QUIET):
                await hurry.wait()
        used = time.process_time() - before


class Servers:
    """An agent's MCP servers, on their own event loop; methods may be called from any thread.

    `told(connection)` is called on that loop whenever a server's tools have been listed.
    """

    def __init__(self, told: Callable[[Connection], None] = lambda _: None) -> None:
        self.connections: dict[str, Connection] = {}
        self.told = told
        self._loop = LoopThread("hermes-mcp")
        self._pid = 0
        self._hurry = asyncio.Event()
        self._bridge: Wire | None = None

    def use(self, servers: Mapping[str, ServerSpec]) -> None:
        """From now on, run exactly these servers; start them without waiting."""
        there = {name: each.spec for name, each in self.connections.items()}
        if dict(servers) == there:
            return
        gone = [each for name, each in self.connections.items() if servers.get(name) != each.spec]
        self.connections = {
            name: self.connections[name] if there.get(name) == spec else Connection(spec, self.told)
            for name, spec in servers.items()
        }
        if not self._pid:
            self._pid = os.getpid()
            atexit.register(self.close)
        if self._pid == os.getpid():
            self._loop.submit(self._begin(gone))

    async def there(self, name: str, work: Callable[[Connection], Awaitable[Result]]) -> Result:
        """Run `work` with a server on the servers' event loop; cancelling also cancels the work.

        Raises `ToolError` if the name is unknown.
        """
        connection = self.connections.get(name)
        if connection is None or self._pid != os.getpid():
            known = ", ".join(self.connections) or "none"
            raise ToolError(f"there is no MCP server {name!r} here; the servers are: {known}")

        async def done() -> Result:
            self._hurry.set()
            return await work(connection)

        return await asyncio.wrap_future(self._loop.submit(done()))

    async def again(self, name: str) -> Connection:
        """Start a server that has ended; return it when it is ready or has failed."""

        async def started(connection: Connection) -> Connection:
            if self._bridge is not None:  # otherwise it will be started soon
                connection.start(self._bridge)
            with suppress(ToolError):
                await connection.ready()
            return connection

        return await self.there(name, started)

    async def settled(self, seconds: float) -> None:
        """Wait up to `seconds` until all servers are started and their tools are up to date."""

        async def waited(connection: Connection) -> None:
            with suppress(ToolError, TimeoutError):
                async with asyncio.timeout(seconds):
                    await connection.fresh()

        await asyncio.gather(*(self.there(name, waited) for name in list(self.connections)))

    async def _begin(self, gone: list[Connection]) -> None:
        await asyncio.gather(*(each.end() for each in gone))
        if self._bridge is None:
            await _quiet(self._hurry)
        bridge = self._bridge = self._bridge or Wire()
        for connection in self.connections.values():
            if connection.state == "waiting":
                connection.start(bridge)

    def close(self) -> None:
        """Stop all servers and their programs; a second call does nothing."""
        atexit.unregister(self.close)
        connections, self.connections = self.connections, {}
        if not self._pid or self._pid != os.getpid():
            return

        async def ended() -> None:
            await asyncio.gather(*(each.end() for each in connections.values()))

        with suppress(TimeoutError):
            self._loop.submit(ended()).result(timeout=7 * GRACE)
        self._loop.close()
        self._pid, self._hurry, self._bridge = 0, asyncio.Event(), None
