"""The Session tab: this notebook's sessions, search across all sessions, and running jobs.

Reviews, child agents and maps each have a stop button.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hermes_nb.agent.jobs import Job
from hermes_nb.agent.session.context_usage import size
from hermes_nb.agent.session.manager import reviews_of
from hermes_nb.agent.session.quotes import Quote, quotes
from hermes_nb.agent.session.session import CHILD, REVIEW
from hermes_nb.agent.session.usage import total_usage
from hermes_nb.core.errors import StoreError
from hermes_nb.core.events import (
    ContextCompressed,
    ReviewFinished,
    ReviewStarted,
    TurnEnded,
    TurnStarted,
)
from hermes_nb.core.protocols import StoredSession
from hermes_nb.core.text import amount, number_of, used
from hermes_nb.core.threads import in_thread
from hermes_nb.notebook.display.tables import ago, moment
from hermes_nb.notebook.panels.style import (
    caution,
    dim,
    folded,
    group,
    heading,
    marked,
    mcp_servers,
    shown,
    two_columns,
)
from hermes_nb.notebook.panels.widgets import QUERY, Act, Listing, ListItem, Tab, TabContext, write

NO_SESSIONS = "There are no sessions yet."


LISTED = 500
"""Maximum sessions to list, most recently used first."""
HITS = 40
"""Maximum search results."""
KEYLESS = "No provider is set up; run %hermes key to enter an API key."
KINDS = {"child": "child agent", "map": "map"}
"""Names for the kinds of jobs."""
INTERVAL = 0.5
"""Minimum seconds between updates of running jobs after a change."""
TICK = 1.0
"""Seconds between updates without a change, for the elapsed time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionItem:
    """A session in the list, or a search result."""

    id: str
    """Id of the session."""
    stored: StoredSession | None
    """The session in the store, or None if it has been deleted."""
    quote: Quote | None = None
    """The search result, or None for a session."""
    first: bool = False
    """Whether it is the first search result from its session."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sessions:
    """The tab's state."""

    found: tuple[SessionItem, ...] = ()
    """Sessions or search results."""
    current: str = ""
    """Id of the session that the next turn continues, or "" for none."""
    messages: int = 0
    """Number of messages in the current session."""
    prompt: int = 0
    """Size of the current session's next prompt in tokens."""
    here: bool = False
    """Whether `found` are the sessions of this notebook."""
    query: str = ""
    """The search query, or "" for none."""
    busy: str = ""
    """The reason the session cannot be changed now, or "" if it can."""
    reviewing: str = ""
    """Subject of the running review, or "" for none."""
    reviews: tuple[StoredSession, ...] = ()
    """The current session's past reviews."""
    problem: str = ""
    """The reason the store cannot be read, or "" if it can."""
    keyless: bool = False
    """Whether no provider is configured."""


def read_sessions(place: TabContext, query: str) -> Sessions:
    """Read the sessions or search results from the store."""
    agent = place.agent
    session, happened, store = agent.session, agent.hub, agent.store
    notebook = agent.notebook
    found: list[SessionItem] = []
    reviews: tuple[StoredSession, ...] = ()
    problem = reviewing = ""
    try:
        if query.strip():
            for quote in quotes(store, query, limit=HITS):
                name = quote.hit.session_id
                first = not found or found[-1].id != name
                stored = store.get(name) if first else found[-1].stored
                found.append(SessionItem(id=name, stored=stored, quote=quote, first=first))
        else:
            listed = store.sessions(notebook=notebook or None, limit=LISTED)
            found = [
                SessionItem(id=each.id, stored=each) for each in listed if each.source != REVIEW
            ]
        reviews = reviews_of(store, session.id) if session else ()
    except StoreError as error:
        problem = f"the sessions cannot be read: {error}"
    if agent.reviews.busy:
        subject = happened.reviewing.subject if happened.reviewing else "both"
        reviewing = "memory and skills" if subject == "both" else subject
    return Sessions(
        found=tuple(found),
        current=session.id if session else "",
        messages=len(session.messages) if session else 0,
        prompt=size(session)[0] if session else 0,
        here=bool(notebook) and not query.strip(),
        query=query.strip(),
        busy=place.busy,
        reviewing=reviewing,
        reviews=reviews,
        problem=problem,
        keyless=not (agent.models.given or agent.settings().endpoint.named),
    )


def _looked_back(reviews: Sequence[StoredSession]) -> str:
    """Return a session's background reviews and their usage as HTML, in a fold."""
    if not reviews:
        return ""
    total = shown(", ".join(used(total_usage(each.usage for each in reviews))))
    spent = (
        f"{moment(each.started)} · {shown(each.title, 40)} · {shown(', '.join(used(each.usage)))}"
        for each in reviews
    )
    return folded(f"{number_of(len(reviews), 'background review')} · {total}", spent)


