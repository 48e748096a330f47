"""MCP servers: programs and addresses that bring tools, started beside the kernel, ended with it.

A server is somebody else's program: it may die, hang, flood, change its mind or ask for things.
What it says is bounded, and text from outside; a death is met by one new start; each call has a
time limit, and a stop is passed on. They live on an event loop of their own, so that none of this
holds up a turn. Nothing of `mcp` is imported, and nothing started, without a server.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, suppress
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Literal, TypeVar

from hermes_nb.core.errors import ToolDenied, ToolError
from hermes_nb.core.messages import Json
from hermes_nb.core.text import canonical_json, number_of, one_line, visible
from hermes_nb.core.threads import LoopThread
from hermes_nb.core.tools import Question
from hermes_nb.tools.mcp_wire import (
    GRACE,
    Caller,
    Document,
    ServerSpec,
    Wire,
    fingerprint,
    first,
    kept,
    program,
    said,
    told_error,
    wire,
)

if TYPE_CHECKING:
    from mcp import ClientSession

Result = TypeVar("Result")
State = Literal["waiting", "starting", "ready", "ended"]

QUIET, BUSY, LATEST = 0.3, 0.05, 15.0
"""Servers that nobody asks for yet are started once this process has used less than a share `BUSY`
of its time for `QUIET` seconds, `LATEST` seconds from now at last: a first turn comes first."""
MOST_TOOLS = 256
LINES, WIDTH = 300, 500
"""Of what is kept of a program's errors and log."""
PATIENCE = 10
"""A call that reports progress has so many times its time limit."""
PROGRESS = 0.1
"""Seconds between two lines of progress that are shown."""
LAST = 0.2
"""Seconds in which the last words of a program that has ended are still heard."""
NAME = "hermes_nb"
REFUSED = -1
"""The code of an answer that the user does not give."""
CLOSED = (-32000, 32600)
"""Codes of errors by which the SDK says that a connection, or a session, is over."""


