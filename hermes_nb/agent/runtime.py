"""Makes what a session is given: tools, prompt, context engine, all for one home and directory.

`Opening` is a conversation outside of a kernel, from settings to a session, and everything it takes
closed again: scripts (`Hermes`) and the command line open theirs here. Nothing is built, looked up
or created before `session` is called.

With `models` this is the one place that names concrete classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import cast

from hermes_nb.agent.approvals import Approvals, proposing
from hermes_nb.agent.children import IDENTITY, Delegation, delegation_tools
from hermes_nb.agent.jobs import Jobs
from hermes_nb.agent.models import Auxiliary, build_deck, build_model, for_reviews
from hermes_nb.agent.prompt_sources import PromptSources, known_tools, preface_of
from hermes_nb.agent.session.flush import Memory, flush
from hermes_nb.agent.session.recorder import close_store
from hermes_nb.agent.session.session import REVIEW, Identity, Session, SessionSpec
from hermes_nb.agent.session.stores import open_store
from hermes_nb.agent.settings.config import Settings
from hermes_nb.agent.undo.checkpoints import Checkpoints, checkpointed
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.loop import Agent, Observer, sinks_of
from hermes_nb.core.messages import Message
from hermes_nb.core.plugins import loaded, plugins
from hermes_nb.core.protocols import (
    Approver,
    ChatModel,
    ContextEngine,
    EventSink,
    SessionStore,
    StoredSession,
)
from hermes_nb.core.text import one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Place, Risk, Tool, Toolset
from hermes_nb.memory.history import WriteOrigin
from hermes_nb.models.profiles import traits_of
from hermes_nb.prompt.builder import PromptTexts
from hermes_nb.safety.guard import ChildGuard, Guard
from hermes_nb.safety.marks import marks_of
from hermes_nb.safety.provenance import outside, source_of, taken
from hermes_nb.safety.redact import redact
from hermes_nb.tools.choice import DEFAULT, Choice
from hermes_nb.tools.installed import (
    ToolsetSetup,
    installed_tools,
    installed_toolsets,
    left,
    left_of_added,
)
from hermes_nb.tools.installed_wrappers import wrapped
from hermes_nb.tools.mcp_tools import McpTools

SINKS = "hermes_nb.event_sinks"
OTEL = "otel"
"""The entry of `hermes_nb.event_sinks` that is used where the setting `otel.enabled` is on."""


def build_engine(
    settings: Settings,
    *,
    model: ChatModel,
    auxiliary: ChatModel | None,
    store: SessionStore,
    place: Place,
    sources: PromptSources | None = None,
    memory: Memory | None = None,
) -> ContextEngine:
    """Return the context engine that the settings name, for the session of a place.

    With `sources`, the external memory hears of what is dropped. Raises `ConfigError`.
    """
    from hermes_nb.context.engine import Setup, make_engine
    from hermes_nb.context.policy import CompressionLimits
    from hermes_nb.core.threads import in_thread

    async def before(messages: Sequence[Message]) -> None:
        if sources is not None and (provider := sources.provider) is not None:
            await in_thread(provider.before_compress, messages)

    chosen = settings.compression
    limits = CompressionLimits(
        threshold=chosen.threshold,
        max_prompt_tokens=chosen.max_prompt_tokens,
        target_ratio=chosen.target_ratio,
        protect_last_n=chosen.protect_last,
        automatic=chosen.enabled,
    )
    asked = auxiliary or model
    memory = None if settings.policy.why("learning") else memory
    return make_engine(
        chosen.engine,
        Setup(
            model=model,
            auxiliary=auxiliary,
            store=store,
            session_id=place.session,
            window=settings.window,
            limits=limits,
            flush=partial(flush, model=asked, memory=memory, place=place) if memory else None,
            before_compress=before,
        ),
    )


WEIGHTY = frozenset({"create", "edit", "delete", "write_file", "remove_file"})
"""Changes of skills that nobody makes beside a turn; a patch is small, shown and undoable."""


WITHHELD = ("kernel", "notebook", "delegation", "memory")
"""Toolsets that no child has: what a child reads of the notebook would count as seen by Hermes."""


class Runtime:
    """What sessions, children and reviews are made of, for one home, directory and settings.

    `own` are tools of a higher layer, `given` the user's. `checkpoints` save what calls change,
    `jobs` lists the children that run, `mcp` runs the servers of MCP, of which there are none
    without it, and `tell` shows a line to the user.
    """

    def __init__(  # noqa: PLR0913 - everything a session touches comes together here
        self,
        settings: Settings,
        *,
        root: Path,
        store: SessionStore,
        guard: Guard,
        approver: Approver,
        tell: Callable[[str], None],
        own: Toolset | None = None,
        given: Iterable[Tool] = (),
        checkpoints: Checkpoints | None = None,
        jobs: Jobs | None = None,
        mcp: McpTools | None = None,
    ) -> None:
        self.settings = settings
        self.knowledge = PromptSources(settings, workdir=root, store=store, tell=tell)
        self.approvals = Approvals(self.knowledge)
        self.tell = tell
        self.jobs = Jobs() if jobs is None else jobs  # none may run in it now
        self._store = store
        self.guard = guard
        self._approver = approver
        self._root = root
        self._own = own or Toolset()
        self._marks = marks_of(settings.home)
        foreign = {tool.name: tool for tool in [*installed_tools(tell), *given]}
        self._foreign = left_of_added(foreign.values(), settings.policy)
        self._checkpoints = checkpoints
        self._mcp = mcp or McpTools()
        self.observers = observers(settings, tell)
        if mcp is not None:
            servers = self.knowledge.mcp_servers(settings.mcp)
            mcp.use(servers, home=settings.home, allowed=settings.mcp.allow)

    def spec(
        self,
        model: ChatModel,
        *,
        auxiliary: Auxiliary | None = None,
        chosen: Sequence[str] | None = None,
    ) -> SessionSpec:
        """Return what a session with this model is given; `chosen` names its tools.

        Without `auxiliary`, the model does all the work beside the conversation.
        """
        settings, sources = self.settings, self.knowledge
        recall = auxiliary.of("recall", model) if auxiliary else None
        condenses = auxiliary.of("compression", model) if auxiliary else None
        known = known_tools(sources, model=recall or model)
        held = partial(self._tools, self.guard, self._own, known, tell=self.tell)
        if traits_of(model).small:  # it has a prompt of its own, and room for little else
            tools = held(self._foreign, mark=False)
            choice = Choice(usual=tools, groups={}, policy=settings.policy)
            return SessionSpec(
                model=model,
                tools=_chosen(choice, chosen),
                choose=choice.of,
                max_requests=settings.max_requests,
                policy=settings.policy,
                watched=self._watched,
                sinks=self.sinks,
            )

        def engine(
            store: SessionStore, place: Place, in_view: Callable[[], Sequence[Message]]
        ) -> ContextEngine:
            return build_engine(
                settings,
                model=model,
                auxiliary=condenses,
                store=store,
                place=place,
                sources=sources,
                memory=lambda span: self.quiet_tools(model, place, [*in_view(), *span]),
            )

        foreign = self._foreign + self._mcp.tools(model)
        tools = held(foreign, self._delegation(partial(self._child, model, condenses, known)))
        more = cache(partial(self._named_alone, model, auxiliary))
        choice = Choice(usual=tools, more=more, groups=settings.toolsets, policy=settings.policy)
        return SessionSpec(
            model=model,
            tools=_chosen(choice, chosen),
            choose=choice.of,
            max_requests=settings.max_requests,
            policy=settings.policy,
            sources=sources,
            enforce=settings.enforce,
            marked=True,
            engine=engine,
            jobs=self.jobs,
            preface=preface_of(
                settings.home, settings.ephemeral_system_prompt, settings.prefill_messages_file
            ),
            watched=self._watched,
            sinks=self.sinks,
        )

    def _delegation(self, child: Callable[[], SessionSpec]) -> Toolset:
        if not self.settings.delegation.enabled:
            return Toolset()
        children = Delegation(
            settings=self.settings.delegation,
            store=self._store,
            jobs=self.jobs,
            spec=cache(child),
            sources=self.knowledge,
            tell=self.tell,
        )
        return delegation_tools(children)

    def _child(self, model: ChatModel, auxiliary: ChatModel | None, known: Toolset) -> SessionSpec:
        """Return what children are given: the model, and tools that nobody is asked for.

        Nothing there remembers, delegates or touches the kernel. A tool that has to run alone
        could not do so beside other children.
        """

        def shared(tools: Toolset) -> Toolset:
            return Toolset(tool for tool in tools.without(*WITHHELD) if not tool.exclusive)

        def engine(store: SessionStore, place: Place, _: object) -> ContextEngine:
            return build_engine(
                self.settings, model=model, auxiliary=auxiliary, store=store, place=place
            )

        guard = ChildGuard(parent=self.guard)
        foreign = self._foreign + self._mcp.tools(model)
        reading = Toolset(tool for tool in known if tool.risk is Risk.READ)
        return SessionSpec(
            model=model,
            tools=self._tools(guard, shared(self._own), reading, shared(foreign)),
            texts=PromptTexts(identity=IDENTITY),
            policy=self.settings.policy,
            enforce=self.settings.enforce,
            marked=True,
            engine=engine,
            watched=self._watched,
            sinks=self.sinks,
        )

    def sinks(
        self, agent: Agent, session: str, parent: str, *, behind: bool = False
    ) -> Sequence[EventSink]:
        """Return what installed packages listen to an agent with; see `Observer.sink`."""
        return sinks_of(self.observers, agent, session, parent, behind=behind)

    def _watched(self, tools: Toolset, source: str) -> Toolset:
        return wrapped(tools, source=source, guard=self.guard, tell=self.tell)

    def for_tasks(self, model: ChatModel, wanted: Sequence[str]) -> Toolset:
        """Return what tasks of a map get of the tools that children may have.

        A toolset stands for those of it that only read; what does more is named itself. Raises
        `ConfigError` for a name that nothing has.
        """
        if not wanted:
            return Toolset()
        there = self._child(model, None, known_tools(self.knowledge, model=model)).tools
        names = {name for tool in there for name in (tool.name, tool.toolset)}
        if missing := [name for name in wanted if name not in names]:
            known = ", ".join(sorted(names))
            raise ConfigError(f"a map's tasks cannot have {missing[0]!r}; they can have {known}")
        found = Toolset(
            tool
            for tool in there
            if tool.name in wanted or (tool.toolset in wanted and tool.risk is Risk.READ)
        )
        return self._watched(found, "map")

    def _named_alone(self, model: ChatModel, auxiliary: Auxiliary | None) -> Toolset:
        """Return the tools that a session has where the user names them."""
        from hermes_nb.tools.consult import clarify_tools, vision_tools
        from hermes_nb.tools.web import Web, web_tools

        settings = self.settings
        found = clarify_tools(self._approver) + vision_tools(self._root)
        if auxiliary is not None:
            named = partial(auxiliary.named, main=model)
            found += installed_toolsets(
                ToolsetSetup(composed=list(settings.composed), model=named), settings.policy
            )
        web = Web(private=settings.web.private, most=settings.web.max_bytes)
        return self._held(found + web_tools(web, search_url=settings.web.search_url), self.guard)

    def _tools(
        self,
        guard: Guard,
        own: Toolset,
        known: Toolset,
        foreign: Toolset,
        ready: Toolset | None = None,
        *,
        mark: bool = True,
        tell: Callable[[str], None] = lambda _: None,
    ) -> Toolset:
        """Return tools that are undoable, guarded and limited; the `ready` see to that themselves.

        `mark` puts untrusted results between marks; a small model would only be confused by them.
        `tell` hears of tools whose names are taken.
        """
        from hermes_nb.tools.files import files
        from hermes_nb.tools.installed import without_taken
        from hermes_nb.tools.origins import keeping_origins
        from hermes_nb.tools.terminal import terminal

        ready = ready or Toolset()
        spill = self.settings.home / "outputs"
        tools = own + files(self._root, also_readable=(spill,)) + terminal(self._root) + known
        free = without_taken(foreign, tools + ready, tell)
        tools = keeping_origins((tools + free).usable(), self._marks, self._root)
        if self._checkpoints is not None:
            tools = checkpointed(tools, self._checkpoints, self._root)
        return self._held(tools, guard, mark=mark) + left(ready, self.settings.policy)

    def _held(self, tools: Toolset, guard: Guard, *, mark: bool = True) -> Toolset:
        """Return tools that are guarded, limited, and say whose text they return."""
        from hermes_nb.tools.asking import asking
        from hermes_nb.tools.wrappers import limited, marked

        spill = self.settings.home / "outputs"
        asked = asking(left(tools, self.settings.policy), guard, self._approver)
        return marked(limited(asked, spill=spill), mark=mark)

    def quiet_tools(self, model: ChatModel, place: Place, messages: Sequence[Message]) -> Toolset:
        """Return the memory and skill tools in a form that asks nobody, for work beside a turn.

        What a turn would have to ask for waits for the user's approval, by the conversation's whole
        `messages`: everything while text from outside is among them or `memory.write_approval` is
        set, what is worded like somebody else's text, and every change of skills but a patch.
        """
        known = self.knowledge
        stranger = outside(messages)

        def held(action: str, wording: str) -> str | None:
            if stranger:
                return f"after {stranger}"
            if taken(wording, messages):
                return f"in words of {source_of(wording, messages)}"
            asked = self.settings.memory.write_approval or action in WEIGHTY
            return "" if asked else None

        quiet = proposing(
            left(known_tools(known, model=model, source=REVIEW), self.settings.policy).only(
                "memory", "skills"
            ),
            memory=known.memory,
            library=known.library,
            pending=self.approvals.pending,
            held=held,
            origin=WriteOrigin(session=place.session, notebook=place.notebook, source=REVIEW),
            on_written=known.written,
        )
        return self._watched(quiet, REVIEW)


def observers(settings: Settings, tell: Callable[[str], None]) -> list[Observer]:
    """Return what installed packages watch turns with, each made from the settings.

    One that cannot be made is left out, which `tell` says. Raises `ConfigError` where the settings
    ask for OpenTelemetry and it is not installed.
    """
    if settings.otel.enabled and not plugins(SINKS, OTEL):
        raise ConfigError(
            f"otel.enabled is on, and no installed package makes spans "
            f"(entry point {OTEL!r} of {SINKS})"
        )
    found = []
    for point in plugins(SINKS):
        if point.name == OTEL and not settings.otel.enabled:
            continue
        try:
            make = cast("Callable[[Settings], Observer]", loaded(point))
            found.append(make(settings))
        except ConfigError:
            raise
        except Exception as error:  # noqa: BLE001 - somebody else's code; it only looks on
            why = one_line(redact(f"{type(error).__name__}: {error}"), 200)
            tell(f"the event sinks {point.name!r} are off: {why}")
    return found


def _chosen(choice: Choice, names: Sequence[str] | None) -> Toolset:
    """Return the tools of some names, none for no names, the usual ones where nothing is said."""
    if names is None and DEFAULT not in choice.groups and not choice.policy.forced("tools"):
        return choice.usual
    return Toolset() if names is not None and not names else choice.of(names or ())


class Opening:
    """A session that is begun, or gone on with, when it is first asked for.

    `source` says who asks, as in `Identity`. `model` and `auxiliary` take the place of those that
    the settings name. `own` are tools of the caller's, and `chosen` picks among all. `joined`
    returns the stored session to go on with, None for a new one. `tell` shows a line to the user.
    A `guard` takes the place of a new one with the settings' mode, and a `store` that of the home's
    opened anew, and stays open; `checkpoints` are as in `Runtime`.
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
        chosen: Sequence[str] | None = None,
        joined: Callable[[SessionStore], StoredSession | None] = lambda _: None,
        guard: Guard | None = None,
        checkpoints: Checkpoints | None = None,
        store: SessionStore | None = None,
    ) -> None:
        self.current: Session | None = None
        self.runtime: Runtime | None = None
        self._settings = settings
        self._approver = approver
        self._tell = tell
        self._source = source
        self._root = root
        self._model = model
        self._handed = model is not None
        self._given = auxiliary
        self._auxiliary: Auxiliary | None = None
        self._own = left_of_added(own, settings.policy)
        self._chosen = chosen
        self._joined = joined
        self.guard = guard or Guard(
            settings.approve,
            required=settings.sandbox.required,
            sandboxed=settings.sandbox.use != "off",
        )
        self._checkpoints = checkpoints
        self._store, self._lent = store, store is not None
        self._deck = build_deck(
            lambda: settings, personal=lambda: self.current.personal if self.current else ()
        )
        self._mcp = McpTools()
        self.for_tasks: Callable[[Sequence[str]], Toolset] = lambda _: Toolset()
        self.observers: Sequence[Observer] = ()

    @property
    def begun(self) -> bool:
        """Whether there is anything to close."""
        return self._store is not None

    @property
    def replays(self) -> bool:
        """Whether replies are recorded or replayed."""
        return self._deck.on

    def session(self, title: str = "") -> Session:
        """Return the session, made on the first call; raise `ConfigError` where that cannot be."""
        if self.current is None:
            self.current = self._opened(title)
        return self.current

    def _opened(self, title: str) -> Session:
        settings = self._settings
        if self._store is None:
            self._store = open_store(settings, self._tell)
        if self._model is None:
            self._model = build_model(settings, deck=self._deck)
        if self._auxiliary is None:
            self._auxiliary = Auxiliary(settings, deck=self._deck, given=self._given)
        self.runtime = runtime = Runtime(
            settings,
            root=self._root or Path.cwd(),
            store=self._store,
            guard=self.guard,
            approver=self._approver,
            own=self._own,
            tell=self._tell,
            checkpoints=self._checkpoints,
            mcp=self._mcp,
        )
        self.for_tasks = partial(runtime.for_tasks, self._model)
        self.observers = runtime.observers
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

    def another(self) -> tuple[ChatModel, bool]:
        """Return a model for another thread, and whether that thread is to close it."""
        settings, deck = self._settings, self._deck
        given = self._model if self._handed else None
        main = given or build_model(settings, deck=deck)
        return for_reviews(settings, main, given=given is not None, deck=deck)

    async def aclose(self) -> None:
        """Leave the session and close models and store; the session can be resumed later."""
        async with AsyncExitStack() as ending:  # from the last to the first, whatever fails
            if self._store is not None and not self._lent:
                ending.push_async_callback(in_thread, close_store, self._store)
            ending.push_async_callback(in_thread, self._mcp.close)
            for model in (self._auxiliary, self._model):
                if model is not None:
                    ending.push_async_callback(model.aclose)
            if self.current is not None:
                await in_thread(self.current.leave)
