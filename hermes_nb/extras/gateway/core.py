"""The gateway's adapter protocol, its data classes, and adapter discovery.

An adapter connects to one service. It is a factory in the entry point group
`hermes_nb.gateway_adapters`, called as `factory(setup)` when the gateway starts; built-in adapters
need no entry point. Adapters don't know about sessions, turns or the journal.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Literal, Protocol

from hermes_nb.agent.settings.config import Settings
from hermes_nb.agent.settings.files import read_dotenv
from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.escapes import visible
from hermes_nb.core.files import make_private, write_atomic
from hermes_nb.core.messages import Json
from hermes_nb.core.plugins import plugins
from hermes_nb.safety.administrator import policy

Allowed = Callable[[str, str], bool]
"""Returns whether the gateway accepts messages from a user in a chat, given their ids."""
GROUP = "hermes_nb.gateway_adapters"
SHIPPED = ("mail", "matrix", "telegram", "web")
"""Built-in adapters: each is the function `adapter` in the module of that name."""
Binding = Literal["order", "reply", "number"]
"""How a service's messages are matched to the question that they answer. A reply to the question
always matches; in addition:

`order`: a message after the question matches. `reply`: no other message does. `number`: a message
that contains the question's number does.
"""
MAX_BYTES = 20_000_000
LONGEST_NAME = 200
"""Maximum bytes in a file name. File systems allow 255, including added prefixes."""


class NotSent(HermesError):
    """A message was definitely not sent, so sending it again cannot create a duplicate."""


class Undeliverable(HermesError):
    """The service will never accept the message, such as a file that is too large.

    The error's message gives the reason.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file attached to a message."""

    name: str
    """The file name given by the sender."""
    data: bytes = field(repr=False)
    """The contents."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A message as delivered by a service.

    `replies_to` and `after` are looked up among the messages sent by the gateway, never taken from
    the sender.
    """

    id: str
    """The service's id for the message, unique per adapter and the same when delivered again."""
    chat: str
    """Id of the chat. Each chat has its own session."""
    user: str
    """The sender's id, as in the allow-list."""
    text: str
    """The user's own text."""
    quoted: str = ""
    """Text written by someone else, such as a forwarded or earlier message."""
    files: tuple[File, ...] = ()
    """Attached files."""
    left_out: tuple[str, ...] = ()
    """Attachments that were not accepted, with the reason."""
    receipt: str = ""
    """Data that the adapter needs to acknowledge the message."""
    replies_to: str = ""
    """If the message is a reply, `Answer.key` of the message replied to, or any other text if the
    gateway did not send that; otherwise ""."""
    after: str = ""
    """Key of the last answer above the message in the chat, in the service's order; "" if unknown.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A message to a chat: text or a file."""

    chat: str
    """Id of the chat."""
    text: str = ""
    """Text in Markdown; "" for a file."""
    file: Path | None = None
    """The file to send; None for text."""
    key: str
    """Unique key that stays the same when sent again; services de-duplicate by it."""
    to: str = ""
    """Id of the message that this answers; "" if none."""
    again: bool = False
    """Whether it may have been sent before and must be marked as a possible duplicate."""


class Adapter(Protocol):
    """One service, running in the gateway's event loop.

    Blocking calls go to `core.threads.in_thread`. Subclasses inherit defaults for the optional
    parts.
    """

    name: str
    """Name of the adapter, as in the settings."""
    deduplicates: bool = False
    """Whether the service displays messages with the same key only once."""
    most: int = 0
    """Maximum text length in UTF-16 units, or 0 for no limit; longer answers are sent in parts."""
    binding: Binding = "number"
    """How answers are matched to questions."""
    unasked: str = ""
    """The reason this service cannot ask questions, or "" if it can. Every call that requires
    approval is refused with this reason."""

    def receive(self) -> AsyncGenerator[Incoming, None]:
        """Yield messages as they arrive, in order per chat, until it is closed.

        Requesting the next message confirms that the previous one is stored and will be answered.
        Fetch files only if `Setup.allowed` accepts the user. If the service is unavailable, wait
        here with increasing pauses. `ConfigError` ends the gateway; any other error is reported,
        and this is called again after a pause.
        """
        ...

    async def send(self, answer: Answer) -> None:
        """Send a message without splitting it.

        After an error, the message is sent again after a pause: unchanged after `NotSent`; after
        any other error with `again`, if the service does not de-duplicate.

        Raises:
            Undeliverable: do not try again.
        """
        ...

    async def acknowledge(self, message: Incoming) -> None:
        """Tell the service that a message has been answered, so that it is not delivered again.

        Called once the answer has been sent and recorded, and whenever an answered message is
        delivered again. Errors are reported and otherwise ignored.
        """
        return

    async def working(self, chat: str) -> None:
        """Show a typing indicator in a chat. Called every few seconds; optional."""
        return

    async def aclose(self) -> None:
        """Close the connection; `receive` has already ended."""
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """An adapter's parameters."""

    name: str
    """Name of the adapter."""
    settings: Mapping[str, Json]
    """The settings under `gateway.NAME` in config.yaml."""
    folder: Path
    """Directory for the adapter's state, such as its position in a stream. Created on demand."""
    secret: Callable[[str], str]
    """Returns an environment or `.env` variable; raises `ConfigError` if it is not set."""
    allowed: Allowed
    """The allow-list."""
    tell: Callable[[str], None]
    """Prints a line for the operator."""
    max_bytes: int = MAX_BYTES
    """Maximum size of an accepted file."""


