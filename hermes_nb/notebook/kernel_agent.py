"""Hermes as it lives in this kernel: one model, one set of tools, one session at a time.

The magics and the commands are doorbells; this is who answers. Nothing is built before the first
turn: no client, no directory, no connection.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hermes_nb.agent.build import open_store
from hermes_nb.agent.checkpoints import Checkpoints
from hermes_nb.agent.config import Settings, load_settings
from hermes_nb.agent.jobs import Jobs
from hermes_nb.agent.models import build_deck
from hermes_nb.agent.prompt_sources import Knowledge
from hermes_nb.agent.reviews import Reviews
from hermes_nb.agent.runtime import Workshop
from hermes_nb.agent.session import Equipment, Session
from hermes_nb.agent.session_manager import Conversations
from hermes_nb.agent.turn import Turn
from hermes_nb.core.errors import ConfigError, SessionBusy
from hermes_nb.core.loop import BUSY
from hermes_nb.core.protocols import ChatModel, SessionStore, StoredSession, Variable
from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.models.cassette import Mode as CassetteMode
from hermes_nb.notebook.access import Desk
from hermes_nb.notebook.approval import CellApprover, Permission
from hermes_nb.notebook.display.transcript import Transcript
from hermes_nb.notebook.display.views import View, can_ask, has_kernel
from hermes_nb.notebook.document.document import NotebookDocument
from hermes_nb.notebook.dry_run import rehearse
from hermes_nb.notebook.event_hub import Happenings
from hermes_nb.notebook.line import TurnOptions
from hermes_nb.notebook.models import ModelsInUse
from hermes_nb.notebook.outfit import Outfit
from hermes_nb.notebook.tools_in_use import ToolsInUse, own_tools
from hermes_nb.notebook.turn import Stopped, TurnFailed, take
from hermes_nb.notebook.user_message import Briefing
from hermes_nb.notebook.variables import summaries
from hermes_nb.safety.guard import Guard
from hermes_nb.safety.markup import escape


class Resident:
    """The agent of one kernel.

    `overrides` are the traitlets' values, asked for whenever settings are read, and `began` is the
    approval mode that they had at first. `say` shows a line of ours outside of a turn. `unsent` are
    prompts that were stopped before there was a session to keep them in: the next turn's has them.
    """

    def __init__(
        self,
        shell: Any,  # noqa: ANN401 - IPython's shell
        *,
        overrides: Callable[[], Mapping[str, Any]] = dict,
        began: Callable[[], str] = str,
        say: Callable[[str], None],
        unsent: list[str] | None = None,
    ) -> None:
        self.shell = shell
        self.last: Transcript | None = None
        self.view: View | None = None
        self.turn: Turn | None = None
        self.unsent = [] if unsent is None else unsent
        self.happenings = Happenings()
        self.jobs = Jobs()
        self.guard = Guard()
        self.permission = Permission(
            shell, self.guard, notebook=lambda: self.notebook, began=began, note=self.note
        )
        self._overrides = overrides
        self._chosen: dict[str, Any] = {}
        self._say = say
        self.deck = build_deck(
            self.settings,
            personal=lambda: self.session.personal if self.session else (),
            notebook=lambda: self.notebook,
            start=Path(shell.starting_dir),
        )
        self.models = ModelsInUse(self.settings, self.variables, self.deck)
        self._outfit = Outfit(self.models, make=self._workshop, emit=self.happenings.background)
        self.tools_in_use = ToolsInUse(self.tools)
        self._store: SessionStore | None = None
        self.conversations = Conversations(
            store=lambda: self.store,
            notebook=lambda: self.notebook,
            source="notebook" if has_kernel(shell) else "terminal",
            note=self.note,
            entered=self.happenings.enter,
        )
        self.desk = Desk(
            shell,
            home=lambda: self.settings().home,
            explicit=lambda: self.settings().notebook,
            session=lambda: self.session.id if self.session else "",
            turn=lambda: self.session.agent.turns if self.session else 0,
            moved=self.conversations.relocate,
        )
        self.briefing = Briefing(shell, self.desk, self.variables)

    @property
    def session(self) -> Session | None:
        """The session that the next turn goes on with, None before the first one."""
        return self.conversations.current

    def settings(self, **options: object) -> Settings:
        """Return the settings as they are now; `options` that are not None come first."""
        wished = {name: value for name, value in options.items() if value is not None}
        return load_settings(overrides={**self._overrides(), **self._chosen, **wished})

    def _choose(self, key: str, value: object) -> None:
        """Choose a value from now on, None for what it would be without; raise `ConfigError`."""
        wanted = {**self._chosen, key: value}
        load_settings(
            overrides={**self._overrides(), **wanted}
        )  # what cannot be used is not chosen
        self._chosen = wanted

    @property
    def store(self) -> SessionStore:
        """The session store; opened on first use."""
        if self._store is None:
            self._store = open_store(self.settings(), self.note)
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
        """Take a turn, show it, and return the answer; a dry run shows what would be sent.

        Raises `Stopped` when the user stopped it and `TurnFailed` when it failed; both render as
        one line. What was shown and stored until then stays. Raises `SessionBusy` while a turn of
        this kernel runs, and leaves that alone.
        """
        options = options or TurnOptions()
        options.check(prompt)
        if self.view is not None:
            raise SessionBusy(BUSY)
        if options.dry_run:
            await rehearse(self, prompt, options, show=self._say)
            return ""
        await take(self, prompt, options)
        turn = self.turn
        if turn is None or turn.reason == "interrupted":
            message = "stopped"
            raise Stopped(message)
        if turn.reason == "failed":
            raise TurnFailed(turn.error)
        if self.session is not None and self._looks_back:
            self.reviews.after_turn(self.session)
        return self.last.answer if self.last else ""

    def new(self) -> None:
        """End the running session; the next turn begins another."""
        self.conversations.end()

    def resume(self, wanted: str = "") -> Session:
        """Go on with a session by id or title, or with the notebook's (or any) latest one.

        Raises `ConfigError` when there is none.
        """
        return self.conversations.resume(wanted, self.equipment(self.settings()))

    def find_session(self, wanted: str) -> StoredSession:
        """Return a stored session by id or title; "" is the latest, of this notebook if any.

        Raises `ConfigError` when there is none.
        """
        return self.conversations.find(wanted)

    def equipment(self, settings: Settings) -> Equipment:
        """Return what a session is given now; raise `ConfigError` where there is no model."""
        return self._outfit.equipment(settings)

    @property
    def workshop(self) -> Workshop:
        """What equips sessions, with everything Hermes knows here; made on first use."""
        return self._outfit.workshop

    def _workshop(self, given: Toolset) -> Workshop:
        """Return a workshop for this kernel, with tools of the user's."""
        root = working_directory()
        return Workshop(
            self.settings(),
            root=root,
            store=self.store,
            guard=self.guard,
            approver=CellApprover(self.shell, self.desk.frontend),
            session=lambda: self.session,
            notebook=lambda: self.notebook,
            own=own_tools(
                self.shell,
                self.desk,
                sees_images=self.models.sees_images,
                mark=self._mark,
                root=working_directory,
            ),
            given=given,
            keeper=self.checkpoints.keeper(lambda: self.session.id if self.session else ""),
            tell=self.note,
            jobs=self.jobs,
        )

    @property
    def equipped(self) -> bool:
        """Whether tools and knowledge have been made, so that asking for them costs little."""
        return self._outfit.made

    @property
    def knowledge(self) -> Knowledge:
        """What Hermes knows in this home and working directory."""
        return self.workshop.knowledge

    def choose_model(self, name: str) -> None:
        """Use another model from the next turn on; the conversation stays."""
        self._choose("model", name)
        self.use(None)

    def change_models(self) -> None:
        """Ask the models that the settings name now, from the next turn on."""
        self._outfit.change_models()

    def choose_approval(self, mode: str) -> None:
        """Set the approval mode; raise `ConfigError` for one that may not be chosen."""
        self.configure("approve", mode)

    def switch_cassette(self, mode: CassetteMode) -> None:
        """Record, replay, both or neither from the next turn on."""
        self.deck.switch(mode)
        self._outfit.change_models()

    def configure(self, key: str, value: object) -> None:
        """Set a setting for this kernel, None for what it would be without; raise `ConfigError`."""
        if key == "approve":
            self.permission.check()
            mode = self.settings(approve=value).approve
            self._choose(key, value and self.permission.granted(mode))
            return
        self._choose(key, value)
        self._outfit.renew()

    @property
    def reviews(self) -> Reviews:
        """What looks back after turns; made on first use."""
        return self._outfit.reviews

    def close(self) -> None:
        """Stop what runs in the background, and leave the session, which can be resumed."""
        self.happenings.close()
        self._outfit.close()
        if self.session is not None:
            self.session.leave()
        if self._store is not None:
            self._store.close()

    @property
    def _looks_back(self) -> bool:
        """Whether reviews run: where somebody is there, and with a model that can learn."""
        return can_ask(self.shell) and self.models.can_learn

    def tell_what_was_learned(self, session: Session) -> None:
        """Say what waits for the user, and what the reviews since the last turn have saved."""
        if can_ask(self.shell):
            self.reviews.tell_what_waits()
        if not self._looks_back:
            return
        self.reviews.watch(session)
        if learned := self.reviews.learned():
            told = "; ".join(escape(line) for line in learned)
            self.note(f"Learned since: {told}. `%hermes memory undo` takes the last back.")

    def use(self, model: ChatModel | None) -> None:
        """Use this model object from the next turn on; None is the one that the settings name."""
        self.models.use(model)

    def use_tools(self, tools: Sequence[Tool]) -> None:
        """Add tools of the user's, or put them in the place of earlier ones of their names."""
        self._outfit.give(tools)

    def tools(self) -> Toolset:
        """Return all the tools there are, built on first use."""
        return self.equipment(self.settings()).tools

    def _mark(self) -> dict[str, Any]:
        """Return the metadata of cells that the agent makes now."""
        session = self.session
        return {"session": session.id, "turn": session.agent.turns} if session else {}

    def variables(self) -> list[Variable]:
        """Return the user's variables as a prompt needs them."""
        return summaries(self.shell.user_ns, self.shell.user_ns_hidden)

    def note(self, markdown: str) -> None:
        """Show a line of ours: in the running turn, or by itself."""
        if self.view is not None:
            self.view.note(markdown)
        else:
            self._say(markdown)


def working_directory() -> Path:
    """Return the kernel's working directory; raise `ConfigError` when it has been deleted."""
    try:
        return Path(os.getcwd())  # noqa: PTH109 - Path.cwd() says nothing else
    except OSError as error:
        message = "the working directory has been deleted; `%cd` to another one"
        raise ConfigError(message) from error
