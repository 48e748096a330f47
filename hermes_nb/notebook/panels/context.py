"""The Context tab: context window use by layer, usage per turn, and compressions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from hermes_nb.agent.session.context_usage import shares, size
from hermes_nb.agent.session.session import Session
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.events import (
    ContextCompressed,
    MessageAdded,
    TurnEnded,
    TurnStarted,
    UsageReported,
)
from hermes_nb.core.messages import Usage
from hermes_nb.core.text import amount, number_of
from hermes_nb.notebook.display.bars import widths
from hermes_nb.notebook.display.transcript import PHASES
from hermes_nb.notebook.event_hub import Compressed
from hermes_nb.notebook.panels.style import (
    BARS,
    Part,
    dim,
    document,
    gauge,
    heading,
    legend,
    shown,
    spending,
    two_columns,
)
from hermes_nb.notebook.panels.widgets import QUERY, Act, Listing, ListItem, Tab, TabContext, write

NO_SESSION = "this session has no turn yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextState:
    """The parts of the next request, and usage per turn so far."""

    session: str = ""
    """Id of the session, or "" before the first turn."""
    parts: tuple[Part, ...] = ()
    """The layers of the prompt, with estimated sizes that add up to `counted`."""
    counted: int = 0
    """Size of the next prompt in tokens."""
    measured: bool = False
    """Whether most of the prompt was counted by the provider."""
    window: int = 0
    """The model's context window in tokens, or 0 if unknown."""
    assumed: bool = False
    """Whether the window is a guess."""
    threshold: int = 0
    """Number of tokens at which the conversation is compressed, or 0 if unknown."""
    turns: tuple[Usage, ...] = ()
    """Usage of each turn in this kernel, oldest first."""
    first: int = 1
    """Number of the first of `turns`."""
    compressions: tuple[Compressed, ...] = ()
    """Compressions in this kernel, oldest first."""
    busy: str = ""
    """The reason the conversation cannot be changed now, or "" if it can."""


class ContextTab(Tab):
    """The context window as a gauge, the turns as a chart, and compressions with undo."""

    title = "Context"
    events = (TurnStarted, MessageAdded, UsageReported, ContextCompressed, TurnEnded)

    def __init__(self, place: TabContext) -> None:
        super().__init__(place)
        self._now = ContextState()
        self._open = -1
        kit = place.kit
        self._head = kit.markup()
        self._compressed = Listing[tuple[int, Compressed]](kit, self._line)
        self._summary = kit.markup()
        self._focus = kit.field("What to keep (optional)")
        self._compress = kit.push()
        controls = kit.box(self._focus, self._compress.widget, line=True)
        self.widget.children = (self._head, self._compressed.widget, controls)

    def read(self) -> ContextState:
        """Return the state to show."""
        agent = self.place.agent
        session = agent.session
        if session is None:
            return ContextState()
        meter = getattr(session.agent.engine, "gauge", None)
        account = agent.hub.of(session.id)
        counted, measured = size(session)
        parts = shares(session)
        sizes = widths([part.tokens for part in parts], counted)
        turns = tuple(account.turns)
        return ContextState(
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

    def show(self, found: ContextState) -> None:
        """Show a state."""
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
                "shorten the conversation; you can undo it",
                self._compress_now,
                off=now.busy or ("" if now.session else NO_SESSION),
            )
        )

    def _line(self, item: tuple[int, Compressed]) -> ListItem:
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
                    "show the summary that replaces the messages",
                    partial(self._unfold, -1 if opened else index),
                    here=True,
                )
            )
        if index == len(self._now.compressions) - 1 and not restored:
            tip = "restore the conversation"
            acts.append(Act("undo", tip, self._restore, off=self._now.busy))
        return ListItem(
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
            return "The conversation is too short to compress."
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


def _picture(now: ContextState) -> str:
    of = f"of {amount(now.window)}" if now.window else "tokens"
    of += " (assumed)" if now.assumed else ""
    limit = f" · compresses at {amount(now.threshold)}" if now.threshold else ""
    how = (
        "The total was counted; the parts are estimates."
        if now.measured
        else "All figures are estimates."
    )
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
        text = " · ".join(filter(None, (amount(total.input), share, cost)))
        first = now.first + max(len(now.turns) - BARS, 0)
        blocks += [
            heading("Tokens sent per turn", "cached · fresh"),
            spending(now.turns, now.first),
            f"<small>{two_columns(f'from turn {first}', text)}</small>",
        ]
    return "".join(blocks)


def _counts(event: ContextCompressed) -> str:
    counts = []
    if event.shortened:
        counts.append(f"{number_of(event.shortened, 'result')} shortened")
    if event.dropped:
        counts.append(f"{number_of(event.dropped, 'message')} summarised")
    return ", ".join(counts) or PHASES.get(event.phase, shown(event.phase))
