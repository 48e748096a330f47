"""What an adapter of the gateway is: values in and out, the protocol, and how one is found.

An adapter speaks to one service. It is a factory under the entry point group
`hermes_nb.gateway_adapters`, called as `factory(setup)` when the gateway starts; those of this
package are there without one. What it makes knows nothing of sessions, turns or the journal.
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
from hermes_nb.agent.settings.dotenv import read_dotenv
from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.escapes import visible
from hermes_nb.core.files import make_private, write_atomic
from hermes_nb.core.messages import Json
from hermes_nb.core.plugins import plugins
from hermes_nb.safety.administrator import policy

Allowed = Callable[[str, str], bool]
"""Says whether the gateway listens to a user, in a chat."""
GROUP = "hermes_nb.gateway_adapters"
SHIPPED = ("mail", "matrix", "telegram", "web")
"""Adapters of this package: the function `adapter` of the module of that name."""
Binding = Literal["order", "reply", "number"]
"""What ties a message to the question that it answers, besides a reply to that question: it stands
below the question in the order of the service, nothing else, or the number of the question."""
MAX_BYTES = 20_000_000
LONGEST_NAME = 200
"""Bytes of a file's name; file systems take 255, with what is put around it."""


class NotSent(HermesError):
    """A message was surely not sent, so that sending it again makes no second copy."""


class Undeliverable(HermesError):
    """A message will never be taken, such as a file that is too large; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A file that came with a message, by the name that its sender gave it."""

    name: str
    data: bytes = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Incoming:
    """A message as a service delivered it.

    `id` is the service's own, one of a kind among all that an adapter delivers, and the same when
    it is delivered again. A session is kept for each `chat`; `user` is whom the allow-list names.
    `text` is what the user wrote, `quoted` what somebody else did: a forwarded or an earlier
    message. `left_out` names what came along and was not taken, with the reason. `receipt` is
    whatever else the adapter needs to acknowledge it.

    `replies_to` is the `Answer.key` of the message that this one replies to, or any other text if
    that message is not one of the gateway's; "" without a reply. `after` is the key of the last
    answer above it in the chat, by the order of the service, "" where that is not known. Both are
    looked up among the messages that were sent, never taken from the sender.
    """

    id: str
    chat: str
    user: str
    text: str
    quoted: str = ""
    files: tuple[File, ...] = ()
    left_out: tuple[str, ...] = ()
    receipt: str = ""
    replies_to: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A message to a chat: a text in Markdown, or a file.

    `key` is one of a kind, and the same when it is sent again: what a service de-duplicates by.
    `to` is the id of the message that it answers, "" where it answers none. `again` says that it
    may have been sent before, where nothing de-duplicates: it is to be marked as a possible copy.
    """

    chat: str
    text: str = ""
    file: Path | None = None
    key: str
    to: str = ""
    again: bool = False


class Adapter(Protocol):
    """One service, in the event loop of the gateway; blocking calls go to `core.threads.in_thread`.

    Subclass it to inherit what an adapter need not have. `deduplicates` says whether the service
    shows what is sent twice with one key only once, and `most` how long a text may be, in UTF-16
    units, 0 for any length: longer answers come in parts. `binding` says what an answer to a
    question needs. `unasked` is the reason why no question is put there, "" where they are: every
    call that requires approval is refused with it.
    """

    name: str
    deduplicates: bool = False
    most: int = 0
    binding: Binding = "number"
    unasked: str = ""

    def receive(self) -> AsyncGenerator[Incoming, None]:
        """Yield messages as they come, of each chat in order, until it is closed.

        Asking for the next one says that the one before is written down and will be answered,
        whatever happens. Files are fetched only where `Setup.allowed` lets their user. A service
        that is away is waited for here, with a growing pause. `ConfigError` ends the gateway;
        whatever else is raised is reported, and this is called again after a pause.
        """
        ...

    async def send(self, answer: Answer) -> None:
        """Send a message, in one piece.

        What is raised has it sent again after a pause: `NotSent` as it is, anything else `again`
        where the service does not de-duplicate. `Undeliverable` gives it up.
        """
        ...

    async def acknowledge(self, message: Incoming) -> None:
        """Tell the service that a message is answered, by now without what was said.

        It is called after the answer was sent and that is written down, and again when an answered
        message is delivered again. What it raises is told, and changes nothing.
        """
        return

    async def working(self, chat: str) -> None:
        """Show in a chat that an answer is being made; called every few seconds, may do nothing."""
        return

    async def aclose(self) -> None:
        """Release the connection; `receive` has ended or is closed before."""
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What an adapter is made of.

    `settings` are those below `gateway.NAME` in config.yaml, `folder` is a directory of its own
    (not there before it is made) for what it has to remember, such as where it stopped reading. No
    file of more than `max_bytes` is taken. `secret` returns a variable of the environment or of
    `.env`, and raises `ConfigError` where it is not set. `tell` shows a line to whoever runs it.
    """

    name: str
    settings: Mapping[str, Json]
    folder: Path
    secret: Callable[[str], str]
    allowed: Allowed
    tell: Callable[[str], None]
    max_bytes: int = MAX_BYTES


