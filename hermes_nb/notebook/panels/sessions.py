"""The Context tab and the Session tab.

How full the window is, of what, what the turns cost, and compressions; this notebook's
conversations, what was said in any, and what runs beside (a review, child agents or a map, each
with a button that stops it).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from hermes_nb.agent.jobs import Job
from hermes_nb.agent.session.context_usage import shares, size
from hermes_nb.agent.session.manager import reviews_of
from hermes_nb.agent.session.quotes import Quote, quotes
from hermes_nb.agent.session.session import CHILD, REVIEW, Session
from hermes_nb.agent.session.usage import together
from hermes_nb.core.errors import ConfigError, StoreError
from hermes_nb.core.events import (
    ContextCompressed,
    MessageAdded,
    ReviewFinished,
    ReviewStarted,
    TurnEnded,
    TurnStarted,
    UsageReported,
)
from hermes_nb.core.messages import Usage
from hermes_nb.core.protocols import StoredSession
from hermes_nb.core.text import amount, number_of, used
from hermes_nb.core.threads import in_thread
from hermes_nb.notebook.display.tables import ago, moment, widths
from hermes_nb.notebook.display.transcript import PHASES
from hermes_nb.notebook.event_hub import Compressed
from hermes_nb.notebook.panels.style import (
    BARS,
    Part,
    caution,
    dim,
    document,
    folded,
    gauge,
    group,
    heading,
    legend,
    marked,
    mcp_servers,
    shown,
    spending,
    two,
)
from hermes_nb.notebook.panels.widgets import QUERY, Act, Line, Listing, Place, Tab, write

NO_SESSIONS = "There is no session yet."
NO_SESSION = "there has been no turn in this session yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """What the next request consists of, and what the turns so far have used.

    `counted` is the size of the next prompt in tokens, `measured` whether the provider has counted
    most of it; the parts are estimates, scaled to that sum. `window` and `threshold` are 0 if
    unknown; an `assumed` window nobody knows. `first` is the number of the first of `turns`.
    """

    session: str = ""
    parts: tuple[Part, ...] = ()
    counted: int = 0
    measured: bool = False
    window: int = 0
    assumed: bool = False
    threshold: int = 0
    turns: tuple[Usage, ...] = ()
    first: int = 1
    compressions: tuple[Compressed, ...] = ()
    busy: str = ""


class ContextTab(Tab):
    """The window as a gauge, the turns as a chart, and compressions with undo."""

    title = "Context"
    events = (TurnStarted, MessageAdded, UsageReported, ContextCompressed, TurnEnded)

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._now = Filling()
        self._open = -1
        kit = place.kit
        self._head = kit.markup()
        self._compressed = Listing[tuple[int, Compressed]](kit, self._line)
        self._summary = kit.markup()
        self._focus = kit.field("Keep in focus (optional)")
        self._compress = kit.push()
        controls = kit.box(self._focus, self._compress.widget, line=True)
        self.widget.children = (self._head, self._compressed.widget, controls)

    def read(self) -> Filling:
        agent = self.place.agent
        session = agent.session
        if session is None:
            return Filling()
        meter = getattr(session.agent.engine, "gauge", None)
        account = agent.hub.of(session.id)
        counted, measured = size(session)
        parts = shares(session)
        sizes = widths([part.tokens for part in parts], counted)
        turns = tuple(account.turns)
        return Filling(
            session=session.id,
            parts=tuple(Part(p.name, tokens) for p, tokens in zip(parts, sizes, strict=True)),
            counted=counted,
            measured=measured,
            window=session.agent.model.window or getattr(meter, "window", None) or 0,
            assumed=not (session.agent.model.window or getattr(meter, "known", 1)),
            threshold=getattr(meter, "threshold", 0),
            turns=turns,
            first=max(session.agent.turns - len(turns), 0) + 1,
            compressions=tuple(account.compressions),
            busy=self.place.busy,
        )

    def show(self, found: Filling) -> None:
        if found.session != self._now.session:
            self._open = -1
        self._now = found
        self._draw()

    def _draw(self) -> None:
        now = self._now
        write(self._head, _picture(now) if now.session else dim(f"{NO_SESSION.capitalize()}."))
        opened = 0 <= self._open < len(now.compressions)
        if opened:
            write(self._summary, document(now.compressions[self._open].event.summary))
        self._compressed.open(str(self._open) if opened else "", self._summary)
        self._compressed.show(list(enumerate(now.compressions))[::-1])
        self._compress.show(
            Act(
                "Compress now",
                "make the conversation shorter; it can be undone",
                self._compress_now,
                off=now.busy or ("" if now.session else NO_SESSION),
            )
        )

    def _line(self, item: tuple[int, Compressed]) -> Line:
        index, compressed = item
        event = compressed.event
        restored = event.phase == "restored"
        what, how = ("Restored", PHASES["restored"]) if restored else ("Compressed", _counts(event))
        tokens = f"{amount(event.tokens_before)} → {amount(event.tokens_after)}"
        when = f" at turn {compressed.turn}" if compressed.turn else ""
        opened, acts = index == self._open, []
        if event.summary:
            acts.append(
                Act(
                    "close" if opened else "summary",
                    "what stands for the messages that were left out",
                    partial(self._unfold, -1 if opened else index),
                    here=True,
                )
            )
        if index == len(self._now.compressions) - 1 and not restored:
            tip = "put the conversation back as it was"
            acts.append(Act("undo", tip, self._restore, off=self._now.busy))
        return Line(
            key=str(index),
            text=f"<b>{what}{when}</b> {tokens}",
            foot=f"{how} · {shown(event.warning, 200)}" if event.warning else how,
            acts=tuple(acts),
        )

    def _unfold(self, index: int) -> None:
        self._open = index
        self._draw()

    async def _compress_now(self) -> str:
        event = await self._session().compress(self._focus.value[:QUERY].strip())
        if event is None:
            return "There is nothing to gain yet."
        write(self._focus, "")
        tokens = f"{amount(event.tokens_before)} to {amount(event.tokens_after)}"
        return f"Compressed from about {tokens} tokens: {PHASES.get(event.phase, event.phase)}."

    def _restore(self) -> str:
        event = self._session().restore()
        return f"The conversation is back at about {amount(event.tokens_after)} tokens."

    def _session(self) -> Session:
        session = self.place.agent.session
        if session is None:
            raise ConfigError(NO_SESSION)
        return session


def _picture(now: Filling) -> str:
    of = f"of {amount(now.window)}" if now.window else "tokens"
    of += " (assumed)" if now.assumed else ""
    limit = f" · compresses at {amount(now.threshold)}" if now.threshold else ""
    how = "The sum was counted, its parts are estimates." if now.measured else "All estimates."
    label = f"about {amount(now.counted)} {of} tokens in use{limit}"
    blocks = [
        f'<span class="hermes-big">{amount(now.counted)}</span> {dim(of + limit)}',
        gauge(now.parts, now.counted, now.window or now.counted, now.threshold, label),
        legend(now.parts),
        f"<small>{dim(how)}</small>",
    ]
    if any(turn.requests for turn in now.turns):
        total = sum(now.turns, Usage())
        share = f"{round(100 * total.cached / total.input)} % cached" if total.input else ""
        cost = f"${total.cost:.3f}" if total.cost is not None else ""
        told = " · ".join(filter(None, (amount(total.input), share, cost)))
        first = now.first + max(len(now.turns) - BARS, 0)
        blocks += [
            heading("Tokens sent a turn", "cached · fresh"),
            spending(now.turns, now.first),
            f"<small>{two(f'from turn {first}', told)}</small>",
        ]
    return "".join(blocks)


def _counts(event: ContextCompressed) -> str:
    counts = []
    if event.shortened:
        counts.append(f"{number_of(event.shortened, 'result')} shortened")
    if event.dropped:
        counts.append(f"{number_of(event.dropped, 'message')} summarised")
    return ", ".join(counts) or PHASES.get(event.phase, shown(event.phase))


LISTED = 500
"""Sessions that are listed, those written to last."""
HITS = 40
KEYLESS = "No provider is set up: %hermes key asks for a key."
KINDS = {"child": "child agent", "map": "map"}
INTERVAL = 0.5
"""Seconds between two updates of what runs when something changed."""
TICK = 1.0
"""Seconds between two of them, so that clocks run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A session of the list or, with a `quote`, a place where the words were said.

    `first` is the quote that stands at the head of its session's.
    """

    id: str
    stored: StoredSession | None
    quote: Quote | None = None
    first: bool = False


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
    reviews: tuple[StoredSession, ...] = ()
    problem: str = ""
    keyless: bool = False


def look(place: Place, query: str) -> Sessions:
    """Read the store."""
    agent = place.agent
    session, happened, store = agent.session, agent.hub, agent.store
    notebook = agent.notebook
    found: list[Found] = []
    reviews: tuple[StoredSession, ...] = ()
    problem = reviewing = ""
    try:
        if query.strip():
            for quote in quotes(store, query, limit=HITS):
                name = quote.hit.session_id
                first = not found or found[-1].id != name
                stored = store.get(name) if first else found[-1].stored
                found.append(Found(id=name, stored=stored, quote=quote, first=first))
        else:
            listed = store.sessions(notebook=notebook or None, limit=LISTED)
            found = [Found(id=each.id, stored=each) for each in listed if each.source != REVIEW]
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
    """Return the reviews of a session under a fold, with what they cost."""
    if not reviews:
        return ""
    total = shown(", ".join(used(together(each.usage for each in reviews))))
    spent = (
        f"{moment(each.started)} · {shown(each.title, 40)} · {shown(', '.join(used(each.usage)))}"
        for each in reviews
    )
    return folded(f"Looked back {number_of(len(reviews), 'time')} · {total}", spent)


class SessionTab(Tab):
    """Sessions with search and resume, and the running review with its stop button."""

    title = "Session"
    events = (TurnStarted, TurnEnded, ContextCompressed, ReviewStarted, ReviewFinished)

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._now = Sessions()
        kit = place.kit
        self._head = kit.markup()
        self._new, self._stop = kit.push(), kit.push()
        self._job = kit.box(line=True)
        self._jobs = JobsPart(place)
        self._query = kit.field("Search what was said in any session")
        self._query.observe(place.actions.typed(place.refresh), names="value")
        self._review, self._what, self._looked_back = kit.markup(), kit.markup(), kit.markup()
        self._list = Listing[Found](kit, self._line, empty=NO_SESSIONS)
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
        now = look(self.place, self._query.value[:QUERY])
        still = now.busy and now.query == self._now.query and self._now.found
        return replace(now, found=self._now.found) if still else now

    def show(self, found: Sessions) -> None:
        if found.query != self._now.query:
            self._list.rewind()
        self._now = now = found
        count = f"{number_of(now.messages, 'message')} · about {amount(now.prompt)} tokens"
        told = two("<b>This session</b>", f"<small>{shown(now.current)}</small>") + dim(count)
        told = told if now.current else dim("No session yet: the next turn starts one.")
        write(self._head, told + (f"<br>{dim(KEYLESS)}" if now.keyless else ""))
        self._new.show(
            Act(
                "New session",
                "end this session; the next turn starts another",
                self._begin,
                off=now.busy or ("" if now.current else "there is none to end"),
            )
        )
        write(self._review, f"◌ looking back: {now.reviewing}" if now.reviewing else "")
        tip = "stop looking back; what was saved until now stays"
        off = "" if now.reviewing else "nothing is running"
        self._stop.show(Act("Stop", tip, self._stop_review, off=off))
        write(self._job, (self._review, self._stop.widget) if now.reviewing else (), "children")
        name = "Found" if now.query else "This notebook" if now.here else "Latest sessions"
        problem = caution(shown(now.problem)) if now.problem else ""
        write(self._what, heading(name, f"{len(now.found):,}") + problem)
        write(self._list.empty, "Nothing was said about that." if now.query else NO_SESSIONS)
        self._list.show(now.found)
        servers = mcp_servers(self.place.agent.mcp.connections.values())
        write(self._looked_back, "" if now.query else _looked_back(now.reviews) + servers)
        self._jobs.draw()

    def _line(self, found: Found) -> Line:
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
            "resume", "go on with this session", partial(self._resume, found.id), off=self._now.busy
        )
        return Line(
            key=f"{found.id}/{quote.hit.position}" if quote else found.id,
            text=text,
            head=group(" · ".join(filter(None, (title, where)))) if found.first else "",
            foot=foot + (" · this one" if mine else " · a child agent" if child else ""),
            acts=() if mine or child else (resume,),
        )

    async def _resume(self, session_id: str) -> str:
        agent = self.place.agent
        await in_thread(getattr, agent.models, "main")  # it may look for a local server
        session = agent.resume(session_id)
        said = number_of(len(session.messages), "message")
        return f"Resumed with {said}; the next turn goes on there."

    def _begin(self) -> str:
        self.place.agent.new()
        return "The next turn starts a new session."

    async def _stop_review(self) -> str:
        reviews = self.place.agent.reviews
        if not reviews.busy:
            return "It is over already."
        await in_thread(reviews.stop)
        return "Stopped; what was saved until then stays."


class JobsPart:
    """What runs beside the conversation, a line and a stop button each; nothing when nothing does.

    It updates itself, from any thread: to read that costs nothing.
    """

    def __init__(self, place: Place) -> None:
        self._actions, self._jobs = place.actions, place.agent.jobs
        self._head = place.kit.markup()
        self._list = Listing[Job](place.kit, self._line)
        self.widget = place.kit.box()
        self._listed = (self._head, self._list.widget)
        self._timer: asyncio.TimerHandle | None = None
        self._soon = False
        self._end = self._jobs.listen(partial(self._actions.call, self._hurry))

    def draw(self) -> None:
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

    def _hurry(self) -> None:
        """Draw when the interval is over, however much happens until then."""
        if not self._soon:
            self._wait(INTERVAL)
            self._soon = True

    def _wait(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._soon = None, False
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.draw)

    def _line(self, job: Job) -> Line:
        doing = dim(shown(job.doing, 90)) if job.doing else ""
        act = Act(
            "stop",
            f"stop this {KINDS[job.kind]}; the rest goes on",
            partial(self._stop, job.id),
            off="it is being stopped" if job.stopping else "",
        )
        return Line(
            key=job.id,
            text=f"◌ {shown(job.title, 90)} {doing}",
            foot=f"{KINDS[job.kind]} · {int(job.seconds)} s",
            acts=(act,),
        )

    def _stop(self, job_id: str) -> str:
        job = self._jobs.get(job_id)
        if job is None:
            return "It is over already."
        job.stop()
        return "Stopping; what was done until now is kept."
