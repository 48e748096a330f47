"""Hermes as it lives in this kernel: one model, one set of tools, one session at a time.

The magics and the commands are doorbells; this is who answers. Nothing is built before the first
turn: no client, no directory, no connection.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hermes_nb.app.build import build_deck, open_store
from hermes_nb.app.checkpoints import Checkpoints
from hermes_nb.app.config import Settings, load_settings
from hermes_nb.app.knowledge import Knowledge
from hermes_nb.app.reviews import Reviews
from hermes_nb.app.session import Equipment, Session
from hermes_nb.app.workshop import Workshop
from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.protocols import ChatModel, SessionStore, StoredSession, Variable
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Toolset
from hermes_nb.models.modes import Mode as CassetteMode
from hermes_nb.notebook.approval import CellApprover
from hermes_nb.notebook.briefing import Briefing
from hermes_nb.notebook.conversations import Conversations
from hermes_nb.notebook.desk import Desk
from hermes_nb.notebook.document import NotebookDocument
from hermes_nb.notebook.happenings import Happenings
from hermes_nb.notebook.interrupt import stoppable
from hermes_nb.notebook.kernel_tools import kernel_tools
from hermes_nb.notebook.models_in_use import ModelsInUse
from hermes_nb.notebook.notebook_tools import notebook_tools
from hermes_nb.notebook.transcript import Transcript
from hermes_nb.notebook.variables import summaries
from hermes_nb.notebook.view import View, can_ask, has_kernel, make_view
from hermes_nb.safety.guard import Guard, Mode
from hermes_nb.safety.markup import escape


class TurnFailed(HermesError):  # noqa: N818 - what happened to the turn
    """The turn failed; its cell fails with it, so that a run of the whole notebook stops here."""


class Stopped(HermesError):  # noqa: N818 - what the user did
    """The user stopped the turn; the cell ends as interrupted cells do, in one line."""

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """What a magic line says about one turn; None and "" mean: as it is."""

    model: str = ""
    tools: str = ""
    session: str = ""
    new: bool = False
    context: bool = True
    max_requests: int | None = None
    approve: Mode | None = None
    quiet: bool = False


class Resident:
    """The agent of one kernel.

    `overrides` are the traitlets' values, asked for whenever settings are read. `say` shows a line
    of ours outside of a turn.
    """

    def __init__(
        self,
        shell: Any,  # noqa: ANN401 - IPython's shell
        *,
        overrides: Callable[[], Mapping[str, Any]] = dict,
        say: Callable[[str], None],
    ) -> None:
        self.shell = shell
        self.last: Transcript | None = None
        self.happenings = Happenings()
        self.guard = Guard()
        self._overrides = overrides
        self._chosen: dict[str, Any] = {}
        self._say = say
        self._view: View | None = None
        self.deck = build_deck(
            self.settings,
            personal=lambda: self.session.personal if self.session else (),
            notebook=lambda: self.notebook,
        )
        self.models = ModelsInUse(self.settings, self.variables, self.deck)
        self._workshop: Workshop | None = None
        self._equipped: Equipment | None = None
        self._reviews: Reviews | None = None
        self._tool_names: tuple[str, ...] = ()
        self._store: SessionStore | None = None
        self.desk = Desk(
            shell,
            home=lambda: self.settings().home,
            explicit=lambda: self.settings().notebook,
            session=lambda: self.session.id if self.session else "",
            turn=lambda: self.session.agent.turns if self.session else 0,
        )
        self._briefing = Briefing(shell, self.desk, self.variables)
        self._conversations = Conversations(
            store=lambda: self.store,
            notebook=lambda: self.notebook,
            source="notebook" if has_kernel(shell) else "terminal",
            note=self._note,
            entered=self.happenings.enter,
        )

    @property
    def session(self) -> Session | None:
        """The session that the next turn goes on with, None before the first one."""
        return self._conversations.current

    def settings(self) -> Settings:
        """Return the settings as they are now."""
        return load_settings(overrides={**self._overrides(), **self._chosen})

    @property
    def store(self) -> SessionStore:
        """The session store; opened on first use."""
        if self._store is None:
            self._store = open_store(self.settings(), self._note)
        return self._store

    @property
    def model_name(self) -> str:
        """The model that answered last, or "" before the first turn."""
        return self.models.name

    @property
    def notebook(self) -> str:
        """The absolute path of this kernel's notebook, or ""."""
        return self.desk.path

    @property
    def checkpoints(self) -> Checkpoints:
        """What the agent's changes can be undone with."""
        return self.desk.checkpoints

    async def document(self) -> NotebookDocument:
        """Return this kernel's notebook; raise `ToolError` where it cannot be reached."""
        return await self.desk.document()

    async def ask(self, prompt: str, options: TurnOptions | None = None) -> str:
        """Take a turn, show it, and return the answer.

        Raises `Stopped` when the user stopped it and `TurnFailed` when it failed; both render as
        one line. What was shown and stored until then stays.
        """
        options = options or TurnOptions()
        if not prompt.strip():
            message = "the prompt is empty; write it below %%hermes or behind %hermes"
            raise ConfigError(message)
        with stoppable() as stop:
            await self._turn(prompt, options)
        ending = self.last.ending if self.last else None
        if stop.stopped or ending is None or ending.reason == "interrupted":
            message = "stopped"
            raise Stopped(message)
        if ending.reason == "failed":
            raise TurnFailed(ending.error)
        if self.session is not None and self._looks_back:
            self.reviews.after_turn(self.session)
        return self.last.answer if self.last else ""

    async def _turn(self, prompt: str, options: TurnOptions) -> None:
        settings = self.settings()
        view = self._view = make_view(self.shell, quiet=options.quiet)
        self.last = view.transcript
        mode = self.guard.mode
        try:
            session = await self._prepare(prompt, options, settings)
            self._tell_what_was_learned(session)
            view.transcript.model = session.agent.model.name
            self.guard.mode = options.approve or settings.approve
            session.use(self._selected(options))
            view.transcript.describe = session.agent.tools.describe
            told_to = session.id if options.context else None
            message = await self._briefing.message(prompt, told_to)
            budget = options.max_requests or settings.max_requests
            async with aclosing(session.turn(message, sinks=[view], max_requests=budget)) as events:
                async for _ in events:
                    pass
        finally:
            self.guard.mode = mode
            self._view = None
            if view.transcript.started:
                view.close()

    async def _prepare(self, prompt: str, options: TurnOptions, settings: Settings) -> Session:
        """Return the session that takes the turn, built, resumed or as it stands."""
        if options.model:
            self.choose_model(options.model)
            settings = self.settings()
        await self.models.make_ready(self.shell, self._note)
        if options.new:
            self.new()
        equipment = self._equipment(settings)
        if options.session:
            session = self._conversations.join(options.session, equipment)
        else:
            found = None if options.new else self.session
            if found is None and not options.new and not self.deck.on:
                found = self._conversations.pick_up(equipment)
            session = found or self._conversations.start(one_line(prompt, 60), equipment)
        session.adopt(equipment)
        return session

    def new(self) -> None:
        """End the running session; the next turn begins another."""
        self._conversations.end()

    def resume(self, wanted: str = "") -> Session:
        """Go on with a session by id or title, or with the notebook's (or any) latest one.

        Raises `ConfigError` when there is none.
        """
        return self._conversations.resume(wanted, self._equipment(self.settings()))

    def find_session(self, wanted: str) -> StoredSession:
        """Return a stored session by id or title; "" is the latest, of this notebook if any.

        Raises `ConfigError` when there is none.
        """
        return self._conversations.find(wanted)

    def _equipment(self, settings: Settings) -> Equipment:
        model = self.models.main
        if self._equipped is None or self._equipped.model is not model:
            self._equipped = self.workshop.equipment(model, auxiliary=self.models.auxiliary)
        return replace(self._equipped, max_requests=settings.max_requests)

    @property
    def workshop(self) -> Workshop:
        """What equips sessions, with everything Hermes knows here; made on first use."""
        if self._workshop is None:
            self._workshop = Workshop(
                self.settings(),
                root=working_directory(),
                store=self.store,
                guard=self.guard,
                approver=CellApprover(self.shell, self.desk.frontend),
                session=lambda: self.session,
                notebook=lambda: self.notebook,
                own=self._own_tools(),
                keeper=self.checkpoints.keeper(lambda: self.session.id if self.session else ""),
                tell=self._note,
            )
        return self._workshop

    @property
    def knowledge(self) -> Knowledge:
        """What Hermes knows in this home and working directory."""
        return self.workshop.knowledge

    def choose_model(self, name: str) -> None:
        """Use another model from the next turn on; the conversation stays."""
        self._chosen["model"] = name
        self.use(None)

    def switch_cassette(self, mode: CassetteMode) -> None:
        """Record, replay, both or neither from the next turn on."""
        self.deck.switch(mode)
        self.models.renew()
        self._equipped = None

    @property
    def reviews(self) -> Reviews:
        """What looks back after turns; made on first use."""
        if self._reviews is None:
            self._reviews = Reviews(
                self.workshop, model=self.models.another, emit=self.happenings.background
            )
        return self._reviews

    def close(self) -> None:
        """Stop what runs in the background."""
        self.happenings.close()
        if self._reviews is not None:
            self._reviews.close()

    @property
    def _looks_back(self) -> bool:
        """Whether reviews run: where somebody is there, and with a model that can learn."""
        return can_ask(self.shell) and self.models.can_learn

    def _tell_what_was_learned(self, session: Session) -> None:
        if not self._looks_back:
            return
        self.reviews.watch(session)
        if learned := self.reviews.learned():
            told = "; ".join(escape(line) for line in learned)
            self._note(f"Learned since: {told}. `%hermes memory undo` takes the last back.")

    def use(self, model: ChatModel | None) -> None:
        """Use this model object from the next turn on; None is the one that the settings name."""
        self.models.use(model)

    def choose_approval(self, mode: str) -> None:
        """Set the approval mode; raise `ConfigError` for one that does not exist."""
        load_settings(overrides={"approve": mode})
        self._chosen["approve"] = mode

    def choose_tools(self, names: str) -> Toolset:
        """Use only these tools or toolsets (comma-separated; "" or "all" for all)."""
        wanted = tuple(name.strip() for name in names.split(",") if name.strip())
        self._tool_names = () if wanted in ((), ("all",)) else wanted
        return self.chosen_tools()

    def chosen_tools(self) -> Toolset:
        """Return the tools that the next turn may use."""
        return self._selected(TurnOptions())

    def tools(self) -> Toolset:
        """Return all the tools there are, built on first use."""
        return self._equipment(self.settings()).tools

    def _own_tools(self) -> Toolset:
        """Return the kernel's tools, and the notebook's where there is one."""
        tools = kernel_tools(self.shell, sees_images=self.models.sees_images)
        if not has_kernel(self.shell):
            return tools
        return tools + notebook_tools(
            self.shell,
            self.desk.document,
            turn_mark=self._mark,
            sees_images=self.models.sees_images,
            seen=self.desk.seen,
            path=lambda: self.notebook,
            root=working_directory,
        )

    def _mark(self) -> dict[str, Any]:
        """Return the metadata of cells that the agent makes now."""
        session = self.session
        return {"session": session.id, "turn": session.agent.turns} if session else {}

    def variables(self) -> list[Variable]:
        """Return the user's variables as a prompt needs them."""
        return summaries(self.shell.user_ns, self.shell.user_ns_hidden)

    def _selected(self, options: TurnOptions) -> Toolset:
        everything = self.tools()
        names = tuple(n.strip() for n in options.tools.split(",") if n.strip()) or self._tool_names
        if not names or names == ("all",):
            return everything
        known = {tool.name for tool in everything} | {tool.toolset for tool in everything}
        if unknown := [name for name in names if name not in known]:
            message = f"there is no tool or toolset {unknown[0]!r}; %hermes tools lists them"
            raise ConfigError(message)
        return everything.only(*names)

    def _note(self, markdown: str) -> None:
        if self._view is not None:
            self._view.note(markdown)
        else:
            self._say(markdown)


def working_directory() -> Path:
    """Return the kernel's working directory; raise `ConfigError` when it has been deleted."""
    try:
        return Path(os.getcwd())  # noqa: PTH109 - Path.cwd() says nothing else
    except OSError as error:
        message = "the working directory has been deleted; `%cd` to another one"
        raise ConfigError(message) from error
