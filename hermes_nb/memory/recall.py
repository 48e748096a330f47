"""Recall across sessions: find messages and return them with the messages around them.

Hits from several stores are merged by rank, because scores from different indexes are not
comparable. They are grouped by *lineage*: a session together with all sessions created from it,
such as its continuations and the sessions of its child agents. The running session is never part of
a result. All results are old text that may come from untrusted sources, so they are only ever
quoted.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from hermes_nb.core.messages import Message, Text
from hermes_nb.core.protocols import Hit, StoredMessage, StoredSession
from hermes_nb.core.text import one_line

Sort = Literal["relevance", "newest", "oldest"]

AROUND = 5
"""Number of messages returned before and after a hit."""
CANDIDATES = 60
"""Number of hits requested from a source at once."""
HITS_A_SESSION = 3
"""Maximum number of hits to return from one lineage."""
HELPERS = frozenset({"child", "review", "subagent", "tool"})
"""`source` values of sessions without a user, in our store and in Hermes Agent's.

Such a session is found as part of the session that created it, not on its own.
"""
_ROUNDS = 5
_DEEPEST = 100
"""Maximum number of ancestors to follow."""

_RUNNING_CELL = re.compile(
    r"^Cells above this one \((?:\d+ )?([\w.-]{1,64})\)(?:, changes)?:(?: no changes)?$",
    re.MULTILINE,
)
"""Finds the id of the running cell in the notebook context of a user message."""


class Source(Protocol):
    """The methods of a session store that `Recall` uses."""

    def search(
        self, query: str, *, limit: int = 20, session_id: str = "", exclude: Collection[str] = ()
    ) -> list[Hit]: ...

    def rows(
        self, session_id: str, *, first: int = 0, last: int | None = None
    ) -> list[StoredMessage]: ...

    def get(self, session_id: str) -> StoredSession | None: ...

    def sessions(self, *, notebook: str | None = None, limit: int = 20) -> list[StoredSession]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """Consecutive messages from one session."""

    session: StoredSession
    """The session."""
    messages: tuple[StoredMessage, ...]
    """Its messages in order."""
    hits: frozenset[int] = frozenset()
    """Positions, in the session, of the messages that match the search."""

    @property
    def cells(self) -> tuple[str, ...]:
        """The ids of the cells that the messages ran in or worked on, if known."""
        found = (cell for row in self.messages for cell in cells_of(row.message))
        return tuple(dict.fromkeys(found))


@dataclass(frozen=True, slots=True, kw_only=True)
class RecalledSession:
    """The passages found in one lineage: a session and all sessions created from it."""

    lineage: str
    """The id of the lineage's first session."""
    passages: tuple[Passage, ...]
    """The passages, best first."""
    summary: str = ""
    """A summary by the auxiliary model, or "" if there is none."""
    note: str = ""
    """Why the summary failed, or "" if it succeeded or was not requested."""

    @property
    def session(self) -> StoredSession:
        """The best hit's session."""
        return self.passages[0].session


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedSession:
    """A session in a list of recent ones."""

    session: StoredSession
    """The session."""
    gist: str
    """The start of its first user message."""


