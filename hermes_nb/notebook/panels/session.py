"""The Session tab: this notebook's conversations, what was said in any, and what runs beside.

What runs is a review, child agents or a map, each with a button that stops it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hermes_nb.agent.session import CHILD, REVIEW
from hermes_nb.core.calls import in_thread
from hermes_nb.core.errors import StoreError
from hermes_nb.core.events import (
    BackgroundEvent,
    ContextCompressed,
    Event,
    ReviewFinished,
    ReviewStarted,
    TurnEnded,
    TurnStarted,
)
from hermes_nb.core.protocols import Hit, StoredSession
from hermes_nb.core.text import amount, number_of
from hermes_nb.notebook.display.wording import ago, moment
from hermes_nb.notebook.panels.acting import QUERY, Pause
from hermes_nb.notebook.panels.context import size
from hermes_nb.notebook.panels.jobs import JobsPart
from hermes_nb.notebook.panels.parts import Act, Line, Listing, Push, write
from hermes_nb.notebook.panels.style import caution, dim, heading, shown, two
from hermes_nb.notebook.panels.tab import Place

LISTED = 500
"""Sessions that are listed, those written to last."""
HITS = 40
KEYLESS = "No provider is set up: %hermes key asks for a key."


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A session of the list or, with a `hit`, a place where the words were said."""

    id: str
    stored: StoredSession | None
    hit: Hit | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """The sessions that fit, and the one that the next turn goes on with.

    `here` says whether they are those of this notebook; `prompt` is the size of the current one's
    next prompt in tokens. `problem` says why the store cannot be read.
    """

    found: tuple[Found, ...] = ()
    current: str = ""
    messages: int = 0
    prompt: int = 0
    here: bool = False
    query: str = ""
    busy: str = ""
    reviewing: str = ""
    problem: str = ""
    keyless: bool = False


def look(place: Place, query: str) -> Sessions:
    """Read the store."""
    resident = place.resident
    session, happened = resident.session, resident.happenings
    notebook = resident.notebook
    problem = ""
    try:
        found = _said(place, query) if query.strip() else _listed(place, notebook)
    except StoreError as error:
        found, problem = [], f"the sessions cannot be read: {error}"
    reviewing = ""
    if resident.reviews.busy:
        subject = happened.reviewing.subject if happened.reviewing else "both"
        reviewing = "memory and skills" if subject == "both" else subject
    return Sessions(
        found=tuple(found),
        current=session.id if session else "",
        messages=len(session.messages) if session else 0,
        prompt=size(session) if session else 0,
        here=bool(notebook) and not query.strip(),
        query=query.strip(),
        busy=place.busy,
        reviewing=reviewing,
        problem=problem,
        keyless=not (resident.models.given or resident.settings().endpoint.named),
    )


def _listed(place: Place, notebook: str) -> list[Found]:
    stored = place.resident.store.sessions(notebook=notebook or None, limit=LISTED)
    return [Found(id=each.id, stored=each) for each in stored if each.source != REVIEW]


def _said(place: Place, query: str) -> list[Found]:
    store = place.resident.store
    hits = store.search(query, limit=HITS)
    known = {name: store.get(name) for name in {hit.session_id for hit in hits}}
    return [Found(id=hit.session_id, stored=known[hit.session_id], hit=hit) for hit in hits]


