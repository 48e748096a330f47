"""A turn in a cell: what is wished of it, how it is shown, what it came to."""

from __future__ import annotations

import keyword
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hermes_nb.agent.prompt_sources import PromptSources, preface_of
from hermes_nb.agent.session.session import Session
from hermes_nb.agent.session.turn import Turn, turn_of
from hermes_nb.agent.undo.checkpoints import Checkpoints
from hermes_nb.core.budget import Budget, Limits
from hermes_nb.core.conversation import Preface
from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.events import Event, TurnEnded, TurnStarted
from hermes_nb.core.messages import Message
from hermes_nb.core.protocols import (
    Effort,
)
from hermes_nb.core.tools import Place, Toolset
from hermes_nb.models.profiles import traits_of
from hermes_nb.notebook.display.plain_terminal import TerminalView
from hermes_nb.notebook.display.transcript import Transcript
from hermes_nb.notebook.display.views import CellView, FinalView, StatusView, TurnView, can_draw
from hermes_nb.notebook.execute.nested import showing
from hermes_nb.notebook.frontend import FrontEnd
from hermes_nb.notebook.page_reload import rejoined
from hermes_nb.notebook.shell import Shell, can_ask, has_kernel, ours
from hermes_nb.notebook.widget_messages import widgets_live
from hermes_nb.safety.guard import Mode
from hermes_nb.safety.markup import escape


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """One turn's wishes; None, "" and () mean: as it is.

    `images` are expressions, `into` is the name of a variable, `system` goes behind the system
    prompt and the messages of the file `prefill` before the conversation. `limits` hold for
    this turn alone.
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
    system: str = ""
    prefill: str = ""
    into: str = ""
    quiet: bool = False
    dry_run: bool = False

    def check(self, prompt: str) -> None:
        """Raise `ConfigError` for what can be seen to be wrong before anything happens."""
        if not prompt.strip():
            raise ConfigError("the prompt is empty; write it below %%hermes or behind %hermes")
        if self.into and (not self.into.isidentifier() or keyword.iskeyword(self.into)):
            raise ConfigError(f"--into {self.into!r} is not a variable's name; nothing was sent")

    def preface(self) -> Preface:
        """Return what goes with the requests of this turn alone; raise `ConfigError`."""
        if not (self.system or self.prefill):
            return Preface()
        return preface_of(Path(), self.system, self.prefill)


class ToolsInUse:
    """Chooses tools; `of` returns those of some names, or the usual ones."""

    def __init__(self, of: Callable[[Sequence[str]], Toolset]) -> None:
        self._of = of
        self._names: tuple[str, ...] = ()

    def choose(self, names: str) -> Toolset:
        """Use only these tools or toolsets (comma-separated; "" or "all" for the usual ones)."""
        wanted = _listed(names)
        chosen = self._of(() if wanted == ("all",) else wanted)
        self._names = () if wanted == ("all",) else wanted
        return chosen

    def chosen(self, names: str = "") -> Toolset:
        """Return the tools for a turn that names these; "" are those chosen before."""
        wanted = _listed(names) or self._names
        return self._of(() if wanted == ("all",) else wanted)


def _listed(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",") if name.strip())


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
        self.view: TurnView = (
            StatusView(view.transcript) if options.quiet and options.into else view
        )

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
        preface: Preface | None = None,
    ) -> None:
        """Take the turn; a cancellation passes through when its last event has been seen."""
        self.transcript.model = session.agent.model.name
        self.transcript.loading = traits_of(session.agent.model).loading
        self.transcript.describe = session.agent.tools.describe
        self.transcript.live = partial(showing, self._shell)
        turn = session.turn(
            message,
            sinks=[self.view, self.events.append],
            max_requests=max_requests,
            budgets=budgets,
            effort=self.options.effort,
            place=place,
            preface=preface,
        )
        async with aclosing(turn) as running:
            async for _ in running:
                pass

    def tell_changes(
        self, session: Session, checkpoints: Checkpoints, knowledge: PromptSources
    ) -> None:
        """Have the view say what the checkpoints and the memory's history have of the turn."""
        if not self.transcript.calls:
            return
        turn = session.agent.turns
        self.transcript.session = session.id
        if why := checkpoints.unsaved(session.id, turn):
            told = "Not all that this turn changed can be undone, it could not be saved"
            self.view.note(f"{told}: {escape(why)}.")
        with suppress(HermesError, OSError):  # then the undo cannot be had either
            if checkpoints.has(session.id, turn):
                here = Path(os.path.realpath(os.curdir))
                self.transcript.changes = checkpoints.changes(session.id, turn, root=here)
            if any(view.call.name == "memory" for view in self.transcript.calls):
                self.transcript.learned = knowledge.learned(session.id, turn)


def make_view(shell: Shell, *, quiet: bool = False) -> TurnView:
    """Return the view that fits where the cell runs."""
    transcript = Transcript()
    if not has_kernel(shell):
        magics = ours(shell)
        transcript.spelled = magics.spelled if magics else transcript.spelled
        return terminal_view(transcript, quiet=quiet)
    return FinalView(transcript) if quiet or not can_ask(shell) else CellView(transcript)


def terminal_view(transcript: Transcript, *, quiet: bool = False) -> TurnView:
    """Return the view for standard output: drawn in a terminal that can, else plain text."""
    if not can_draw(sys.stdout):
        return TerminalView(transcript)
    from hermes_nb.notebook.display.terminal import DrawnView  # and with it rich's Markdown

    return DrawnView(transcript, quiet=quiet)
