"""Configure and connect to MCP servers, and read their messages, with any supported `mcp` SDK.

Versions 1.28 to 2.x of the package `mcp` are supported. Their objects are read in the *wire
format*, the JSON of the protocol, which both share; the few calls that differ are in `Wire`. `mcp`
is not imported before the first server starts.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
import shutil
import signal
import sys
import uuid
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, cast

from hermes_nb.core.errors import ToolError
from hermes_nb.core.escapes import visible
from hermes_nb.core.events import UsageReported
from hermes_nb.core.json_values import canonical_json, clean
from hermes_nb.core.messages import Json, Message, Reply
from hermes_nb.core.protocols import ChatModel, Request
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Question, ToolContext
from hermes_nb.safety.child_environment import child_environment
from hermes_nb.safety.redact import redact
from hermes_nb.tools.process import MARK, kill_marked, signal_group

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
    from mcp import ClientSession

Result = TypeVar("Result")
Document = Mapping[str, Json]
Note = Callable[[str], None]
Streams = tuple[object, ...]

LONGEST = 16_000_000
"""Largest message in bytes; a program that sends a larger one is stopped."""
GRACE = 1.0
"""Seconds that a program has to exit on its own, and again after SIGTERM."""
CHUNK = 65_536
LONGEST_WAIT = 86_400.0
KILL = signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL

DESCRIBED, SCHEMA = 4_000, 40_000
"""Maximum characters of a tool's description (else truncated) and schema (else dropped)."""
_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}")
_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """How to reach a server: with a command, or at the URL of a streamable HTTP endpoint."""

    name: str
    """The name in the configuration."""
    command: str = ""
    """The program to run; empty if the server has a `url`."""
    args: tuple[str, ...] = ()
    """The program's arguments."""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Additional environment variables for the program."""
    url: str = ""
    """The URL of the endpoint; empty if the server has a `command`."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Additional HTTP headers."""
    oauth: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The client for a login: `client_id` and `client_secret`, or `client_metadata_url`, and
    `redirect_port`."""
    logins: Path | None = None
    """The file with the tokens of logins; None to use none."""
    timeout: float = 120.0
    """Seconds that a call may take."""
    connect_timeout: float = 60.0
    """Seconds that a start may take."""
    source: str = ""
    """The configuration file that contains the server."""
    problem: str = ""
    """The reason the server cannot be used; empty if it can."""

    @property
    def key(self) -> str:
        """The cache key of its tools; it changes with the command, URL or environment names."""
        parts = [self.name, self.command, *self.args, self.url, *sorted(self.env)]
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    @property
    def target(self) -> str:
        """The command or the URL, for display."""
        return self.url or " ".join([self.command, *self.args])


def specs(servers: object, environ: Mapping[str, str], source: str) -> dict[str, ServerSpec]:
    """Return a configuration's servers by name. If one cannot be used, its `problem` says why.

    The keys are the same as in Hermes Agent and `.mcp.json`; `${NAME}` is replaced from `environ`.
    """
    if not isinstance(servers, Mapping):
        return {}
    return {str(name): _spec(str(name), given, environ, source) for name, given in servers.items()}


def _spec(name: str, given: object, environ: Mapping[str, str], source: str) -> ServerSpec:
    missing: list[str] = []

    def put(found: re.Match[str]) -> str:
        if found[1] not in environ and found[2] is None:
            missing.append(found[1])
        return environ.get(found[1], found[2] or "")

    def filled(value: object) -> str:
        return _VARIABLE.sub(put, str(value))

    facts = given if isinstance(given, Mapping) else {}
    names = ("args", "env", "headers", "oauth")
    words, env, headers, oauth = (facts.get(key) or () for key in names)
    fine = isinstance(words, list | tuple) and all(
        isinstance(e or {}, Mapping) for e in (env, headers, oauth)
    )
    spec = ServerSpec(
        name=name,
        command=os.path.expanduser(filled(facts.get("command") or "")),  # noqa: PTH111 - may be no path
        args=tuple(map(filled, words)) if fine else (),
        env={str(key): filled(env[key]) for key in env} if fine else {},
        url=filled(facts.get("url") or ""),
        headers={str(key): filled(headers[key]) for key in headers} if fine else {},
        oauth={str(key): filled(oauth[key]) for key in oauth} if fine else {},
        timeout=_seconds(facts.get("timeout"), 120.0),
        connect_timeout=_seconds(facts.get("connect_timeout"), 60.0),
        source=source,
    )
    problem = ""
    if not _NAME.fullmatch(name) or "__" in name:
        problem = "a name has letters, digits, `-`, `_` and `.`, and no `__`"
    elif not fine or bool(spec.command) == bool(spec.url):
        problem = "it needs a `command` with `args`, or a `url`"
    elif spec.url and not spec.url.startswith(("http://", "https://")):
        problem = "its `url` begins with http:// or https://"
    elif missing:
        problem = f"{', '.join(dict.fromkeys(missing))} is not set"
    elif facts.get("enabled") is False or facts.get("disabled") is True:
        problem = "it is switched off"
    return replace(spec, problem=problem)


def _seconds(value: object, default: float) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    return min(float(str(value)), LONGEST_WAIT) if number else default


def first(error: BaseException) -> BaseException:
    """Return the exception itself, or the first one in an exception group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def told_error(error: BaseException) -> str:
    """Return an SDK exception's message on one line, without secrets."""
    found = first(error)
    return one_line(visible(redact(str(found) or type(found).__name__)), 300)


