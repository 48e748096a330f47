"""A turn in a cell: its options, its view and its result."""

from __future__ import annotations

import asyncio
import keyword
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_nb.agent.prompt_sources import PromptSources, preface_of
from hermes_nb.agent.session.session import Session, SessionSpec
from hermes_nb.agent.session.turn import Turn, turn_of
from hermes_nb.agent.undo.checkpoints import Checkpoints
from hermes_nb.core.budget import Budget, Limits
from hermes_nb.core.conversation import Preface
from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.events import CallDelta, Event, TurnEnded, TurnStarted
from hermes_nb.core.messages import Message
from hermes_nb.core.protocols import Effort, StoredSession
from hermes_nb.core.steering import Steering
from hermes_nb.core.tools import Place, Toolset
from hermes_nb.models.profiles import traits_of
from hermes_nb.notebook.display.plain_terminal import TerminalView
from hermes_nb.notebook.display.transcript import Transcript
from hermes_nb.notebook.display.views import CellView, FinalView, StatusView, TurnView, can_draw
from hermes_nb.notebook.execute.nested import showing
from hermes_nb.notebook.execute.trial import copies_of
from hermes_nb.notebook.execute.variable_changes import brief_change
from hermes_nb.notebook.execute.variable_changes import changes as changed_variables
from hermes_nb.notebook.frontend import FrontEnd
from hermes_nb.notebook.page_reload import rejoined
from hermes_nb.notebook.shell import (
    Shell,
    can_ask,
    has_kernel,
    hermes_magics,
    running_cell,
    turn_cell,
)
from hermes_nb.notebook.widget_messages import widgets_live
from hermes_nb.safety.guard import COPY, Mode
from hermes_nb.safety.markup import escape
from hermes_nb.safety.redact import redact

if TYPE_CHECKING:
    from hermes_nb.agent.settings.config import Settings
    from hermes_nb.notebook.attachments import Attachment
    from hermes_nb.safety.administrator import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """A turn's options, as given on the `%hermes` line."""

    model: str = ""
    """Model to use from this turn on; "" keeps the current one."""
    tools: str = ""
    """Tools or toolsets for this turn, comma-separated; "" for those chosen earlier."""
    session: str = ""
    """Session to resume or start, by id or title; "" for the current one."""
    new: bool = False
    """Whether to start a new session."""
    context: bool = True
    """Whether to send the notebook's changes to the model."""
    max_requests: int | None = None
    """Maximum model requests for this turn; None to use the settings."""
    limits: Limits = field(default_factory=Limits)
    """Cost and token limits for this turn alone."""
    approve: Mode | None = None
    """Approval mode for this turn; None to use the settings."""
    effort: Effort = ""
    """Reasoning effort; "" for the model's default."""
    images: tuple[str, ...] = ()
    """Expressions whose values are sent as images."""
    system: str = ""
    """Text appended to this turn's system prompt."""
    prefill: str = ""
    """Path of a file whose messages precede the conversation; "" for none."""
    into: str = ""
    """Name of the variable that receives the answer; "" for none."""
    quiet: bool = False
    """Whether to show nothing until the turn has ended."""
    dry_run: bool = False
    """Whether to show the request without sending it."""
    what_if: bool = False
    """Whether code runs on a copy of the variables, and nothing else may change anything."""

    def check(self, prompt: str, policy: Policy) -> None:
        """Raise `ConfigError` for an empty prompt, an invalid variable name or a forbidden mode."""
        if not prompt.strip():
            raise ConfigError("the prompt is empty; write it below %%hermes or after %hermes")
        if self.into and (not self.into.isidentifier() or keyword.iskeyword(self.into)):
            raise ConfigError(f"--into {self.into!r} is not a variable's name; nothing was sent")
        if self.approve:
            policy.check("modes", self.approve)

    def preface(self) -> Preface:
        """Return this turn's extra prompt and messages; raise `ConfigError` if invalid."""
        if not (self.system or self.prefill):
            return Preface()
        return preface_of(Path(), self.system, self.prefill)


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnEnv:
    """A turn's environment; created once, before the turn's message."""

    settings: Settings
    """The settings, with the administrator's policy applied."""
    options: TurnOptions
    """The cell's options."""
    spec: SessionSpec
    """The model, and the parts for building a new session."""
    session: Session | StoredSession | None
    """The session. A dry run may have only its stored data, or None for a new session."""
    site: Place
    """The session, notebook and cell in which the turn runs."""
    tools: Toolset
    """The chosen tools."""
    sees_images: bool = False
    """Whether the model is known to accept images."""
    pictures: Sequence[Attachment] = ()
    """Images attached to the message."""
    budgets: Sequence[Budget] = ()
    """Spending limits for this turn alone."""
    view: TurnView | None = None
    """Displays the turn; None for a dry run."""

    @property
    def opened(self) -> Session:
        """The session, which is open unless this is a dry run."""
        if not isinstance(self.session, Session):
            raise TypeError("a dry run opens no session")
        return self.session


