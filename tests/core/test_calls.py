"""One call, one result: whatever a tool does, the model reads it and the turn goes on."""

from __future__ import annotations

import pytest
from hermes_nb.core.calls import ERROR_LIMIT
from hermes_nb.core.tools import Tool
from hermes_nb.models.scripted import call

from tests.conftest import take_turn
from tests.core.test_loop import check_invariants


class UnspeakableError(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def boom(*_):
    raise ValueError("the check itself is broken")


def itself():
    made = []
    made.append(made)
    return made


def nested():
    made = []
    for _ in range(100_000):
        made = [made]
    return made


def tool(run, **options):
    return Tool(name="odd", description="odd", parameters={"type": "object"}, run=run, **options)


def result_of(make_agent, made):
    agent = make_agent(call("odd"), "fine", tools=[made])
    events = take_turn(agent)
    check_invariants(agent, events)
    assert events[-1].reason == "answered"
    return agent.messages[2]


@pytest.mark.parametrize("part", ["check", "available"])
def test_a_tool_whose_own_checks_break_costs_the_call_and_not_the_turn(make_agent, part):
    result = result_of(make_agent, tool(lambda *_: "ran", **{part: boom}))
    assert result.failed and "ValueError: the check itself is broken" in result.text


@pytest.mark.parametrize(
    "value",
    [{("a", 1): 2}, itself(), nested(), object()],
    ids=["keys", "itself", "nested", "object"],
)
def test_a_result_that_is_no_json_costs_the_call_and_not_the_turn(make_agent, value):
    result = result_of(make_agent, tool(lambda *_: value))
    assert result.text


def test_what_an_exception_says_is_bounded(make_agent):
    def run(*_):
        raise ValueError("x" * 10_000_000)

    result = result_of(make_agent, tool(run))
    assert result.failed and len(result.text) < ERROR_LIMIT + 200
    assert "characters dropped" in result.text


def test_an_exception_that_cannot_be_told_is_named(make_agent):
    def run(*_):
        raise UnspeakableError

    result = result_of(make_agent, tool(run))
    assert result.failed and "Unspeakable" in result.text


def test_an_exception_whose_text_would_end_the_program_costs_the_call_alone(make_agent):
    class LeavingError(Exception):
        def __str__(self):
            raise SystemExit

    def run(*_):
        raise LeavingError

    result = result_of(make_agent, tool(run))
    assert result.failed and "cannot be shown" in result.text
