"""Memory providers for Mem0, Hindsight and Honcho, using their official Python clients.

Messages from the user and the agent are sent to the service at the end of a turn, so a kernel crash
loses at most the last turn. Changes to the curated memory are sent immediately. Recalled facts are
added to the user's messages. Nothing else is sent: no tool results, no text from files or web
pages, no secrets.

Each service has an entry point in the group `hermes_nb.memory_providers`: a function of the Hermes
directory and the settings under `memory.NAME`. These are `user` (the owner of the memory, by
default the account's name), `url`, `api_key`, for Honcho `workspace`, and for Mem0 `config`, passed
to `Memory.from_config`.

Clients are imported on demand (`pip install 'hermes_nb[mem0]'` and so on). `Guarded` handles slow
and failing services, so this code does not.
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
"""Messages in the services' format: `role` ("user" or "assistant") and `content`."""


@contextmanager
def _client_of(service: str) -> Iterator[None]:
    """Turn a client's ImportError into a `ConfigError` that says which package to install."""
    try:
        yield
    except ImportError as error:
        message = f"pip install 'hermes_nb[{service}]' installs its client ({error})"
        raise ConfigError(message) from error


class Service(MemoryProvider):
    """Base class: selects the messages to send, and describes the service to the model."""

    name = "service"

    def keep(self, said: Said) -> None:
        """Send part of the conversation to the service to learn from."""
        raise NotImplementedError

    def static_block(self) -> str:
        return (
            f"{self.name} remembers earlier conversations; matching memories are sent "
            "with messages."
        )

    # Facts deleted from the curated memory stay in the service.
    def on_memory_write(self, target: str, action: str, before: str, after: str) -> None:  # noqa: ARG002
        if after:
            self.keep([{"role": "user", "content": redact(after)}])

    def turn_ended(self, messages: Sequence[Message]) -> None:
        if said := spoken(messages):
            self.keep(said)


def spoken(messages: Iterable[Message]) -> Said:
    """Return the user's and the agent's own text without secrets; attached content is left out."""
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
    """Format memories as a list with one line each."""
    lines = [f"- {one_line(memory, 400)}" for memory in memories if memory]
    return "\n".join(lines[:MOST_RECALLED])


# ---- Mem0 ----------------------------------------------------------------------------------------


class Mem0Client(Protocol):
    """The common interface of `mem0.Memory` (in process) and `mem0.MemoryClient` (hosted)."""

    def add(self, messages: Said, *, user_id: str) -> object: ...
    def search(self, query: str, *, filters: Mapping[str, str]) -> Mapping[str, object]: ...


class Mem0(Service):
    """Embeddings in a folder or at mem0.ai, and a model that extracts facts."""

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
    """Return the provider `mem0`; raise `ConfigError` if its client is not installed."""
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
    """A fact in a bank."""

    text: str


class HindsightFound(Protocol):
    """The facts recalled from a bank, best first."""

    results: Sequence[HindsightFact]


class HindsightClient(Protocol):
    """The part of `hindsight_client.Hindsight` that is used."""

    def close(self) -> None: ...
    def retain(self, *, bank_id: str, content: str) -> object: ...
    def recall(self, *, bank_id: str, query: str, budget: str) -> HindsightFound: ...


class Hindsight(Service):
    """A self-hosted server that stores facts, entities and opinions in PostgreSQL."""

    name = "Hindsight"

    def __init__(self, client: HindsightClient, bank: str) -> None:
        self._client = client
        self._bank = bank

    def keep(self, said: Said) -> None:
        text = "\n\n".join(f"{each['role']}: {each['content']}" for each in said)
        self._client.retain(bank_id=self._bank, content=text)

    # Nothing to do: the service already has all the messages.
    def session_ended(self, messages: Sequence[Message]) -> None:  # noqa: ARG002
        self._client.close()

    def prefetch(self, query: str) -> str:
        found = self._client.recall(bank_id=self._bank, query=query, budget="low")
        return listed(each.text for each in found.results)


# The signature of all providers.
def open_hindsight(home: Path, settings: Mapping[str, Json]) -> Service:  # noqa: ARG001
    """Return the provider `hindsight`; raise `ConfigError` if its client is not installed."""
    with _client_of("hindsight"):
        import hindsight_client  # type: ignore[import-not-found,unused-ignore]

    url = str(settings.get("url") or "http://127.0.0.1:8888")
    client = hindsight_client.Hindsight(base_url=url, api_key=settings.get("api_key"))
    return Hindsight(client, _user(settings))


# ---- Honcho --------------------------------------------------------------------------------------


class HonchoPeer(Protocol):
    """A speaker: the part of `honcho.Peer` that is used."""

    def message(self, content: str) -> object: ...
    def representation(self, *, search_query: str, search_top_k: int) -> str: ...


class HonchoSession(Protocol):
    """A conversation: the part of `honcho.Session` that is used."""

    def add_messages(self, messages: Sequence[object]) -> object: ...


class Honcho(Service):
    """A service that derives a model of the user from their messages."""

    name = "Honcho"

    def __init__(self, peers: Mapping[str, HonchoPeer], session: HonchoSession) -> None:
        self._peers = peers
        self._session = session

    def keep(self, said: Said) -> None:
        self._session.add_messages([self._peers[s["role"]].message(s["content"]) for s in said])

    def prefetch(self, query: str) -> str:
        user = self._peers["user"]
        return user.representation(search_query=query, search_top_k=MOST_RECALLED)


# The signature of all providers.
def open_honcho(home: Path, settings: Mapping[str, Json]) -> Service:  # noqa: ARG001
    """Return the provider `honcho`; raise `ConfigError` if its client is not installed."""
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