class Wire:
    """Hides the differences between `mcp` 1.x and 2.x; `modern` is True for 2.x. Imports `mcp`."""

    def __init__(self) -> None:
        import mcp
        from mcp import types
        from mcp.client import streamable_http
        from mcp.shared import _httpx_utils, message

        self.types, self._message = types, message
        self._adapter = getattr(types, "jsonrpc_message_adapter", None)
        self.modern = self._adapter is not None
        self._new: Callable[..., AbstractAsyncContextManager[ClientSession]]
        self._new = vars(mcp)["Client" if self.modern else "ClientSession"]
        self.http = streamable_http.streamable_http_client
        self.client = _httpx_utils.create_mcp_http_client
        for name in ("mcp", "client"):  # keeps their log messages out of the cells
            logging.getLogger(name).addHandler(logging.NullHandler())
        if not self.modern:  # 1.x logs to the root logger, and configures it
            from mcp.shared import session

            vars(session)["logging"] = logging.getLogger("mcp")

    def parsed(self, line: bytes) -> object:
        """Parse a line into a session message; raise ValueError if it is not a message."""
        if self._adapter is not None:
            return self._message.SessionMessage(self._adapter.validate_json(line, by_name=False))
        return self._message.SessionMessage(self.types.JSONRPCMessage.model_validate_json(line))

    def line(self, message: object) -> bytes:
        """Serialise a session message to a line."""
        left_out = "exclude_unset" if self.modern else "exclude_none"
        text: str = vars(message)["message"].model_dump_json(by_alias=True, **{left_out: True})
        return text.encode() + b"\n"

    @asynccontextmanager
    async def greeted(
        self, transport: AbstractAsyncContextManager[Streams], *, old: bool, **heard: object
    ) -> AsyncIterator[tuple[ClientSession, Document, bool]]:
        """Yield a session, its capabilities, and whether the server announces changed tools.

        1.x, and 2.x with `old`, uses protocol 2025-11-25. Otherwise 2.x first tries 2026-07-28. In
        the latter version, a server asks a question with the result *input required*; the SDK's
        `Client` passes it to the same callbacks and repeats the request with the answers.
        """
        if not self.modern:
            async with transport as streams, self._new(*streams[:2], **heard) as session:
                yield session, wire(await session.initialize()).get("capabilities", {}), True
            return
        mode = "legacy" if old else "auto"
        async with self._new(transport, mode=mode, log_level="info", **heard) as client:
            facts: Json = client
            yield client, wire(facts.server_capabilities), not facts.session.discover_result

    async def give_up(self, session: ClientSession, number: int | None) -> None:
        """Tell the server that a request was cancelled; 2.x does so itself and has no `number`."""
        if number is not None:
            params = {"requestId": number, "reason": "stopped"}
            told = {"method": "notifications/cancelled", "params": params}
            notification = self.types.CancelledNotification.model_validate(told)
            await session.send_notification(self.types.ClientNotification(notification))


async def bounded(response: Json) -> None:
    """Make a response raise ValueError if a message in it is too long or compressed."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise ValueError("it sent a compressed message, although compression was not requested")
    pieces = response.stream
    kind = next(each for each in type(pieces).__mro__ if each.__name__ == "AsyncByteStream")

    class Bounded(kind):  # type: ignore[misc, valid-type]
        """The response's bytes, with a limit on line length."""

        async def __aiter__(self) -> AsyncIterator[bytes]:
            length = 0
            async for piece in pieces:
                end = piece.rfind(b"\n")
                length = len(piece) - end - 1 if end >= 0 else length + len(piece)
                if length > LONGEST:
                    raise ValueError(f"it sent a message of more than {LONGEST:,} bytes")
                yield piece

        async def aclose(self) -> None:
            await pieces.aclose()

    response.stream = Bounded()


def wire(model: object) -> dict[str, Json]:
    """Return an SDK model in wire format, for any SDK version."""
    dump: Callable[..., dict[str, Json]] = model.model_dump  # type: ignore[attr-defined]
    return dump(by_alias=True, mode="json", exclude_none=True)


