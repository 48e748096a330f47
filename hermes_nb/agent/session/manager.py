"""Which conversation a kernel is in: started, resumed after a restart, joined, ended, forgotten.

What is forgotten goes whole: rows, index, kept outputs, undo data.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Literal, cast
from urllib.parse import urlsplit

from hermes_nb.agent.session.session import CHILD, REVIEW, Identity, Session, SessionSpec
from hermes_nb.agent.settings.config import Settings
from hermes_nb.agent.undo.checkpoints import Checkpoints
from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.escapes import visible
from hermes_nb.core.json_values import canonical_json
from hermes_nb.core.messages import Message
from hermes_nb.core.plugins import loaded, plugins
from hermes_nb.core.protocols import STORES, SessionStore, StoredSession, StoreSetup
from hermes_nb.core.text import (
    CHARACTERS_PER_TOKEN,
    JSON_CHARACTERS_PER_TOKEN,
    estimate_tokens,
    number_of,
    one_line,
)
from hermes_nb.core.tools import Toolset
from hermes_nb.memory.rows import encode
from hermes_nb.memory.sessions import Ledger, SqliteStore
from hermes_nb.models.profiles import traits_of

Kind = Literal["prompt", "tools", "conversation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A part of the next request: `tokens` are estimated, `text` is what is sent of a layer."""

    name: str
    kind: Kind
    tokens: int
    text: str = ""


def shares(session: Session) -> list[Share]:
    """Return what the next request of a session consists of, in the order it is sent."""
    found = [
        Share(name=layer.name, kind="prompt", tokens=text_tokens(layer.text), text=layer.text)
        for layer in session.prompt.layers
    ]
    tools = traits_of(session.agent.model).offered(session.agent.tools)
    if len(tools):
        name = f"{len(tools)} tool schemas"
        found.append(Share(name=name, kind="tools", tokens=schema_tokens(tools)))
    return found + _conversation(session.agent.messages)


def size(session: Session) -> tuple[int, bool]:
    """Return the next prompt's tokens, and whether most of them have been counted.

    Before anything was, it is the sum of its parts: the agent's own estimate leaves out the schemas
    of the tools.
    """
    agent = session.agent
    head = [Message.system(agent.system)] if agent.system else []
    known = agent.prompt_tokens()
    if known != estimate_tokens([*head, *agent.messages]):
        return known, True
    return sum(share.tokens for share in shares(session)), False


def text_tokens(text: str) -> int:
    """Return a rough count of the tokens that a text costs."""
    return round(len(text) / CHARACTERS_PER_TOKEN)


def schema_tokens(tools: Toolset) -> int:
    """Return a rough count of the tokens that the schemas of tools cost."""
    told = [
        {"name": t.name, "description": t.description, "parameters": t.parameters} for t in tools
    ]
    return round(len(canonical_json(told)) / JSON_CHARACTERS_PER_TOKEN)


def _conversation(messages: Sequence[Message]) -> list[Share]:
    groups = {
        "your messages": [m for m in messages if m.role == "user"],
        "answers and calls": [m for m in messages if m.role == "assistant"],
        "tool results": [m for m in messages if m.role == "tool"],
    }
    return [
        Share(name=name, kind="conversation", tokens=estimate_tokens(group))
        for name, group in groups.items()
        if group
    ]


LOOKED_AT = 500
"""So many of the latest sessions are searched for a title."""


