"""Makes what a session is given: tools, prompt, context engine, all for one home and directory.

`Opening` is a conversation outside of a kernel, from settings to a session, and everything it takes
closed again: scripts (`Hermes`) and the command line open theirs here. Nothing is built, looked up
or created before `session` is called.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hermes_nb.agent.approvals import Approvals, proposing
from hermes_nb.agent.build import Place, build_engine, build_tools, known_tools, open_store
from hermes_nb.agent.children import IDENTITY, Delegation, delegation_tools
from hermes_nb.agent.config import Settings
from hermes_nb.agent.jobs import Jobs
from hermes_nb.agent.models import build_auxiliary, build_deck, build_model, is_embedded
from hermes_nb.agent.prompt_sources import PromptSources
from hermes_nb.agent.session import REVIEW, Identity, Session, SessionSpec
from hermes_nb.core.loop import Agent
from hermes_nb.core.messages import Message, Usage
from hermes_nb.core.protocols import (
    Approver,
    ChatModel,
    ContextEngine,
    Keeper,
    SessionStore,
    StoredSession,
)
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Tool, ToolContext, Toolset
from hermes_nb.memory.history import Origin
from hermes_nb.prompt.builder import PromptTexts
from hermes_nb.safety.guard import Guard
from hermes_nb.safety.provenance import outside, source_of, taken
from hermes_nb.tools.installed import installed_tools

WEIGHTY = frozenset({"create", "edit", "delete", "write_file", "remove_file"})
"""Changes of skills that nobody makes beside a turn; a patch is small, shown and undoable."""


def in_view(agent: Agent) -> list[Message]:
    """Return what a conversation holds, the texts of its prompt that are not ours first."""
    return [Message(role="system", parts=agent.background), *agent.messages]


class Runtime:
    """Equips sessions.

    `session()` is the one that runs now, for tools that note where a call came from; `notebook()`
    its path or "". `own` are tools of a higher layer, `given` the user's. `tell` shows a line to
    the user. `jobs` lists the children that run.
    """

    def __init__(  # noqa: PLR0913 - everything a session touches comes together here
        self,
        settings: Settings,
        *,
        root: Path,
        store: SessionStore,
        guard: Guard,
        approver: Approver,
        session: Callable[[], Session | None],
        tell: Callable[[str], None],
        notebook: Callable[[], str] = lambda: "",
        own: Toolset | None = None,
        given: Iterable[Tool] = (),
        keeper: Keeper | None = None,
        jobs: Jobs | None = None,
    ) -> None:
        self.settings = settings
        self.knowledge = PromptSources(settings, workdir=root, store=store, tell=tell)
        self.approvals = Approvals(self.knowledge)
        self.tell = tell
        self.jobs = Jobs() if jobs is None else jobs  # none may run in it now
        self._session = session
        self._notebook = notebook
        self._guard = guard
        self._store = store
        self._place = Place(
            root=root,
            home=settings.home,
            guard=guard,
            approver=approver,
            own=own or Toolset(),
            foreign=Toolset(
                {tool.name: tool for tool in [*installed_tools(tell), *given]}.values()
            ),
            tell=tell,
            keeper=keeper,
            hints=_RunningHints(session),
        )

    def spec(
        self,
        model: ChatModel,
        *,
        auxiliary: ChatModel | None = None,
        chosen: Callable[[Toolset], Toolset] = lambda tools: tools,
    ) -> SessionSpec:
        """Return what a session with this model is given; `chosen` picks among the tools."""
        settings = self.settings
        known = known_tools(
            self.knowledge,
            model=auxiliary or model,
            session=self._session_id,
            origin=self._origin,
            spent=self._spent,
        )
        if is_embedded(model):  # it has a prompt of its own, and room for little else
            tools = chosen(build_tools(self._place.with_known(known), mark=False))
            return SessionSpec(model=model, tools=tools, max_requests=settings.max_requests)

        def engine(store: SessionStore, session_id: str) -> ContextEngine:
            return build_engine(
                settings,
                model=model,
                auxiliary=auxiliary,
                store=store,
                session_id=session_id,
                knowledge=self.knowledge,
                memory=lambda span: self.quiet_tools(model, session_id, [*self._in_view(), *span]),
            )

        place = self._place.with_known(known, ready=self._delegation(model, auxiliary, known))
        return SessionSpec(
            model=model,
            tools=chosen(build_tools(place)),
            max_requests=settings.max_requests,
            material=self.knowledge.material,
            enforce=settings.enforce,
            marked=True,
            tracker=self.knowledge.tracker,
            engine=engine,
            recalled=self.knowledge.recalled if settings.memory.provider else None,
            begin=self.knowledge.prepare,
            leave=self.knowledge.left,
            jobs=self.jobs,
        )

    def _delegation(self, model: ChatModel, auxiliary: ChatModel | None, known: Toolset) -> Toolset:
        """Return the tool that begets children, unless it is switched off."""
        settings = self.settings
        if not settings.delegation.enabled:
            return Toolset()
        provider = bool(settings.memory.provider)
        children = Delegation(
            settings=settings.delegation,
            store=self._store,
            guard=self._guard,
            jobs=self.jobs,
            equip=lambda guard, turn: self._child(model, auxiliary, known, guard, turn),
            parent=self._session,
            told=self._delegated if provider else None,
            tell=self.tell,
        )
        return delegation_tools(children)

    def _delegated(self, goal: str, summary: str) -> None:
        if (provider := self.knowledge.provider) is not None:
            provider.on_delegation(goal, summary)

    def _child(
        self,
        model: ChatModel,
        auxiliary: ChatModel | None,
        known: Toolset,
        guard: Guard,
        turn: int,
    ) -> SessionSpec:
        """Return what a child of the turn is given: the model, and tools that nobody is asked for.

        What it changes is saved as the turn's own.
        """
        keeper = self._place.keeper
        under = UnderTurn(keeper, turn) if keeper is not None else None

        def engine(store: SessionStore, session_id: str) -> ContextEngine:
            return build_engine(
                self.settings,
                model=model,
                auxiliary=auxiliary,
                store=store,
                session_id=session_id,
                knowledge=None,
                memory=lambda _: Toolset(),
            )

        return SessionSpec(
            model=model,
            tools=build_tools(self._place.for_child(guard, known=known, keeper=under)),
            material=lambda _: PromptTexts(identity=IDENTITY),
            enforce=self.settings.enforce,
            marked=True,
            engine=engine,
        )

    def _in_view(self) -> Sequence[Message]:
        session = self._session()
        return in_view(session.agent) if session is not None else ()

    def quiet_tools(
        self, model: ChatModel, session_id: str, messages: Sequence[Message]
    ) -> Toolset:
        """Return the memory and skill tools in a form that asks nobody, for work beside a turn.

        What a turn would have to ask for waits for the user's approval, by the conversation's whole
        `messages`: everything while text from outside is among them or `memory.write_approval` is
        set, what is worded like somebody else's text, and every change of skills but a patch.
        """
        known, notebook = self.knowledge, self._notebook()
        stranger = outside(messages)

        def origin(turn: int) -> Origin:
            return Origin(session=session_id, turn=turn, notebook=notebook, source=REVIEW)

        def held(action: str, wording: str) -> str | None:
            if stranger:
                return f"after {stranger}"
            if taken(wording, messages):
                return f"in words of {source_of(wording, messages)}"
            asked = self.settings.memory.write_approval or action in WEIGHTY
            return "" if asked else None

        tools = known_tools(
            known,
            model=model,
            session=lambda: session_id,
            origin=lambda context: origin(context.turn),
        ).only("memory", "skills")
        return proposing(
            tools,
            memory=known.memory,
            library=known.library,
            pending=self.approvals.pending,
            held=held,
            origin=origin,
            on_written=known.written,
        )

    def _spent(self, usage: Usage, model: str) -> None:
        """Count what work beside the conversation used."""
        if (session := self._session()) is not None:
            session.spend(usage, model)

    def _session_id(self) -> str:
        session = self._session()
        return session.id if session is not None else ""

    def _origin(self, context: ToolContext) -> Origin:
        return Origin(session=self._session_id(), turn=context.turn, notebook=self._notebook())


@dataclass(frozen=True, slots=True)
class UnderTurn:
    """A keeper of what children change: theirs is a part of the turn that begot them."""

    keeper: Keeper
    turn: int

    def before(self, turn: int, paths: Sequence[Path]) -> None:
        """Save files that a call is about to change."""
        self.keeper.before(self.turn, paths)

    def after(self, turn: int, paths: Sequence[Path]) -> None:
        """Note what these files have become."""
        self.keeper.after(self.turn, paths)

    def note(self, turn: int, text: str) -> None:
        """Note what a call did that cannot be undone."""
        self.keeper.note(self.turn, text)


class _RunningHints:
    """The hints of whichever session runs now."""

    def __init__(self, session: Callable[[], Session | None]) -> None:
        self._session = session

    def after(
        self,
        tool_name: str,
        arguments: Mapping[str, Any],
        *,
        earlier: Sequence[Mapping[str, Any]] = (),
    ) -> str:
        """Return the hint that a call leads to, "" for none."""
        session = self._session()
        if session is None or session.hints is None:
            return ""
        return session.hints.after(tool_name, arguments, earlier=earlier)


class Opening:
    """A session that is begun, or gone on with, when it is first asked for.

    `source` says who asks, as in `Identity`. `model` and `auxiliary` take the place of those that
    the settings name. `own` are tools of the caller's, and `chosen` picks among all. `joined`
    returns the stored session to go on with, None for a new one. `tell` shows a line to the user.
    """

    def __init__(  # noqa: PLR0913 - what the settings do not say, all of it optional
        self,
        settings: Settings,
        *,
        approver: Approver,
        tell: Callable[[str], None],
        source: str,
        root: Path | None = None,
        model: ChatModel | None = None,
        auxiliary: ChatModel | None = None,
        own: Iterable[Tool] = (),
        chosen: Callable[[Toolset], Toolset] = lambda tools: tools,
        joined: Callable[[SessionStore], StoredSession | None] = lambda _: None,
    ) -> None:
        self.current: Session | None = None
        self._settings = settings
        self._approver = approver
        self._tell = tell
        self._source = source
        self._root = root
        self._model = model
        self._auxiliary = auxiliary
        self._own = Toolset(own)
        self._chosen = chosen
        self._joined = joined
        self._store: SessionStore | None = None

    @property
    def begun(self) -> bool:
        """Whether there is anything to close."""
        return self._store is not None

    def session(self, title: str = "") -> Session:
        """Return the session, made on the first call; raise `ConfigError` where that cannot be."""
        if self.current is None:
            self.current = self._opened(title)
        return self.current

    def _opened(self, title: str) -> Session:
        settings = self._settings
        if self._store is None:
            self._store = open_store(settings, self._tell)
        deck = build_deck(
            lambda: settings, personal=lambda: self.current.personal if self.current else ()
        )
        if self._model is None:
            self._model = build_model(settings, deck=deck)
        if self._auxiliary is None:
            self._auxiliary = build_auxiliary(settings, deck=deck)
        runtime = Runtime(
            settings,
            root=self._root or Path.cwd(),
            store=self._store,
            guard=Guard(
                settings.approve,
                required=settings.sandbox.required,
                sandboxed=settings.sandbox.use != "off",
            ),
            approver=self._approver,
            session=lambda: self.current,
            own=self._own,
            tell=self._tell,
        )
        spec = replace(
            runtime.spec(self._model, auxiliary=self._auxiliary, chosen=self._chosen),
            budget=settings.budget,
        )
        stored = self._joined(self._store)
        if stored is not None:
            return Session.resume(stored, store=self._store, spec=spec, warn=self._tell)
        return Session.start(
            store=self._store,
            spec=spec,
            identity=Identity(source=self._source, title=title),
            warn=self._tell,
        )

    async def aclose(self) -> None:
        """Leave the session and close models and store; the session can be resumed later."""
        async with AsyncExitStack() as ending:  # from the last to the first, whatever fails
            if self._store is not None:
                ending.callback(self._store.close)
            for model in (self._auxiliary, self._model):
                if model is not None:
                    ending.push_async_callback(model.aclose)
            if self.current is not None:
                await in_thread(self.current.leave)
