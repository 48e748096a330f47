"""A turn in a cell: what is wished of it, how it is shown, what it came to and how its cell ends.

What a user can do about a turn that failed is the second half of the line that its cell ends with.
Which failure it was is told by how its text begins, in the words of `models.chat.errors`; scripts
and the command line have other ways out, so the words for a notebook are here.
"""

from __future__ import annotations

import difflib
import keyword
import sys
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace

from hermes_nb.agent.session import Session
from hermes_nb.agent.turn import Turn, turn_of
from hermes_nb.core.budget import Budget, Limits
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.events import Event, TurnEnded, TurnStarted
from hermes_nb.core.messages import Message
from hermes_nb.core.protocols import Effort
from hermes_nb.core.tools import Place, Toolset
from hermes_nb.notebook.display.transcript import Transcript
from hermes_nb.notebook.display.views import (
    CellView,
    FinalView,
    StatusView,
    TerminalView,
    View,
    can_ask,
    can_draw,
    has_kernel,
)
from hermes_nb.notebook.frontend import FrontEnd
from hermes_nb.notebook.page_reload import rejoined, widgets_live
from hermes_nb.notebook.shell import Shell
from hermes_nb.safety.guard import Mode
from hermes_nb.safety.redact import redact


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """One turn's wishes; None, "" and () mean: as it is.

    `images` are expressions, `into` is the name of a variable. `limits` hold for this turn alone.
    """

    model: str = ""
    tools: str = ""
    session: str = ""
    new: bool = False
    context: bool = True
    max_requests: int | None = None
    limits: Limits = field(default_factory=Limits)
    approve: Mode | None = None
    effort: Effort = ""
    images: tuple[str, ...] = ()
    into: str = ""
    quiet: bool = False
    dry_run: bool = False

    def check(self, prompt: str) -> None:
        """Raise `ConfigError` for what can be seen to be wrong before anything happens."""
        if not prompt.strip():
            raise ConfigError("the prompt is empty; write it below %%hermes or behind %hermes")
        if self.into and (not self.into.isidentifier() or keyword.iskeyword(self.into)):
            raise ConfigError(f"--into {self.into!r} is not a variable's name; nothing was sent")


class ToolsInUse:
    """Chooses tools; `everything()` are all there are, built on first use."""

    def __init__(self, everything: Callable[[], Toolset]) -> None:
        self._everything = everything
        self._names: tuple[str, ...] = ()

    def choose(self, names: str) -> Toolset:
        """Use only these tools or toolsets (comma-separated; "" or "all" for all)."""
        wanted = _listed(names)
        chosen = self._only(() if wanted == ("all",) else wanted)
        self._names = () if wanted == ("all",) else wanted
        return chosen

    def chosen(self, names: str = "") -> Toolset:
        """Return the tools for a turn that names these; "" are those chosen before."""
        wanted = _listed(names) or self._names
        return self._only(() if wanted == ("all",) else wanted)

    def _only(self, names: tuple[str, ...]) -> Toolset:
        everything = self._everything()
        if not names:
            return everything
        known = sorted({tool.name for tool in everything} | {tool.toolset for tool in everything})
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else "%hermes tools lists them"
                raise ConfigError(f"there is no tool or toolset {name!r}; {hint}")
        return everything.only(*names)


def _listed(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",") if name.strip())


OTHER = "`%hermes model NAME` goes on with another model"
BY_BEGINNING = (
    (
        "the provider refused the API key",
        "`%hermes doctor` says where the key comes from; `%hermes key` asks for another, which "
        "counts from the next turn on",
    ),
    ("the account has no quota left", f"top it up, or {OTHER}"),
    ("the provider limits the rate of requests", f"run the cell again in a while, or {OTHER}"),
    ("the provider cannot answer just now", f"run the cell again in a while, or {OTHER}"),
    (
        "the conversation does not fit",
        "`%hermes compress` makes it shorter, `%hermes new` begins another",
    ),
    (
        "the provider refused the request",
        "`%hermes models` lists the models at hand, `%hermes model NAME` chooses one",
    ),
    (
        "the provider does not know this model",
        "`%hermes models` lists what is served, `%hermes model NAME` chooses one; an address"
        "{at} mostly ends in /v1",
    ),
    (
        "no connection to the provider",
        "is a server running{at}, and the network up? `%hermes model embedded` needs neither",
    ),
    ("the provider did not answer in time", f"run the cell again, or {OTHER}"),
    (
        "the answer could not be read",
        "does the server{at} speak OpenAI's protocol? Its address mostly ends in /v1",
    ),
    (
        "no API key",
        "`%hermes key` asks for one; it does not belong in the notebook",
    ),
    ("the server answered with a web page", "it mostly ends in /v1"),
    ("the server's answer is no chat completion", "it mostly ends in /v1"),
    ("the server sent", f"run the cell again, or {OTHER}"),
    ("the server's stream could not be read", f"run the cell again, or {OTHER}"),
    ("the provider broke the reply off", f"run the cell again, or {OTHER}"),
)