class SessionTab(Tab):
    """Sessions with search and resume, and the running review with a stop button."""

    title = "Session"
    events = (TurnStarted, TurnEnded, ContextCompressed, ReviewStarted, ReviewFinished)

    def __init__(self, place: TabContext) -> None:
        super().__init__(place)
        self._now = Sessions()
        kit = place.kit
        self._head = kit.markup()
        self._new, self._stop = kit.push(), kit.push()
        self._job = kit.box(line=True)
        self._jobs = JobsPart(place)
        self._query = kit.field("Search all sessions")
        self._query.observe(place.actions.typed(place.refresh), names="value")
        self._review, self._what, self._looked_back = kit.markup(), kit.markup(), kit.markup()
        self._list = Listing[SessionItem](kit, self._line, empty=NO_SESSIONS)
        self.widget.children = (
            self._head,
            kit.box(self._new.widget, line=True),
            self._job,
            self._jobs.widget,
            kit.box(self._query, line=True),
            self._what,
            self._list.widget,
            self._looked_back,
        )

    def read(self) -> Sessions:
        """Return the state to show."""
        now = read_sessions(self.place, self._query.value[:QUERY])
        still = now.busy and now.query == self._now.query and self._now.found
        return replace(now, found=self._now.found) if still else now

    def show(self, found: Sessions) -> None:
        """Show a state."""
        if found.query != self._now.query:
            self._list.rewind()
        self._now = now = found
        count = f"{number_of(now.messages, 'message')} · about {amount(now.prompt)} tokens"
        told = two_columns("<b>This session</b>", f"<small>{shown(now.current)}</small>") + dim(
            count
        )
        told = told if now.current else dim("No session yet; your next prompt starts one.")
        write(self._head, told + (f"<br>{dim(KEYLESS)}" if now.keyless else ""))
        self._new.show(
            Act(
                "New session",
                "end this session; your next prompt starts a new one",
                self._begin,
                off=now.busy or ("" if now.current else "no session to end"),
            )
        )
        write(self._review, f"◌ background review: {now.reviewing}" if now.reviewing else "")
        tip = "stop the background review; saved changes stay"
        off = "" if now.reviewing else "nothing is running"
        self._stop.show(Act("Stop", tip, self._stop_review, off=off))
        write(self._job, (self._review, self._stop.widget) if now.reviewing else (), "children")
        name = "Found" if now.query else "This notebook" if now.here else "Latest sessions"
        problem = caution(shown(now.problem)) if now.problem else ""
        write(self._what, heading(name, f"{len(now.found):,}") + problem)
        write(self._list.empty, "Nothing found." if now.query else NO_SESSIONS)
        self._list.show(now.found)
        servers = mcp_servers(self.place.agent.mcp.connections.values())
        write(self._looked_back, "" if now.query else _looked_back(now.reviews) + servers)
        self._jobs.draw()

    def _line(self, found: SessionItem) -> ListItem:
        stored, quote = found.stored, found.quote
        title = shown(stored.title, 80) if stored and stored.title else dim("untitled")
        where = shown(Path(stored.notebook).name, 60) if stored and stored.notebook else ""
        if quote is not None:
            text = marked(quote.text, quote.marks)
            said = {"user": "you", "tool": "output of a tool"}.get(quote.hit.role, "Hermes")
            foot = f"{said} · {moment(quote.hit.when)}"
        else:
            text = title
            parts = [number_of(stored.messages, "message"), ago(stored.written)] if stored else []
            foot = " · ".join([*parts, *([where] if where and not self._now.here else [])])
        mine = found.id == self._now.current
        child = stored is not None and stored.source == CHILD
        resume = Act(
            "resume", "continue this session", partial(self._resume, found.id), off=self._now.busy
        )
        return ListItem(
            key=f"{found.id}/{quote.hit.position}" if quote else found.id,
            text=text,
            head=group(" · ".join(filter(None, (title, where)))) if found.first else "",
            foot=foot + (" · this one" if mine else " · a child agent" if child else ""),
            acts=() if mine or child else (resume,),
        )

    async def _resume(self, session_id: str) -> str:
        agent = self.place.agent
        await in_thread(getattr, agent.models, "main")  # may search for a local server
        session = agent.resume(session_id)
        said = number_of(len(session.messages), "message")
        return f"Resumed with {said}; your next prompt continues it."

    def _begin(self) -> str:
        self.place.agent.new()
        return "The next turn starts a new session."

    async def _stop_review(self) -> str:
        reviews = self.place.agent.reviews
        if not reviews.busy:
            return "It has already ended."
        await in_thread(reviews.stop)
        return "Stopped; saved changes stay."


class JobsPart:
    """The running jobs, one line and a stop button each; empty if no job is running.

    It updates itself after events from any thread; reading the jobs is cheap.
    """

    def __init__(self, place: TabContext) -> None:
        self._actions, self._jobs = place.actions, place.agent.jobs
        self._head = place.kit.markup()
        self._list = Listing[Job](place.kit, self._line)
        self.widget = place.kit.box()
        self._listed = (self._head, self._list.widget)
        self._timer: asyncio.TimerHandle | None = None
        self._soon = False
        self._end = self._jobs.listen(partial(self._actions.call, self._update_soon))

    def draw(self) -> None:
        """Show the jobs that are running now."""
        self._wait(None)
        if self.widget.comm is None:  # its panel is closed
            self._end()
            return
        running = list(self._jobs)
        write(self.widget, self._listed if running else (), "children")
        if running:
            write(self._head, heading("Running", str(len(running))))
            self._list.show(running)
            self._wait(TICK)

    def _update_soon(self) -> None:
        """Schedule one update at the end of the interval, however many events arrive before."""
        if not self._soon:
            self._wait(INTERVAL)
            self._soon = True

    def _wait(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._soon = None, False
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.draw)

    def _line(self, job: Job) -> ListItem:
        doing = dim(shown(job.doing, 90)) if job.doing else ""
        act = Act(
            "stop",
            f"stop this {KINDS[job.kind]}; the others continue",
            partial(self._stop, job.id),
            off="already stopping" if job.stopping else "",
        )
        return ListItem(
            key=job.id,
            text=f"◌ {shown(job.title, 90)} {doing}",
            foot=f"{KINDS[job.kind]} · {int(job.seconds)} s",
            acts=(act,),
        )

    def _stop(self, job_id: str) -> str:
        job = self._jobs.get(job_id)
        if job is None:
            return "It has already ended."
        job.stop()
        return "Stopping; finished work is saved."
