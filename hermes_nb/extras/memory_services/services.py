"""Mem0, Hindsight and Honcho as memory providers, each by the client that its makers publish.

What user and agent say to each other goes to the service when a turn ends, so that a kernel that
is killed takes no more than its last turn along; what is written into the curated memory goes at
once; what the service recalls comes with the user's messages. Only that leaves: no tool result, no
text of a file or a page, no secret.
Each service has an entry point of the group `hermes_nb.memory_providers`, a function of the home
and of the settings below `memory.NAME`: `user` (whose memory it is; the name of the account),
`url`, `api_key`, for Honcho `workspace` and for Mem0 `config`, as `Memory.from_config` takes it.
Clients are imported when they are needed (`pip install 'hermes_nb[mem0]'` and so on). `Guarded`
keeps them out of a turn's way, so they are called as if they were always there and fast.
"""

from __future__ import annotations

import getpass
import os
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, cast

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.messages import Json, Message, Text
from hermes_nb.core.protocols import MemoryProvider
from hermes_nb.core.text import one_line
from hermes_nb.safety.redact import redact

MOST_RECALLED = 8
Said = list[dict[str, str]]
"""Messages as services take them: `role` ("user" or "assistant") and `content`."""


@contextmanager
def _client_of(service: str) -> Iterator[None]:
    """Say what to install where a client is missing; raise `ConfigError`."""
    try:
        yield
    except ImportError as error:
        message = f"pip install 'hermes_nb[{service}]' brings its client ({error})"
        raise ConfigError(message) from error


class Service(MemoryProvider):
    """What is the same for all services: what goes to them, once, and what is told of them."""

    name = "service"

    def keep(self, said: Said) -> None:
        """Give the service a stretch of conversation to learn from."""
        raise NotImplementedError

    def static_block(self) -> str:
        return f"{self.name} remembers earlier conversations; what fits comes with messages."

    def on_memory_write(self, target: str, action: str, before: str, after: str) -> None:  # noqa: ARG002 - what was there is not taken back
        if after:
            self.keep([{"role": "user", "content": redact(after)}])

    def turn_ended(self, messages: Sequence[Message]) -> None:
        if said := spoken(messages):
            self.keep(said)


def spoken(messages: Iterable[Message]) -> Said:
    """Return what user and agent said, without secrets; the user's own words alone, of theirs."""
    said = []
    for message in messages:
        if message.role not in ("user", "assistant"):
            continue
        own = "user" if message.role == "user" else "ours"
        texts = [p.text for p in message.parts if isinstance(p, Text) and p.origin == own]
        if content := redact("\n".join(texts)).strip():
            said.append({"role": message.role, "content": content})
    return said


def listed(memories: Iterable[str]) -> str:
    """Return memories as a list, each on one line."""
    lines = [f"- {one_line(memory, 400)}" for memory in memories if memory]
    return "\n".join(lines[:MOST_RECALLED])


# ---- Mem0 ----------------------------------------------------------------------------------------


class Mem0Client(Protocol):
    """What `mem0.Memory` (in process) and `mem0.MemoryClient` (hosted) have in common."""

    def add(self, messages: Said, *, user_id: str) -> object: ...
    def search(self, query: str, *, filters: Mapping[str, str]) -> Mapping[str, object]: ...


class Mem0(Service):
    """Vectors in a folder or at mem0.ai, and a model that finds what is worth keeping."""

    name = "Mem0"

    def __init__(self, client: Mem0Client, user: str) -> None:
        self._client = client
        self._user = user

    def keep(self, said: Said) -> None:
        self._client.add(said, user_id=self._user)

    def prefetch(self, query: str) -> str:
        found = self._client.search(query, filters={"user_id": self._user})
        results = cast("list[dict[str, str]]", found.get("results") or [])
        return listed(each.get("memory", "") for each in results)