class SessionTab:
    """Sessions with search and resume, and the running review with its stop button."""

    title = "Session"

    def __init__(self, place: Place) -> None:
        self._place = place
        self._now = Sessions()
        kit = place.kit
        self._head = kit.markup()
        self._new = Push(kit)
        self._review = kit.markup()
        self._stop = Push(kit)
        self._job = kit.box(line=True)
        self._jobs = JobsPart(place)
        self._query = kit.field("Search what was said in any session")
        self._query.observe(Pause(place.actions, place.refresh), names="value")
        self._what = kit.markup()
        self._list = Listing[Found](
            kit, self._line, moved=self.redraw, empty="There is no session yet."
        )
        self.widget = kit.box(
            self._head,
            kit.box(self._new.widget, line=True),
            self._job,
            self._jobs.widget,
            kit.box(self._query, line=True),
            self._what,
            self._list.widget,
        )

    def read(self) -> Sessions:
        """Return the sessions that fit."""
        return look(self._place, self._query.value[:QUERY])

    def show(self, found: Sessions) -> None:
        """Show them."""
        if found.query != self._now.query:
            self._list.rewind()
        self._now = found
        self._draw()
        self._jobs.redraw()

    def concerned(self, event: Event | BackgroundEvent) -> bool:
        """Say whether an event is about sessions or what runs."""
        kinds = TurnStarted | TurnEnded | ContextCompressed | ReviewStarted | ReviewFinished
        return isinstance(event, kinds)

    def redraw(self) -> None:
        """Show again what was read last; from any thread."""
        self._place.actions.call(self._draw)

    def _draw(self) -> None:
        now = self._now
        count = f"{number_of(now.messages, 'message')} · about {amount(now.prompt)} tokens"
        told = two("<b>This session</b>", f"<small>{shown(now.current)}</small>") + dim(count)
        told = told if now.current else dim("No session yet: the next turn starts one.")
        write(self._head, told + (f"<br>{dim(KEYLESS)}" if now.keyless else ""))
        self._new.show(
            Act(
                label="New session",
                tip="end this session; the next turn starts another",
                do=self._place.doing(self._begin),
                off=now.busy or ("" if now.current else "there is none to end"),
            )
        )
        write(self._review, f"◌ looking back: {now.reviewing}" if now.reviewing else "")
        self._stop.show(
            Act(
                label="Stop",
                tip="stop looking back; what was saved until now stays",
                do=self._place.doing(self._stop_review),
                off="" if now.reviewing else "nothing is running",
            )
        )
        job = (self._review, self._stop.widget) if now.reviewing else ()
        write(self._job, job, "children")
        name = "Found" if now.query else "This notebook" if now.here else "Latest sessions"
        problem = caution(shown(now.problem)) if now.problem else ""
        write(self._what, heading(name, f"{len(now.found):,}") + problem)
        self._list.show(now.found)

    def _line(self, found: Found) -> Line:
        stored, hit = found.stored, found.hit
        title = shown(stored.title, 80) if stored and stored.title else dim("untitled")
        where = shown(Path(stored.notebook).name, 60) if stored and stored.notebook else ""
        if hit is not None:
            when = f"{moment(hit.when)} · {'you' if hit.role == 'user' else shown(hit.role, 12)}"
            text = f"{shown(hit.snippet, 220)}<br>{dim(title)}"
            foot = " · ".join(filter(None, (when, where)))
        else:
            text = title
            parts = [number_of(stored.messages, "message"), ago(stored.written)] if stored else []
            foot = " · ".join([*parts, *([where] if where and not self._now.here else [])])
        mine = found.id == self._now.current
        act = Act(
            label="resume",
            tip="go on with this session",
            do=self._place.doing(lambda: self._resume(found.id)),
            off=self._now.busy,
        )
        key = f"{found.id}/{hit.position}" if hit else found.id
        child = stored is not None and stored.source == CHILD
        foot += " · this one" if mine else " · a child agent" if child else ""
        return Line(key=key, text=text, foot=foot, acts=() if mine or child else (act,))

    async def _resume(self, session_id: str) -> str:
        resident = self._place.resident
        await in_thread(lambda: resident.models.main)  # it may look for a local server
        session = resident.resume(session_id)
        said = number_of(len(session.messages), "message")
        return f"Resumed with {said}; the next turn goes on there."

    def _begin(self) -> str:
        self._place.resident.new()
        return "The next turn starts a new session."

    async def _stop_review(self) -> str:
        reviews = self._place.resident.reviews
        if not reviews.busy:
            return "It is over already."
        await in_thread(reviews.stop)
        return "Stopped; what was saved until then stays."
