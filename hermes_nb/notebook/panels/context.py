"""The Context tab: how full the window is, of what, what the turns cost, and compressions."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_nb.agent.session import Session
from hermes_nb.agent.session_manager import shares
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.events import (
    BackgroundEvent,
    ContextCompressed,
    Event,
    MessageAdded,
    TurnEnded,
    TurnStarted,
    UsageReported,
)
from hermes_nb.core.messages import Message, Usage
from hermes_nb.core.text import amount, estimate_tokens, number_of
from hermes_nb.notebook.display.transcript import PHASES
from hermes_nb.notebook.event_hub import Compressed
from hermes_nb.notebook.panels.acting import QUERY
from hermes_nb.notebook.panels.charts import BARS, Part, gauge, legend, spending
from hermes_nb.notebook.panels.parts import Act, Line, Listing, Push, write
from hermes_nb.notebook.panels.style import dim, document, heading, shown, two
from hermes_nb.notebook.panels.tab import Place

NO_SESSION = "there has been no turn in this session yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filling:
    """What the next request consists of, and what the turns so far have used.

    `counted` is the size of the next prompt in tokens, as far as it is known; `window` and
    `threshold` are 0 if unknown. `first` is the number of the first of `turns`.
    """

    session: str = ""
    parts: tuple[Part, ...] = ()
    counted: int = 0
    window: int = 0
    threshold: int = 0
    turns: tuple[Usage, ...] = ()
    first: int = 1
    compressions: tuple[Compressed, ...] = ()
    busy: str = ""


def fill(place: Place) -> Filling:
    """Measure the session that the next turn goes on with."""
    session = place.resident.session
    if session is None:
        return Filling()
    parts = tuple(Part(share.name, share.tokens) for share in shares(session))
    meter = getattr(session.agent.engine, "gauge", None)
    account = place.resident.happenings.of(session.id)
    turns = tuple(account.turns)
    return Filling(
        session=session.id,
        parts=parts,
        counted=size(session),
        window=session.agent.model.window or getattr(meter, "window", None) or 0,
        threshold=getattr(meter, "threshold", 0),
        turns=turns,
        first=max(session.agent.turns - len(turns), 0) + 1,
        compressions=tuple(account.compressions),
        busy=place.busy,
    )


def size(session: Session) -> int:
    """Return the next prompt's tokens: as counted, or, before anything was, those of its parts.

    The agent's own estimate leaves out the schemas of the tools.
    """
    agent = session.agent
    head = [Message.system(agent.system)] if agent.system else []
    known = agent.prompt_tokens()
    if known != estimate_tokens([*head, *agent.messages]):
        return known
    return sum(share.tokens for share in shares(session))


class ContextTab:
    """The window as a gauge, the turns as a chart, and compressions with undo."""

    title = "Context"

    def __init__(self, place: Place) -> None:
        self._place = place
        self._now = Filling()
        self._open = -1
        kit = place.kit
        self._head = kit.markup()
        self._compressed = Listing[tuple[int, Compressed]](kit, self._line, moved=self.redraw)
        self._summary = kit.markup()
        self._focus = kit.field("Keep in focus (optional)")
        self._compress = Push(kit)
        self._controls = kit.box(self._focus, self._compress.widget, line=True)
        self.widget = kit.box(self._head, self._compressed.widget, self._controls)

    def read(self) -> Filling:
        """Return how full the window is."""
        return fill(self._place)

    def show(self, found: Filling) -> None:
        """Show it."""
        if found.session != self._now.session:
            self._open = -1
        self._now = found
        self._draw()

    def concerned(self, event: Event | BackgroundEvent) -> bool:
        """Say whether an event changes the size of the next request."""
        kinds = TurnStarted | MessageAdded | UsageReported | ContextCompressed | TurnEnded
        return isinstance(event, kinds)

    def redraw(self) -> None:
        """Show again what was read last; from any thread."""
        self._place.actions.call(self._draw)

    def _draw(self) -> None:
        now = self._now
        write(self._head, _picture(now) if now.session else dim(f"{NO_SESSION.capitalize()}."))
        listed = list(enumerate(now.compressions))[::-1]
        if 0 <= self._open < len(now.compressions):
            write(self._summary, document(now.compressions[self._open].event.summary))
            self._compressed.open(str(self._open), self._summary)
        else:
            self._compressed.open("", self._summary)
        self._compressed.show(listed)
        self._compress.show(
            Act(
                label="Compress now",
                tip="make the conversation shorter; it can be undone",
                do=self._place.doing(self._compress_now),
                off=now.busy or ("" if now.session else NO_SESSION),
            )
        )

    def _line(self, item: tuple[int, Compressed]) -> Line:
        index, compressed = item
        event = compressed.event
        if event.phase == "restored":
            what, how = "Restored", PHASES["restored"]
        else:
            what, how = "Compressed", _counts(event)
        size = f"{amount(event.tokens_before)} → {amount(event.tokens_after)}"
        when = f" at turn {compressed.turn}" if compressed.turn else ""
        foot = f"{how} · {shown(event.warning, 200)}" if event.warning else how
        return Line(
            key=str(index),
            text=f"<b>{what}{when}</b> {size}",
            foot=foot,
            acts=tuple(self._acts(index, event)),
        )

    def _acts(self, index: int, event: ContextCompressed) -> list[Act]:
        acts: list[Act] = []
        if event.summary:
            opened = index == self._open
            acts.append(
                Act(
                    label="close" if opened else "summary",
                    tip="what stands for the messages that were left out",
                    do=lambda: self._unfold(-1 if opened else index),
                )
            )
        last = index == len(self._now.compressions) - 1
        if last and event.phase != "restored":
            acts.append(
                Act(
                    label="undo",
                    tip="put the conversation back as it was",
                    do=self._place.doing(self._restore),
                    off=self._now.busy,
                )
            )
        return acts

    def _unfold(self, index: int) -> None:
        def on_loop() -> None:
            self._open = index
            self._draw()

        self._place.actions.call(on_loop)

    async def _compress_now(self) -> str:
        event = await self._session().compress(self._focus.value[:QUERY].strip())
        if event is None:
            return "There is nothing to gain yet."
        write(self._focus, "")
        size = f"{amount(event.tokens_before)} to {amount(event.tokens_after)}"
        return f"Compressed from about {size} tokens: {PHASES.get(event.phase, event.phase)}."

    def _restore(self) -> str:
        event = self._session().restore()
        return f"The conversation is back at about {amount(event.tokens_after)} tokens."

    def _session(self) -> Session:
        session = self._place.resident.session
        if session is None:
            raise ConfigError(NO_SESSION)
        return session


def _picture(now: Filling) -> str:
    """Return gauge, legend and chart."""
    of = f"of {amount(now.window)}" if now.window else "tokens"
    limit = f" · compresses at {amount(now.threshold)}" if now.threshold else ""
    label = f"about {amount(now.counted)} {of} tokens in use{limit}"
    blocks = [
        f'<span class="hermes-big">{amount(now.counted)}</span> {dim(of + limit)}',
        gauge(now.parts, now.counted, now.window or now.counted, now.threshold, label),
        legend(now.parts),
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
    """Return what a compression did, as HTML."""
    counts = []
    if event.shortened:
        counts.append(f"{number_of(event.shortened, 'result')} shortened")
    if event.dropped:
        counts.append(f"{number_of(event.dropped, 'message')} summarised")
    return ", ".join(counts) or PHASES.get(event.phase, shown(event.phase))
