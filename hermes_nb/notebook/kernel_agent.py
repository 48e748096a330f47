"""A kernel's agent, with one model, one set of tools and one session at a time.

Everything is built on first use: no client, directory or connection exists before the first turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from hermes_nb.agent.jobs import Jobs
from hermes_nb.agent.learning.reviews import Reviews
from hermes_nb.agent.models import build_deck
from hermes_nb.agent.prompt_sources import PromptSources
from hermes_nb.agent.runtime import Runtime, import_parts
from hermes_nb.agent.session.manager import SessionManager
from hermes_nb.agent.session.recorder import close_store
from hermes_nb.agent.session.session import Session, SessionSpec
from hermes_nb.agent.session.stores import open_store
from hermes_nb.agent.session.turn import Turn
from hermes_nb.agent.settings.config import Settings
from hermes_nb.core.errors import SessionBusy
from hermes_nb.core.loop import BUSY
from hermes_nb.core.messages import Json, Message
from hermes_nb.core.protocols import ChatModel, SessionStore, Variable
from hermes_nb.core.text import TITLE, one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Place, Tool, Toolset
from hermes_nb.models.cassette import Mode as CassetteMode
from hermes_nb.models.profiles import traits_of
from hermes_nb.notebook.access import NotebookAccess
from hermes_nb.notebook.approval import CellApprover, KernelGuard, Permission
from hermes_nb.notebook.background import RunningTurn, TurnQueue
from hermes_nb.notebook.cell_tools import own_tools
from hermes_nb.notebook.display.transcript import Transcript
from hermes_nb.notebook.display.views import TurnView
from hermes_nb.notebook.document.document import NotebookDocument
from hermes_nb.notebook.event_hub import EventHub
from hermes_nb.notebook.execute.code_lock import code_lock
from hermes_nb.notebook.execute.collector import current_run
from hermes_nb.notebook.execute.network import by_hermes, news
from hermes_nb.notebook.execute.trial import WhatIf, copies_of
from hermes_nb.notebook.frontend import FrontEnd
from hermes_nb.notebook.in_use import MOST_KEPT, ModelsInUse, ToolsInUse
from hermes_nb.notebook.interrupt import Stopped, TurnFailed, stopped_in_view
from hermes_nb.notebook.kernel_settings import KernelSettings
from hermes_nb.notebook.remedy import with_remedy
from hermes_nb.notebook.shell import (
    Shell,
    TurnCell,
    can_ask,
    has_kernel,
    turn_cell,
    working_directory,
)
from hermes_nb.notebook.turn import CellTurn, TurnEnv, TurnOptions
from hermes_nb.notebook.user_message import UserMessageBuilder
from hermes_nb.notebook.variables import variables_of
from hermes_nb.tools.hooks import Hooks
from hermes_nb.tools.mcp_tools import McpTools

UNREAD = "The turn ended before it read what you added. Your next prompt includes it."
MOST_TURNS = 3
"""Maximum number of turns that run at the same time."""
CHANGING = frozenset(
    {"run_python", "run_cell", "run_cells", "insert_cell", "edit_cell", "move_cell"}
)
"""Tools that can make cells stale."""
MINE = "mine"
"""The toolset of user tools that do not specify one."""


class KernelAgent:
    """A kernel's agent.

    `guests` counts the calls of other programs that may have changed something, by the session id
    under which `%hermes undo` finds them. `at_close` has functions that `close` calls. `tried` is
    what the last turn with `--what-if` tried, with its place and conversation.
    """

    def __init__(
        self,
        shell: Shell,
        *,
        overrides: Callable[[], Mapping[str, Json]] = dict,
        began: str = "",
        say: Callable[[str], None],
        unsent: list[str] | None = None,
        frontend: FrontEnd | None = None,
    ) -> None:
        """Create the agent without building anything expensive.

        Args:
            shell: the kernel's IPython shell
            overrides: returns the traitlets' values; called whenever settings are read
            began: the initial approval mode from the traitlets
            say: shows a message outside a turn
            unsent: prompts that were interrupted before a session existed; the next turn's session
                stores them
            frontend: the notebook's page, or None to create it here
        """
        self.shell = shell
        self.last: Transcript | None = None
        self.turn: Turn | None = None
        self._turn_session = ""
        self.running: list[RunningTurn] = []
        self._preparing = asyncio.Lock()
        self._apart: list[RunningTurn] = []
        self._unread: dict[str, list[str]] = {}  # by session
        self.unsent = [] if unsent is None else unsent
        self.tried: tuple[WhatIf, Place, Sequence[Message]] | None = None
        self.guests: dict[str, int] = {}
        self.at_close: list[Callable[[], None]] = []
        self._say = say
        self.hub = EventHub()
        self.jobs = Jobs()
        self.mcp = McpTools()
        self.guard = KernelGuard()
        self._settings = KernelSettings(overrides)
        self.access = NotebookAccess(shell, self._settings, moved=self._moved, frontend=frontend)
        self.permission = Permission(shell, self.guard, self.access, began=began, note=self.note)
        self.deck = build_deck(
            self.settings,
            personal=self._personal,
            notebook=self._notebook,
            start=Path(shell.starting_dir),
        )
        self.models = ModelsInUse(shell, self._settings, self.deck)
        self.tools_in_use = ToolsInUse()
        self.approver = CellApprover(shell, self.access.frontend, learn=self.access.learn)
        self.message_builder = UserMessageBuilder(
            shell,
            self.access,
            guard=self.guard,
            say=say,
            mcp=self.mcp,
        )
        self._given = Toolset()
        self._hooks: list[Hooks] = []
        self._runtime: Runtime | None = None
        self._specs: list[SessionSpec] = []
        self._reviews: Reviews | None = None
        self._store: SessionStore | None = None
        self._sessions: SessionManager | None = None

    @property
    def session(self) -> Session | None:
        """The session that the next turn continues, or None before the first one."""
        return None if self._sessions is None else self._sessions.current

    @property
    def sessions(self) -> SessionManager:
        """The current session and the means to switch to another; created on first use."""
        if self._sessions is None:
            self._sessions = SessionManager(
                store=self.store,
                notebook=self.notebook,
                source="notebook" if has_kernel(self.shell) else "terminal",
                note=self.note,
                entered=self.hub.enter,
            )
        return self._sessions

    @property
    def view(self) -> TurnView | None:
        """The view of the turn to which the calling code belongs, or for which its cell waits."""
        cell = turn_cell.get()
        for each in self.running:
            if each.cell.mode and (each.cell is cell if cell else not each.cell.over):
                return each.turn.view
        return None

    @property
    def turn_here(self) -> Turn | None:
        """The kernel's last turn, or None if another session has since become current."""
        return self.turn if self._turn_session == self.place.session else None

    @property
    def place(self) -> Place:
        """The current session and its latest turn's number."""
        session = self.session
        return Place(session=session.id, turn=session.agent.turns) if session else Place()

    def settings(self, **options: object) -> Settings:
        """Return the settings, read once per turn; `options` that are not None override them."""
        return self._settings.now(**options)

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
        return await self.access.document(self.place)

    @by_hermes
    async def ask(self, prompt: str, options: TurnOptions | None = None) -> str:
        """Run a turn, show it, and return the answer; a dry run only shows the request.

        If a turn ends early, its parts remain visible and stored.

        Raises:
            Stopped: the user interrupted the turn; renders as one line
            TurnFailed: the turn failed; renders as one line
            SessionBusy: another turn of this kernel is running; it continues
            ConfigError: the prompt or an option is invalid
        """
        options = options or TurnOptions()
        options.check(prompt, self.guard.policy)
        self._check_free()
        if options.dry_run:
            if options.context:
                self.access.frontend.search()
            self._say(await self._preview(prompt, options))
            return ""
        return await self._begin(prompt, options, beside=False).result()

    def start(self, prompt: str, options: TurnOptions | None = None) -> RunningTurn:
        """Start a turn next to the user's cells, shown in the calling cell.

        Raises `ConfigError` and `SessionBusy` as `ask` does.
        """
        options = options or TurnOptions()
        options.check(prompt, self.guard.policy)
        self._check_free()
        return self._begin(prompt, options, beside=True)

    def can_run_beside(self, options: TurnOptions) -> bool:
        """Return whether a turn can run next to the cells: the user sees it, no code needs it."""
        needed = options.into or options.quiet or options.dry_run or self.deck.on
        return not needed and can_ask(self.shell) and code_lock(self.shell) is not None

    def steer(self, text: str, cell: int | None = None) -> bool:
        """Pass a text to a running turn with its next request; False if there is no turn.

        It is the turn of cell [`cell`], if given, otherwise that of the current session or, without
        one, the oldest. It can be called from any thread. With a cassette, only prompts can be
        repeated.
        """
        found = [each for each in [*self.running] if cell in (None, each.cell.count)]
        here = [each for each in found if each.session and each.session is self.session]
        running = next(iter(here or found), None)
        return running is not None and not self.deck.on and running.turn.steering.add(text)

    def stop(self, cell: TurnCell | None = None) -> bool:
        """Interrupt the turn of a cell, or all; return False if there is none."""
        found = [each for each in self.running if cell in (None, each.cell)]
        for each in found:
            each.cancel()
        return bool(found)

    def _check_free(self) -> None:
        """Raise `SessionBusy` in a turn's code, and while a cell waits for a turn."""
        in_code = current_run.get() is not None
        if in_code or any(not each.cell.over for each in self.running):
            raise SessionBusy(BUSY)

    def _begin(self, prompt: str, options: TurnOptions, *, beside: bool) -> RunningTurn:
        if (lock := code_lock(self.shell)) is not None:
            lock.stop = self.stop
        turn = CellTurn(self.shell, options)
        running = RunningTurn(self.shell, turn, beside=beside)
        if options.what_if:
            running.cell.what_if = WhatIf()
            copies_of(self.shell).start()
        running.alone = not self.can_run_beside(options)
        apart = (options.session or options.new) and len(self.running) < MOST_TURNS
        running.ahead = self.running[-1] if self.running and not apart else None
        self.running.append(running)
        running.begin(self._run(prompt, running), self.running.remove)
        return running

    @by_hermes
    async def _run(self, prompt: str, running: RunningTurn) -> str:
        turn = running.turn
        await self._wait_in_line(running)
        if turn.options.context:
            self.access.frontend.search()
        async with self._taking(prompt, running):
            async with self._preparing:
                env = await self._prepare(prompt, running)
                message = await self.message_builder.message(prompt, env, self.knowledge.library)
            await turn.take(env, message)
            await self._find_stale(turn)
        return self._reviewed(running)

    async def _find_stale(self, turn: CellTurn) -> None:
        """Make the view name the cells that the turn made stale."""
        before = self.access.stale_before
        if before is not None and any(view.call.name in CHANGING for view in turn.transcript.calls):
            found = await self.access.stale()
            turn.transcript.stale = [name for key, name in found.items() if key not in before]

    async def _wait_in_line(self, running: RunningTurn) -> None:
        """Wait for earlier turns of the same session, and while `MOST_TURNS` are running."""
        try:
            while (ahead := self._ahead(running)) is not None:
                running.ahead = ahead
                others = {each.task for each in self.running if each is not running}
                await asyncio.wait(others, return_when=asyncio.FIRST_COMPLETED)
        except BaseException as error:
            running.turn.explain(error)
            running.turn.view.close()
            raise
        running.ahead, running.admitted = None, True

    def _ahead(self, running: RunningTurn) -> RunningTurn | None:
        """Return a turn for which this one has to wait, or None."""
        earlier = self.running[: self.running.index(running)]
        if not earlier:
            return None
        for each in (*earlier, running):
            each.line = each.line or self._line_of(each)
        # An external memory and a cassette follow one conversation at a time.
        apart = running.alone or self.deck.on or bool(self.settings().memory.provider)
        found = [each for each in earlier if apart or each.alone or each.line is running.line]
        admitted = [each for each in self.running if each.admitted]
        return found[-1] if found else next(iter(admitted[MOST_TURNS - 1 :]), None)

    def _line_of(self, running: RunningTurn) -> TurnQueue:
        """Return the line of the session that a turn will continue."""
        options = running.turn.options
        earlier = self.running[: self.running.index(running)]
        last = earlier[-1] if earlier else None
        follows = last is not None and last.session is None and last not in self._apart
        if last is not None and last.line and follows and not (options.session or options.new):
            return last.line
        found = self.sessions.expected(options.session, new=options.new, afresh=self.deck.on)
        name = found.id if found is not None else options.session
        lines = (each.line for each in earlier if each.line is not None)
        known = (line for line in lines if name in (line.name, line.session and line.session.id))
        return (next(known, None) if name else None) or TurnQueue(name)

    async def _preview(self, prompt: str, options: TurnOptions) -> str:
        """Build a turn's first request without sending it, and return it as Markdown.

        With `--into`, the request is also bound to that variable.
        """
        from hermes_nb.notebook.dry_run import preview

        settings = self.settings(model=options.model or None)
        async with self.models.lent(options.model) as model:
            pictures = self.models.pictures(options.images, model)
            spec = self.runtime.spec(model, auxiliary=self.models.auxiliary)
            sessions = self.sessions
            found = sessions.expected(options.session, new=options.new, afresh=self.deck.on)
            env = TurnEnv(
                settings=settings,
                options=options,
                spec=spec,
                session=found,
                site=Place(session=found.id if found is not None else ""),
                tools=self.tools_in_use.chosen(spec, options.tools),
                pictures=pictures,
            )
            message = await self.message_builder.message(prompt, env, self.knowledge.library)
            address = self.models.address(settings, named=bool(options.model))
            request = preview(
                env, message, store=self.store, source=sessions.source, endpoint=address
            )
        return request.given(options, self.shell.user_ns)

    async def _prepare(self, prompt: str, running: RunningTurn) -> TurnEnv:
        """Get the model and the session ready, and return the turn's environment."""
        turn, options = running.turn, running.turn.options
        if options.model:
            self.choose_model(options.model)
        alone = [each for each in self.running if each.admitted] == [running]
        await self.models.make_ready(self.note, alone=alone)
        if not self.equipped:
            await in_thread(import_parts)
        # Evaluated before the session starts: if an image fails, nothing is sent or stored.
        pictures = self.models.pictures(options.images, self.models.main)
        if options.new:
            self.new()
        settings = self.settings()
        spec = self.spec(settings)
        session = self._taken_up(prompt, running, spec)
        await session.keep_stopped(self.unsent)
        for text in self._unread.pop(session.id, ()):
            turn.steering.add(text)
        self.tell_what_was_learned(session)
        tools = self.tools_in_use.chosen(spec, options.tools)
        session.use(tools)
        if loaded := news():
            self.note(loaded)
        return TurnEnv(
            settings=settings,
            options=options,
            spec=spec,
            session=session,
            site=await self.access.site(session.id, session.agent.turns + 1, look=options.context),
            tools=tools,
            sees_images=self.models.sees_images(),
            pictures=pictures,
            budgets=self.models.budgets(options.limits, settings, self.note),
            view=turn.view,
        )

    def _taken_up(self, prompt: str, running: RunningTurn, spec: SessionSpec) -> Session:
        """Return a turn's session, which becomes the current one."""
        options, line = running.turn.options, running.line or TurnQueue()
        name, new = options.session, options.new
        if running.line is not None and not (name or new):  # it began while others were running
            current = self.sessions.current
            name = line.session.id if line.session is not None else line.name
            new = not name
            if name == current.id if current is not None else line.session is None:
                name = ""
        session = self.sessions.take_up(
            one_line(prompt, TITLE), spec, name=name, new=new, afresh=self.deck.on
        )
        running.line, running.session = line, session
        line.session = session
        return session

    def _reviewed(self, running: RunningTurn) -> str:
        """Return the answer, and review the session if due; raises the same errors as `ask`."""
        came, session = running.came, running.session
        if came is None or session is None:
            raise Stopped("stopped")
        if came.reason == "failed" and not traits_of(session.agent.model).local:
            # This way, a corrected key or address takes effect. A local model has neither: keep it
            # loaded.
            self.models.renew()
        if came.reason == "interrupted":
            raise stopped_in_view(self.shell)
        if came.reason == "failed":
            raise TurnFailed(came.error)
        if self._looks_back:
            self.reviews.after_turn(session, live=not self.deck.on)
        return running.turn.transcript.answer

    @asynccontextmanager
    async def _taking(self, prompt: str, running: RunningTurn) -> AsyncIterator[None]:
        """Show a turn and apply its options; if interrupted before it begins, save the prompt."""
        turn, options = running.turn, running.turn.options
        try:
            async with turn.shown(self.access.frontend):
                try:
                    async with self._under(running):
                        yield
                except BaseException as error:
                    turn.explain(error)
                    raise
        except (asyncio.CancelledError, KeyboardInterrupt):
            if not turn.begun:
                self.unsent.append(prompt)
                session = running.session or self.session
                others = [each.session for each in self.running if each is not running]
                named = options.new or options.session
                if session is not None and not named and session not in others:
                    await session.keep_stopped(self.unsent)
            raise

    @asynccontextmanager
    async def _under(self, running: RunningTurn) -> AsyncIterator[None]:
        """Apply a turn's approval mode and settings."""
        guard, self.turn = self.guard, None
        running.cell.mode = guard.mode
        with self._settings.read_once():
            try:
                settings = self.settings()
                wanted = running.turn.options.approve or settings.approve
                running.cell.mode = await self.permission.granted_in_page(wanted)
                guard.required = settings.sandbox.required
                guard.sandboxed = settings.sandbox.use != "off"
                yield
            finally:
                try:
                    self._came_to(running)
                finally:
                    running.cell.mode = None
                    if running.session is not None:
                        self.sessions.release(running.session)

    def _came_to(self, running: RunningTurn) -> None:
        """Store a turn's result, and bind its answer to the variable named by `--into`."""
        turn, session = running.turn, running.session
        if left := turn.steering.close():
            self._unread.setdefault(session.id if session is not None else "", []).extend(left)
            turn.view.note(UNREAD)
        if (what_if := running.cell.what_if) is not None:
            what_if.end()
        if session is None:
            return
        if what_if is not None and what_if.tried:
            turn.transcript.what_if = what_if.changes
            place = Place(session=session.id, turn=session.agent.turns, notebook=self.notebook)
            self.tried = what_if, place, session.messages
        if turn.begun:
            self.last = turn.transcript
            turn.tell_changes(session, self.access.checkpoints, self.knowledge)
        if turn.result is not None:
            address = self.settings().endpoint.base_url
            running.came = self.turn = with_remedy(turn.result, address=address)
            self._turn_session = session.id
            turn.bind(self.shell.user_ns)

    def new(self) -> None:
        """End the current session; the next turn starts a new one."""
        self._apart = [*self.running]
        if self._sessions is not None:
            self._sessions.end()
        if self.mcp.thaw():
            self._specs, self._runtime = [], None

    def resume(self, wanted: str = "") -> Session:
        """Resume a session by id or title, or "" for the latest; raise `ConfigError` if missing."""
        self._apart = [*self.running]
        return self.sessions.resume(wanted, self.spec(self.settings()))

    def spec(self, settings: Settings) -> SessionSpec:
        """Return a session's specification; raise `ConfigError` if no model is configured."""
        model = self.models.main
        found = next((spec for spec in self._specs if spec.model is model), None)
        if found is None:
            found = self.runtime.spec(model, auxiliary=self.models.auxiliary)
            self._specs = [*self._specs[-MOST_KEPT:], found]
        budget = self.models.budget(settings)
        return replace(
            found,
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
                own=own_tools(self.shell, self.access),
                given=self._given,
                checkpoints=self.access.checkpoints,
                tell=self.note,
                jobs=self.jobs,
                mcp=self.mcp,
                hooks=self._hooks,
            )
        return self._runtime

    @property
    def equipped(self) -> bool:
        """Whether tools and knowledge have already been built, which makes reading them cheap."""
        return bool(self._specs)

    @property
    def knowledge(self) -> PromptSources:
        """The prompt sources for this home and working directory, such as memory and skills."""
        return self.runtime.knowledge

    def choose_model(self, name: str) -> None:
        """Use another model from the next turn on; the conversation does not change."""
        self._settings.choose("model", name)
        self.use(None)

    def change_models(self) -> None:
        """Rebuild the models from the current settings before the next turn."""
        self.models.renew()
        self._specs = []

    def _renew(self) -> None:
        """Discard everything that was built from the settings, to be rebuilt on next use."""
        self.change_models()
        if self._reviews is not None:
            self._reviews.close()
        self._runtime = self._reviews = None

    def switch_cassette(self, mode: CassetteMode) -> None:
        """Switch recording or replay from the next turn on; raise `ConfigError` if impossible."""
        self.deck.switch(mode)
        self.change_models()

    def configure(self, key: str, value: object) -> None:
        """Change a setting for this kernel; None resets it. Raise `ConfigError` if invalid."""
        if key == "approve":
            self.permission.check()
            wished = self.settings(approve=value)
            wished.insist(*([] if value is None else [key]))
            self._settings.choose(key, value and self.permission.granted(wished.approve))
            return
        self._settings.choose(key, value)
        self._renew()

    @property
    def reviews(self) -> Reviews:
        """The background reviews of turns; created on first use."""
        if self._reviews is None:
            emit = self.hub.background
            self._reviews = Reviews(self.runtime, model=self.models.another, emit=emit)
        return self._reviews

    def close(self) -> None:
        """Stop turns and background work, and leave the session, which can be resumed."""
        self.stop()
        for close in [*self.at_close]:
            close()
        for each in (self.hub, self.mcp, self._reviews):
            if each is not None:
                each.close()
        if self.session is not None:
            self.session.leave()
        if self._store is not None:
            close_store(self._store)

    @property
    def _looks_back(self) -> bool:
        """Whether background reviews run: only with a user to ask and a model that can learn."""
        return can_ask(self.shell) and self.models.can_learn

    def tell_what_was_learned(self, session: Session) -> None:
        """Report pending proposals, and the results of any reviews since the last turn."""
        if can_ask(self.shell):
            self.reviews.tell_what_waits()
        if not self._looks_back:
            return
        self.reviews.watch(session)
        if told := self.reviews.news():
            self.note(told)

    def use(self, model: ChatModel | None) -> None:
        """Use this model object from the next turn on; None restores the configured model."""
        self.models.use(model)

    def use_tools(self, tools: Sequence[Tool]) -> None:
        """Add user tools; they replace earlier ones with the same names."""
        mine = {tool.name: tool for tool in [*self._given, *tools]}
        self._given = Toolset(replace(each, toolset=each.toolset or MINE) for each in mine.values())
        self._renew()

    def use_hooks(self, hooks: Hooks) -> None:
        """Use these hooks from now on, instead of earlier ones."""
        self._hooks[:] = [hooks]

    def tools(self) -> Toolset:
        """Return all available tools, built on first use."""
        return self.spec(self.settings()).tools

    def variables(self) -> list[Variable]:
        """Return summaries of the user's variables for the prompt."""
        return variables_of(self.shell)

    def _personal(self) -> Sequence[str]:
        """Return the current session's prompt layers that come from the Hermes directory."""
        return self.session.personal if self.session is not None else ()

    def _notebook(self) -> str:
        return self.access.path

    def _moved(self, notebook: str, to: str) -> None:
        """Assign the notebook's sessions to its new path after it was renamed."""
        if notebook or self._sessions is not None:
            self.sessions.relocate(notebook, to)

    def note(self, markdown: str) -> None:
        """Show a message in the turn to which the calling code belongs, or in the cell's output."""
        view = self.view
        show = self._say if view is None else view.note
        show(markdown)
