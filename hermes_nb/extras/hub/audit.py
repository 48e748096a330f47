"""The audit log: append-only lines about the calls that the agent executes for each user.

Each call gets one line before it starts and a complete one after it ends; if the process is killed
in between, only the first exists. A file's lines are numbered across all processes that write to
it, and each contains the previous line's digest, so `gaps` finds missing or altered lines. Lines
are also sent to a collector as they are written, because users cannot modify that copy.

The audit wraps tools, between the loop and the guard, because with `required`, a call that cannot
be recorded must not start; an event would be too late to prevent this.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import os
import secrets
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from datetime import UTC, datetime
from functools import cache, partial
from urllib.parse import SplitResult, urlsplit

from hermes_nb.core.errors import ConfigError, HermesError, ToolDenied, ToolError, TurnInterrupted
from hermes_nb.core.events import ApprovalGiven, ToolEvent
from hermes_nb.core.json_values import canonical_json, dumps
from hermes_nb.core.messages import Json
from hermes_nb.core.text import head_tail, number_of, one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Arguments, Tool, ToolContext, Toolset
from hermes_nb.safety.administrator import policy
from hermes_nb.safety.guard import Guard
from hermes_nb.safety.redact import redact

ARGUMENTS = 2_000
"""Maximum characters of a call's redacted arguments in a line; the digest covers them in full."""
SAID = 200
TAIL = 65_536
"""Bytes to read from the end of a file to find its last line."""
WAITING = 2_000
"""Maximum lines queued for a collector; further lines are dropped and counted."""
DELIVERY = 5.0
"""Seconds that a call waits for the collector if it must be recorded."""
LEAVING = 1.0
"""Seconds that an exiting process waits for its last lines to be sent."""
SYSLOG = "<110>1"
"""Facility 13 (log audit), severity 6 (informational), version 1: RFC 5424."""


class AuditError(HermesError):
    """A line could not be recorded although the policy requires it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditSettings:
    """The audit's destinations. The policy must specify a file, a collector, or both."""

    file: str = ""
    """Path of the log file, with `{user}` for the user's name; "" for none."""
    collector: str = ""
    """`unix:///PATH`, `http(s)://HOST/PATH`, `syslog://HOST:PORT` or `syslog:///dev/log`, or "" for
    none."""
    required: bool = False
    """Whether to refuse calls that cannot be recorded at every configured destination."""

    @classmethod
    def of(cls, given: Mapping[str, Json]) -> AuditSettings:
        """Read the policy's `audit` table; raise `ConfigError` if it is invalid."""
        kinds = {field.name: type(field.default) for field in fields(cls)}
        for key, value in given.items():
            if type(value) is not kinds.get(key):
                known = "file and collector (texts) and required (true or false)"
                raise ConfigError(f"audit.{key} in the policy is {value!r}; the keys are {known}")
        found = cls(**given)
        if not found.file and not found.collector:
            raise ConfigError("audit in the policy needs a file or a collector")
        # With `{user}`, it is not a path yet.
        if found.file and not os.path.isabs(found.file):  # noqa: PTH117
            raise ConfigError(f"audit.file in the policy is {found.file!r}; use an absolute path")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUser:
    """The process's user."""

    user: str
    """The account's name."""
    login: str = ""
    """The user's JupyterHub name; "" outside JupyterHub."""


