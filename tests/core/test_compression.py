"""What the loop makes of a context engine: its events, its bill, its note, between turns and in."""

from __future__ import annotations

import asyncio

import pytest
from hermes_nb.core.budget import Budget, Limits
from hermes_nb.core.errors import ConfigError, SessionBusy
from hermes_nb.core.events import ContextCompressed, TurnEnded, UsageReported
from hermes_nb.core.loop import Agent
from hermes_nb.core.messages import Message, Usage
from hermes_nb.core.protocols import Compression, ContextEngine
from hermes_nb.models.scripted import ScriptedModel

from tests.conftest import collect, take_turn
from tests.core.grammar import check_grammar

NOTE = "Earlier parts were compressed."
USED = UsageReported(Usage(input=70, output=5, requests=1), "small", "summary")


class Shortener(ContextEngine):
    """Keeps the last message, and says what that took."""

    def __init__(self, *, always=False):
        self.always = always
        self.focus = None

    def observe(self, usage):
        pass

    def should_compress(self, prompt_tokens):
        return self.always

    async def compress(self, messages, focus=""):
        self.focus = focus
        return Compression(
            messages=(Message.user("(earlier)"), *messages[-1:]),
            note=NOTE,
            phase="summarised",
            dropped=len(messages) - 1,
            summary="(earlier)",
            warning="by rule",
            requests=(USED,),
        )


def agent_with(engine, *steps, **options):
    history = [Message.user("one"), Message.assistant("two")] * 2
    return Agent(
        ScriptedModel(steps), system="You are a test.", messages=history, engine=engine, **options
    )


def test_a_compression_between_turns_reaches_the_sinks():
    seen = []
    engine = Shortener()
    agent = agent_with(engine, sinks=[seen.append])
    event = asyncio.run(agent.compress("the port"))
    assert seen == [USED, event]
    assert engine.focus == "the port"
    assert isinstance(event, ContextCompressed)
    assert (event.phase, event.dropped, event.warning) == ("summarised", 3, "by rule")
    assert event.tokens_after < event.tokens_before
    assert agent.messages == list(event.messages)
    assert agent.system == event.system == f"You are a test.\n\n{NOTE}"
    asyncio.run(agent.compress())
    assert agent.system.count(NOTE) == 1, "the note is appended once"


def test_the_prompt_is_rebuilt_with_the_note():
    agent = agent_with(Shortener(), rebuild=lambda note: f"Rebuilt. {note}")
    asyncio.run(agent.compress())
    assert agent.system == f"Rebuilt. {NOTE}"
    assert agent.request().messages[0].text == agent.system


def test_a_compression_within_a_turn_is_billed_and_sent():
    agent = agent_with(Shortener(always=True), "short enough")
    events = take_turn(agent, "three")
    check_grammar(events)
    assert events[2] == USED
    assert isinstance(events[3], ContextCompressed)
    sent = agent.model.requests[0].messages
    assert [message.text for message in sent[1:]] == ["(earlier)", "three"]
    assert NOTE in sent[0].text
    assert events[-1] == TurnEnded("answered")


def test_an_undo_puts_the_conversation_back():
    seen = []
    agent = agent_with(Shortener(), "ok", sinks=[seen.append])
    before = agent.messages
    asyncio.run(agent.compress())
    event = agent.restore(before)
    assert event.phase == "restored"
    assert seen[-1] is event
    assert agent.messages == before
    take_turn(agent, "go on")
    with pytest.raises(SessionBusy):
        asyncio.run(_restore_within_a_turn())


async def _restore_within_a_turn():
    agent = agent_with(Shortener(), "a b c d")
    async for _ in agent.run("go"):
        agent.restore([])


def test_no_two_at_a_time():
    async def story():
        agent = agent_with(Shortener(), "one two")
        turn = agent.run("go")
        await anext(turn)
        with pytest.raises(SessionBusy):
            await agent.compress()
        await turn.aclose()
        await agent.compress()
        agent.model.steps.append("fine")
        assert (await collect(agent))[-1].reason == "answered"

    asyncio.run(story())


def test_without_an_engine_there_is_nothing_to_compress():
    with pytest.raises(ConfigError, match=r"context\.engine"):
        asyncio.run(Agent(ScriptedModel([])).compress())


def test_what_changes_nothing_announces_nothing():
    class Idle(Shortener):
        async def compress(self, messages, focus=""):
            return list(messages)

    agent = agent_with(Idle())
    assert asyncio.run(agent.compress()) is None
    assert list(asyncio.run(Idle().compress([Message.user("x")]))) == [Message.user("x")]


def test_a_compression_reads_as_its_messages():
    made = Compression(messages=(Message.user("a"), Message.assistant("b")))
    assert len(made) == 2
    assert made[0].text == "a"
    assert made[-1:] == (Message.assistant("b"),)
    assert list(made) == [Message.user("a"), Message.assistant("b")]


def test_a_compression_between_turns_counts_against_budgets_and_keeps_to_them():
    agent = agent_with(Shortener())
    budget = Budget(Limits(tokens=50_000), scope="this session")
    assert asyncio.run(agent.compress(budgets=[budget])) is not None
    assert budget.used.input == 70
    small = Budget(Limits(tokens=500), scope="this session")
    engine = Shortener()
    agent = agent_with(engine)
    assert asyncio.run(agent.compress(budgets=[small])) is None
    assert engine.focus is None
    assert asyncio.run(agent.compress()) is not None, "the user's own wish is no matter of a turn"