def remedy(error: str, *, address: str = "") -> str:
    """Return what to do about an error, "" where nothing is known to help.

    `address` is where the model is asked, "" for the provider's own.
    """
    for beginning, told in BY_BEGINNING:
        if error.startswith(beginning):
            return told.replace("{at}", f" at {redact(address)}" if address else "")
    return ""


def with_remedy(turn: Turn, *, address: str = "") -> Turn:
    """Return a turn whose error also says what to do next."""
    told = remedy(turn.error, address=address) if turn.reason == "failed" else ""
    return replace(turn, error=f"{turn.error.rstrip(' .')}; {told}") if told else turn


class CellTurn:
    """One turn, made by whoever wants its result: a stop loses nothing of what it had come to.

    `view` shows it, `events` are those so far.
    """

    def __init__(self, shell: Shell, options: TurnOptions) -> None:
        self.options = options
        self.events: list[Event] = []
        self._shell = shell
        # Where the answer goes into a variable, its cell shows no more than a status line.
        view = make_view(shell, quiet=options.quiet)
        self.view: View = StatusView(view.transcript) if options.quiet and options.into else view

    @property
    def transcript(self) -> Transcript:
        """What is shown."""
        return self.view.transcript

    @property
    def begun(self) -> bool:
        """Whether the conversation has the prompt."""
        return any(isinstance(event, TurnStarted) for event in self.events)

    @property
    def result(self) -> Turn | None:
        """What the turn came to, None as long as it has not ended."""
        ended = any(isinstance(event, TurnEnded) for event in self.events)
        return turn_of(self.events) if ended else None

    @asynccontextmanager
    async def shown(self, frontend: FrontEnd) -> AsyncIterator[None]:
        """Show the turn, also in a page that is reloaded meanwhile; the user's widgets go on."""
        alone = isinstance(self.view, StatusView)
        beside = nullcontext() if alone else rejoined(self._shell, frontend, self.transcript)
        async with beside, widgets_live(self._shell):
            try:
                yield
            finally:
                if self.transcript.started:
                    self.view.close()

    async def take(
        self,
        session: Session,
        message: Message,
        *,
        max_requests: int,
        budgets: Iterable[Budget],
        place: Place,
    ) -> None:
        """Take the turn; a cancellation passes through when its last event has been seen."""
        self.transcript.model = session.agent.model.name
        self.transcript.describe = session.agent.tools.describe
        turn = session.turn(
            message,
            sinks=[self.view, self.events.append],
            max_requests=max_requests,
            budgets=budgets,
            effort=self.options.effort,
            place=place,
        )
        async with aclosing(turn) as running:
            async for _ in running:
                pass


def make_view(shell: Shell, *, quiet: bool = False) -> View:
    """Return the view that fits where the cell runs."""
    transcript = Transcript()
    if not has_kernel(shell):
        return terminal_view(transcript, quiet=quiet)
    return FinalView(transcript) if quiet or not can_ask(shell) else CellView(transcript)


def terminal_view(transcript: Transcript, *, quiet: bool = False) -> View:
    """Return the view for standard output: drawn in a terminal that can, else plain text."""
    if not can_draw(sys.stdout):
        return TerminalView(transcript)
    from hermes_nb.notebook.display.terminal import DrawnView  # and with it rich's Markdown

    return DrawnView(transcript, quiet=quiet)