def secret_of(home: Path, name: str) -> str:
    """Return an environment or `.env` variable; raise `ConfigError` if it is not set."""
    value = os.environ.get(name) or read_dotenv(home).get(name, "")
    if not value:
        raise ConfigError(f"{name} is not set; add it to {home / '.env'}")
    return value


def adapter_names(settings: Settings) -> list[str]:
    """Return the names of the configured adapters: the groups under `gateway`."""
    given = settings.gateway.items()
    return [name for name, group in given if isinstance(group, Mapping) or name in SHIPPED]


def open_adapter(
    name: str, settings: Settings, tell: Callable[[str], None]
) -> tuple[Adapter, Allowed]:
    """Return the adapter configured under `gateway.NAME`, and its allow-list.

    The web page needs no settings.

    Raises:
        ConfigError: the adapter is unknown, not allowed or not configured correctly.
    """
    policy().check("gateway", name)
    group = settings.gateway.get(name)
    group = {} if name == "web" and group is None else group
    points = [] if name in SHIPPED else plugins(GROUP, name)
    if not (points or name in SHIPPED):
        known = ", ".join(sorted({*SHIPPED, *(point.name for point in plugins(GROUP))}))
        raise ConfigError(f"there is no adapter {name!r}; use one of {known}")
    if not isinstance(group, Mapping):
        raise ConfigError(f"gateway.{name} is not set up in {settings.home / 'config.yaml'}")
    users, chats = _listed(name, group, "allow"), _listed(name, group, "chats")
    if not users:
        raise ConfigError(
            f"gateway.{name}.allow is empty; list the users who may write to Hermes there"
        )

    def allowed(user: str, chat: str) -> bool:
        return user in users and (not chats or chat in chats)

    try:
        factory = points[0].load() if points else import_module(f"{__package__}.{name}").adapter
    except ImportError as error:
        how = "" if points else f"; pip install 'hermes_nb[{name}]'"
        raise ConfigError(f"the adapter {name!r} cannot be loaded: {error}{how}") from error
    made: Adapter = factory(
        Setup(
            name=name,
            settings=group,
            folder=settings.home / "gateway" / name,
            secret=lambda variable: secret_of(settings.home, variable),
            allowed=allowed,
            tell=tell,
            max_bytes=int(number_in(settings.gateway, "max_bytes", MAX_BYTES)),
        )
    )
    return made, allowed


def _listed(name: str, group: Mapping[str, Json], key: str) -> frozenset[str]:
    """Return the ids in a setting as strings; raise `ConfigError` if it is not a list."""
    given = group.get(key, ["you"] if (name, key) == ("web", "allow") else [])
    if not isinstance(given, list):
        raise ConfigError(f"gateway.{name}.{key} is {given!r}; use a list")
    return frozenset(map(str, given))


def plain_name(name: str) -> str:
    """Return a safe file name that keeps the sender's suffix."""
    plain = re.sub(r"[^\w.-]+", "_", visible(name)).encode()[-LONGEST_NAME:]
    return plain.decode(errors="ignore").lstrip(".") or "file"


def keep_file(path: Path, data: bytes) -> Path:
    """Write a file that only its owner can read, and return its path."""
    make_private(path.parent)
    write_atomic(path, data, mode=0o600)
    return path


def files_of(home: Path, adapter: str, message: str) -> Path:
    """Return the folder for a message's files, those received and those sent with the answer."""
    return home / "outputs" / "gateway" / key_of(adapter, message)[:16]


def number_in(
    group: Mapping[str, object], key: str, default: float, *, of: str = "gateway"
) -> float:
    """Return a non-negative number from the settings group `of`; raise `ConfigError` otherwise."""
    value = group.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ConfigError(f"{of}.{key} is {value!r}; use a number, 0 or more")
    return value


def key_of(*parts: str) -> str:
    """Return a short key that is unique to these parts."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