class Audit:
    """One process's audit. `lost` counts the lines that were not written to the file."""

    def __init__(self, settings: AuditSettings, who: ProcessUser) -> None:
        self.required = settings.required
        self.lost = 0
        self._who = who
        self._path = settings.file.replace("{user}", who.user)  # not from an environment variable
        self._collector = Collector(settings.collector) if settings.collector else None
        self._lock = threading.Lock()
        self._chain, self._number, self._last = secrets.token_hex(8), 0, ""
        self._handle, self._size = -1, -1
        self._told = 0

    def record(self, entry: Mapping[str, Json], *, must: bool = False) -> None:
        """Write a line and send it to the collector.

        Errors are only counted unless `must` is set. May block while it waits for the collector, so
        call it in a thread.

        Raises:
            AuditError: with `must`, if the line was not written, or not sent in time.
        """
        error: OSError | None = None
        with self._lock:
            with ExitStack() as held:
                try:
                    torn = bool(self._path) and self._open_locked(held)
                except OSError as caught:
                    error, torn = caught, False
                line = self._linked(entry)
                if self._path and error is None:
                    error = self._added(b"\n" * torn + line + b"\n")
            if error is not None:
                self.lost += 1
            sent = self._collector.put(line) if self._collector is not None else None
        if must and error is not None:
            raise AuditError(f"the audit log {self._path!r} cannot be written: {error}")
        if must and sent is not None and not sent.wait(DELIVERY):
            raise AuditError(f"the audit collector did not accept the entry within {DELIVERY:g} s")

    def news(self) -> str:
        """Return a message about lines lost since the last call, or ""."""
        lost = self.lost + (self._collector.lost if self._collector is not None else 0)
        new, self._told = lost - self._told, lost
        lines = number_of(new, "line")
        return f"The audit log lost {lines}; tell its administrator." if new else ""

    def _linked(self, entry: Mapping[str, Json]) -> bytes:
        """Return an entry as the next line, with its number and the previous line's digest."""
        self._number += 1
        head: dict[str, Json] = {"chain": self._chain, "seq": self._number, "prev": self._last}
        if self.lost:
            head["lost"] = self.lost
        when = datetime.now(UTC).isoformat(timespec="milliseconds")
        who = {"user": self._who.user, "login": self._who.login, "host": socket.gethostname()}
        line = dumps({**head, "time": when, **who, "pid": os.getpid(), **entry})
        self._last = digest_of(line)
        return line

    def _open_locked(self, held: ExitStack) -> bool:
        """Open and lock the file to append a line; return whether its last line is incomplete."""
        if self._handle < 0:
            self._handle, self._size = self._opened(), -1
        while True:
            held.enter_context(_append_lock(self._handle))
            torn, after = self._catch_up(), self._open_successor()
            if after < 0:
                return torn
            held.close()
            os.close(self._handle)
            self._handle, self._size = after, -1

    def _opened(self) -> int:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        return os.open(self._path, flags, 0o600)

    def _open_successor(self) -> int:
        """Open and return the file that replaced the current one (log rotation), or return -1."""
        ours = os.fstat(self._handle)
        with suppress(OSError):
            if os.path.samestat(os.stat(self._path), ours):  # noqa: PTH116
                return -1
        try:
            return self._opened()
        except OSError:
            if not ours.st_nlink:  # deleted
                raise
            return -1

    def _added(self, data: bytes) -> OSError | None:
        try:
            written = os.write(self._handle, data)
        except OSError as error:
            self._size = -1
            return error
        whole = written == len(data)
        self._size = self._size + written if whole else -1
        return None if whole else OSError("the disk is full")

    def _catch_up(self) -> bool:
        """Read the last line's number and digest; return whether that line is incomplete."""
        size = os.fstat(self._handle).st_size
        if size == self._size:
            return False
        self._size = size
        if not size:
            return False
        os.lseek(self._handle, max(0, size - TAIL), os.SEEK_SET)
        tail = os.read(self._handle, TAIL)
        lines = [line for line in tail.split(b"\n") if line]
        known = next(filter(None, map(parsed, reversed(lines))), {})
        there = known.get("chain", self._chain), int(known.get("seq") or 0)
        if there < (self._chain, self._number) and there[0] == self._chain:
            return not tail.endswith(b"\n")  # keep the number, so that the gap is visible
        self._chain, self._number = str(there[0]), there[1]
        self._last = digest_of(lines[-1]) if lines else ""
        return not tail.endswith(b"\n")


