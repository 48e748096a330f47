"""What a turn looks like while it runs, when it is done, and when it went wrong."""

from __future__ import annotations

import pytest
from hermes_nb.core.events import (
    MessageAdded,
    ReasoningDelta,
    RequestRetried,
    TextDelta,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    UsageReported,
)
from hermes_nb.core.messages import Message, ToolCall, Usage
from hermes_nb.notebook.transcript import Transcript, amount

from tests.safety.test_markup import obeyed

CALL = ToolCall(id="1", name="terminal", arguments={"command": "pytest -q"})


def folded(*events):
    transcript = Transcript(model="m")
    for event in (TurnStarted(1), MessageAdded(Message.user("go")), *events):
        transcript(event)
    return transcript


def test_a_running_turn_shows_text_calls_and_status():
    transcript = folded(
        TextDelta("Let me "),
        MessageAdded(Message.assistant("Let me look.", calls=[CALL])),
        UsageReported(Usage(input=12_345, output=640, cached=10_000, requests=1), "qwen3"),
        ToolStarted(CALL),
        ToolProgress("1", "12 passed"),
    )
    shown = transcript.running()
    assert "Let me look." in shown
    assert "◌ **terminal** `pytest -q`" in shown
    assert "12 passed" in shown
    assert "qwen3 · 1 request · 12.3k in (81 % cached) · 640 out" in shown
    assert transcript.running_call


def test_a_finished_turn_is_the_answer_with_folded_calls():
    transcript = folded(
        MessageAdded(Message.assistant("First, the tests.", calls=[CALL])),
        ToolStarted(CALL),
        ToolFinished(CALL, "ok", 1.25),
        MessageAdded(Message.tool(CALL, "3 passed")),
        MessageAdded(Message.assistant("All green.")),
        TurnEnded("answered"),
    )
    shown = transcript.finished()
    assert shown.startswith("All green.")
    assert "<details><summary>1 tool call</summary>" in shown
    assert "✓ **terminal** `pytest -q` · 1.2 s" in shown
    assert "3 passed" in shown
    assert "First, the tests." in shown
    assert transcript.plain().splitlines()[0] == "All green."
    assert "✓ terminal pytest -q · 1.2 s" in transcript.plain()


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        (TurnEnded("interrupted"), "**Stopped.**"),
        (TurnEnded("failed", "rate limit: wait"), "**Failed:** rate limit: wait"),
        (TurnEnded("budget"), "Out of requests"),
    ],
)
def test_other_endings_say_so(ending, text):
    transcript = folded(MessageAdded(Message.assistant("Half", interrupted=True)), ending)
    assert text in transcript.finished()
    assert "Half" in transcript.finished()


def test_a_retry_takes_back_what_was_shown():
    transcript = folded(TextDelta("wrong st"), RequestRetried("network: reset", 2.0, 1))
    assert "wrong st" not in transcript.running()
    assert "network: reset, again in 2 s" in transcript.running()


def test_reasoning_is_shown_only_until_there_is_something_better():
    transcript = folded(ReasoningDelta("thinking about it"))
    assert "thinking about it" in transcript.running()
    transcript(TextDelta("Answer"))
    assert "thinking about it" not in transcript.running()


@pytest.mark.parametrize(
    "hostile", ["<script>x</script>", "</details><img src=x onerror=y>", "`|`"]
)
def test_nothing_a_tool_or_a_model_says_is_obeyed(hostile):
    call = ToolCall(
        id="1", name=hostile, arguments={"command": hostile, "other": f"```\n{hostile}"}
    )
    transcript = folded(
        MessageAdded(Message.assistant(hostile, calls=[call])),
        ToolStarted(call),
        ToolProgress("1", hostile),
        ToolFinished(call, "error", 0.1),
        MessageAdded(Message.tool(call, f"```\n{hostile}\n~~~")),
        TextDelta(hostile),
    )
    assert set(obeyed(transcript.running())) <= {"sub"}
    transcript(TurnEnded("failed", hostile))
    assert set(obeyed(transcript.finished())) <= {"sub", "details", "summary"}


def test_secrets_and_hidden_characters_are_not_shown():
    secret = "sk-" + "a1" * 20
    call = ToolCall(
        id="1", name="terminal", arguments={"command": f"curl -H {secret} \u202e\x1b[2J"}
    )
    transcript = folded(
        MessageAdded(Message.assistant(f"The key is {secret}", calls=[call])),
        ToolStarted(call),
        ToolFinished(call, "ok", 0.1),
        MessageAdded(Message.tool(call, f"found {secret} \x1b[31m")),
        TurnEnded("answered"),
    )
    for shown in (transcript.running(), transcript.finished(), transcript.plain()):
        assert secret not in shown
        assert "\x1b" not in shown
        assert "\u202e" not in shown


def test_a_long_turn_stays_small():
    events = []
    for n in range(500):
        call = ToolCall(id=str(n), name="run_python", arguments={"code": f"x = {n}\n" * 400})
        events += [
            MessageAdded(Message.assistant("", calls=[call])),
            ToolStarted(call),
            ToolFinished(call, "ok", 0.1),
            MessageAdded(Message.tool(call, "y" * 50_000)),
        ]
    transcript = folded(*events, MessageAdded(Message.assistant("Done.")), TurnEnded("answered"))
    assert len(transcript.running()) < 10_000
    assert len(transcript.finished()) < 200_000


def test_amounts_read_well():
    assert [amount(n) for n in (0, 640, 999, 1_000, 14_651, 999_999, 1_234_567)] == [
        "0",
        "640",
        "999",
        "1.0k",
        "14.7k",
        "1.0M",
        "1.2M",
    ]