def open_mem0(home: Path, settings: Mapping[str, Json]) -> Service:
    """Return the provider `mem0`; raise `ConfigError` where its client is not installed."""
    os.environ.setdefault("MEM0_TELEMETRY", "False")
    os.environ.setdefault("MEM0_DIR", str(home / "mem0"))
    with _client_of("mem0"):
        import mem0  # type: ignore[import-not-found,unused-ignore]

    if settings.get("api_key"):
        hosted = mem0.MemoryClient(api_key=settings["api_key"], host=settings.get("url"))
        return Mem0(hosted, _user(settings))
    given = settings.get("config")
    config = dict(given) if isinstance(given, Mapping) else {}
    config.setdefault("history_db_path", str(home / "mem0" / "history.db"))
    store: dict[str, Json] = {
        "path": str(home / "mem0" / "vectors"),
        "collection_name": "hermes",
        "on_disk": True,
    }
    embedder = config.get("embedder")
    options = embedder.get("config") if isinstance(embedder, Mapping) else None
    if isinstance(options, Mapping) and (size := options.get("embedding_dims")):
        store["embedding_model_dims"] = size
    config.setdefault("vector_store", {"provider": "qdrant", "config": store})
    return Mem0(mem0.Memory.from_config(config), _user(settings))


# ---- Hindsight -----------------------------------------------------------------------------------


class HindsightFact(Protocol):
    """A fact of a bank."""

    text: str


class HindsightFound(Protocol):
    """What a bank recalls, the best first."""

    results: Sequence[HindsightFact]


class HindsightClient(Protocol):
    """What of `hindsight_client.Hindsight` is called."""

    def close(self) -> None: ...
    def retain(self, *, bank_id: str, content: str) -> object: ...
    def recall(self, *, bank_id: str, query: str, budget: str) -> HindsightFound: ...


class Hindsight(Service):
    """A server of one's own with facts, entities and opinions in PostgreSQL."""

    name = "Hindsight"

    def __init__(self, client: HindsightClient, bank: str) -> None:
        self._client = client
        self._bank = bank

    def keep(self, said: Said) -> None:
        told = "\n\n".join(f"{each['role']}: {each['content']}" for each in said)
        self._client.retain(bank_id=self._bank, content=told)

    def session_ended(self, messages: Sequence[Message]) -> None:  # noqa: ARG002 - it has all
        self._client.close()

    def prefetch(self, query: str) -> str:
        found = self._client.recall(bank_id=self._bank, query=query, budget="low")
        return listed(each.text for each in found.results)


def open_hindsight(home: Path, settings: Mapping[str, Json]) -> Service:  # noqa: ARG001 - as all are
    """Return the provider `hindsight`; raise `ConfigError` where its client is not installed."""
    with _client_of("hindsight"):
        import hindsight_client  # type: ignore[import-not-found,unused-ignore]

    url = str(settings.get("url") or "http://127.0.0.1:8888")
    client = hindsight_client.Hindsight(base_url=url, api_key=settings.get("api_key"))
    return Hindsight(client, _user(settings))


# ---- Honcho --------------------------------------------------------------------------------------


class HonchoPeer(Protocol):
    """Somebody who speaks, as `honcho.Peer` has it."""

    def message(self, content: str) -> object: ...
    def representation(self, *, search_query: str, search_top_k: int) -> str: ...


class HonchoSession(Protocol):
    """A conversation, as `honcho.Session` has it."""

    def add_messages(self, messages: Sequence[object]) -> object: ...


class Honcho(Service):
    """A service that works out what somebody is like from what they say."""

    name = "Honcho"

    def __init__(self, peers: Mapping[str, HonchoPeer], session: HonchoSession) -> None:
        self._peers = peers
        self._session = session

    def keep(self, said: Said) -> None:
        self._session.add_messages([self._peers[s["role"]].message(s["content"]) for s in said])

    def prefetch(self, query: str) -> str:
        user = self._peers["user"]
        return user.representation(search_query=query, search_top_k=MOST_RECALLED)


def open_honcho(home: Path, settings: Mapping[str, Json]) -> Service:  # noqa: ARG001 - as all are
    """Return the provider `honcho`; raise `ConfigError` where its client is not installed."""
    with _client_of("honcho"):
        import honcho  # type: ignore[import-not-found,unused-ignore]

    workspace = str(settings.get("workspace") or "hermes")
    client = honcho.Honcho(
        base_url=settings.get("url"), api_key=settings.get("api_key"), workspace_id=workspace
    )
    peers = {"user": client.peer(_user(settings)), "assistant": client.peer("hermes")}
    session = client.session(f"hermes-{uuid.uuid4().hex[:12]}", peers=list(peers.values()))
    return Honcho(peers, session)


def _user(settings: Mapping[str, Json]) -> str:
    return str(settings.get("user") or getpass.getuser())