class Collector:
    """Sends lines to an address from a separate thread; `lost` counts dropped lines.

    A full queue drops lines. Undelivered lines are retried with exponential backoff.
    """

    def __init__(self, address: str) -> None:
        self.lost = 0
        self._send = sender(address)
        self._lines: deque[tuple[bytes, threading.Event]] = deque()
        self._there = threading.Condition()
        self._thread: threading.Thread | None = None

    def put(self, line: bytes) -> threading.Event:
        """Queue a line; the returned event is set once it has been delivered."""
        arrived = threading.Event()
        with self._there:
            if len(self._lines) >= WAITING:
                self.lost += 1
                return arrived
            self._lines.append((line, arrived))
            if self._thread is None or not self._thread.is_alive():
                if self._thread is None:
                    atexit.register(self._flush_at_exit)
                self._thread = threading.Thread(target=self._run, name="hermes audit", daemon=True)
                self._thread.start()
            self._there.notify()
        return arrived

    def _run(self) -> None:
        pause = 0.1
        while True:
            with self._there:
                while not self._lines:
                    self._there.wait()
                batch = list(self._lines)[:100]
            try:
                self._send([line for line, _ in batch])
            except OSError:
                time.sleep(pause)
                pause = min(2 * pause, 10.0)
                continue
            pause = 0.1
            with self._there:
                for _, arrived in batch:
                    self._lines.popleft()
                    arrived.set()

    def _flush_at_exit(self) -> None:
        if self._lines:
            self._lines[-1][1].wait(LEAVING)


Send = Callable[[list[bytes]], None]
"""Sends lines; raises OSError if they are not delivered."""


def sender(address: str) -> Send:
    """Return a function that sends lines to an address; raise `ConfigError` for an unknown kind."""
    parts = urlsplit(address)
    if parts.scheme in ("http", "https") and parts.hostname:
        return partial(_post, parts)
    if parts.scheme == "unix" and parts.path:
        return _Connected(parts.path).send
    if parts.scheme == "syslog" and (parts.hostname or parts.path):
        return partial(_syslog, parts)
    raise ConfigError(
        f"the audit collector {address!r} must be a unix://, http://, https:// or syslog:// address"
    )


def _post(parts: SplitResult, lines: list[bytes]) -> None:
    from http import client

    kind = client.HTTPSConnection if parts.scheme == "https" else client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=DELIVERY)
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    body = b"\n".join([*lines, b""])
    try:
        connection.request("POST", path, body, {"Content-Type": "application/x-ndjson"})
        status = connection.getresponse().status
    except client.HTTPException as error:
        raise OSError(f"the collector does not speak HTTP: {error!r}") from error
    finally:
        connection.close()
    if not client.OK <= status < client.MULTIPLE_CHOICES:
        raise OSError(f"the collector returned status {status}")


def _syslog(parts: SplitResult, lines: list[bytes]) -> None:
    local = not parts.hostname
    with socket.socket(socket.AF_UNIX if local else socket.AF_INET, socket.SOCK_DGRAM) as going:
        going.connect(parts.path if local else (parts.hostname, parts.port or 514))
        for line in lines:
            host, now = socket.gethostname(), datetime.now(UTC).isoformat(timespec="milliseconds")
            going.send(f"{SYSLOG} {now} {host} hermes_nb {os.getpid()} audit - ".encode() + line)


