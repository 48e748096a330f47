"""The built-in model: Qwen2.5-Coder-0.5B on this machine's CPU, in a child process.

Nothing happens before the first request: it then finds the weights by their digest, starts the
server and speaks with it as with any other. It never downloads: `weights.fetch` does, once the
user said yes.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

from hermes_nb.core.errors import ConfigError, FailureKind, ModelError
from hermes_nb.core.events import Delta
from hermes_nb.core.messages import Reply
from hermes_nb.core.protocols import Request, Variable
from hermes_nb.models.chat.openai_chat import OpenAIChat
from hermes_nb.models.embedded.constrained import Constrained
from hermes_nb.models.embedded.server import Address, EmbeddedServer
from hermes_nb.models.profiles import EMBEDDED, Profile
from hermes_nb.models.weights.store import WeightsNeeded, WeightsStore

NAME = EMBEDDED
WINDOW = 4096
"""Tokens. The model knows 32,768, but reads only 50 a second on a small machine."""
MOST_THREADS = 8
"""More threads no longer make so small a model faster."""
SILENCE_SECONDS = 600.0
"""Reading a full window takes minutes on a busy machine, and nothing is sent meanwhile."""
NOTICE = (
    "No model is set up, so this is the built-in one: Qwen2.5-Coder-0.5B. It runs on this machine "
    "and nothing leaves it. It is very small, good for simple questions about your data, and often "
    "wrong: check what it says. For a real model: `%hermes key` asks for a provider's key, "
    "`%hermes model NAME` chooses one; or set `OPENAI_API_KEY` before the kernel starts."
)
"""What the user reads before the first answer."""


class EmbeddedModel:
    """A `ChatModel` over the embedded server.

    `variables` tells what the user's namespace holds; the examples in the prompt are made from it.
    `stream` raises `WeightsNeeded` while the weights are not on this machine, `ConfigError` where
    the model cannot run, `ModelError` when a request fails.
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
        self._strategy = Constrained(variables, window=window)
        self._lock = threading.Lock()
        self._server: EmbeddedServer | None = None
        self._chat: tuple[Address, OpenAIChat] | None = None

    @property
    def name(self) -> str:
        """The model's name."""
        return NAME

    @property
    def window(self) -> int | None:
        """The context window in tokens."""
        return self._window

    @property
    def pid(self) -> int | None:
        """The server's process id, None when none runs."""
        return self._server.pid if self._server else None

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Reply, None]:
        """Yield the text of the answer as it grows and, last, the reply."""
        server = await self._serve()
        address = await server.start()
        chat = await self._client(address)
        try:
            async with aclosing(chat.stream(request)) as items:
                async for item in items:
                    yield replace(item, model=NAME) if isinstance(item, Reply) else item
        except ModelError as error:
            if error.kind is FailureKind.NETWORK and (end := await server.ending()):
                message = f"the embedded model stopped ({end}); the next request starts it again"
                raise ModelError(message, kind=FailureKind.NETWORK) from error
            raise

    async def aclose(self) -> None:
        """End the server; the next request starts it again."""
        with self._lock:
            server, self._server = self._server, None
            chat, self._chat = self._chat, None
        if chat is not None:
            await chat[1].aclose()
        if server is not None:
            await asyncio.to_thread(server.stop)

    def body(self, request: Request) -> bytes:
        """Return the JSON that the server would be sent; it need not run for that."""
        return self._connect(Address("http://127.0.0.1", "")).body(request)

    async def _serve(self) -> EmbeddedServer:
        """Return the server of the weights, found on the first call."""
        if self._server is not None:
            return self._server
        if importlib.util.find_spec("xllamacpp") is None:
            message = 'the embedded model needs xllamacpp; pip install "hermes_nb[local]"'
            raise ConfigError(message)
        path = await asyncio.to_thread(self._store.locate)
        if path is None:
            raise WeightsNeeded(self._store.weights)
        with self._lock:
            if self._server is None:
                self._server = EmbeddedServer(path, window=self._window, threads=self._threads)
            return self._server

    async def _client(self, address: Address) -> OpenAIChat:
        """Return the client of the server that runs now; a new server has a new address."""
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
            NAME,
            base_url=f"{address.url}/v1",
            api_key=address.token,
            strategy=self._strategy,
            profile=Profile(window=self._window),
            window=self._window,
            idle=SILENCE_SECONDS,
            # The server drops a kept connection after ten requests without saying so.
            headers={"Connection": "close"},
        )


def usable_cores() -> int:
    """Return how many threads the model gets: the cores this process may use, hyperthreads aside.

    Two threads of one core share its arithmetic: they slow each other down. Where the system does
    not say how many there are, half of eight or more logical ones are taken for the real ones.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    logical = usable or 1
    return max(1, min(MOST_THREADS, _physical(logical)))


def _physical(logical: int) -> int:
    try:
        with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:  # noqa: PTH123
            blocks = file.read().split("\n\n")
    except OSError:
        return logical if logical < 8 else logical // 2  # noqa: PLR2004 - see above
    cores = {
        tuple(line for line in block.splitlines() if line.startswith(("physical id", "core id")))
        for block in blocks
        if "core id" in block
    }
    return min(logical, len(cores) or logical)
