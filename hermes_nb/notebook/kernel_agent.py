"""Hermes as it lives in this kernel: one model, one set of tools, one session at a time.

Nothing is built before the first turn: no client, no directory, no connection.
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
"""The toolset of tools that the user hands over without naming one."""


class KernelAgent:
    """The agent of one kernel.

    `overrides` are the traitlets' values, asked for whenever settings are read, and `began` is the
    approval mode that they had at first. `say` shows a line of ours outside of a turn. `unsent` are
    prompts that were stopped before there was a session to keep them in: the next turn's has them.
    """

    def __init__(
        self,
        shell: Shell,
        *,
        overrides: Callable[[], Mapping[str, Json]] = dict,
        began: Callable[[], str] = str,
        say: Callable[[str], None],
        unsent: list[str] | None = None,
    ) -> None:
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
        """The session that the next turn goes on with, None before the first one."""
        return self.sessions.current

    @property
    def turn_here(self) -> Turn | None:
        """The last turn of this kernel, None where the session is another one since."""
        return self.turn if self._turn_session == self._session_id else None

    @property
    def _session_id(self) -> str:
        return self.session.id if self.session is not None else ""

    def settings(self, **options: object) -> Settings:
        """Return the settings, read once a turn; `options` that are not None come first."""
        wished = {name: value for name, value in options.items() if value is not None}
        if self._read is not None and not wished:
            return self._read
        found = load_settings(overrides={**self._overrides(), **self._chosen, **wished})
        if self.view is not None and not wished:
            self._read = found
        return found

    def _choose(self, key: str, value: object) -> None:
        """Choose a value from now on, None for what it would be without; raise `ConfigError`."""
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
        """Return this kernel's notebook; raise `ToolError` where it cannot be reached."""
        return await self.access.document()

    @by_hermes
    async def ask(self, prompt: str, options: TurnOptions | None = None) -> str:
        """Take a turn, show it, and return the answer; a dry run shows what would be sent.

        Raises `Stopped` when the user stopped it and `TurnFailed` when it failed; both render as
        one line. What was shown and stored until then stays. Raises `SessionBusy` while a turn of
        this kernel runs, and leaves that alone.
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
        """Have the turn shown, and its calls judged as it and the settings say."""
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
        """Get everything ready, and take the turn."""
        options = shown.options
        if options.model:
            self.choose_model(options.model)
        await self.models.make_ready(self.shell, self.note)
        # Before there is a session: where there are none to be had, nothing is sent or stored.
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
        """Keep what a turn came to, and bind its answer to the variable that the user named."""
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
        """Let a key or an address that is set after a failure count from the next turn on.

        A model of this machine has neither, and would be loaded again.
        """
        failed = self.turn is not None and self.turn.reason == "failed"
        if failed and not traits_of(self.models.main).local:
            self.models.renew()

    async def _keep_unsent(self, session: Session) -> None:
        """Add the prompts that were stopped before their turns began, each as a turn that was."""
        while self.unsent:
            async with aclosing(session.agent.run(self.unsent.pop(0))) as stopped:
                await anext(stopped)

    def _session_for(self, prompt: str, options: TurnOptions) -> Session:
        """Return the session that takes the turn: begun, resumed, or as it stands."""
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
        """Return the budgets of one turn; money is no matter for a model on this machine."""
        limits = options.limits
        if limits.cost is not None and self.models.run_here(self.settings()):
            self.note("The model runs on this machine and costs nothing: `--max-cost` is idle.")
            limits = type(limits)(tokens=limits.tokens)
        return [Budget(limits, scope="this turn")] if limits else []

    def _pictures(self, options: TurnOptions, model: ChatModel) -> Sequence[Attachment]:
        """Return the pictures that a turn names; raise `ConfigError` where the model sees none."""
        if not options.images:
            return ()
        from hermes_nb.notebook.attachments import attachments

        self.models.require_eyes(model)
        return attachments(options.images, self.shell)

    async def _foreseen(self, prompt: str, options: TurnOptions) -> DryRun:
        """Return the request that a turn would begin with; raise `ConfigError` as it would."""
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
        """Show what would be sent, or bind it to the variable that `--into` names."""
        if options.into:
            self.shell.user_ns[options.into] = found.as_dict()
        if options.into and options.quiet:
            name, total = code_span(options.into), amount(sum(found.tokens.values()))
            self._say(f"Nothing was sent: {name} is the request, about {total} tokens.")
        else:
            self._say(found.told())

    def new(self) -> None:
        """End the running session; the next turn begins another."""
        self.sessions.end()
        if self.mcp.thaw():
            self._spec = self._runtime = None

    def resume(self, wanted: str = "") -> Session:
        """Go on with a session by id or title, else the latest; raise `ConfigError` without one."""
        return self.sessions.resume(wanted, self.spec(self.settings()))

    def spec(self, settings: Settings) -> SessionSpec:
        """Return what a session is given now; raise `ConfigError` where there is no model."""
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
        """What equips sessions, with everything Hermes knows here; made on first use."""
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
        """Whether tools and knowledge have been made, so that asking for them costs little."""
        return self._spec is not None

    @property
    def knowledge(self) -> PromptSources:
        """What Hermes knows in this home and working directory."""
        return self.runtime.knowledge

    def choose_model(self, name: str) -> None:
        """Use another model from the next turn on; the conversation stays."""
        self._choose("model", name)
        self.use(None)

    def change_models(self) -> None:
        """Ask the models that the settings name now, from the next turn on."""
        self.models.renew()
        self._spec = None

    def _renew(self) -> None:
        """Have everything that was made from the settings made anew when it is next needed."""
        self.change_models()
        if self._reviews is not None:
            self._reviews.close()
        self._runtime = self._reviews = None

    def switch_cassette(self, mode: CassetteMode) -> None:
        """Record, replay, both or neither from the next turn on; raise `ConfigError`."""
        self.deck.switch(mode)
        self.change_models()

    def configure(self, key: str, value: object) -> None:
        """Set a setting for this kernel, None for what it would be without; raise `ConfigError`."""
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
        """What looks back after turns; made on first use."""
        if self._reviews is None:
            emit = self.hub.background
            self._reviews = Reviews(self.runtime, model=self.models.another, emit=emit)
        return self._reviews

    def close(self) -> None:
        """Stop what runs in the background, and leave the session, which can be resumed."""
        for each in (self.hub, self.mcp, self._reviews):
            if each is not None:
                each.close()
        if self.session is not None:
            self.session.leave()
        if self._store is not None:
            close_store(self._store)

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
        if told := self.reviews.news():
            self.note(told)

    def use(self, model: ChatModel | None) -> None:
        """Use this model object from the next turn on; None is the one that the settings name."""
        self.models.use(model)

    def use_tools(self, tools: Sequence[Tool]) -> None:
        """Add tools of the user's, or put them in the place of earlier ones of their names."""
        mine = {tool.name: tool for tool in [*self._given, *tools]}
        self._given = Toolset(replace(each, toolset=each.toolset or MINE) for each in mine.values())
        self._renew()

    def tools(self) -> Toolset:
        """Return all the tools there are, built on first use."""
        return self.spec(self.settings()).tools

    def _mark(self) -> dict[str, Json]:
        """Return the metadata of cells that the agent makes now."""
        session = self.session
        return {"session": session.id, "turn": session.agent.turns} if session else {}

    def variables(self) -> list[Variable]:
        """Return the user's variables as a prompt needs them."""
        return summaries(self.shell.user_ns, self.shell.user_ns_hidden)

    def note(self, markdown: str) -> None:
        """Show a line of ours: in the running turn, or by itself."""
        show = self._say if self.view is None else self.view.note
        show(markdown)