class _Connected:
    """A collector's Unix socket, which accepts lines or datagrams."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._open: socket.socket | None = None

    def send(self, lines: list[bytes]) -> None:
        try:
            if self._open is None:
                self._open = _connected(self._path)
            if self._open.type == socket.SOCK_STREAM:
                self._open.sendall(b"\n".join([*lines, b""]))
            else:
                for line in lines:
                    self._open.send(line)
        except OSError:
            if self._open is not None:
                self._open.close()
                self._open = None
            raise


def _connected(path: str) -> socket.socket:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        found = socket.socket(socket.AF_UNIX, kind)
        found.settimeout(DELIVERY)
        try:
            found.connect(path)
        except OSError as error:
            found.close()
            if kind is socket.SOCK_DGRAM or error.errno != errno.EPROTOTYPE:
                raise
        else:
            return found
    raise AssertionError  # unreachable: the loop returns or raises


def audited(
    tools: Toolset,
    *,
    source: str,
    guard: Guard,
    tell: Callable[[str], None] = lambda _: None,
) -> Toolset:
    """Wrap tools so that the audit, if configured, records every call before and after it runs.

    Args:
        tools: The tools to wrap.
        source: What started the agent.
        guard: Its current mode is recorded.
        tell: Shows the user a line when entries were lost.

    Raises:
        ToolDenied: in a call that must be recorded but cannot be.
    """

    def watched(tool: Tool) -> Tool:
        async def run(context: ToolContext, arguments: Arguments) -> object:
            if (audit := audit_now()) is None:
                return await tool.run(context, arguments)
            entry = await in_thread(_entry, tool, context, arguments, source, guard.held)

            async def begun(context: ToolContext, arguments: Arguments) -> object:
                try:
                    await in_thread(audit.record, {"event": "call", **entry}, must=audit.required)
                except AuditError as error:
                    raise ToolDenied(f"{tool.name} was not run: {error}") from error
                finally:
                    if news := audit.news():
                        tell(news)
                return await tool.run(context, arguments)

            return await _witnessed(replace(tool, run=begun), context, arguments, audit, entry)

        return replace(tool, run=run)

    return tools.map(watched)


async def _witnessed(
    tool: Tool, context: ToolContext, arguments: Arguments, audit: Audit, entry: Mapping[str, Json]
) -> object:
    """Run a call whose start was recorded, and record its end in any case."""
    answers: list[Json] = []

    def emit(event: ToolEvent) -> None:
        if isinstance(event, ApprovalGiven):
            answers.append(_shown(f"{event.answer} {event.reason}"))
        context.emit(event)

    ended: dict[str, Json] = {"outcome": "interrupted", "error": ""}
    began = time.monotonic()
    try:
        result = await tool.run(replace(context, emit=emit), arguments)
    except TurnInterrupted:
        raise
    except (Exception, SystemExit) as error:
        ended["outcome"] = "denied" if isinstance(error, ToolDenied) else "error"
        text = str(error) if isinstance(error, ToolError) else f"{type(error).__name__}: {error}"
        ended["error"] = _shown(text)
        raise
    else:
        ended["outcome"] = "ok"
        return result
    finally:
        seconds = round(time.monotonic() - began, 3)
        # Not in a new thread, which an interrupted process cannot start.
        audit.record({"event": "end", **entry, "answers": answers, **ended, "seconds": seconds})


def _shown(text: str) -> str:
    # Redact first, because a truncated secret would not be recognised.
    return one_line(redact(text[: 40 * SAID]), SAID)


def _entry(
    tool: Tool, context: ToolContext, arguments: Arguments, source: str, mode: str
) -> dict[str, Json]:
    """Return the facts known about a call before it starts."""
    told, place = canonical_json(arguments), context.place
    return {
        "source": source,
        "session": place.session,
        "turn": place.turn or context.turn,
        "notebook": place.notebook,
        "cell": place.cell,
        "call": context.call.id,
        "tool": tool.name,
        "risk": (tool.risk if tool.risk_of is None else tool.risk_of(arguments)).value,
        "mode": mode,
        "arguments": head_tail(redact(told), ARGUMENTS),
        "digest": digest_of(told.encode("utf-8", "replace")),
    }


def parsed(line: bytes) -> dict[str, Json]:
    """Return the parsed line, or {} if it is unreadable."""
    with suppress(ValueError):
        found = json.loads(line)
        if isinstance(found, dict) and isinstance(found.get("seq"), int):
            return found
    return {}


def digest_of(data: bytes) -> str:
    """Return the digest stored in the next line: SHA-256 in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


@contextmanager
def _append_lock(handle: int) -> Iterator[None]:
    """Lock the file while its last line is read and a new one appended."""
    if sys.platform == "win32":
        yield
        return
    import fcntl

    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(handle, fcntl.LOCK_UN)


def audit_now() -> Audit | None:
    """Return this process's audit, or None; raise `ConfigError` if the policy is invalid."""
    given = policy().values.get("audit")
    return _audit_of(AuditSettings.of(given), os.getpid()) if given else None


@cache
def _audit_of(settings: AuditSettings, _process: int) -> Audit:
    """Return a process's audit; a fork must not share its parent's file, lock and queue."""
    import pwd  # missing on Windows, where there is no policy either

    user = str(os.getuid())
    with suppress(KeyError):  # a container's account may have no name
        user = pwd.getpwuid(os.getuid()).pw_name
    return Audit(settings, ProcessUser(user=user, login=os.environ.get("JUPYTERHUB_USER", "")))
