"""Builds a session's parts for one Hermes directory: tools, prompt sources, context engine.

`Opening` manages a conversation outside a kernel, from settings to session and cleanup, for scripts
(`Hermes`) and the command line. Nothing is built, looked up or created before `session` is called.
Only this module and `models` refer to concrete classes.
"""

from __future__ import annotations

import importlib
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
from hermes_nb.agent.session.session import REVIEW, Identity, InView, Session, SessionSpec
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
from hermes_nb.tools.hooks import Hooks, installed_hooks, turn_sink
from hermes_nb.tools.installed import (
    ToolsetSetup,
    installed_tools,
    installed_toolsets,
    left,
    left_of_added,
    wrapped,
)
from hermes_nb.tools.mcp_tools import McpTools

SINKS = "hermes_nb.event_sinks"
"""The entry point group for packages that observe turns."""
OTEL = "otel"
"""The entry in `SINKS` that is used only if the setting `otel.enabled` is on."""


def import_parts() -> None:
    """Import what a session's first turn needs; in a thread, it does not block the event loop."""
    for name in ("files", "terminal", "origins", "asking", "sessions"):
        importlib.import_module(f"hermes_nb.tools.{name}")
    importlib.import_module("hermes_nb.context.engine")
    importlib.import_module("yaml")  # for skills


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
    """Return the context engine that the settings select, for the session in `place`.

    Args:
        settings: the settings; `compression` selects and configures the engine
        model: the conversation's model
        auxiliary: the model for summaries, or None for `model`
        store: the session store
        place: the session and its notebook
        sources: if given, their external memory is notified before messages are dropped
        memory: makes the memory tool that a model uses to save facts before messages are dropped

    Raises:
        ConfigError: the engine is unknown or its settings are invalid
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
"""Changes to skills that require approval in a background review. A patch does not: it is small,
displayed and can be undone."""


WITHHELD = ("kernel", "notebook", "delegation", "memory")
"""Toolsets that children do not get. If a child read a cell, it would count as read by the
parent."""


class Runtime:
    """Builds sessions, children and reviews for one Hermes directory and working directory.

    Args:
        settings: the settings
        root: the working directory for file and terminal tools
        store: the session store
        guard: decides which calls require approval
        approver: asks the user
        tell: shows a line to the user
        own: tools from a higher layer, such as those for cells
        given: the user's own tools
        checkpoints: save what calls change, so that changes can be undone
        jobs: lists the running children; by default, a new list
        mcp: runs the MCP servers; None for no servers
        hooks: the user's hooks, which may change, in addition to those of packages
    """

    def __init__(  # noqa: PLR0913 - a session has many parts
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
        hooks: Sequence[Hooks] = (),
    ) -> None:
        self.settings = settings
        self.knowledge = PromptSources(settings, workdir=root, store=store, tell=tell)
        self.approvals = Approvals(self.knowledge)
        self.tell = tell
        self.jobs = Jobs() if jobs is None else jobs  # not `or`: an empty list of jobs is false
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
        self._hooks = installed_hooks(), hooks
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
        """Return the specification for a session with this model.

        `chosen` lists its tools by name; None means the default ones. `auxiliary` has the models
        for work outside the conversation; without it, `model` does that work too.
        """
        settings, sources = self.settings, self.knowledge
        recall = auxiliary.of("recall", model) if auxiliary else None
        condenses = auxiliary.of("compression", model) if auxiliary else None
        known = known_tools(sources, model=recall or model)
        held = partial(self._tools, self.guard, self._own, known, tell=self.tell)
        if traits_of(model).small:  # its own short prompt, few tools
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

        def engine(store: SessionStore, place: Place, in_view: InView) -> ContextEngine:
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
        tools = held(foreign, self._delegation(model, condenses, known))
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

    def _delegation(self, model: ChatModel, auxiliary: ChatModel | None, known: Toolset) -> Toolset:
        if not self.settings.delegation.enabled:
            return Toolset()
        children = Delegation(
            settings=self.settings.delegation,
            store=self._store,
            jobs=self.jobs,
            spec=cache(partial(self._child, model, auxiliary, known)),
            sources=self.knowledge,
            tell=self.tell,
        )
        return delegation_tools(children)

    def _child(self, model: ChatModel, auxiliary: ChatModel | None, known: Toolset) -> SessionSpec:
        """Return the specification for children: the same model, and tools that never ask the user.

        Children have no access to memory, delegation or the kernel. Tools that must run exclusively
        are left out, because children run in parallel.
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
        """Return the event sinks of packages and hooks for an agent; see `Observer.sink`."""
        sinks = sinks_of(self.observers, agent, session, parent, behind=behind)
        own = not parent and not behind
        return [*sinks, turn_sink(self._hooks, session, self.tell)] if own else sinks

    def _watched(self, tools: Toolset, source: str) -> Toolset:
        return wrapped(tools, source=source, guard=self.guard, tell=self.tell, hooks=self._hooks)

    def for_tasks(self, model: ChatModel, wanted: Sequence[str]) -> Toolset:
        """Return the tools for a map's tasks, selected from those that children may have.

        A toolset's name selects only its read-only tools; other tools must be listed individually.

        Raises:
            ConfigError: a name is neither a tool nor a toolset that children may have
        """
        if not wanted:
            return Toolset()
        there = self._child(model, None, known_tools(self.knowledge, model=model)).tools
        names = {name for tool in there for name in (tool.name, tool.toolset)}
        if missing := [name for name in wanted if name not in names]:
            known = ", ".join(sorted(names))
            raise ConfigError(
                f"there is no tool or toolset {missing[0]!r} for map tasks; use one of {known}"
            )
        found = Toolset(
            tool
            for tool in there
            if tool.name in wanted or (tool.toolset in wanted and tool.risk is Risk.READ)
        )
        return self._watched(found, "map")

    def _named_alone(self, model: ChatModel, auxiliary: Auxiliary | None) -> Toolset:
        """Return the tools that are available only if the user lists them by name."""
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
        return self._guarded_tools(
            found + web_tools(web, search_url=settings.web.search_url), self.guard
        )

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
        """Return the tools made undoable, guarded and limited; those in `ready` already are.

        `mark` encloses untrusted results in tags, which would confuse a small model. `tell`
        receives a warning for each tool whose name is already in use.
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
        return self._guarded_tools(tools, guard, mark=mark) + left(ready, self.settings.policy)

    def offered(self, own: Toolset, *, guard: Guard, approver: Approver, source: str) -> Toolset:
        """Return tools for a program outside the conversation, with a guard of its own.

        Their results have no tags, because those only mean something to Hermes' own models.
        """
        from hermes_nb.tools.origins import keeping_origins

        tools = keeping_origins(own.usable(), self._marks, self._root)
        if self._checkpoints is not None:
            tools = checkpointed(tools, self._checkpoints, self._root)
        held = self._guarded_tools(tools, guard, mark=False, approver=approver)
        return wrapped(held, source=source, guard=guard, tell=self.tell, hooks=self._hooks)

    def _guarded_tools(
        self,
        tools: Toolset,
        guard: Guard,
        *,
        mark: bool = True,
        approver: Approver | None = None,
    ) -> Toolset:
        """Return the tools, guarded and limited, with the origin of their results labelled."""
        from hermes_nb.tools.asking import asking
        from hermes_nb.tools.wrappers import limited, marked

        spill = self.settings.home / "outputs"
        allowed = left(tools, self.settings.policy)
        asked = asking(allowed, guard, approver or self._approver)
        return marked(limited(asked, spill=spill), mark=mark)

    def quiet_tools(self, model: ChatModel, place: Place, messages: Sequence[Message]) -> Toolset:
        """Return memory and skill tools that never ask, for work outside a turn.

        A write that would require approval in a turn becomes a pending proposal. `messages` is the
        whole conversation. It determines which writes require approval: every write if it contains
        untrusted content or `memory.write_approval` is on, text copied from untrusted content, and
        every change to a skill except a patch.
        """
        known = self.knowledge
        stranger = outside(messages)

        def held(action: str, wording: str) -> str | None:
            if stranger:
                return f"after {stranger}"
            if taken(wording, messages):
                return f"quoting {source_of(wording, messages)}"
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
    """Create the observers from installed packages with these settings.

    If one fails to load, it is skipped with a warning to `tell`.

    Raises:
        ConfigError: the settings enable OpenTelemetry but no package for it is installed
    """
    if settings.otel.enabled and not plugins(SINKS, OTEL):
        raise ConfigError(
            f"otel.enabled is set, but no installed package exports spans (entry point {OTEL!r} "
            f"of {SINKS})"
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
        except Exception as error:  # noqa: BLE001 - third-party code, optional
            why = one_line(redact(f"{type(error).__name__}: {error}"), 200)
            tell(f"the event sinks {point.name!r} are not used: {why}")
    return found


def _chosen(choice: Choice, names: Sequence[str] | None) -> Toolset:
    """Return the named tools: none for an empty list, the default ones for None."""
    if names is None and DEFAULT not in choice.groups and not choice.policy.forced("tools"):
        return choice.usual
    return Toolset() if names is not None and not names else choice.of(names or ())


class Opening:
    """A session that is started, or resumed, on first access.

    Args:
        settings: the settings
        approver: asks the user
        tell: shows a line to the user
        source: the kind of caller, as in `Identity`
        root: the working directory; by default, the process's
        model: replaces the model in the settings
        auxiliary: replaces the auxiliary models in the settings
        own: the caller's own tools
        chosen: names of the tools to use, or None for the default ones
        joined: returns the stored session to resume, or None for a new one
        guard: used instead of a new guard with the settings' mode
        checkpoints: as in `Runtime`
        store: used instead of the settings' store, and not closed
    """

    def __init__(  # noqa: PLR0913 - all but four optional
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
        """Return the session, which the first call creates; raise `ConfigError` if that fails."""
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
        """Return a model for another thread, and whether that thread must close it."""
        settings, deck = self._settings, self._deck
        given = self._model if self._handed else None
        main = given or build_model(settings, deck=deck)
        return for_reviews(settings, main, given=given is not None, deck=deck)

    async def aclose(self) -> None:
        """Leave the session, and close the models and the store; it can be resumed later."""
        async with AsyncExitStack() as ending:  # in reverse order, even if one fails
            if self._store is not None and not self._lent:
                ending.push_async_callback(in_thread, close_store, self._store)
            ending.push_async_callback(in_thread, self._mcp.close)
            for model in (self._auxiliary, self._model):
                if model is not None:
                    ending.push_async_callback(model.aclose)
            if self.current is not None:
                await in_thread(self.current.leave)
