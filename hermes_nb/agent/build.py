"""The composition root: with `models`, the one place that names concrete classes.

`flush` is the last look before messages go: one request in which only the memory tool can run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Thread

from hermes_nb.agent.config import Settings
from hermes_nb.agent.prompt_sources import PromptSources
from hermes_nb.agent.turn import said
from hermes_nb.context.summary import entries
from hermes_nb.core.calls import execute
from hermes_nb.core.events import UsageReported
from hermes_nb.core.messages import Message, Reply, Usage
from hermes_nb.core.protocols import (
    Approver,
    ChatModel,
    ContextEngine,
    Keeper,
    Request,
    SessionStore,
)
from hermes_nb.core.tools import Risk, ToolContext, Toolset
from hermes_nb.memory.history import Origin
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.safety.guard import Guard
from hermes_nb.tools.wrappers import Hinting


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where tools work, and for whom.

    `root` is the working directory. `own` are tools of a higher layer (the kernel's), `known` those
    of what Hermes knows, `foreign` the user's and other packages'; `tell` hears which of those
    cannot be used. `ready` are tools that see to their own results. `keeper` saves what a call
    changes. `hints` has the running session's.
    """

    root: Path
    home: Path
    guard: Guard
    approver: Approver
    own: Toolset = field(default_factory=Toolset)
    known: Toolset = field(default_factory=Toolset)
    foreign: Toolset = field(default_factory=Toolset)
    ready: Toolset = field(default_factory=Toolset)
    tell: Callable[[str], None] = lambda _: None
    keeper: Keeper | None = None
    hints: Hinting | None = None

    def with_known(self, known: Toolset, *, ready: Toolset | None = None) -> Place:
        """Return the place with these tools for what Hermes knows, and these ready ones."""
        return replace(self, known=known, ready=self.ready if ready is None else ready)

    def for_child(self, guard: Guard, *, known: Toolset, keeper: Keeper | None) -> Place:
        """Return the place as a child agent has it; its guard never asks.

        Nothing there remembers, delegates or touches the kernel. A tool that has to run alone could
        not do so beside other children.
        """
        return replace(
            self,
            guard=guard,
            own=_shared(self.own),
            known=Toolset(tool for tool in known if tool.risk is Risk.READ),
            foreign=_shared(self.foreign),
            ready=Toolset(),
            tell=lambda _: None,
            keeper=keeper,
            hints=None,
        )


WITHHELD = ("kernel", "notebook", "delegation", "memory")
"""Toolsets that no child has: what a child reads of the notebook would count as seen by Hermes."""


def _shared(tools: Toolset) -> Toolset:
    """Return the tools that several agents can use side by side."""
    return Toolset(tool for tool in tools.without(*WITHHELD) if not tool.exclusive)


def build_tools(place: Place, *, mark: bool = True) -> Toolset:
    """Return the tools for a place: undoable, guarded, limited, with hints.

    `mark` puts untrusted results between marks; a small model would only be confused by them.
    """
    from hermes_nb.tools.files import files
    from hermes_nb.tools.installed import without_taken
    from hermes_nb.tools.terminal import terminal
    from hermes_nb.tools.wrappers import asking, checkpointed, limited, marked, with_hints

    spill = place.home / "outputs"
    tools = place.own + files(place.root, also_readable=(spill,)) + terminal(place.root)
    tools += place.known
    free = without_taken(place.foreign, tools + place.ready, place.tell)
    tools = (tools + free).usable()
    if place.keeper is not None:
        tools = checkpointed(tools, place.keeper, place.root)
    tools = limited(asking(tools, place.guard, place.approver), spill=spill)
    tools = marked(tools, mark=mark)
    tools += place.ready
    return tools if place.hints is None else with_hints(tools, place.hints)