class Connection:
    """One server while it runs; everything here happens on the servers' loop.

    `tools` are the live ones by their own names, `error` why it is not ready, `log` the last lines
    that it wrote. `listed` hears when `tools` are there.
    """

    def __init__(self, spec: ServerSpec, listed: Callable[[Connection], None]) -> None:
        self.spec = spec
        self.state: State = "ended" if spec.problem else "waiting"
        self.error = spec.problem
        self.tools: dict[str, dict[str, Json]] = {}
        self.capabilities: Document = {}
        self.log: deque[str] = deque(maxlen=LINES)
        self._listed = listed
        self._session: ClientSession | None = None
        self._task: asyncio.Task[None] | None = None
        self._settled, self._died = asyncio.Event(), asyncio.Event()
        self._stale = False
        self._agreed: set[str] = set()
        self._limits: dict[Caller, asyncio.Timeout] = {}
        self._sent: set[asyncio.Task[None]] = set()

    @property
    def told(self) -> str:
        """What it is doing, in a few words."""
        return f"ready · {number_of(len(self.tools), 'tool')}" if self._session else self.state

    def start(self, bridge: Wire) -> None:
        """Start it, unless it runs."""
        if not self.spec.problem and (self._task is None or self._task.done()):
            self.bridge, self.state, self.error = bridge, "starting", ""
            self._settled.clear()
            self._task = asyncio.create_task(self._serve(), name=f"mcp {self.spec.name}")

    async def settled(self, seconds: float | None = None) -> None:
        """Wait until it is ready or has failed, at most so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._settled.wait()

    async def ready(self) -> ClientSession:
        """Return the session; raise `ToolError` where there is none to be had."""
        if not self.spec.problem:
            await self.settled(self.spec.connect_timeout + GRACE)
        session = self._session
        if session is None:
            why = self.error or "it has not answered yet"
            raise ToolError(f"the MCP server {self.spec.name!r} cannot be used: {why}")
        if self._stale:
            self._stale = False
            await self._list(session)
        return session

    async def end(self) -> None:
        """End it, its program and whatever that started."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=6 * GRACE)

    async def _serve(self) -> None:
        """Run it until it has ended for good: once it was ready, it is started a second time."""
        try:
            for left in (1, 0):
                was_ready = False
                try:
                    async with AsyncExitStack() as stack:
                        session = await self._opened(stack)
                        self._session, self.state, was_ready = session, "ready", True
                        self._settled.set()
                        await self._died.wait()
                        self._session = None
                        self._settled.clear()  # whoever asks now waits for the second start
                except Exception as error:  # noqa: BLE001 - whatever an SDK raises over a program
                    why = told_error(error)
                    self.error = why if isinstance(first(error), ToolError) else self.error or why
                self.error = self.error or "it has ended"
                self._session = None
                if not (was_ready and left):
                    break
                self.log.append(f"[{self.error}; it is started once more]")
        finally:
            self.state, self._session = "ended", None
            self._settled.set()

    async def _opened(self, stack: AsyncExitStack) -> ClientSession:
        self.state, self.error = "starting", ""
        self._died.clear()
        bridge = self.bridge
        make: Callable[..., ClientSession] = bridge.mcp.ClientSession
        over = bridge.over_http if self.spec.url else program
        try:
            async with asyncio.timeout(self.spec.connect_timeout):
                streams = await stack.enter_async_context(
                    over(self.spec, bridge, self._note, self._dead)
                )
                client = make(
                    *streams[:2],
                    sampling_callback=self._sample,
                    elicitation_callback=self._elicit,
                    logging_callback=self._logged,
                    message_handler=self._heard,
                    client_info=bridge.types.Implementation(name=NAME, version=_version()),
                )
                session = await stack.enter_async_context(client)
                self.capabilities = wire(await session.initialize()).get("capabilities", {})
                if "tools" in self.capabilities:
                    await self._list(session)
        except TimeoutError:
            seconds = self.spec.connect_timeout
            raise ToolError(f"it did not answer within {seconds:g} seconds") from None
        return session

    async def _list(self, session: ClientSession) -> None:
        found: dict[str, dict[str, Json]] = {}
        cursor: str | None = None
        for _ in range(MOST_TOOLS):
            page = self.bridge.types.PaginatedRequestParams(cursor=cursor) if cursor else None
            told = wire(await session.list_tools(params=page))
            for tool in filter(None, map(kept, told.get("tools", []))):
                found.setdefault(tool["name"], tool)
            cursor = told.get("nextCursor")
            if not cursor or len(found) >= MOST_TOOLS:
                break
        self.tools = dict(list(found.items())[:MOST_TOOLS])
        self._listed(self)

    async def call(self, tool: Document, arguments: Document, caller: Caller) -> dict[str, Json]:
        """Call a tool as the session knows it and return the result as it is on the wire.

        The user is asked about one that has changed since. Raises `ToolError`.
        """
        name = str(tool["name"])
        await self.ready()
        live = self.tools.get(name)
        if live is None:
            raise ToolError(f"the MCP server {self.spec.name!r} has no tool {name!r} any more")
        if (mark := fingerprint(live)) != fingerprint(tool) and mark not in self._agreed:
            why = f"the MCP server {self.spec.name!r} has changed it since this session began"
            shown = f"before: {canonical_json(tool)}\n\nnow: {canonical_json(live)}"
            if not await caller.agrees(Question(why=why, shown=visible(shown, lines=True))):
                raise ToolDenied(f"{name} was not run: {why}, and the user did not agree")
            self._agreed.add(mark)
        told = 0.0

        async def heard(progress: float, total: float | None, message: str | None) -> None:
            nonlocal told
            now = asyncio.get_running_loop().time()
            self._limits[caller].reschedule(min(now + self.spec.timeout, latest))
            if now - told >= PROGRESS or progress == total:
                told = now
                share = f"{progress / total:.0%}" if total else f"{progress:g}"
                caller.context.progress(one_line(visible(f"{share} {message or ''}"), 120))

        latest = asyncio.get_running_loop().time() + PATIENCE * self.spec.timeout
        return await self.request(
            lambda session: session.call_tool(name, dict(arguments), progress_callback=heard),
            caller,
        )

    async def request(
        self,
        send: Callable[[ClientSession], Awaitable[object]],
        caller: Caller | None = None,
    ) -> dict[str, Json]:
        """Send a request and return its result as it is on the wire; raise `ToolError`.

        It has its time limit, without the time that the user takes for an answer; when nobody waits
        for it any more, the server is told.
        """
        session = await self.ready()
        give_up: Callable[[], Coroutine[object, None, None]] | None = None

        async def sent() -> object:
            nonlocal give_up
            give_up = self.bridge.watched(session)
            return await send(session)

        limit = asyncio.timeout(self.spec.timeout)
        if caller is not None:
            self._limits[caller] = limit
        try:
            async with limit:
                return wire(await self._alive(asyncio.create_task(sent())))
        except (TimeoutError, asyncio.CancelledError) as error:
            if give_up is not None:
                self._tell(give_up())
            if isinstance(error, TimeoutError):
                told = f"did not answer within {self.spec.timeout:g} seconds"
                raise ToolError(f"the MCP server {self.spec.name!r} {told}") from None
            raise
        except ToolError:
            raise
        except Exception as error:
            if getattr(getattr(error, "error", None), "code", 0) in CLOSED:
                self._died.set()
            failed = ToolError(f"the MCP server {self.spec.name!r}: {told_error(error)}")
            failed.origin = "outside"
            raise failed from error
        finally:
            if caller is not None:
                del self._limits[caller]
                caller.over()

    async def _alive(self, answer: asyncio.Task[Result]) -> Result:
        """Return what a request is answered, as long as the server lives; raise `ToolError`."""
        death = asyncio.create_task(self._died.wait())
        try:
            await asyncio.wait({answer, death}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({answer}, timeout=None if not death.done() else LAST)
            if not answer.done():
                why = self.error or "it has ended"
                raise ToolError(f"the MCP server {self.spec.name!r} cannot answer: {why}")
            return answer.result()
        finally:
            answer.cancel()
            death.cancel()

    def _tell(self, notification: Coroutine[object, None, None]) -> None:
        """Send a notification, for which nobody waits."""

        async def sent() -> None:
            with suppress(Exception):  # the server may be gone, or not read
                async with asyncio.timeout(GRACE):
                    await notification

        task = asyncio.create_task(sent())
        self._sent.add(task)
        task.add_done_callback(self._sent.discard)

    async def _asked(self, what: Callable[[Caller], Awaitable[Result]]) -> Result | None:
        """Put a question of the server's to the user of the latest call; None for a no."""
        caller = next(reversed(self._limits), None)
        if caller is None:
            return None
        limit = self._limits[caller]
        limit.reschedule(None)
        try:
            return await what(caller)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            return None  # the call that it belonged to was stopped
        except Exception as error:  # noqa: BLE001 - the approver, or the model, has failed
            self._note(f"[a question was not answered: {told_error(error)}]")
            return None
        finally:
            if caller in self._limits:
                limit.reschedule(asyncio.get_running_loop().time() + self.spec.timeout)

    async def _sample(self, _context: object, params: object) -> object:
        """Let the session's model answer a request of the server's, once the user agrees."""
        given, types = wire(params), self.bridge.types

        async def answered(caller: Caller) -> str | None:
            texts = [f"{m.get('role')}: {said(m).text}" for m in given.get("messages", [])]
            shown = "\n\n".join(filter(None, [given.get("systemPrompt"), *texts]))
            why = f"the MCP server {self.spec.name!r} wants the model's answer to this, and gets it"
            question = Question(why=why, shown=visible(shown, lines=True), yes="Answer it")
            if not await caller.agrees(question):
                return None
            return await caller.there(caller.complete(given))

        text = await self._asked(answered)
        if text is None:
            return types.ErrorData(code=REFUSED, message="the user declined")
        content = types.TextContent(type="text", text=text)
        return types.CreateMessageResult(role="assistant", model="hermes", content=content)

    async def _elicit(self, _context: object, params: object) -> object:
        """Offer the user to send what a form of the server's is filled with by default."""
        given, types = wire(params), self.bridge.types
        schema = given.get("requestedSchema") or {}
        fields = schema.get("properties") or {}
        content = {name: each["default"] for name, each in fields.items() if "default" in each}
        if missing := [name for name in schema.get("required") or () if name not in content]:
            self._note(f"[it asked for {', '.join(missing)}, which has no default: declined]")
            return types.ElicitResult(action="decline")

        async def agreed(caller: Caller) -> bool:
            why = f"the MCP server {self.spec.name!r} asks, and would get this"
            shown = f"{given.get('message', '')}\n\n{canonical_json(content)}"
            question = Question(why=why, shown=visible(shown, lines=True), yes="Send")
            return given.get("mode") != "url" and await caller.agrees(question)

        if await self._asked(agreed):
            return types.ElicitResult(action="accept", content=content)
        return types.ElicitResult(action="decline")

    async def _logged(self, params: object) -> None:
        told = wire(params)
        data = told.get("data")
        self._note(
            f"{told.get('level')}: {data if isinstance(data, str) else canonical_json(data)}"
        )

    async def _heard(self, message: object) -> None:
        """Take note that the list of tools has changed; it is read again before the next call."""
        method = getattr(getattr(message, "root", message), "method", "")
        self._stale = self._stale or method == "notifications/tools/list_changed"

    def _note(self, line: str) -> None:
        self.log.append(one_line(line, WIDTH))

    def _dead(self, why: str) -> None:
        self.error = self.error or why
        self._died.set()


def _version() -> str:
    try:
        return version(NAME)
    except PackageNotFoundError:  # run from a checkout
        return "0"


async def _quiet(hurry: asyncio.Event) -> None:
    """Wait until this process has little to do, or is asked to hurry."""
    latest = time.monotonic() + LATEST
    used = QUIET
    while used > BUSY * QUIET and time.monotonic() < latest and not hurry.is_set():
        before = time.process_time()
        with suppress(TimeoutError):
            async with asyncio.timeout(QUIET):
                await hurry.wait()
        used = time.process_time() - before


class Servers:
    """The MCP servers of one agent, on a loop of their own; callable from any thread.

    `told` hears, on that loop, of a server whose tools have been listed.
    """

    def __init__(self, told: Callable[[Connection], None] = lambda _: None) -> None:
        self.connections: dict[str, Connection] = {}
        self.told = told
        self._loop = LoopThread("hermes-mcp")
        self._pid = 0
        self._hurry: asyncio.Event | None = None
        self._bridge: Wire | None = None

    def use(self, servers: Mapping[str, ServerSpec]) -> None:
        """Run these servers from now on; it starts them and does not wait for them."""
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
        """Do something with a server, on the servers' loop; a cancellation goes along.

        Raises `ToolError` for a name that no server has.
        """
        connection = self.connections.get(name)
        if connection is None or self._pid != os.getpid():
            known = ", ".join(self.connections) or "none"
            raise ToolError(f"there is no MCP server {name!r} here; the servers are: {known}")

        async def done() -> Result:
            if self._hurry is not None:
                self._hurry.set()
            return await work(connection)

        return await asyncio.wrap_future(self._loop.submit(done()))

    async def again(self, name: str) -> Connection:
        """Start a server that has ended, and return it when it is ready or has failed."""

        async def started(connection: Connection) -> Connection:
            connection.start(self._imported())
            await connection.settled(connection.spec.connect_timeout + GRACE)
            return connection

        return await self.there(name, started)

    async def settled(self, seconds: float) -> None:
        """Wait until no server is being started any more, at most so long."""

        async def waited(connection: Connection) -> None:
            await connection.settled(seconds)

        going = [name for name, c in self.connections.items() if c.state in ("waiting", "starting")]
        await asyncio.gather(*(self.there(name, waited) for name in going))

    async def _begin(self, gone: list[Connection]) -> None:
        await asyncio.gather(*(each.end() for each in gone))
        if self._bridge is None:
            self._hurry = self._hurry or asyncio.Event()
            await _quiet(self._hurry)
        bridge = self._imported()
        for connection in self.connections.values():
            if connection.state == "waiting":
                connection.start(bridge)

    def _imported(self) -> Wire:
        if self._bridge is None:
            self._bridge = Wire()
        return self._bridge

    def close(self) -> None:
        """End all servers, with their programs; a second call does nothing."""
        atexit.unregister(self.close)
        connections, self.connections = self.connections, {}
        if not self._pid or self._pid != os.getpid():
            return

        async def ended() -> None:
            await asyncio.gather(*(each.end() for each in connections.values()))

        with suppress(TimeoutError):
            self._loop.submit(ended()).result(timeout=7 * GRACE)
        self._loop.close()
        self._pid, self._hurry, self._bridge = 0, None, None
