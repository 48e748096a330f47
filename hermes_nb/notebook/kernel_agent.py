"""The agent of a kernel: one model, one set of tools, one session at a time.

Everything is built on first use: no client, directory or connection exists before the first turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from hermes_nb.agent.jobs import Jobs
from hermes_nb.agent.learning.reviews import Reviews
from hermes_nb.agent.models import build_deck, build_model
from hermes_nb.agent.prompt_sources import PromptSources
from hermes_nb.agent.runtime import Runtime
from hermes_nb.agent.session.manager import SessionManager
from hermes_nb.agent.session.recorder import close_store
from hermes_nb.agent.session.session import Session, SessionSpec
from hermes_nb.agent.session.stores import open_store
from hermes_nb.agent.session.turn import Turn
from hermes_nb.agent.settings.config import Settings, load_settings
from hermes_nb.core.budget import Budget
from hermes_nb.core.errors import SessionBusy
from hermes_nb.core.loop import BUSY
from hermes_nb.core.messages import Json
from hermes_nb.core.protocols import ChatModel, Request, SessionStore, Variable
from hermes_nb.core.text import TITLE, amount, one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Place, Tool, Toolset
from hermes_nb.models.cassette import Mode as CassetteMode
from hermes_nb.models.profiles import traits_of
from hermes_nb.notebook.access import NotebookAccess
from hermes_nb.notebook.approval import CellApprover, Permission
from hermes_nb.notebook.cell_tools import own_tools
from hermes_nb.notebook.display.transcript import Transcript
from hermes_nb.notebook.display.views import TurnView
from hermes_nb.notebook.document.document import NotebookDocument
from hermes_nb.notebook.dry_run import DryRun, endpoint_of, scene
from hermes_nb.notebook.event_hub import EventHub
from hermes_nb.notebook.execute.network import by_hermes, news
from hermes_nb.notebook.interrupt import Stopped, TurnFailed, stopped_in_view
from hermes_nb.notebook.models import ModelsInUse
from hermes_nb.notebook.remedy import with_remedy
from hermes_nb.notebook.shell import Shell, can_ask, has_kernel, running_cell, working_directory
from hermes_nb.notebook.turn import CellTurn, ToolsInUse, TurnOptions
from hermes_nb.notebook.user_message import Attachment, UserMessageBuilder
from hermes_nb.notebook.variables import summaries
from hermes_nb.safety.guard import Guard
from hermes_nb.safety.markup import code_span
from hermes_nb.tools.mcp_tools import McpTools

MINE = "mine"
"""The toolset of user tools that do not name one."""


class KernelAgent:
    """The agent of one kernel."""

    def __init__(
        self,
        shell: Shell,
        *,
        overrides: Callable[[], Mapping[str, Json]] = dict,
        began: Callable[[], str] = str,
        say: Callable[[str], None],
        unsent: list[str] | None = None,
    ) -> None:
        """Create the agent without building anything expensive.

        Args:
            shell: the kernel's IPython shell
            overrides: returns the traitlets' values; called whenever settings are read
            began: returns the approval mode that the traitlets had at first
            say: shows a message outside of a turn
            unsent: prompts that were interrupted before a session existed; the next turn's session
                stores them
        """
        self.shell = shell
        self.last: Transcript | None = None
        self.view: TurnView | None = None
        self.turn: Turn | None = None
        self._turn_session = ""
        self.unsent = [] if unsent is None else unsent
        self.hub = EventHub()
        self.jobs = Jobs()
        self.mcp = McpTools()
        self.guard = Guard()
        self.permission = Permission(
            shell, self.guard, notebook=lambda: self.notebook, began=began, note=self.note
        )
        self._overrides = overrides
        self._chosen: dict[str, Json] = {}
        self._read: Settings | None = None
        self._say = say
        self.deck = build_deck(
            self.settings,
            personal=lambda: self.session.personal if self.session else (),
            notebook=lambda: self.notebook,
            start=Path(shell.starting_dir),
        )
        self.models = ModelsInUse(self.settings, self.variables, self.deck)
        self._given = Toolset()
        self._runtime: Runtime | None = None
        self._spec: SessionSpec | None = None
        self._reviews: Reviews | None = None
        self.tools_in_use = ToolsInUse(lambda names: self.spec(self.settings()).choose(names))
        self._store: SessionStore | None = None
        self.sessions = SessionManager(
            store=lambda: self.store,
            notebook=lambda: self.notebook,
            source="notebook" if has_kernel(shell) else "terminal",
            note=self.note,
            entered=self.hub.enter,
        )
        self.access = NotebookAccess(
            shell,
            home=lambda: self.settings().home,
            explicit=lambda: self.settings().notebook,
            session=lambda: self.session.id if self.session else "",
            turn=lambda: self.session.agent.turns if self.session else 0,
            moved=self.sessions.relocate,
        )
        self.approver = CellApprover(shell, self.access.frontend, learn=self.access.learn)
        self.message_builder = UserMessageBuilder(
            shell, self.access, self.variables, guard=self.guard, note=self.note, mcp=self.mcp
        )

    @property
    def session(self) -> Session | None:
        """The session that the next turn continues, None before the first one."""
        return self.sessions.current

    @property
    def turn_here(self) -> Turn | None:
        """The last turn of this kernel, None if the session has changed since."""
        return self.turn if self._turn_session == self._session_id else None

    @property
    def _session_id(self) -> str:
        return self.session.id if self.session is not None else ""

    def settings(self, **options: object) -> Settings:
        """Return the settings, read once a turn; `options` that are not None override them."""
        wished = {name: value for name, value in options.items() if value is not None}
        if self._read is not None and not wished:
            return self._read
        found = load_settings(overrides={**self._overrides(), **self._chosen, **wished})
        if self.view is not None and not wished:
            self._read = found
        return found

    def _choose(self, key: str, value: object) -> None:
        """Set a value from now on, None to restore the default; raise `ConfigError`."""
        wanted = {**self._chosen, key: value}
        found = load_settings(overrides={**self._overrides(), **wanted})
        found.insist(*([] if value is None else [key]))
        self._chosen, self._read = wanted, None

    @property
    def store(self) -> SessionStore:
        """The session store; opened on first use."""
        if self._store is None:
            self._store = open_store(self.settings(), self.note)
        return self._store

    @property
    def notebook(self) -> str:
        """The absolute path of this kernel's notebook, or ""."""
        return self.access.path

    async def document(self) -> NotebookDocument:
        """Return this kernel's notebook; raise `ToolError` if it cannot be reached."""
        return await self.access.document()

    @by_hermes
    async def ask(self, prompt: str, options: TurnOptions | None = None) -> str:
        """Run a turn, show it, and return the answer; a dry run only shows the request.

        The parts of a turn that ended early stay visible and stored.

        Raises:
            Stopped: the user interrupted the turn; renders as one line
            TurnFailed: the turn failed; renders as one line
            SessionBusy: another turn of this kernel is running; it continues
            ConfigError: the prompt or an option is invalid
        """
        options = options or TurnOptions()
        options.check(prompt)
        if options.approve:
            self.guard.policy.check("modes", options.approve)
        if self.view is not None:
            raise SessionBusy(BUSY)
        if options.dry_run:
            self._show_request(await self._foreseen(prompt, options), options)
            return ""
        shown = CellTurn(self.shell, options)
        try:
            async with shown.shown(self.access.frontend), self._under(shown):
                await self._take(prompt, shown)
        except (asyncio.CancelledError, KeyboardInterrupt):
            if not shown.begun:
                self.unsent.append(prompt)
                if self.session is not None and not (options.new or options.session):
                    await self._keep_unsent(self.session)
            raise
        self._take_other_settings()
        turn = self.turn
        if turn is None or turn.reason == "interrupted":
            raise Stopped("stopped") if turn is None else stopped_in_view(self.shell)
        if turn.reason == "failed":
            raise TurnFailed(turn.error)
        if self.session is not None and self._looks_back:
            self.reviews.after_turn(self.session, live=not self.deck.on)
        return shown.transcript.answer

    @asynccontextmanager
    async def _under(self, shown: CellTurn) -> AsyncIterator[None]:
        """Set the view and the guard for a turn, and restore them afterwards."""
        guard, mode = self.guard, self.guard.mode
        self.view, self.turn = shown.view, None
        try:
            settings = self.settings()
            wanted = shown.options.approve or settings.approve
            guard.mode = await self.permission.granted_in(self.access.frontend, wanted)
            guard.required = settings.sandbox.required
            guard.sandboxed = settings.sandbox.use != "off"
            yield
        finally:
            self._came_to(shown)
            guard.mode = mode
            self.view = self._read = None

    async def _take(self, prompt: str, shown: CellTurn) -> None:
        """Prepare the model, the session and the message, then run the turn."""
        options = shown.options
        if options.model:
            self.choose_model(options.model)
        await self.models.make_ready(self.shell, self.note)
        # Evaluated before the session starts: if an image fails, nothing is sent or stored.
        pictures = self._pictures(options, self.models.main)
        session = self._session_for(prompt, options)
        await self._keep_unsent(session)
        self.tell_what_was_learned(session)
        session.use(self.tools_in_use.chosen(options.tools))
        if loaded := news():
            self.note(loaded)
        told_to = session.id if options.context else None
        window = session.agent.model.window
        message = await self.message_builder.message(prompt, told_to, pictures, window)
        await shown.take(
            session,
            message,
            max_requests=options.max_requests or self.settings().max_requests,
            budgets=self._budgets(options),
            place=Place(notebook=self.access.path, cell=running_cell(self.shell)),
            preface=options.preface(),
        )

    def _came_to(self, shown: CellTurn) -> None:
        """Store the result of a turn, and bind its answer to the variable of `--into`."""
        if shown.begun and self.session is not None:
            self.last = shown.transcript
            shown.tell_changes(self.session, self.access.checkpoints, self.knowledge)
        if (turn := shown.result) is None:
            return
        self.turn = with_remedy(turn, address=self.settings().endpoint.base_url)
        self._turn_session = self._session_id
        into = shown.options.into
        if into and turn.reason == "answered":
            self.shell.user_ns[into] = turn.text
        elif into and turn.reason == "budget":
            self.note(f"`{into}` was not set: the turn ended without an answer.")

    def _take_other_settings(self) -> None:
        """Rebuild the model after a failed turn, so that a corrected key or address takes effect.

        Local models are kept: they have neither, and would have to load again.
        """
        failed = self.turn is not None and self.turn.reason == "failed"
        if failed and not traits_of(self.models.main).local:
            self.models.renew()

    async def _keep_unsent(self, session: Session) -> None:
        """Add each prompt that was interrupted before its turn started as a stopped turn."""
        while self.unsent:
            async with aclosing(session.agent.run(self.unsent.pop(0))) as stopped:
                await anext(stopped)

    def _session_for(self, prompt: str, options: TurnOptions) -> Session:
        """Return the session for the turn: a new one, a resumed one, or the current one."""
        if options.new:
            self.new()
        spec = self.spec(self.settings())
        if options.session:
            session = self.sessions.join(options.session, spec)
        else:
            found = None if options.new else self.session
            if found is None and not options.new and not self.deck.on:
                found = self.sessions.pick_up(spec)
            session = found or self.sessions.start(one_line(prompt, TITLE), spec)
        session.adopt(spec)
        return session

    def _budgets(self, options: TurnOptions) -> list[Budget]:
        """Return the budgets of one turn, without a cost limit if the model runs locally."""
        limits = options.limits
        if limits.cost is not None and self.models.run_here(self.settings()):
            self.note("The model runs on this machine and costs nothing: `--max-cost` is idle.")
            limits = type(limits)(tokens=limits.tokens)
        return [Budget(limits, scope="this turn")] if limits else []

    def _pictures(self, options: TurnOptions, model: ChatModel) -> Sequence[Attachment]:
        """Return the images of a turn; raise `ConfigError` if the model does not accept images."""
        if not options.images:
            return ()
        from hermes_nb.notebook.attachments import attachments

        self.models.require_eyes(model)
        return attachments(options.images, self.shell)

    async def _foreseen(self, prompt: str, options: TurnOptions) -> DryRun:
        """Return the first request of a turn without running it; raise `ConfigError` likewise."""
        settings = self.settings(model=options.model or None)
        if options.model:
            model = await in_thread(build_model, settings, variables=self.variables, deck=self.deck)
        else:
            model = await in_thread(lambda: self.models.main)
        try:
            pictures = self._pictures(options, model)
            spec = self.runtime.spec(model, auxiliary=self.models.auxiliary)
            found = self.sessions.foresee(options.session, new=options.new, afresh=self.deck.on)
            system, messages, tools = scene(
                found,
                spec,
                self.tools_in_use.chosen(options.tools),
                store=self.store,
                source=self.sessions.source,
            )
            session = found.id if found is not None else ""
            told_to = session if options.context else None
            message = await self.message_builder.draft(prompt, told_to, pictures, model.window)
            head = (spec.preface + options.preface()).head(system)
            handed = self.models.given and not options.model
            here = self.models.run_here(settings) and not options.model
            return DryRun.of(
                model,
                Request(messages=(*head, *messages, message), tools=tools, effort=options.effort),
                endpoint="" if handed else endpoint_of(settings.endpoint, here=here),
                session=session,
            )
        finally:
            if options.model:
                await model.aclose()

    def _show_request(self, found: DryRun, options: TurnOptions) -> None:
        """Show the request of a dry run, or bind it to the variable of `--into`."""
        if options.into:
            self.shell.user_ns[options.into] = found.as_dict()
        if options.into and options.quiet:
            name, total = code_span(options.into), amount(sum(found.tokens.values()))
            self._say(f"Nothing was sent: {name} is the request, about {total} tokens.")
        else:
            self._say(found.told())

    def new(self) -> None:
        """End the current session; the next turn starts a new one."""
        self.sessions.end()
        if self.mcp.thaw():
            self._spec = self._runtime = None

    def resume(self, wanted: str = "") -> Session:
        """Resume a session by id or title, "" for the latest; raise `ConfigError` if missing."""
        return self.sessions.resume(wanted, self.spec(self.settings()))

    def spec(self, settings: Settings) -> SessionSpec:
        """Return the specification of a session; raise `ConfigError` if no model is configured."""
        model = self.models.main
        if self._spec is None or self._spec.model is not model:
            self._spec = self.runtime.spec(model, auxiliary=self.models.auxiliary)
        budget = self.models.budget(settings)
        return replace(
            self._spec,
            max_requests=settings.max_requests,
            budget=budget,
            policy=settings.policy,
        )

    @property
    def runtime(self) -> Runtime:
        """The runtime that equips sessions with tools and knowledge; created on first use."""
        if self._runtime is None:
            self._runtime = Runtime(
                self.settings(),
                root=working_directory(),
                store=self.store,
                guard=self.guard,
                approver=self.approver,
                own=own_tools(
                    self.shell,
                    self.access,
                    sees_images=self.models.sees_images,
                    mark=self._mark,
                    root=working_directory,
                ),
                given=self._given,
                checkpoints=self.access.checkpoints,
                tell=self.note,
                jobs=self.jobs,
                mcp=self.mcp,
            )
        return self._runtime

    @property
    def equipped(self) -> bool:
        """Whether tools and knowledge have been built, so that reading them is cheap."""
        return self._spec is not None

    @property
    def knowledge(self) -> PromptSources:
        """The prompt sources of this home and working directory, such as memory and skills."""
        return self.runtime.knowledge

    def choose_model(self, name: str) -> None:
        """Use another model from the next turn on; the conversation stays."""
        self._choose("model", name)
        self.use(None)

    def change_models(self) -> None:
        """Rebuild the models from the current settings before the next turn."""
        self.models.renew()
        self._spec = None

    def _renew(self) -> None:
        """Discard everything that was built from the settings; it is rebuilt on next use."""
        self.change_models()
        if self._reviews is not None:
            self._reviews.close()
        self._runtime = self._reviews = None

    def switch_cassette(self, mode: CassetteMode) -> None:
        """Set recording and replay from the next turn on; raise `ConfigError`."""
        self.deck.switch(mode)
        self.change_models()

    def configure(self, key: str, value: object) -> None:
        """Set a setting for this kernel, None to restore the default; raise `ConfigError`."""
        if key == "approve":
            self.permission.check()
            wished = self.settings(approve=value)
            wished.insist(*([] if value is None else [key]))
            self._choose(key, value and self.permission.granted(wished.approve))
            return
        self._choose(key, value)
        self._renew()

    @property
    def reviews(self) -> Reviews:
        """The background reviews of turns; created on first use."""
        if self._reviews is None:
            emit = self.hub.background
            self._reviews = Reviews(self.runtime, model=self.models.another, emit=emit)
        return self._reviews

    def close(self) -> None:
        """Stop background work and leave the session, which can be resumed."""
        for each in (self.hub, self.mcp, self._reviews):
            if each is not None:
                each.close()
        if self.session is not None:
            self.session.leave()
        if self._store is not None:
            close_store(self._store)

    @property
    def _looks_back(self) -> bool:
        """Whether background reviews run: interactively, and with a model that can learn."""
        return can_ask(self.shell) and self.models.can_learn

    def tell_what_was_learned(self, session: Session) -> None:
        """Report pending proposals, and the results of reviews since the last turn."""
        if can_ask(self.shell):
            self.reviews.tell_what_waits()
        if not self._looks_back:
            return
        self.reviews.watch(session)
        if told := self.reviews.news():
            self.note(told)

    def use(self, model: ChatModel | None) -> None:
        """Use this model object from the next turn on; None restores the model of the settings."""
        self.models.use(model)

    def use_tools(self, tools: Sequence[Tool]) -> None:
        """Add tools of the user; they replace earlier ones with the same names."""
        mine = {tool.name: tool for tool in [*self._given, *tools]}
        self._given = Toolset(replace(each, toolset=each.toolset or MINE) for each in mine.values())
        self._renew()

    def tools(self) -> Toolset:
        """Return all available tools, built on first use."""
        return self.spec(self.settings()).tools

    def _mark(self) -> dict[str, Json]:
        """Return the metadata for cells that the agent creates in this turn."""
        session = self.session
        return {"session": session.id, "turn": session.agent.turns} if session else {}

    def variables(self) -> list[Variable]:
        """Return summaries of the user's variables for the prompt."""
        return summaries(self.shell.user_ns, self.shell.user_ns_hidden)

    def note(self, markdown: str) -> None:
        """Show a message in the running turn, or in the cell's output if no turn runs."""
        show = self._say if self.view is None else self.view.note
        show(markdown)