def secret_of(home: Path, name: str) -> str:
    """Return a variable of the environment or of the home's `.env`; raise `ConfigError` without."""
    value = os.environ.get(name) or read_dotenv(home).get(name, "")
    if not value:
        raise ConfigError(f"{name} is not set; write it into {home / '.env'}")
    return value


def adapter_names(settings: Settings) -> list[str]:
    """Return the adapters that are set up: the groups below `gateway`."""
    given = settings.gateway.items()
    return [name for name, group in given if isinstance(group, Mapping) or name in SHIPPED]


def open_adapter(
    name: str, settings: Settings, tell: Callable[[str], None]
) -> tuple[Adapter, Allowed]:
    """Return the adapter that `gateway.NAME` sets up, and whom it says to listen to.

    The web page needs no such group. Raises `ConfigError`.
    """
    policy().check("gateway", name)
    group = settings.gateway.get(name)
    group = {} if name == "web" and group is None else group
    points = [] if name in SHIPPED else plugins(GROUP, name)
    if not (points or name in SHIPPED):
        known = ", ".join(sorted({*SHIPPED, *(point.name for point in plugins(GROUP))}))
        raise ConfigError(f"there is no adapter {name!r}; there are {known}")
    if not isinstance(group, Mapping):
        raise ConfigError(f"gateway.{name} is not set up in {settings.home / 'config.yaml'}")
    users, chats = _listed(name, group, "allow"), _listed(name, group, "chats")
    if not users:
        raise ConfigError(f"gateway.{name}.allow names nobody; list who may write to Hermes there")

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
    """Return the ids that a setting lists, as texts; raise `ConfigError` for what is no list."""
    given = group.get(key, ["you"] if (name, key) == ("web", "allow") else [])
    if not isinstance(given, list):
        raise ConfigError(f"gateway.{name}.{key} is {given!r}; use a list")
    return frozenset(map(str, given))


def plain_name(name: str) -> str:
    """Return a name that means nothing but a file, with the ending that its sender gave it."""
    plain = re.sub(r"[^\w.-]+", "_", visible(name)).encode()[-LONGEST_NAME:]
    return plain.decode(errors="ignore").lstrip(".") or "file"


def keep_file(path: Path, data: bytes) -> Path:
    """Write a file that came, or that goes, for its owner alone; return where it is."""
    make_private(path.parent)
    write_atomic(path, data, mode=0o600)
    return path


def files_of(home: Path, adapter: str, message: str) -> Path:
    """Return the folder for what came with a message, and for what goes with its answer."""
    return home / "outputs" / "gateway" / key_of(adapter, message)[:16]


def number_in(
    group: Mapping[str, object], key: str, default: float, *, of: str = "gateway"
) -> float:
    """Return a number, 0 or more, of the settings of a group `of`; raise `ConfigError`."""
    value = group.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ConfigError(f"{of}.{key} is {value!r}; use a number, 0 or more")
    return value


def key_of(*parts: str) -> str:
    """Return a short key that is the same for the same parts, and no others'."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:32]