class CellTurn:
    """One turn. Created by the caller, so an interrupt keeps the partial result.

    `view` renders the turn; `events` contains those received so far; `steering` receives the texts
    that the user adds meanwhile.
    """

    def __init__(self, shell: Shell, options: TurnOptions) -> None:
        self.options = options
        self.events: list[Event] = []
        self.steering = Steering()
        self._shell = shell
        # A quiet turn with `--into` binds the answer to a variable: a status line is enough.
        view = make_view(shell, quiet=options.quiet)
        self.view: TurnView = (
            StatusView(view.transcript) if options.quiet and options.into else view
        )

    @property
    def transcript(self) -> Transcript:
        """The data rendered by the view."""
        return self.view.transcript

    @property
    def begun(self) -> bool:
        """Whether the conversation contains the prompt."""
        return any(isinstance(event, TurnStarted) for event in self.events)

    @property
    def result(self) -> Turn | None:
        """The turn, or None until it has ended."""
        ended = any(isinstance(event, TurnEnded) for event in self.events)
        return turn_of(self.events) if ended else None

    def bind(self, names: dict[str, object]) -> None:
        """Bind the answer to the variable named by `--into`."""
        name, result = self.options.into, self.result
        if name and result is not None and result.reason == "answered":
            names[name] = result.text
        elif name and result is not None and result.reason == "budget":
            self.view.note(f"`{name}` was not set: the turn ended without an answer.")

    @asynccontextmanager
    async def shown(self, frontend: FrontEnd) -> AsyncIterator[None]:
        """Show the turn, including in a page that reloads while the turn is running.

        The user's widgets keep working until the turn ends.
        """
        alone = isinstance(self.view, StatusView)
        beside = nullcontext() if alone else rejoined(self._shell, frontend, self.transcript)
        async with beside, widgets_live(self._shell):
            try:
                yield
            finally:
                if self.transcript.started:
                    page = frontend.page if running_cell(self._shell) else None
                    self.transcript.buttons = page is not None and page.undoes
                    self.view.close()

    def begin(self) -> None:
        """Show the turn before its first event, because its cell ends."""
        if isinstance(self.view, CellView):
            self.view.begin()

    def refresh(self) -> None:
        """Show the turn's state; can be called from any thread."""
        if isinstance(self.view, CellView):
            self.view.refresh()

    def explain(self, error: BaseException) -> None:
        """Show why a turn next to the cells did not begin, because no cell shows the error."""
        if self.transcript.beside and not self.begun:
            stopped = isinstance(error, asyncio.CancelledError | KeyboardInterrupt)
            told = str(error) or type(error).__name__
            self.view.note("Stopped." if stopped else f"**Failed:** {escape(redact(told))}")

    async def take(self, env: TurnEnv, message: Message) -> None:
        """Run the turn until it ends.

        A cancellation is raised only after the turn's last event has been received.
        """
        session = env.opened
        self.transcript.model = session.agent.model.name
        self.transcript.loading = traits_of(session.agent.model).loading
        self.transcript.describe = session.agent.tools.describe
        self.transcript.live = partial(showing, self._shell, turn_cell.get())
        session.agent.steering = self.steering
        turn = session.turn(
            message,
            sinks=[self.view, self.events.append, self._start_copy],
            max_requests=env.options.max_requests or env.settings.max_requests,
            budgets=env.budgets,
            effort=env.options.effort,
            place=env.site,
            preface=env.options.preface(),
            sees_images=env.sees_images,
        )
        async with aclosing(turn) as running:
            async for _ in running:
                pass

    def _start_copy(self, event: Event) -> None:
        """Start the process of `try_python` while the model is still writing the code."""
        if isinstance(event, CallDelta) and event.name == COPY:
            copies_of(self._shell).start()

    def tell_changes(
        self, session: Session, checkpoints: Checkpoints, knowledge: PromptSources
    ) -> None:
        """Make the view list the files, cells and memory entries changed by the turn."""
        if not self.transcript.calls:
            return
        turn = session.agent.turns
        self.transcript.session = session.id
        self.transcript.variables = [
            *map(brief_change, changed_variables(self._shell, session.id, turn))
        ]
        if why := checkpoints.unsaved(session.id, turn):
            text = (
                "Some changes of this turn cannot be undone, because their previous state could "
                "not be saved"
            )
            self.view.note(f"{text}: {escape(why)}.")
        with suppress(HermesError, OSError):  # in that case, undo is not available either
            if checkpoints.has(session.id, turn):
                here = Path(os.path.realpath(os.curdir))
                self.transcript.changes = checkpoints.changes(session.id, turn, root=here)
            if any(view.call.name == "memory" for view in self.transcript.calls):
                self.transcript.learned = knowledge.learned(session.id, turn)


def make_view(shell: Shell, *, quiet: bool = False) -> TurnView:
    """Return the view for a notebook page, a headless kernel or a terminal."""
    transcript = Transcript()
    if not has_kernel(shell):
        magics = hermes_magics(shell)
        transcript.spelled = magics.spelled if magics else transcript.spelled
        return terminal_view(transcript, quiet=quiet)
    return FinalView(transcript) if quiet or not can_ask(shell) else CellView(transcript)


def terminal_view(transcript: Transcript, *, quiet: bool = False) -> TurnView:
    """Return the view for standard output: rich if the terminal supports it."""
    if not can_draw(sys.stdout):
        return TerminalView(transcript)
    from hermes_nb.notebook.display.terminal import DrawnView  # slow: imports rich's Markdown

    return DrawnView(transcript, quiet=quiet)
