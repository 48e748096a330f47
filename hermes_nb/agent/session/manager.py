"""The kernel's current session: start, resume after a restart, join, end."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hermes_nb.agent.session.session import CHILD, REVIEW, Identity, Session, SessionSpec
from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.escapes import visible
from hermes_nb.core.protocols import SessionStore, StoredSession
from hermes_nb.core.text import number_of, one_line

LOOKED_AT = 500
"""Number of recent sessions that are searched for a title."""


class SessionManager:
    """The current session, and the operations that switch to a different one.

    Args:
        store: the session store
        notebook: the notebook's path, or "" if unknown; `relocate` changes it
        source: the kind of caller, as in `Identity`
        note: shows a line to the user
        entered: called with each session that becomes the current one
    """

    def __init__(
        self,
        *,
        store: SessionStore,
        notebook: str,
        source: str,
        note: Callable[[str], None],
        entered: Callable[[Session], None] = lambda _: None,
    ) -> None:
        self.current: Session | None = None
        self._held: list[Session] = []  # those in which turns run
        self._parting: dict[Session, Callable[[], None]] = {}
        self._store = store
        self._notebook = notebook
        self.source = source
        self._note = note
        self._entered = entered

    def relocate(self, notebook: str, to: str) -> None:
        """Assign a renamed notebook's sessions to its new path, unless it was only copied.

        Both arguments are paths, or "" if unknown.
        """
        self._notebook = to
        if not (notebook and to) or Path(notebook).exists():
            return
        try:
            self._store.relocate(notebook, to)
        except HermesError as error:
            self._note(
                f"this notebook's earlier sessions could not be moved to its new name: {error}"
            )
        for session in (self.current, *self._held):
            if session is not None:
                session.relocate(notebook, to)

    def end(self) -> None:
        """End the current session; the next turn starts another."""
        if self.current is not None:
            self._release_after_turn(self.current, self.current.end)
        self.current = None

    @property
    def used(self) -> set[str]:
        """The ids of the current session and of those in which turns run."""
        return {each.id for each in (self.current, *self._held) if each is not None}

    def release(self, session: Session) -> None:
        """Note that a session's turn, for which `take_up` returned it, has ended."""
        self._held.remove(session)
        if (parted := self._parting.pop(session, None)) is not None:
            parted()

    def _release_after_turn(self, session: Session, leave: Callable[[], None]) -> None:
        """Leave or end a session, at the end of a turn that is running in it."""
        if session in self._held:
            self._parting[session] = leave
        else:
            leave()

    def _enter(self, session: Session) -> Session:
        """Make a session the current one and release the previous one."""
        if self.current is not None and self.current is not session:
            self._release_after_turn(self.current, self.current.leave)
        self._parting.pop(session, None)
        self.current = session
        self._entered(session)
        return session

    def start(self, title: str, spec: SessionSpec) -> Session:
        """Start a session and make it the current one."""
        session = Session.start(
            store=self._store,
            spec=spec,
            identity=Identity(source=self.source, notebook=self._notebook, title=title),
            warn=self._note,
        )
        return self._enter(session)

    def take_up(
        self, title: str, spec: SessionSpec, *, name: str, new: bool, afresh: bool
    ) -> Session:
        """Return the session for a turn and make it the current one.

        See `expected`. A new session gets `title` as its title. Call `release` at the end
        of the turn: until then, the session stays open, even if another one becomes the current
        one.
        """
        if name:
            session = self.join(name, spec)
        else:
            found = None if new else self.current
            if found is None and not new and not afresh:
                found = self.pick_up(spec)
            session = found or self.start(title, spec)
        session.adopt(spec)
        self._held.append(session)
        return session

    def join(self, name: str, spec: SessionSpec) -> Session:
        """Resume the session with that id or title, or start one with that title."""
        if self.current is not None and self._is(self.current, name):
            return self.current
        stored = self._find(name) or self._branched(name)
        return self._resumed(stored, spec) if stored else self.start(name, spec)

    def _branched(self, name: str) -> StoredSession | None:
        """Return a new session `A.B` that continues a copy of `A`, or None if `A` is missing.

        It has the same prompt and messages, so that the provider's prompt cache stays valid.
        """
        store, trunk = self._store, self._trunk(name)
        if trunk is None:
            return None
        branch = store.start(
            title=name,
            source=trunk.source,
            notebook=self._notebook or trunk.notebook,
            model=trunk.model,
            system_prompt=trunk.system_prompt,
            parent=trunk.id,
        )
        store.replace(branch, store.messages(trunk.id))
        return store.get(branch)

    def _trunk(self, name: str) -> StoredSession | None:
        """Return the session `A` that a session `A.B` branches off, or None if missing."""
        above, dot, _ = name.rpartition(".")
        found = self._find(above) if dot else None
        return None if found is None or found.source in (CHILD, REVIEW) else found

    def resume(self, wanted: str, spec: SessionSpec) -> Session:
        """Resume the session with that id or title; "" is the latest, preferably this notebook's.

        Raises `ConfigError` if there is no such session.
        """
        return self._resumed(self.find(wanted), spec)

    def find(self, wanted: str, *, loosely: bool = True) -> StoredSession:
        """Return the session with that id or title; "" is the latest, preferably this notebook's.

        With `loosely`, part of the title is enough. Sessions of child agents and maps are found
        only by their full id. Raises `ConfigError` if there is no match, or more than one.
        """
        if not wanted:
            if (latest := self._latest()) is None:
                raise ConfigError("there is no session yet; send a prompt first")
            return latest
        store = self._store
        found = matching(store, wanted) or (resembling(store, wanted) if loosely else [])
        if not found:
            message = f"there is no session {wanted!r}; `%hermes sessions` lists them"
            raise ConfigError(message)
        if len(found) > 1:
            lines = [f"  {each.id}  {one_line(visible(each.title), 80)}" for each in found[:8]]
            raise ConfigError("\n".join([f"{len(found)} sessions match {wanted!r}:", *lines]))
        return found[0]

    def pick_up(self, spec: SessionSpec) -> Session | None:
        """Resume this notebook's last session, unless it was ended."""
        latest = self.left_off()
        if latest is None:
            return None
        self._note(
            f"Resumed this notebook's session ({number_of(latest.messages, 'message')}, "
            f"“{latest.title}”). `%hermes new` starts afresh."
        )
        return self._resumed(latest, spec)

    def left_off(self) -> StoredSession | None:
        """Return this notebook's last session, or None if it was ended or is empty."""
        notebook = self._notebook
        if not notebook:
            return None
        try:
            latest = next(iter(self._store.sessions(notebook=notebook, limit=1)), None)
        except HermesError as error:
            self._note(f"earlier sessions cannot be read: {error}")
            return None
        if latest is None or latest.ended is not None or not latest.messages:
            return None
        return latest

    def expected(self, name: str, *, new: bool, afresh: bool) -> Session | StoredSession | None:
        """Return the session that a turn would use, or None for a new one; change nothing.

        `name` and `new` are the turn's options. With `afresh`, an earlier session is resumed only
        by name.
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
        session = next((each for each in self._held if each.id == stored.id), None)
        return self._enter(
            session or Session.resume(stored, store=self._store, spec=spec, warn=self._note)
        )

    def _is(self, session: Session, name: str) -> bool:
        stored = self._store.get(session.id)
        return name == session.id or (stored is not None and name == stored.title)

    def _latest(self) -> StoredSession | None:
        notebook = self._notebook
        here = self._store.sessions(notebook=notebook, limit=1) if notebook else []
        return next(iter(here or self._store.sessions(limit=1)), None)

    def _find(self, wanted: str) -> StoredSession | None:
        return next(iter(matching(self._store, wanted)), None)


def matching(store: SessionStore, wanted: str) -> list[StoredSession]:
    """Return the session with that id, or the latest with that title, or those by id prefix."""
    if (exact := store.get(wanted)) is not None:
        return [exact]
    recent = store.sessions(limit=LOOKED_AT)
    named = [each for each in recent if each.title == wanted]
    return named[:1] or [each for each in recent if wanted and each.id.startswith(wanted)]


def resembling(store: SessionStore, wanted: str) -> list[StoredSession]:
    """Return the sessions whose titles start with `wanted` or, if there are none, contain it."""
    typed = wanted.casefold()
    recent = [each for each in store.sessions(limit=LOOKED_AT) if each.source != REVIEW]
    found = [each for each in recent if typed in each.title.casefold()]
    return [each for each in found if each.title.casefold().startswith(typed)] or found


def reviews_of(store: SessionStore, session_id: str) -> tuple[StoredSession, ...]:
    """Return a session's background reviews, most recent first; raise `StoreError`."""
    family = map(store.get, store.lineage(session_id))
    found = [row for row in family if row and row.source == REVIEW and row.parent == session_id]
    return tuple(reversed(found))


def the_one(store: SessionStore, wanted: str) -> StoredSession | None:
    """Return the only session that matches, or None; raise `ConfigError` if several do."""
    found = matching(store, wanted)
    if len(found) > 1:
        message = (
            f"several sessions match {wanted!r}; use a longer id: `jupyter hermes sessions` "
            "lists them"
        )
        raise ConfigError(message)
    return found[0] if found else None


def _is_child(stored: StoredSession) -> str:
    """Return the reason a child's session cannot be resumed, and what to do instead."""
    text = (
        f"{stored.id} belongs to a child agent and cannot be resumed; `%hermes history "
        f"{stored.id}` shows it"
    )
    if not stored.parent:
        return text
    return f"{text}, `%hermes resume {stored.parent}` resumes its parent session"