def usable_definition(tool: Document) -> dict[str, Json] | None:
    """Return the parts of a tool definition that are used; None if it is invalid or too large."""
    schema = clean(tool.get("inputSchema"))
    name = str(tool.get("name") or "")
    if not name or not isinstance(schema, dict) or len(canonical_json(schema)) > SCHEMA:
        return None
    hints = tool.get("annotations") or {}
    return {
        "name": name,
        "description": str(clean(tool.get("description") or tool.get("title") or ""))[:DESCRIBED],
        "inputSchema": {"type": "object", "properties": {}, **schema},
        "annotations": {k: v for k, v in sorted(hints.items()) if isinstance(v, bool)},
    }


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Caller:
    """The tool call on whose behalf a server may ask the user or the model."""

    context: ToolContext
    """The call's context."""
    loop: asyncio.AbstractEventLoop
    """The turn's event loop, on which the user is asked."""
    model: ChatModel
    """The model that answers the server's sampling requests."""
    _open: list[Callable[[], bool]] = field(default_factory=list)
    """Functions that cancel the questions that are still open."""

    async def there(self, coroutine: Coroutine[object, None, Result]) -> Result:
        """Run a coroutine on the turn's event loop, from the servers' loop."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        self._open.append(future.cancel)
        return await asyncio.wrap_future(future)

    def over(self) -> None:
        """Cancel the questions that are still open, because the call has ended."""
        for cancel in self._open:
            cancel()

    async def agrees(self, question: Question) -> bool:
        """Ask the user and return whether they agree; False if no one can be asked."""
        ask = self.context.ask

        async def asked() -> bool:
            return ask is not None and await ask(question) != "deny"

        return await self.there(asked())

    async def complete(self, given: Document) -> str:
        """Return the model's answer to a sampling request's messages."""
        head = [Message.system(str(given["systemPrompt"]))] if given.get("systemPrompt") else []
        messages = [sampling_message(each) for each in given.get("messages", [])]
        async with aclosing(self.model.stream(Request(messages=(*head, *messages)))) as items:
            replies = [item async for item in items if isinstance(item, Reply)]
        for reply in replies:
            self.context.emit(UsageReported(reply.usage, reply.model or self.model.name, "mcp"))
        return replies[-1].message.text if replies else ""


def sampling_message(message: Document) -> Message:
    """Convert a message from a sampling request.

    Its text is untrusted unless it comes from the assistant.
    """
    content = message.get("content")
    blocks = content if isinstance(content, list) else [content]
    texts = [str(b.get("text") or f"[{b.get('type')}]") for b in blocks if isinstance(b, Mapping)]
    text = "\n".join(texts) or "-"
    if message.get("role") == "assistant":
        return Message.assistant(text)
    return Message.user(text, origin="outside")


@asynccontextmanager
async def program(spec: ServerSpec, bridge: Wire, note: Note, dead: Note) -> AsyncIterator[Streams]:
    """Run a server's program and yield a session's streams; raise OSError or `ToolError`.

    The SDK's transport is not used, because it neither limits a program's output nor detects when
    it ends. `dead(why)` is called when the program has ended, and `note(line)` for output other
    than messages. The program runs in its own process group. On exit the group is killed, and so
    are descendants that have left it.
    """
    import anyio

    mark = uuid.uuid4().hex
    environment = {**child_environment(), **spec.env, MARK: mark}
    if shutil.which(spec.command, path=environment.get("PATH")) is None:
        raise ToolError(f"there is no program {spec.command!r} here")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        spec.command,
        *spec.args,
        env=environment,
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        limit=LONGEST,
        start_new_session=True,
    )
    told, reading = anyio.create_memory_object_stream[object](0)
    writing, said = anyio.create_memory_object_stream[object](0)
    talk = (
        _read(process, bridge, told, note, dead),
        _write(process, bridge, said),
        _read_errors(process, note),
    )
    work = [asyncio.create_task(each) for each in talk]
    try:
        yield reading, writing
    finally:
        for each in work:
            each.cancel()
        cast("asyncio.StreamWriter", process.stdin).close()
        try:
            if not await _ended(process):
                signal_group(process.pid, signal.SIGTERM)
                await _ended(process)
        finally:
            signal_group(process.pid, KILL)
            kill_marked(mark, process.pid)
            for stream in (told, reading, writing, said):
                stream.close()
            vars(process)["_transport"].close()  # asyncio leaves this to garbage collection
            await _ended(process)


async def _read(
    process: Process, bridge: Wire, to: MemoryObjectSendStream[object], note: Note, dead: Note
) -> None:
    why, reader = "it has ended", cast("asyncio.StreamReader", process.stdout)
    try:
        while line := await reader.readline():
            try:
                message = bridge.parsed(line)
            except ValueError:
                note(f"[no message: {line[:CHUNK].decode('utf-8', 'replace')}]")
                await asyncio.sleep(0)
                continue
            await to.send(message)
    except ValueError:
        why = f"it sent a message of more than {LONGEST:,} bytes"
    to.close()
    dead(why)


async def _write(process: Process, bridge: Wire, said: MemoryObjectReceiveStream[object]) -> None:
    writer = cast("asyncio.StreamWriter", process.stdin)
    with suppress(ConnectionError):  # the program has ended, which the reader reports
        async for message in said:
            writer.write(bridge.line(message))
            await writer.drain()


async def _read_errors(process: Process, note: Note) -> None:
    reader = cast("asyncio.StreamReader", process.stderr)
    while chunk := await reader.read(CHUNK):
        for line in chunk.decode("utf-8", "replace").splitlines():
            note(line)
        await asyncio.sleep(0.01)  # throttles a flood of output


async def _ended(process: Process) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(GRACE):
            await process.wait()
    return process.returncode is not None