@dataclass(slots=True)
class Recall:
    """Searches several session stores as one. Its calls block, so call it in a thread."""

    sources: Sequence[Source]
    _where: dict[str, Source] = field(default_factory=dict)
    _parents: dict[str, str] = field(default_factory=dict)

    def discover(
        self,
        query: str,
        *,
        limit: int = 3,
        sort: Sort = "relevance",
        exclude_lineage: Collection[str] = (),
    ) -> list[RecalledSession]:
        """Return the best-matching lineages (see this module), with the messages around each hit.

        Args:
            query: the search query
            limit: the maximum number of lineages
            sort: the order of the result
            exclude_lineage: session ids whose lineages are left out
        """
        hidden = {self._root(session_id) for session_id in exclude_lineage}
        families: dict[str, list[Hit]] = {}
        for hit in self._hits(query, limit, exclude_lineage, hidden):
            families.setdefault(self._root(hit.session_id), []).append(hit)
        order = list(families)
        if sort != "relevance":
            times = {root: max(hit.when for hit in hits) for root, hits in families.items()}
            order.sort(key=lambda root: times[root], reverse=sort == "newest")
        found = (self._found(root, families[root]) for root in order[:limit])
        return [each for each in found if each.passages]

    def scroll(self, session_id: str, *, around: int = 0, window: int = 10) -> Passage:
        """Return the messages up to `window` before and after position `around`.

        Raises LookupError if no store has the session.
        """
        session = self._session(session_id)
        if session is None:
            message = f"there is no session {one_line(session_id, 60)!r}; search for it first"
            raise LookupError(message)
        first = max(0, around - window)
        messages = self._rows(session_id, first, around + window)
        hits = frozenset({around} & {row.position for row in messages})
        return Passage(session=session, messages=tuple(messages), hits=hits)

    def place_in(self, session_id: str, query: str) -> int:
        """Return the position in a session that matches a query best, or 0 if nothing matches."""
        source = self._source(session_id)
        hits = source.search(query, limit=1, session_id=session_id) if source else []
        return hits[0].position if hits else 0

    def browse(
        self, *, limit: int = 10, exclude_lineage: Collection[str] = ()
    ) -> list[ListedSession]:
        """Return the most recent sessions, one from each lineage."""
        hidden = {self._root(session_id) for session_id in exclude_lineage}
        everything: list[StoredSession] = []
        for source in self.sources:
            for session in source.sessions(limit=limit * 4 + len(hidden)):
                self._where.setdefault(session.id, source)
                everything.append(session)
        everything.sort(key=lambda session: session.written or session.started, reverse=True)
        hidden |= self._orphans({self._root(session.id) for session in everything})
        families: dict[str, list[StoredSession]] = {}
        for session in everything:
            root = self._root(session.id)
            if root not in hidden and session.messages:
                families.setdefault(root, []).append(session)
        chosen = [self._speaker_of(root, families[root]) for root in list(families)[:limit]]
        return [ListedSession(session=session, gist=self._gist(session)) for session in chosen]

    def _speaker_of(self, root: str, family: Sequence[StoredSession]) -> StoredSession:
        """Return the latest session in `family` with the source of the lineage's first session.

        This excludes helpers' sessions, such as those of child agents. `root` is the id of the
        first session.
        """
        first = self._session(root)
        source = first.source if first else family[0].source
        return next((session for session in family if session.source == source), family[0])

    def transcript(self, session_id: str) -> list[StoredMessage]:
        """Return a session's messages, except undone ones."""
        return self._rows(session_id, 0, None)

    def _hits(
        self, query: str, limit: int, exclude: Collection[str], hidden: set[str]
    ) -> list[Hit]:
        """Return the hits from all stores, best ranks first, without lineages in `hidden`.

        Lineages that start with a helper's session are added to `hidden`.
        """
        ranked: list[tuple[int, int, Hit]] = []
        for number, source in enumerate(self.sources):
            out = set(exclude)
            kept: list[Hit] = []
            for _ in range(_ROUNDS):
                hits = source.search(query, limit=CANDIDATES, exclude=tuple(out))
                for hit in hits:
                    self._where.setdefault(hit.session_id, source)
                hidden |= self._orphans({self._root(hit.session_id) for hit in hits} - hidden)
                kept = [hit for hit in hits if self._root(hit.session_id) not in hidden]
                mine = {hit.session_id for hit in hits} - {hit.session_id for hit in kept}
                enough = len({self._root(hit.session_id) for hit in kept}) >= limit
                if enough or not mine or len(hits) < CANDIDATES:
                    break
                out |= mine  # hits in hidden lineages used up the limit: search again without them
            ranked += [(rank, number, hit) for rank, hit in enumerate(kept)]
        return [hit for _, _, hit in sorted(ranked, key=lambda item: item[:2])]

    def _found(self, root: str, hits: Sequence[Hit]) -> RecalledSession:
        """Return the messages around a lineage's best hits, without repetitions."""
        best = hits[:HITS_A_SESSION]
        passages: list[Passage] = []
        for session_id in dict.fromkeys(hit.session_id for hit in best):
            session = self._session(session_id)
            if session is None:
                continue
            places = sorted({hit.position for hit in best if hit.session_id == session_id})
            for first, last in _merged(places):
                messages = self._rows(session_id, first, last)
                inside = frozenset(place for place in places if first <= place <= last)
                passages.append(Passage(session=session, messages=tuple(messages), hits=inside))
        return RecalledSession(lineage=root, passages=tuple(p for p in passages if p.messages))

    def _rows(self, session_id: str, first: int, last: int | None) -> list[StoredMessage]:
        source = self._source(session_id)
        rows = source.rows(session_id, first=first, last=last) if source else []
        return [row for row in rows if row.state != "undone" and row.message.role != "system"]

    def _gist(self, session: StoredSession) -> str:
        rows = self._rows(session.id, 0, 6)
        said = (row.message.text for row in rows if row.message.role == "user")
        return one_line(next(said, ""), 120)

    def _root(self, session_id: str) -> str:
        seen = {session_id}
        for _ in range(_DEEPEST):
            if session_id not in self._parents:  # a session's parent never changes
                session = self._session(session_id)
                if session is None:
                    break
                self._parents[session_id] = session.parent
            parent = self._parents[session_id]
            if not parent or parent in seen:
                break
            session_id = parent
            seen.add(parent)
        return session_id

    def _orphans(self, roots: Collection[str]) -> set[str]:
        begun = ((root, self._session(root)) for root in roots)
        return {root for root, first in begun if first is not None and first.source in HELPERS}

    def _session(self, session_id: str) -> StoredSession | None:
        source = self._source(session_id)
        return source.get(session_id) if source else None

    def _source(self, session_id: str) -> Source | None:
        if session_id not in self._where:
            for source in self.sources:
                if source.get(session_id) is not None:
                    self._where[session_id] = source
                    break
        return self._where.get(session_id)


def spoken(message: Message) -> str:
    """Return a message's text; for a user message, without text added for the model."""
    texts = [part.text for part in message.parts if isinstance(part, Text)]
    return (texts[0] if texts else "") if message.role == "user" else message.text


def cells_of(message: Message) -> Iterable[str]:
    """Yield the ids of the cells that a message ran in or worked on."""
    if message.role == "user" and (match := _RUNNING_CELL.search(message.text)):
        yield match[1]
    for call in message.calls:
        if "cell" not in call.name:
            continue
        for key in ("id", "ids", "cell", "cell_id"):
            value = call.arguments.get(key)
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, str) and each:
                    yield one_line(each, 64)


def _merged(places: Sequence[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for place in places:
        first, last = max(0, place - AROUND), place + AROUND
        if ranges and first <= ranges[-1][1] + 1:
            ranges[-1] = (ranges[-1][0], last)
        else:
            ranges.append((first, last))
    return ranges