class SessionManager:
    """The current session, and the ways to another one.

    `store` is opened and `notebook` looked up on first use; `note` shows a line to the user.
    """

    def __init__(
        self,
        *,
        store: Callable[[], SessionStore],
        notebook: Callable[[], str],
        source: str,
        note: Callable[[str], None],
        entered: Callable[[Session], None] = lambda _: None,
    ) -> None:
        self.current: Session | None = None
        self._store = store
        self._notebook = notebook
        self.source = source
        self._note = note
        self._entered = entered

    def relocate(self, notebook: str, to: str) -> None:
        """Let the sessions of a notebook that was renamed go along; those of a copied one stay."""
        if Path(notebook).exists():
            return
        try:
            self._store().relocate(notebook, to)
        except HermesError as error:
            self._note(f"this notebook's earlier sessions stay with its old name: {error}")
        if self.current is not None:
            self.current.relocate(notebook, to)

    def end(self) -> None:
        """End the current session; the next turn begins another."""
        if self.current is not None:
            self.current.end()
        self.current = None

    def _enter(self, session: Session) -> Session:
        """Go on with a session; the one before it lets go of what it needed."""
        if self.current is not None:
            self.current.leave()
        self.current = session
        self._entered(session)
        return session

    def start(self, title: str, spec: SessionSpec) -> Session:
        """Begin a session and make it the current one."""
        session = Session.start(
            store=self._store(),
            spec=spec,
            identity=Identity(source=self.source, notebook=self._notebook(), title=title),
            warn=self._note,
        )
        return self._enter(session)

    def join(self, name: str, spec: SessionSpec) -> Session:
        """Go on with the session of that id or title, or start one with that title."""
        if self.current is not None and self._is(self.current, name):
            return self.current
        stored = self._find(name) or self._branched(name)
        return self._resumed(stored, spec) if stored else self.start(name, spec)

    def _branched(self, name: str) -> StoredSession | None:
        """Return a new session `A.B` that goes on from where session `A` stands, if there is one.

        It begins with the same prompt and messages, so that a provider's cache holds.
        """
        store, trunk = self._store(), self._trunk(name)
        if trunk is None:
            return None
        branch = store.start(
            title=name,
            source=trunk.source,
            notebook=self._notebook() or trunk.notebook,
            model=trunk.model,
            system_prompt=trunk.system_prompt,
            parent=trunk.id,
        )
        store.replace(branch, store.messages(trunk.id))
        return store.get(branch)

    def _trunk(self, name: str) -> StoredSession | None:
        """Return the session `A` that a session `A.B` branches off."""
        above, dot, _ = name.rpartition(".")
        found = self._find(above) if dot else None
        return None if found is None or found.source in (CHILD, REVIEW) else found

    def resume(self, wanted: str, spec: SessionSpec) -> Session:
        """Go on with the session of that id or title; "" is the latest, of this notebook if any.

        Raises `ConfigError` when there is none.
        """
        return self._resumed(self.find(wanted), spec)

    def find(self, wanted: str, *, loosely: bool = True) -> StoredSession:
        """Return the session of that id or title; "" is the latest, of this notebook if any.

        A part of a title will do, if `loosely`. Children of a conversation, child agents and maps,
        go by their whole id. Raises `ConfigError` when there is none, or more than one.
        """
        if not wanted:
            if (latest := self._latest()) is None:
                raise ConfigError("there is no session yet")
            return latest
        store = self._store()
        found = matching(store, wanted) or (resembling(store, wanted) if loosely else [])
        if not found:
            message = f"there is no session {wanted!r}; `%hermes sessions` lists them"
            raise ConfigError(message)
        if len(found) > 1:
            lines = [f"  {each.id}  {one_line(visible(each.title), 80)}" for each in found[:8]]
            raise ConfigError("\n".join([f"{len(found)} sessions are like {wanted!r}:", *lines]))
        return found[0]

    def pick_up(self, spec: SessionSpec) -> Session | None:
        """Go on where this notebook's last session stopped, if it was not ended."""
        latest = self.left_off()
        if latest is None:
            return None
        self._note(
            f"Resumed this notebook's session ({number_of(latest.messages, 'message')}, "
            f"“{latest.title}”). `%hermes new` starts afresh."
        )
        return self._resumed(latest, spec)

    def left_off(self) -> StoredSession | None:
        """Return this notebook's last session, if it was not ended."""
        notebook = self._notebook()
        if not notebook:
            return None
        try:
            latest = next(iter(self._store().sessions(notebook=notebook, limit=1)), None)
        except HermesError as error:
            self._note(f"earlier sessions cannot be read: {error}")
            return None
        if latest is None or latest.ended is not None or not latest.messages:
            return None
        return latest

    def foresee(self, name: str, *, new: bool, afresh: bool) -> Session | StoredSession | None:
        """Return what a turn would go on with, and change nothing; None for a new session.

        `name` and `new` are the turn's wishes; `afresh` is a kernel that picks nothing up.
        """
        if new and not name:
            return None
        if name:
            if self.current is not None and not new and self._is(self.current, name):
                return self.current
            found = self._find(name) or self._trunk(name)
            if found is not None and found.source == CHILD:
                raise ConfigError(_is_child(found))
            return found
        return self.current or (None if afresh else self.left_off())

    def _resumed(self, stored: StoredSession, spec: SessionSpec) -> Session:
        if stored.source == CHILD:
            raise ConfigError(_is_child(stored))
        session = Session.resume(
            stored,
            store=self._store(),
            spec=spec,
            warn=self._note,
        )
        return self._enter(session)

    def _is(self, session: Session, name: str) -> bool:
        stored = self._store().get(session.id)
        return name == session.id or (stored is not None and name == stored.title)

    def _latest(self) -> StoredSession | None:
        notebook = self._notebook()
        here = self._store().sessions(notebook=notebook, limit=1) if notebook else []
        return next(iter(here or self._store().sessions(limit=1)), None)

    def _find(self, wanted: str) -> StoredSession | None:
        return next(iter(matching(self._store(), wanted)), None)


def matching(store: SessionStore, wanted: str) -> list[StoredSession]:
    """Return the session of that id or the latest of that title, else those whose ids begin so."""
    if (exact := store.get(wanted)) is not None:
        return [exact]
    recent = store.sessions(limit=LOOKED_AT)
    named = [each for each in recent if each.title == wanted]
    return named[:1] or [each for each in recent if wanted and each.id.startswith(wanted)]


def resembling(store: SessionStore, wanted: str) -> list[StoredSession]:
    """Return the sessions whose titles begin so, else those that have it in their titles."""
    typed = wanted.casefold()
    recent = [each for each in store.sessions(limit=LOOKED_AT) if each.source != REVIEW]
    found = [each for each in recent if typed in each.title.casefold()]
    return [each for each in found if each.title.casefold().startswith(typed)] or found


