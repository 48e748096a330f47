"""The built-in model: Qwen2.5-Coder-0.5B on this machine's CPU, in a child process.

The first request finds the weights by their digest, starts the server, and uses it like any other
model server. It never downloads anything: `weights.fetch` does, with the user's consent.

The server runs in a separate session, so Ctrl-C in a terminal does not reach it. It exits when its
stdin is closed. Other child processes cannot keep that open, because descriptors are not inherited
across exec; forks of this process close theirs. A fork never uses or stops its parent's server.
"""

from __future__ import annotations

import asyncio
import atexit
import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Sequence
from concurrent.futures import Future
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, cast

from hermes_nb.core.errors import ConfigError, FailureKind, ModelError
from hermes_nb.core.events import Delta, ReasoningDelta
from hermes_nb.core.messages import Message, Reply, ToolCall, Usage
from hermes_nb.core.protocols import Request, Traits, Variable
from hermes_nb.core.text import one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.extras.local.file_questions import Call, FileAnswer
from hermes_nb.extras.local.prompting import Constrained, offered
from hermes_nb.extras.local.rules import checked, next_step, refused
from hermes_nb.extras.local.weights import (
    MEGABYTE,
    SIZES,
    Weights,
    WeightsNeeded,
    WeightsStore,
    shipped,
)
from hermes_nb.models.chat.client import OpenAIChat
from hermes_nb.models.installed import ModelSetup
from hermes_nb.models.profiles import EMBEDDED, Profile, traits_named

