"""The loop's promises: the grammar of its events, and a valid conversation however a turn ends."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from contextlib import aclosing

import pytest
from hermes_nb.core.errors import FailureKind, ModelError, SessionBusy, ToolError, TurnInterrupted
from hermes_nb.core.events import (
    ContextCompressed,
    MessageAdded,
    RequestRetried,
    TextDelta,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    UsageReported,
)
from hermes_nb.core.loop import NUDGE, Agent
from hermes_nb.core.messages import Message, Reply, ToolCall, Usage
from hermes_nb.core.tools import Risk, Tool, ToolOutput, Toolset
from hermes_nb.models.scripted import ScriptedModel, call

from tests.conftest import collect, every_call_has_one_result, take_turn
from tests.core.grammar import check_grammar
from tests.patience import SOON


def make_tool(name, run, **options):
    return Tool(name=name, description=name, parameters={"type": "object"}, run=run, **options)


def echo(context, arguments):
    return f"echo {arguments.get('text', '')}"


async def slow(context, arguments):
    context.progress("still here")
    await asyncio.sleep(arguments.get("seconds", 30))
    return "slept"


ECHO = make_tool("echo", echo)
SLOW = make_tool("slow", slow)


def fold(events):
    messages = []
    for event in events:
        if isinstance(event, MessageAdded):
            messages.append(event.message)
        elif isinstance(event, ContextCompressed):
            messages = list(event.messages)
    return messages


def check_invariants(agent, events):
    check_grammar(events)
    assert isinstance(events[-1], TurnEnded)
    assert fold(events) == agent.messages
    assert every_call_has_one_result(agent.messages)
    assert agent.messages[-1].role == "assistant"


def test_a_plain_answer(make_agent):
    agent = make_agent("Hello there.")
    events = take_turn(agent, "hi")
    check_invariants(agent, events)
    assert [type(event) for event in events] == [
        *(TurnStarted, MessageAdded, TextDelta, TextDelta, UsageReported, MessageAdded, TurnEnded)
    ]
    assert events[-1] == TurnEnded("answered")
    assert [message.text for message in agent.messages] == ["hi", "Hello there."]


def test_a_tool_call_and_its_result_reach_the_model(make_agent):
    agent = make_agent(["Looking. ", call("echo", text="x")], "It says x.", tools=[ECHO])
    events = take_turn(agent)
    check_invariants(agent, events)
    assert [message.role for message in agent.messages] == "user assistant tool assistant".split()
    assert agent.model.requests[1].messages[-1].text == "echo x"
    assert agent.messages[1].text == "Looking. "


def test_requests_only_ever_extend_the_prefix(make_agent):
    agent = make_agent(call("echo", text="1"), "one", call("echo", text="2"), "two", tools=[ECHO])
    agent = Agent(agent.model, agent.tools, system="You are a test.")
    take_turn(agent, "first")
    take_turn(agent, "second")
    requests = [request.messages for request in agent.model.requests]
    assert requests[0][0].role == "system"
    for shorter, longer in itertools.pairwise(requests):
        assert longer[: len(shorter)] == shorter
    assert len({id(request.tools) for request in agent.model.requests}) == 1


def test_safe_calls_run_side_by_side_and_results_keep_call_order(make_agent):
    barrier = threading.Barrier(3, timeout=SOON)

    def meet(context, arguments):
        barrier.wait()
        time.sleep(0.05 if arguments["n"] == 0 else 0)
        return str(arguments["n"])

    agent = make_agent(
        [call("meet", n=0), call("meet", n=1), call("meet", n=2)],
        "done",
        tools=[make_tool("meet", meet)],
    )
    events = take_turn(agent)
    check_invariants(agent, events)
    assert [m.text for m in agent.messages if m.role == "tool"] == ["0", "1", "2"]


def test_exclusive_calls_run_alone(make_agent):
    running = []

    async def alone(context, arguments):
        running.append(1)
        await asyncio.sleep(0.01)
        assert len(running) == 1
        running.pop()

    tool = make_tool("alone", alone, exclusive=True)
    agent = make_agent([call("alone"), call("alone"), call("alone")], "done", tools=[tool])
    events = take_turn(agent)
    check_invariants(agent, events)
    assert {event.status for event in events if isinstance(event, ToolFinished)} == {"ok"}


def test_the_budget_ends_with_a_summary_that_may_not_call_tools(make_agent):
    steps = [call("echo", text=str(n)) for n in range(3)]
    agent = make_agent(*steps, ["Three echoes; ", call("echo", text="more")], tools=[ECHO])
    events = take_turn(agent, max_requests=3)
    check_invariants(agent, events)
    assert events[-1] == TurnEnded("budget")
    assert [request.tool_choice for request in agent.model.requests] == ["auto"] * 3 + ["none"]
    assert agent.messages[-1].text == "Three echoes; "
    assert not agent.messages[-1].calls


def test_the_default_budget_is_fifteen_requests_and_a_summary(make_agent):
    agent = make_agent(*[call("echo")] * 15, "summary", tools=[ECHO])
    assert take_turn(agent)[-1] == TurnEnded("budget")
    agent.model.done()


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (call("ecko", text="x"), "did you mean 'echo'"),
        (
            ToolCall(id="", name="echo", problem="the arguments are not valid JSON"),
            "not valid JSON",
        ),
        (call("strict", text="x"), "text must be an integer"),
        *((call("broken"), "ZeroDivisionError"), (call("raises"), "no file 'x'")),
        *((call("exits"), "SystemExit"), (call("away"), "not installed")),
        (call("cancels"), "was cancelled"),
    ],
)
def test_a_call_that_cannot_run_is_answered_and_the_turn_goes_on(make_agent, step, expected):
    def broken(context, arguments):
        return 1 / 0

    def raises(context, arguments):
        raise ToolError("no file 'x'; list_files shows what is there")

    def exits(context, arguments):
        raise SystemExit(3)

    async def cancels(context, arguments):
        raise asyncio.CancelledError

    tools = [
        *(ECHO, make_tool("strict", echo, check=lambda _: "text must be an integer")),
        *(make_tool("broken", broken), make_tool("raises", raises), make_tool("exits", exits)),
        make_tool("away", echo, available=lambda: "it is not installed"),
        make_tool("cancels", cancels),
    ]
    agent = make_agent(step, "I see.", tools=tools)
    events = take_turn(agent)
    check_invariants(agent, events)
    (result,) = [message for message in agent.messages if message.role == "tool"]
    assert expected in result.text
    assert result.failed
    assert events[-1] == TurnEnded("answered")


def test_results_of_any_kind_become_messages(make_agent):
    kinds = [None, "", {"a": 1}, ToolOutput("text"), [1, 2]]
    tool = make_tool("kinds", lambda context, arguments: kinds[arguments["n"]])
    agent = make_agent([call("kinds", n=n) for n in range(5)], "ok", tools=[tool])
    take_turn(agent)
    assert [message.text for message in agent.messages if message.role == "tool"] == [
        *("(no output)", "(no output)", '{"a": 1}', "text", "[1, 2]")
    ]


def test_empty_replies_are_nudged_but_not_for_ever(make_agent):
    agent = make_agent("", "", call("echo"), "", "", "finally", tools=[ECHO])
    assert take_turn(agent)[-1] == TurnEnded("answered")
    assert [m.text for m in agent.messages if m.role == "user"] == ["go", *[NUDGE] * 4]
    assert agent.turns == Agent(agent.model, messages=agent.messages).turns == 1
    agent = make_agent("", "", "")
    events = take_turn(agent)
    check_invariants(agent, events)
    assert events[-1].reason == "failed"
    assert "empty replies" in events[-1].error


def test_a_failed_request_keeps_what_was_said(make_agent):
    class Breaks(ScriptedModel):
        async def stream(self, request):
            yield TextDelta("The answer is ")
            message = "connection reset"
            raise ModelError(message, kind=FailureKind.NETWORK)

    agent = Agent(Breaks([]))
    events = take_turn(agent)
    check_invariants(agent, events)
    assert events[-1] == TurnEnded("failed", "connection reset")
    assert agent.messages[-1] == Message.assistant("The answer is ", interrupted=True)


def test_a_retry_voids_what_was_shown(make_agent):
    class Stutters(ScriptedModel):
        async def stream(self, request):
            yield TextDelta("half a th")
            yield RequestRetried("connection reset", 0.0, 1)
            yield TextDelta("whole")
            message = "gone"
            raise ModelError(message, kind=FailureKind.NETWORK)

    agent = Agent(Stutters([]))
    take_turn(agent)
    assert agent.messages[-1].text == "whole"


def test_a_broken_sink_is_isolated(make_agent, caplog):
    seen = []

    def breaks(event):
        raise RuntimeError(event)

    agent = make_agent("fine", sinks=[breaks, seen.append])
    events = take_turn(agent)
    assert events == seen
    assert "event sink" in caplog.text


def test_one_turn_at_a_time(make_agent):
    async def story():
        agent = make_agent(call("slow"), tools=[SLOW])
        first = agent.run("one")
        await anext(first)
        with pytest.raises(SessionBusy):
            await anext(agent.run("two"))
        await first.aclose()
        assert [message.role for message in agent.messages] == ["user", "assistant"]

    asyncio.run(story())


def test_a_tool_that_says_stop_stops_the_turn(make_agent):
    async def stopped(context, arguments):
        raise TurnInterrupted("the user stopped the cell")

    tool = make_tool("stopped", stopped, exclusive=True)
    agent = make_agent([call("stopped"), call("echo")], tools=[tool, ECHO])
    events = take_turn(agent)
    check_invariants(agent, events)
    assert events[-1] == TurnEnded("interrupted")
    statuses = [event.status for event in events if isinstance(event, ToolFinished)]
    assert statuses == ["interrupted", "skipped"]


def story_agent():
    """Return an agent whose turn passes through every kind of await there is."""

    async def nap(context, arguments):
        context.progress("zzz")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return "napped"

    tools = [ECHO, make_tool("nap", nap), make_tool("solo", nap, exclusive=True)]
    steps = [
        ["Let me see. ", call("echo", text="a"), call("nap"), call("solo")],
        [call("nap"), call("nap")],
        "All done now.",
    ]
    return Agent(ScriptedModel(steps), Toolset(tools))


async def drive(agent, on_event=lambda _: None):
    events = []
    async with aclosing(agent.run("go")) as stream:
        async for event in stream:
            events.append(event)
            on_event(event)
    return events


def test_a_cancellation_is_safe_at_every_await():
    endings = set()

    async def story(ticks):
        agent = story_agent()
        seen = []
        agent.sinks.append(seen.append)
        task = asyncio.create_task(drive(agent))
        for _ in range(ticks):
            await asyncio.sleep(0)
        if not task.done():
            task.cancel()
        try:
            await task
        except asyncio.CancelledError:
            assert not seen or seen[-1].reason in ("interrupted", "answered")
        if seen:  # a task cancelled before its first step never began a turn
            check_invariants(agent, seen)
            endings.add(seen[-1].reason)
            following = await collect(Agent(ScriptedModel(["ok"]), messages=agent.messages))
            assert following[-1] == TurnEnded("answered")

    for ticks in range(80):
        asyncio.run(story(ticks))
    assert endings == {"interrupted", "answered"}


@pytest.mark.parametrize("how", ["cancel", "close"])
def test_a_stop_is_safe_at_every_event(how):
    total = len(asyncio.run(drive(story_agent())))

    async def story(index):
        agent = story_agent()
        seen = []
        agent.sinks.append(seen.append)
        stream = agent.run("go")
        for _ in range(index + 1):
            await anext(stream)
        if how == "close":
            await stream.aclose()
        else:
            task = asyncio.ensure_future(anext(stream))
            await asyncio.sleep(0)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, StopAsyncIteration):
                await task
            with contextlib.suppress(asyncio.CancelledError):
                async for _ in stream:
                    pass
        check_invariants(agent, seen)

    for index in range(total):
        asyncio.run(story(index))


def test_leaving_a_turn_may_itself_be_cancelled(make_agent):
    """A consumer goes while a call cleans up, and the user stops it once more meanwhile."""

    async def stubborn(context, arguments):
        try:
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(1)

    async def story():
        agent = make_agent(call("slow"), tools=[make_tool("slow", stubborn)])
        events = agent.run("go")
        async for event in events:
            if isinstance(event, ToolStarted):
                break
        await asyncio.sleep(0.02)
        leaving = asyncio.create_task(events.aclose())
        await asyncio.sleep(0.02)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        assert every_call_has_one_result(agent.messages)
        assert agent.messages[-1].role == "assistant"
        agent.check_idle()

    asyncio.run(story())


def test_a_cancelled_turn_yields_its_ending_and_then_raises(make_agent):
    async def story():
        agent = make_agent(["Working on it. ", call("slow")], tools=[SLOW])
        events = []

        async def consume():
            async for event in agent.run("go"):
                events.append(event)

        task = asyncio.create_task(consume())
        while not any(isinstance(event, ToolProgress) for event in events):
            await asyncio.sleep(0.001)
        started = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - started < SOON
        check_invariants(agent, events)
        assert events[-1] == TurnEnded("interrupted")
        assert agent.messages[1].text == "Working on it. "

    asyncio.run(story())


def test_a_hanging_thread_does_not_hold_up_the_stop(make_agent):
    release = threading.Event()

    def hangs(context, arguments):
        context.progress("hanging")
        release.wait(30)
        assert context.stop.is_set()

    async def story():
        agent = make_agent(call("hangs"), tools=[make_tool("hangs", hangs)])
        task = asyncio.create_task(collect(agent))
        await asyncio.sleep(0.05)
        started = time.monotonic()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert time.monotonic() - started < SOON
        assert every_call_has_one_result(agent.messages)

    asyncio.run(story())
    release.set()


class Halver:
    """Keeps the second half: the least an engine can do, to see what the loop makes of it."""

    def __init__(self, limit=10**9):
        self.limit = limit
        self.observed = []

    def observe(self, usage):
        self.observed.append(usage)

    def should_compress(self, prompt_tokens):
        return prompt_tokens > self.limit

    async def compress(self, messages, focus=""):
        return [Message.user("(earlier)"), *messages[-1:]]


def test_an_overflow_is_compressed_and_sent_once_more():
    overflow = ModelError("too long", kind=FailureKind.CONTEXT_OVERFLOW, window=100)
    engine = Halver()
    agent = Agent(ScriptedModel([overflow, "short enough"]), engine=engine)
    events = take_turn(agent)
    check_invariants(agent, events)
    assert agent.messages[0].text == "(earlier)"
    assert len(engine.observed) == 1
    agent = Agent(ScriptedModel([overflow, overflow]), engine=Halver())
    assert take_turn(agent)[-1] == TurnEnded("failed", "too long")
    agent = Agent(ScriptedModel([overflow]))
    assert take_turn(agent)[-1] == TurnEnded("failed", "too long")


def test_the_engine_is_asked_with_reported_tokens():
    used = Reply(message=Message.assistant("one"), usage=Usage(input=900, output=10, requests=1))
    agent = Agent(ScriptedModel([used, "two"]), engine=Halver(limit=900))
    take_turn(agent, "first")
    events = take_turn(agent, "second")
    (compressed,) = [event for event in events if isinstance(event, ContextCompressed)]
    assert compressed.tokens_before > 910
    assert compressed.tokens_after < 100


def test_a_resumed_conversation_is_mended():
    cut = [
        Message.user("go"),
        Message.assistant(calls=[ToolCall(id="a", name="echo"), ToolCall(id="b", name="echo")]),
        Message(role="tool", call_id="b", name="echo", parts=Message.user("b").parts),
        Message(role="tool", call_id="zz", name="echo"),
    ]
    agent = Agent(ScriptedModel(["ok"]), messages=cut)
    assert every_call_has_one_result(agent.messages)
    assert [m.role for m in agent.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert "process ended" in agent.messages[2].text
    assert take_turn(agent)[-1] == TurnEnded("answered")


def test_writers_of_one_path_are_kept_apart(make_agent, tmp_path):
    log = []

    def write(context, arguments):
        log.append("in")
        time.sleep(0.02)
        log.append("out")

    tool = make_tool("write", write, risk=Risk.WRITE, paths=("path",), root=tmp_path)
    agent = make_agent([call("write", path="a"), call("write", path="./a")], "ok", tools=[tool])
    events = take_turn(agent)
    check_invariants(agent, events)
    assert log == ["in", "out", "in", "out"]
    assert sum(isinstance(event, ToolStarted) for event in events) == 2