def reviews_of(store: SessionStore, session_id: str) -> tuple[StoredSession, ...]:
    """Return the reviews of a session, the latest first; raise `StoreError`."""
    family = map(store.get, store.lineage(session_id))
    found = [row for row in family if row and row.source == REVIEW and row.parent == session_id]
    return tuple(reversed(found))


def the_one(store: SessionStore, wanted: str) -> StoredSession | None:
    """Return the session that matches, None without; raise `ConfigError` for several."""
    found = matching(store, wanted)
    if len(found) > 1:
        message = f"several sessions begin with {wanted!r}; `jupyter hermes sessions` lists them"
        raise ConfigError(message)
    return found[0] if found else None


def _is_child(stored: StoredSession) -> str:
    """Return why what was made for one task is not gone on with, and what to do instead."""
    told = f"{stored.id} was made for one task: `%hermes history {stored.id}` shows it"
    if not stored.parent:
        return told
    return f"{told}, `%hermes resume {stored.parent}` goes on with the session it belongs to"


DAY = 86_400.0
ALL = 1_000_000
"""More sessions than there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Sessions with their reviews and child agents, in bytes of messages, and their files."""

    sessions: tuple[str, ...]
    asked: int
    messages: int
    size: int
    outputs: frozenset[Path]

    def __str__(self) -> str:
        """Return how much it is."""
        amount = f"{number_of(self.messages, 'message')}, {self.size / 1e6:.1f} MB"
        return f"{number_of(self.asked, 'session')} ({amount})"


def older(store: SessionStore, days: float, *, but: str = "") -> list[StoredSession]:
    """Return the sessions that nobody has written to for so many days, without one of them."""
    before = time.time() - days * DAY
    return [each for each in store.sessions(limit=ALL) if each.written < before and each.id != but]


def gather(store: SessionStore, home: Path, wanted: Iterable[StoredSession]) -> Gathered:
    """Return what goes with these sessions."""
    asked = {each.id for each in wanted}
    found = dict.fromkeys(asked)
    for session in asked:
        for each in map(store.get, store.lineage(session)):  # the eldest first
            if each is not None and each.parent in found and each.source in (CHILD, REVIEW):
                found[each.id] = None
    messages = [row.message for session in found for row in store.rows(session)]
    named = re.compile(re.escape(str(home / "outputs")) + r"[\\/]([\w-]+\.txt)")
    names = {name for message in messages for name in named.findall(message.text)}
    return Gathered(
        sessions=tuple(found),
        asked=len(asked),
        messages=len(messages),
        size=sum(len(encode(message)) for message in messages),
        outputs=frozenset(home / "outputs" / name for name in names),
    )


def forget(store: SessionStore, home: Path, what: Gathered, *, days: float = 0.0) -> None:
    """Remove it from the disk, and the results of maps older than `days`, if that is given."""
    for path in what.outputs:
        path.unlink(missing_ok=True)
    Checkpoints(home / "checkpoints").forget(what.sessions)
    for session in what.sessions:
        store.delete(session)
    store.purge(before=time.time() - days * DAY if days else 0.0)


def keep_days(store: SessionStore, settings: Settings) -> None:
    """Forget what is older, by a connection apart; the next to use `store` hears of it."""
    days = settings.keep_days
    with suppress(HermesError, OSError), closing(own_store(settings)) as apart:
        if old := older(apart, days):
            what = gather(apart, settings.home, old)
            forget(apart, settings.home, what, days=days)
            if isinstance(store, Ledger):
                told = f"deleted {what} older than {days} days (store.keep_days)"
                store.database.warnings.append(told)


def own_store(settings: Settings, warn: Callable[[str], None] | None = None) -> SessionStore:
    """Return the store that the settings name; raise `ConfigError` for one that is not installed.

    Claims, and whatever else is of one machine alone, stay in the home's file in any case.
    """
    file, url = settings.home / "notebook.db", settings.session_store
    if not url:
        return SqliteStore(file, warn=warn)
    point = next(iter(plugins(STORES, urlsplit(url).scheme)), None)
    if point is None:
        raise ConfigError(f"nothing that is installed keeps sessions at {urlsplit(url).scheme}:")
    make = cast("Callable[[StoreSetup], SessionStore]", loaded(point))
    return make(StoreSetup(url=url, claims=file, password=settings.store_password, warn=warn))


def is_stored(settings: Settings) -> bool:
    """Say whether there may be sessions: to look is no reason to make a file."""
    return bool(settings.session_store) or (settings.home / "notebook.db").exists()


def open_store(settings: Settings, warn: Callable[[str], None]) -> SessionStore:
    """Return the session store; nothing is created before something is stored.

    `warn` hears of damage that was repaired, and of what could not be; and, as this is done once,
    of settings that nothing reads, and of those that the administrator's policy does not let count.
    """
    for line in (*settings.unknown, *settings.held.values()):
        warn(line)
    store = own_store(settings, warn)
    if settings.keep_days and is_stored(settings):
        Thread(target=keep_days, args=(store, settings), name="hermes-forget", daemon=True).start()
    return store
