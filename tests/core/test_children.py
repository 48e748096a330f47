"""Children in the stream of events: begun, seen, and ended in every case."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress

import pytest
from hermes_nb.core.events import (
    ChildFinished,
    ChildProgress,
    ChildStarted,
    ToolFinished,
    TurnEnded,
)
from hermes_nb.core.messages import Usage
from hermes_nb.core.tools import Tool
from hermes_nb.models.scripted import call

from tests.conftest import collect
from tests.core.grammar import check_grammar


def begetting(children, *, then):
    """Return a tool that begins children, says what they used, and goes on with `then`."""

    async def run(context, _arguments):
        for number in range(1, children + 1):
            context.emit(ChildStarted(context.call.id, number, f"task {number}"))
            used = Usage(input=10 * number, requests=1)
            context.emit(ChildProgress(context.call.id, number, "read_file a", used))
        await then(context)
        return "reports"

    return Tool(name="beget", description="d", parameters={"type": "object"}, run=run)


async def finishing(context):
    for number in (2, 1):
        context.emit(ChildFinished(context.call.id, number, "done", 0.1, Usage(requests=1)))


async def for_ever(_context):
    await asyncio.sleep(30)


def test_children_interleave_and_end_before_their_call(make_agent):
    agent = make_agent(call("beget"), "done", tools=[begetting(2, then=finishing)])
    events = asyncio.run(collect(agent))
    check_grammar(events)
    kinds = [type(event) for event in events]
    assert kinds.count(ChildStarted) == kinds.count(ChildFinished) == 2


@pytest.mark.parametrize("count", [1, 3])
def test_a_stop_ends_open_children_with_what_they_used(make_agent, count):
    agent = make_agent(call("beget"), "done", tools=[begetting(count, then=for_ever)])
    seen = []
    agent.sinks.append(seen.append)

    async def stopped():
        task = asyncio.create_task(collect(agent))
        while sum(isinstance(event, ChildProgress) for event in seen) < count:
            await asyncio.sleep(0.001)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(stopped())
    check_grammar(seen)
    ends = [event for event in seen if isinstance(event, ChildFinished)]
    assert [end.status for end in ends] == ["stopped"] * count
    assert [end.usage.input for end in ends] == [10 * n for n in range(1, count + 1)]
    assert seen.index(ends[-1]) < next(
        i for i, event in enumerate(seen) if isinstance(event, ToolFinished)
    )
    assert seen[-1] == TurnEnded("interrupted")


def test_a_consumer_that_leaves_closes_children_too(make_agent):
    agent = make_agent(call("beget"), "done", tools=[begetting(1, then=for_ever)])
    seen = []
    agent.sinks.append(seen.append)

    async def left():
        async with aclosing(agent.run("go")) as events:
            async for event in events:
                if isinstance(event, ChildProgress):
                    break

    asyncio.run(left())
    check_grammar(seen)
    assert [type(event) for event in seen].count(ChildFinished) == 1
