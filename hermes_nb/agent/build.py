"""The composition root: with `models`, the one place that names concrete classes.

`flush` is the last look before messages go: one request in which only the memory tool can run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing
from functools import partial
from threading import Thread

from hermes_nb.agent.config import Settings
from hermes_nb.agent.prompt_sources import PromptSources
from hermes_nb.agent.turn import said
from hermes_nb.context.summary import entries
from hermes_nb.core.calls import execute
from hermes_nb.core.events import UsageReported
from hermes_nb.core.messages import Message, Reply
from hermes_nb.core.protocols import ChatModel, ContextEngine, Request, SessionStore
from hermes_nb.core.tools import Place, ToolContext, Toolset
from hermes_nb.memory.sessions import SqliteStore


def known_tools(sources: PromptSources, *, model: ChatModel, source: str = "agent") -> Toolset:
    """Return the tools for memory, past sessions and skills, as far as they are switched on.

    `model` condenses what was said, and `source` is what a write is recorded as.
    """
    from hermes_nb.memory.quoting import Condenser
    from hermes_nb.tools.stores import memory_tools, session_tools, skills

    settings = sources.settings
    tools = Toolset()
    if settings.memory.enabled:
        tools += memory_tools(
            sources.memory,
            source=source,
            write_approval=settings.memory.write_approval,
            on_written=sources.written,
        )
    tools += session_tools(sources.recall, condenser=Condenser(recall=sources.recall, model=model))
    return tools + skills(sources.library) if settings.skills.enabled else tools


Memory = Callable[[Sequence[Message]], Toolset]
"""Makes the memory tool for the look before these messages are dropped; it asks nobody."""


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
    from hermes_nb.context.policy import Limits
    from hermes_nb.core.threads import in_thread

    async def before(messages: Sequence[Message]) -> None:
        if sources is not None and (provider := sources.provider) is not None:
            await in_thread(provider.before_compress, messages)

    chosen = settings.compression
    limits = Limits(
        threshold=chosen.threshold,
        max_prompt_tokens=chosen.max_prompt_tokens,
        target_ratio=chosen.target_ratio,
        protect_last_n=chosen.protect_last,
        automatic=chosen.enabled,
    )
    asked = auxiliary or model
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
    messages: Sequence[Message], *, model: ChatModel, memory: Memory, place: Place
) -> list[UsageReported]:
    """Let the model save what it wants of what was said in `messages`, which are about to go.

    The writes are judged by these messages. Nothing of this joins the conversation. Raises what
    the model raises.
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
                    await execute(call, tools, ToolContext(call=call, place=place))
    return used
