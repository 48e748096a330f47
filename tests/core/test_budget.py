"""Budgets: what fits, what a turn does when nothing does, and sums of money."""

from __future__ import annotations

import pytest
from hermes_nb.core.budget import ANSWER_TOKENS, Budget, Limits, dollars, refusal
from hermes_nb.core.errors import FailureKind, ModelError
from hermes_nb.core.events import ContextCompressed, MessageAdded, TurnEnded, UsageReported
from hermes_nb.core.loop import NOTHING_LEFT, OUT_OF_BUDGET, Agent
from hermes_nb.core.messages import Message, Reply, ToolCall, Usage
from hermes_nb.core.protocols import Compression, ContextEngine
from hermes_nb.core.tools import Toolset
from hermes_nb.models.scripted import ScriptedModel
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import every_call_has_one_result, take_turn
from tests.core.test_loop import echo, make_tool

ECHO = make_tool("echo", echo)


def costing(cost, *, text="", call="", tokens=100):
    """Return a reply that used so much; `call` is the id of a call it makes."""
    calls = [ToolCall(id=call, name="echo", arguments={"text": "3"})] if call else []
    usage = Usage(input=tokens, output=10, requests=1, cost=cost)
    return Reply(message=Message.assistant(text, calls=calls), usage=usage)


def turn(*steps, **limits):
    agent = Agent(ScriptedModel(steps), Toolset([ECHO]))
    budget = Budget(Limits(**limits), scope="this turn")
    return agent, take_turn(agent, budgets=[budget]), budget


def test_within_its_budget_a_turn_is_as_without():
    agent, events, budget = turn(costing(0.01, call="a"), costing(0.01, text="3"), cost=1.0)
    assert events[-1] == TurnEnded("answered")
    assert budget.used.cost == pytest.approx(0.02)
    assert agent.messages[-1].text == "3"


def test_what_is_left_pays_for_a_summary():
    agent, events, _ = turn(
        costing(0.02, call="a", tokens=3_000),
        costing(0.02, call="b", tokens=3_000),
        costing(0.02, text="So far: 3.", tokens=3_000),
        cost=0.07,
    )
    assert events[-1].reason == "budget"
    assert "$0.07 for this turn" in events[-1].note
    assert "$0.04 spent" in events[-1].note
    assert agent.messages[-1].text == "So far: 3."
    assert agent.messages[-2].text == OUT_OF_BUDGET.format(limit="$0.07 for this turn")
    assert agent.model.requests[-1].tool_choice == "none"


def test_where_nothing_is_left_no_request_is_sent():
    agent, events, _ = turn(costing(0.10, call="a"), cost=0.05)
    assert len(agent.model.requests) == 1
    assert events[-1].reason == "budget"
    assert agent.messages[-1].text == NOTHING_LEFT.format(refusal=events[-1].note)
    assert every_call_has_one_result(agent.messages)


def test_a_prompt_that_does_not_fit_is_not_sent():
    agent, events, _ = turn("never", tokens=50)
    assert agent.model.requests == []
    assert [type(event) for event in events[-2:]] == [MessageAdded, TurnEnded]
    assert "50 tokens for this turn" in events[-1].note


def test_an_unknown_price_ends_a_budget_of_money_after_one_request():
    agent, events, _ = turn(costing(None, call="a"), cost=5.0)
    assert len(agent.model.requests) == 1
    assert "not known" in events[-1].note


def test_several_budgets_count_together():
    agent = Agent(ScriptedModel([costing(0.1, text="x")]), Toolset([ECHO]))
    budgets = [Budget(Limits(cost=c), scope=f"b{c}") for c in (1.0, 2.0)]
    take_turn(agent, budgets=budgets)
    assert [budget.used.cost for budget in budgets] == [0.1, 0.1]
    assert refusal(budgets, 10**9).limit == "$1.00 for b1.0"


@given(st.integers(500, 5_000), st.lists(st.integers(0, 800), min_size=1, max_size=12))
def test_no_request_is_sent_that_is_known_not_to_fit(limit, sizes):
    steps = [costing(None, call=f"c{n}", tokens=size) for n, size in enumerate(sizes)]
    agent, events, budget = turn(*steps, costing(None, text="done"), "so far", tokens=limit)
    sent = 0
    for event in events:
        if isinstance(event, UsageReported):
            assert sent + ANSWER_TOKENS <= limit
            sent += event.usage.input + event.usage.output
    assert events[-1].reason in ("answered", "budget")
    assert every_call_has_one_result(agent.messages)
    assert agent.messages[-1].role == "assistant"
    assert budget.used.input + budget.used.output == sent


class Dear(ContextEngine):
    """An engine whose every compression asks for a flush and a summary as large as the prompt."""

    def __init__(self, *, due=True):
        self.due = due
        self.asked = 0

    def observe(self, usage):
        pass

    def should_compress(self, prompt_tokens):
        return self.due and prompt_tokens > 500

    async def compress(self, messages, focus=""):
        self.asked += 1
        used = UsageReported(Usage(input=1_000, output=10, requests=1), "small", "summary")
        kept = (Message.user("(earlier)"), *messages[-1:])
        return Compression(messages=kept, requests=(used, used))


def long_agent(engine, *steps):
    history = [Message.user("x" * 3_400), Message.assistant("y")]
    return Agent(ScriptedModel(steps), messages=history, engine=engine)


@pytest.mark.parametrize("limit", [2_500, 3_000, 4_000])
def test_a_compression_is_not_begun_that_the_budget_may_not_bear(limit):
    engine = Dear()
    agent = long_agent(engine, "done", "so far")
    budget = Budget(Limits(tokens=limit), scope="this turn")
    events = take_turn(agent, budgets=[budget])
    assert events[-1].reason == "answered"
    assert budget.used.input + budget.used.output <= limit
    assert engine.asked == 0
    assert not [event for event in events if isinstance(event, ContextCompressed)]


def test_a_compression_that_fits_counts():
    engine = Dear()
    agent = long_agent(engine, "done")
    budget = Budget(Limits(tokens=9_000), scope="this turn")
    events = take_turn(agent, budgets=[budget])
    assert engine.asked == 1
    assert events[-1].reason == "answered"
    assert 2_020 < budget.used.input + budget.used.output <= 9_000


def test_an_overflow_is_not_compressed_beyond_the_budget():
    overflow = ModelError("too long", kind=FailureKind.CONTEXT_OVERFLOW)
    engine = Dear(due=False)
    agent = long_agent(engine, overflow, "never")
    events = take_turn(agent, budgets=[Budget(Limits(tokens=2_500), scope="this turn")])
    assert events[-1] == TurnEnded("failed", "too long")
    assert engine.asked == 0


@pytest.mark.parametrize(
    ("amount", "told"),
    [
        *((0, "$0.00"), (0.05, "$0.05"), (0.2, "$0.20"), (0.01, "$0.01"), (0.1234, "$0.123")),
        *((0.00012, "$0.00012"), (12.5, "$12.50"), (1234.5, "$1,234.50")),
    ],
)
def test_money_is_told_with_the_digits_that_count(amount, told):
    assert dollars(amount) == told