CHILD = Path(__file__).with_name("child.py")
READY_SECONDS = 120.0
"""Startup timeout. Loading takes 1 to 4 s from a warm disk cache; network disks may be slower."""
ENDING_SECONDS = 2.0
_PASSED = (
    *("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TEMP", "TMP", "SYSTEMROOT", "VIRTUAL_ENV"),
    *("PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "OMP_NUM_THREADS"),
)
"""Environment variables passed to the child; keys and tokens are not."""


@dataclass(frozen=True, slots=True)
class Address:
    """The server's address and token."""

    url: str
    token: str


class _Running:
    """One child process."""

    def __init__(self, settings: dict[str, object], python: str) -> None:
        self.token = secrets.token_urlsafe(32)
        self.ready: Future[Address] = Future()
        # Cancelling one waiter does not affect the others.
        self.ready.set_running_or_notify_cancel()
        self.log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by stop()
        self.process = subprocess.Popen(
            [python, "-P", str(CHILD)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            env=_environment(),
            start_new_session=True,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        self._stdin = cast("IO[bytes]", self.process.stdin)  # both are pipes, see above
        self._stdout = cast("IO[bytes]", self.process.stdout)
        line = json.dumps({**settings, "token": self.token, "parent": os.getpid()})
        with suppress(BrokenPipeError):  # it has already ended; the listener reports that
            self._stdin.write(line.encode() + b"\n")
        self._listener = threading.Thread(
            target=self._listen, name="hermes_nb-embedded", daemon=True
        )
        self._listener.start()

    def _listen(self) -> None:
        """Wait until a line reports readiness or the process ends."""
        line = b""
        with suppress(OSError, ValueError):  # stop() closes the pipe
            line = self._stdout.readline()
        try:
            url = str(json.loads(line)["url"])
        except (ValueError, KeyError, TypeError):
            self._wait()
            self.ready.set_exception(ConfigError(f"the embedded model did not start: {self.end()}"))
        else:
            self.ready.set_result(Address(url, self.token))

    def end(self) -> str:
        """Describe how the process ended; return "" while it is running."""
        status = self.process.poll()
        if status is None:
            return ""
        if status == -signal.SIGKILL:
            return "it was killed, perhaps because the machine ran out of memory"
        if status == -signal.SIGILL:
            return "this CPU lacks instructions that xllamacpp was built for"
        said = self._last_line()
        if "No module named 'xllamacpp'" in said:
            return 'xllamacpp is missing; pip install "hermes_nb[local]"'
        return f"it ended with status {status}" + (f" ({said})" if said else "")

    def _last_line(self) -> str:
        with suppress(OSError, ValueError):
            self.log.seek(0)
            lines = self.log.read().decode("utf-8", "replace").split("\n")
            return next((one_line(line, 160) for line in reversed(lines) if line.strip()), "")
        return ""

    def stop(self) -> None:
        """Stop the process by closing its stdin; if that is not enough, kill it."""
        with suppress(OSError):
            self._stdin.close()
        self._wait()
        self._listener.join(ENDING_SECONDS)  # before its pipe is closed
        with suppress(OSError):
            self._stdout.close()
        self.log.close()

    def _wait(self) -> None:
        try:
            self.process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def abandon(self) -> None:
        """In a fork, close the pipes of a process that belongs to the parent."""
        self.process.returncode = 0  # keeps Popen from waiting for a process that is not our child
        for pipe in (self._stdin, self._stdout, self.log):
            with suppress(OSError):
                pipe.close()


class EmbeddedServer:
    """Serves the GGUF file `model` with a context window of `window` tokens on `threads` threads.

    `start` and `stop` are safe to call from any thread and event loop.
    """

    def __init__(
        self,
        model: Path,
        *,
        window: int,
        threads: int,
        ready_seconds: float = READY_SECONDS,
        python: str = sys.executable,
    ) -> None:
        self._settings = {"model": str(model), "window": window, "threads": threads}
        self._ready_seconds = ready_seconds
        self._python = python
        self._lock = threading.Lock()
        self._running: _Running | None = None
        _servers.add(self)

    @property
    def pid(self) -> int | None:
        """The child's process id, or None if it is not running."""
        running = self._running
        return running.process.pid if running and not running.end() else None

    @property
    def loading(self) -> bool:
        """Whether the child has been started but is not ready yet."""
        return self._running is not None and not self._running.ready.done()

    async def start(self) -> Address:
        """Return the server's address, starting it if necessary.

        If this is cancelled, the server continues to start and is used by the next call.

        Raises:
            ConfigError: the server cannot be started or is not ready in time.
        """
        running = await asyncio.to_thread(self._ensure)
        try:
            async with asyncio.timeout(self._ready_seconds):
                return await asyncio.wrap_future(running.ready)
        except TimeoutError:
            await asyncio.to_thread(self.stop)
            message = f"the embedded model was not ready within {self._ready_seconds:g} s"
            raise ConfigError(message) from None

    def _ensure(self) -> _Running:
        with self._lock:
            if self._running is not None and self._running.end():
                self._running.stop()
                self._running = None
            if self._running is None:
                try:
                    self._running = _Running(self._settings, self._python)
                except OSError as error:
                    raise ConfigError(f"the embedded model did not start: {error}") from error
            return self._running

    async def ending(self) -> str:
        """Return how the process ended after a lost connection, or "" if it is still running.

        Connections close slightly before the exit status is available.
        """
        for _ in range(10):
            if (running := self._running) and (end := running.end()):
                return end
            await asyncio.sleep(0.05)
        return ""

    def stop(self) -> None:
        """Stop the child; the next `start` starts another one."""
        with self._lock:
            running, self._running = self._running, None
        if running is not None:
            running.stop()

    def abandon(self) -> None:
        """In a fork, forget the child, since it belongs to the parent."""
        self._lock = threading.Lock()  # its holder does not exist in this process
        running, self._running = self._running, None
        if running is not None:
            running.abandon()


_servers: weakref.WeakSet[EmbeddedServer] = weakref.WeakSet()


def _environment() -> dict[str, str]:
    """Return the child's environment, including settings that libgomp reads when it is loaded.

    Threads that spin while waiting slow down the others: 1 instead of 30 tokens per second on a
    busy machine.
    """
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return {**passed, "OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0"}


def _for_each_server(action: Callable[[EmbeddedServer], None]) -> None:
    for server in list(_servers):
        action(server)


atexit.register(_for_each_server, EmbeddedServer.stop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=partial(_for_each_server, EmbeddedServer.abandon))


WINDOW = 4096
"""Context window in tokens. The model supports 32,768, but reads only 50 per second on a small
machine."""
MOST_THREADS = 8
"""More threads do not make such a small model faster."""
SILENCE_SECONDS = 600.0
"""Timeout if no data arrives. Reading a full context window takes minutes on a busy machine."""
MEMORY = 4 * 10**9
"""Free memory, in bytes, from which the larger size is offered."""
NOTICE = (
    "This is the built-in model. It runs on this machine and nothing leaves it. Rules answer "
    "simple questions about your tables and files. The rest comes from {model}, which "
    "is small and often wrong: an answer without a ✓ was not verified. "
    "For a real model: `%hermes key` asks for a provider's key, "
    "`%hermes model NAME` chooses one; or set `OPENAI_API_KEY` before the kernel starts."
)
"""Displayed before the first answer."""


class EmbeddedModel:
    """A `ChatModel` for the embedded server.

    `variables` returns the user's variables, which are used in the prompt's examples. `stream`
    raises `WeightsNeeded` if the weights are missing, `ConfigError` if the model cannot run, and
    `ModelError` if a request fails.
    """

    def __init__(
        self,
        variables: Callable[[], Sequence[Variable]] = tuple,
        *,
        store: WeightsStore | None = None,
        window: int = WINDOW,
        threads: int | None = None,
    ) -> None:
        self._store = store or WeightsStore()
        self._window = window
        self._threads = threads or usable_cores()
        self._variables = variables
        self._calls = 0
        self._strategy = Constrained(variables, window=window)
        self._lock = threading.Lock()
        self._server: EmbeddedServer | None = None
        self._chat: tuple[Address, OpenAIChat] | None = None

    @property
    def name(self) -> str:
        return f"{self._store.model} (embedded)"

    @property
    def traits(self) -> Traits:
        """The traits known from the model's name, plus those that the running model reports."""
        known = traits_named(EMBEDDED)
        return replace(known, notice=self._notice(), offered=offered, loading=self._loading)

    @property
    def window(self) -> int | None:
        return self._window

    @property
    def pid(self) -> int | None:
        """The server's process id, or None if it is not running."""
        return self._server.pid if self._server else None

    def _notice(self) -> str:
        own = f"`{self._store.model}`, the file that `HERMES_NB_GGUF` names"
        return NOTICE.format(model=own if self._store.given else self._store.model)

    def _loading(self) -> bool:
        """Return whether the server has been started but does not respond yet."""
        return self._server is not None and self._server.loading

    async def prepare(
        self, agreed: Callable[[str], bool], progress: Callable[[int, int], None]
    ) -> None:
        """Download the weights if they are missing and the user agrees.

        A stopped download is resumed at the next attempt.

        Raises:
            WeightsNeeded: the user declined.
        """
        if await in_thread(self._store.locate) is not None:
            return
        needed = WeightsNeeded(self._store.weights)
        if not agreed(
            f"No model is set up. Fetch the small built-in one ({needed.megabytes} MB, once, from "
            f"{' or '.join(needed.sources)})?{_larger(self._store.weights)}"
        ):
            raise needed
        stop = threading.Event()
        try:
            await in_thread(self._store.fetch, progress=progress, stop=stop)
        except asyncio.CancelledError:
            stop.set()
            raise

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Reply, None]:
        step = next_step(request, self._variables())
        if step is not None:
            self._calls += 1
            yield replace(_reply(step, f"rule_{self._calls}"), model=self.name)
            return
        async with aclosing(self._ask_weights(request)) as items:
            async for item in items:
                if not len(request.tools):
                    yield item
                elif isinstance(item, Reply):
                    yield checked(item, request, self._variables())
                else:  # text is shown once it is known not to be code
                    yield ReasoningDelta("")

    async def _ask_weights(self, request: Request) -> AsyncGenerator[Delta | Reply, None]:
        """Ask the weights."""
        server = await self._serve()
        address = await server.start()
        chat = await self._client(address)
        try:
            async with aclosing(chat.stream(request)) as items:
                async for item in items:
                    yield replace(item, model=self.name) if isinstance(item, Reply) else item
        except ModelError as error:
            if error.kind is FailureKind.NETWORK and (end := await server.ending()):
                message = f"the embedded model stopped ({end}); the next request starts it again"
                raise ModelError(message, kind=FailureKind.NETWORK) from error
            raise

    async def aclose(self) -> None:
        """Stop the server; the next request starts it again."""
        with self._lock:
            server, self._server = self._server, None
            chat, self._chat = self._chat, None
        if chat is not None:
            await chat[1].aclose()
        if server is not None:
            await asyncio.to_thread(server.stop)

    def body(self, request: Request) -> bytes:
        """Return a request's JSON; the server doesn't have to be running."""
        return self._connect(Address("http://127.0.0.1", "")).body(request)

    async def _serve(self) -> EmbeddedServer:
        if self._server is not None:
            return self._server
        _check_library()
        path = await asyncio.to_thread(self._store.locate)
        if path is None:
            raise WeightsNeeded(self._store.weights)
        with self._lock:
            if self._server is None:
                self._server = EmbeddedServer(path, window=self._window, threads=self._threads)
            return self._server

    async def _client(self, address: Address) -> OpenAIChat:
        with self._lock:
            if self._chat is not None and self._chat[0] == address:
                return self._chat[1]
            old, made = self._chat, self._connect(address)
            self._chat = address, made
        if old is not None:
            await old[1].aclose()
        return made

    def _connect(self, address: Address) -> OpenAIChat:
        return OpenAIChat(
            EMBEDDED,
            base_url=f"{address.url}/v1",
            api_key=address.token,
            strategy=self._strategy,
            profile=Profile(window=self._window),
            window=self._window,
            idle=SILENCE_SECONDS,
            # The server closes a reused connection without notice after ten requests.
            headers={"Connection": "close"},
        )


def _reply(step: Call | FileAnswer, call_id: str) -> Reply:
    """Return the reply for a step that the rules have chosen."""
    if isinstance(step, Call):
        call = ToolCall(id=call_id, name=step.name, arguments=dict(step.arguments))
        return Reply(
            message=Message.assistant(calls=[call]),
            usage=Usage(),
            finish="tool_calls",
            model=EMBEDDED,
        )
    text = step.text if step.found else refused(step.text)
    finish = "stop" if step.checked else "unverified"
    return Reply(message=Message.assistant(text), usage=Usage(), finish=finish)


def usable_cores() -> int:
    """Return the number of threads: the usable physical cores, at most `MOST_THREADS`.

    Two threads on one core share its arithmetic units and slow each other down. If the number of
    physical cores is unknown, half of eight or more logical ones is assumed.
    """
    import psutil

    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    logical = usable or 1
    guessed = logical if logical < MOST_THREADS else logical // 2
    return max(1, min(MOST_THREADS, logical, psutil.cpu_count(logical=False) or guessed))


def _larger(weights: Weights) -> str:
    """Return a sentence about the larger size, if it fits into memory and is not chosen."""
    import psutil

    larger = shipped(SIZES[-1])
    if weights == larger or psutil.virtual_memory().available < MEMORY:
        return ""
    size = round(larger.size / MEGABYTE)
    return (
        f" (HERMES_NB_GGUF=1.5b, set before the kernel starts, chooses a better one: {size:,} MB, "
        "which takes twice as long to answer)"
    )


def _check_library() -> None:
    if importlib.util.find_spec("xllamacpp") is None:
        raise ConfigError('the embedded model needs xllamacpp; pip install "hermes_nb[local]"')


def model(setup: ModelSetup) -> EmbeddedModel:
    """Return the built-in model: an entry point of `hermes_nb.models`."""
    _check_library()
    return EmbeddedModel(setup.variables)
