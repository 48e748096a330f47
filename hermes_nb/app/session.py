"""One conversation: an agent with its rows in the store, started fresh or resumed."""

from __future__ import annotations

import datetime
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from hermes_nb.app.recorder import Recorder
from hermes_nb.core.errors import StoreError
from hermes_nb.core.events import Event, MessageAdded, UsageReported
from hermes_nb.core.loop import MAX_REQUESTS, Agent
from hermes_nb.core.messages import Message, Usage
from hermes_nb.core.protocols import ChatModel, EventSink, SessionStore, StoredSession
from hermes_nb.core.tools import Toolset
from hermes_nb.memory.sessions import SqliteStore, new_session_id
from hermes_nb.prompt.builder import assemble, layers


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Where a conversation takes place: `notebook` is an absolute path or ""."""

    source: str = "script"
    notebook: str = ""
    title: str = ""


class Session:
    """A conversation that outlives the kernel.

    Make one with `start` or `resume`. `usage` sums what this process sent; the store holds what
    the session used in all.
    """

    def __init__(self, *, session_id: str, agent: Agent, store: SessionStore) -> None:
        self.id = session_id
        self.agent = agent
        self.store = store
        self.usage = Usage()
        agent.sinks.append(self._count)

    @classmethod
    def start(
        cls,
        *,
        store: SessionStore,
        model: ChatModel,
        tools: Toolset,
        identity: Identity,
        max_requests: int = MAX_REQUESTS,
        warn: Callable[[str], None],
    ) -> Session:
        """Begin a conversation; a store that cannot be written is replaced by one in memory."""
        session_id = new_session_id()
        system = assemble(
            layers(
                tools=tools,
                model=model.name,
                session_id=session_id,
                date=datetime.datetime.now().astimezone().date().isoformat(),
                platform="notebook" if identity.source == "notebook" else "terminal",
            )
        )
        store = _create(store, session_id, identity, model.name, system, warn)
        agent = Agent(
            model,
            tools,
            system=system,
            sinks=[Recorder(store, session_id, warn)],
            max_requests=max_requests,
        )
        return cls(session_id=session_id, agent=agent, store=store)

    @classmethod
    def resume(
        cls,
        stored: StoredSession,
        *,
        store: SessionStore,
        model: ChatModel,
        tools: Toolset,
        max_requests: int = MAX_REQUESTS,
        warn: Callable[[str], None],
    ) -> Session:
        """Go on with a stored conversation, its system prompt byte for byte.

        What a killed process left open at the end is closed, and the closing rows are stored too,
        so that every later resume sends the same bytes.
        """
        rows = store.messages(stored.id)
        recorder = Recorder(store, stored.id, warn)
        agent = Agent(
            model,
            tools,
            system=stored.system_prompt,
            messages=rows,
            sinks=[recorder],
            max_requests=max_requests,
        )
        if agent.messages[: len(rows)] == rows:
            for message in agent.messages[len(rows) :]:
                recorder(MessageAdded(message))
        return cls(session_id=stored.id, agent=agent, store=store)

    async def turn(
        self,
        prompt: str | Message,
        *,
        sinks: Iterable[EventSink] = (),
        max_requests: int | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Take a turn; `sinks` see its events after the session's own."""
        extra = list(sinks)
        self.agent.sinks += extra
        try:
            async with aclosing(self.agent.run(prompt, max_requests=max_requests)) as events:
                async for event in events:
                    yield event
        finally:
            self.agent.sinks = [sink for sink in self.agent.sinks if sink not in extra]

    @property
    def messages(self) -> Sequence[Message]:
        """The conversation so far."""
        return self.agent.messages

    def end(self) -> None:
        """Mark the session as ended, so that it is not resumed on its own."""
        try:
            self.store.end(self.id)
        except StoreError:  # then it is merely offered again
            return

    def _count(self, event: Event) -> None:
        if isinstance(event, UsageReported):
            self.usage += event.usage


def _create(
    store: SessionStore,
    session_id: str,
    identity: Identity,
    model: str,
    system: str,
    warn: Callable[[str], None],
) -> SessionStore:
    """Create the session's row and return the store that took it."""

    def insert(where: SessionStore) -> SessionStore:
        where.start(
            title=identity.title,
            source=identity.source,
            notebook=identity.notebook,
            model=model,
            system_prompt=system,
            session_id=session_id,
        )
        return where

    try:
        return insert(store)
    except StoreError as error:
        warn(f"this session is kept in memory only: {error}")
        return insert(SqliteStore(":memory:"))
