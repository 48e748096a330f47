"""A session: one turn at a time, whoever asks; what it is given is let go of again."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from types import SimpleNamespace

import pytest
from hermes_nb.agent.session.session import Identity, Session, SessionSpec
from hermes_nb.core.budget import Budget, Limits
from hermes_nb.core.errors import SessionBusy
from hermes_nb.core.events import TurnEnded, UsageReported
from hermes_nb.core.messages import Message, Usage
from hermes_nb.core.protocols import Compression, ContextEngine
from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.prompt.builder import PromptTexts


class Engine(ContextEngine):
    """Notes when a session begins and ends; compresses at a bill."""

    def __init__(self):
        self.heard = []

    def observe(self, usage):
        pass

    def should_compress(self, prompt_tokens):
        return False

    async def compress(self, messages, focus=""):
        self.heard.append("compressed")
        used = UsageReported(Usage(input=70, output=5, requests=1), "small", "summary")
        return Compression(messages=(Message.user("(earlier)"), *messages[-1:]), requests=(used,))

    def session_started(self, session_id, live):
        self.heard.append("started")

    def session_ended(self):
        self.heard.append("ended")


class Sources:
    """Stands in for what a prompt is made of, and notes what it is asked."""

    settings = SimpleNamespace(memory=SimpleNamespace(provider="notes"))

    def __init__(self):
        self.begun, self.heard = 0, []
        self.session_ended = self.heard.append

    def material(self, tools):
        return PromptTexts()

    def tracker(self, seen):
        return None

    def foreign(self):
        return False

    def recalled(self, prompt):
        return ""

    def on_event(self, event):
        pass

    def prepare(self):
        self.begun += 1


@pytest.fixture
def store(tmp_path):
    opened = SqliteStore(tmp_path / "notebook.db")
    yield opened
    opened.close()


def wait_tool(started, go_on):
    async def run(context, arguments):
        started.set()
        await go_on.wait()
        return "waited"

    return Tool(name="wait", description="wait", parameters={"type": "object"}, run=run)


def session_of(store, *steps, tools=(), **options):
    model = options.pop("model", None) or ScriptedModel(steps)
    spec = SessionSpec(model=model, tools=Toolset(tools), **options)
    return Session.start(store=store, spec=spec, identity=Identity(), warn=lambda _: None)


async def taken(session, prompt, **options):
    async with aclosing(session.turn(prompt, **options)) as events:
        return [event async for event in events]


def test_a_second_turn_is_refused_and_the_first_one_left_alone(store):
    """Its sinks see nothing, its beginning forgets nothing, and the first one's budgets hold."""

    async def story():
        started, go_on = asyncio.Event(), asyncio.Event()
        sources = Sources()
        steps = [call("wait"), "done"]
        session = session_of(store, *steps, tools=[wait_tool(started, go_on)], sources=sources)
        budget = Budget(Limits(tokens=10**6), scope="this turn")
        first = asyncio.create_task(taken(session, "first", budgets=[budget]))
        await started.wait()
        seen = []
        with pytest.raises(SessionBusy):
            await taken(session, "second", sinks=[seen.append])
        for attempt in (session.restore, session.reload):
            with pytest.raises(SessionBusy):
                attempt()
        with pytest.raises(SessionBusy):
            await session.compress()
        session.spend(Usage(input=7, requests=1))
        go_on.set()
        events = await first
        assert events[-1] == TurnEnded("answered")
        assert seen == []
        assert sources.begun == 1
        assert budget.used.input > 7, "what was used beside the turn counts as well"
        assert [m.text for m in session.messages if m.role == "user"] == ["first"]

    asyncio.run(story())


def test_a_second_turn_is_refused_while_the_first_gets_ready(store):
    async def story():
        session = session_of(store, "one", sources=Sources())
        results = await asyncio.gather(
            taken(session, "first"), taken(session, "second"), return_exceptions=True
        )
        assert [type(each) for each in results] == [list, SessionBusy]
        assert (await taken(session, "third"))[-1].reason == "failed", "it is free again"

    asyncio.run(story())


def test_an_undo_during_a_turn_changes_nothing(store):
    async def story():
        started, go_on = asyncio.Event(), asyncio.Event()
        engine = Engine()
        session = session_of(
            store,
            *("one", "two", call("wait"), "done"),
            tools=[wait_tool(started, go_on)],
            engine=lambda *_: engine,
        )
        await taken(session, "first")
        await taken(session, "second")
        await session.compress()
        stored = store.messages(session.id)
        running = asyncio.create_task(taken(session, "third"))
        await started.wait()
        with pytest.raises(SessionBusy):
            session.restore()
        assert store.messages(session.id)[: len(stored)] == stored
        go_on.set()
        await running

    asyncio.run(story())


def test_another_model_ends_the_engine_of_the_one_before(store):
    engines = [Engine(), Engine()]
    made = iter(engines)
    session = session_of(store, engine=lambda *_: next(made))
    other = SessionSpec(
        model=ScriptedModel([]), tools=Toolset(), engine=lambda *_: next(made), max_requests=3
    )
    session.adopt(other)
    assert [engine.heard for engine in engines] == [["started", "ended"], ["started"]]
    assert session.agent.max_requests == 3
    session.end()
    assert engines[1].heard == ["started", "ended"]


def test_who_leaves_says_so_with_the_conversation(store):
    sources = Sources()
    session = session_of(store, "one", sources=sources)
    asyncio.run(taken(session, "first"))
    session.leave()
    assert [message.text for message in sources.heard[0]] == ["first", "one"]
    assert store.get(session.id).ended is None


def resumed(store, engine, limit):
    first = session_of(store, *["x" * 4_000] * 2, model=ScriptedModel(["x" * 4_000] * 2))
    asyncio.run(taken(first, "one " * 800))
    asyncio.run(taken(first, "two " * 800))
    model = ScriptedModel(["done"], window=3_000)
    spec = SessionSpec(model=model, tools=Toolset(), engine=lambda *_: engine)
    stored = store.get(first.id)
    session = Session.resume(stored, store=store, spec=spec, warn=lambda _: None)
    budget = Budget(Limits(tokens=limit), scope="this turn")
    asyncio.run(taken(session, "three", budgets=[budget]))
    return budget


def test_what_a_resumed_conversation_costs_to_shorten_counts(store):
    engine = Engine()
    budget = resumed(store, engine, 50_000)
    assert "compressed" in engine.heard
    assert budget.used.requests == 2


def test_a_resumed_conversation_is_not_shortened_beyond_the_budget(store):
    engine = Engine()
    budget = resumed(store, engine, 2_000)
    assert "compressed" not in engine.heard
    assert budget.used.requests == 0