def known_tools(
    knowledge: PromptSources,
    *,
    model: ChatModel,
    session: Callable[[], str],
    origin: Callable[[ToolContext], Origin],
    spent: Callable[[Usage, str], None] = lambda *_: None,
) -> Toolset:
    """Return the tools for memory, past sessions and skills, as far as they are switched on.

    `model` condenses what was said, and `spent` hears what that used; `session()` is the running
    session's id, and `origin` what a write is recorded under.
    """
    from hermes_nb.memory.quoting import Condenser
    from hermes_nb.tools.stores import memory_tools, session_tools, skills

    settings = knowledge.settings
    tools = Toolset()
    if settings.memory.enabled:
        tools += memory_tools(
            knowledge.memory,
            where=origin,
            write_approval=settings.memory.write_approval,
            on_written=knowledge.written,
        )
    condenser = Condenser(recall=knowledge.recall, model=model, spent=spent)
    tools += session_tools(knowledge.recall, current=session, condenser=condenser)
    if settings.skills.enabled:
        tools += skills(knowledge.library, session=session)
    return tools


def build_engine(
    settings: Settings,
    *,
    model: ChatModel,
    auxiliary: ChatModel | None,
    store: SessionStore,
    session_id: str,
    knowledge: PromptSources | None,
    memory: Callable[[Sequence[Message]], Toolset],
) -> ContextEngine:
    """Return the context engine that the settings name, for one session.

    `memory(messages)` holds the memory tool for the look before these are dropped. Without
    `knowledge`, no external memory hears of what is. Raises `ConfigError`.
    """
    from hermes_nb.context.engine import Setup, make_engine
    from hermes_nb.context.policy import Limits
    from hermes_nb.core.threads import in_thread

    async def before(messages: Sequence[Message]) -> None:
        if knowledge is not None and (provider := knowledge.provider) is not None:
            await in_thread(provider.before_compress, messages)

    chosen = settings.compression
    limits = Limits(
        threshold=chosen.threshold,
        max_prompt_tokens=chosen.max_prompt_tokens,
        target_ratio=chosen.target_ratio,
        protect_last_n=chosen.protect_last,
        automatic=chosen.enabled,
    )
    return make_engine(
        chosen.engine,
        Setup(
            model=model,
            auxiliary=auxiliary,
            store=store,
            session_id=session_id,
            window=settings.window,
            limits=limits,
            flush=lambda messages: flush(messages, model=auxiliary or model, memory=memory),
            before_compress=before,
        ),
    )


def open_store(settings: Settings, warn: Callable[[str], None]) -> SessionStore:
    """Return the session store; nothing is created before something is stored.

    `warn` hears of damage that was repaired, and of what could not be; and, as this is done once,
    of settings that nothing reads.
    """
    for line in settings.unknown:
        warn(line)
    store = SqliteStore(settings.home / "notebook.db", warn=warn)
    if settings.keep_days and (settings.home / "notebook.db").exists():
        from hermes_nb.agent.forgetting import keep_days

        arguments = store, settings.home, settings.keep_days
        Thread(target=keep_days, args=arguments, name="hermes-forget", daemon=True).start()
    return store


FLUSH = (
    "The conversation below is about to be shortened to a summary. Save with the memory tool what "
    "must outlive it and is not in memory yet: the user's wishes and corrections, lasting facts "
    "that had to be found out. No progress reports, no secrets. If there is nothing, answer "
    "`Nothing to save.`"
)
MOST_TOKENS = 24_000
"""Of the messages that are looked at; longer ones are cut at their quieter places."""
SHARE = 0.5
"""Of the model's window, where that is known."""


async def flush(
    messages: Sequence[Message],
    *,
    model: ChatModel,
    memory: Callable[[Sequence[Message]], Toolset],
) -> list[UsageReported]:
    """Let the model save what it wants of what was said in `messages`, which are about to go.

    `memory(messages)` returns the memory tool in a form that asks nobody, its writes judged by
    these messages. Nothing of this joins the conversation. Raises what the model raises.
    """
    tools = memory(messages).only("memory") if messages else Toolset()
    if not len(tools):
        return []
    room = MOST_TOKENS if model.window is None else min(MOST_TOKENS, int(model.window * SHARE))
    told = "\n\n".join(entries(said(messages), (), tokens=room))
    request = Request(messages=(Message.system(FLUSH), Message.user(told)), tools=tools)
    used: list[UsageReported] = []
    async with aclosing(model.stream(request)) as stream:
        async for item in stream:
            if isinstance(item, Reply):
                used.append(UsageReported(item.usage, item.model or model.name, "memory"))
                for call in item.message.calls:
                    await execute(call, tools, ToolContext(call=call))
    return used
