"""What a turn looks like while it runs, when it is done, and when it went wrong."""

from __future__ import annotations

import json
import re
import time
from random import Random

import pytest
from hermes_nb.agent.undo.changes import Change
from hermes_nb.core.events import (
    ApprovalAsked,
    ApprovalGiven,
    CallDelta,
    ChildFinished,
    ChildProgress,
    ChildStarted,
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
from hermes_nb.notebook.display.calls import KEPT_IN_FULL, fitted
from hermes_nb.notebook.display.transcript import Transcript
from hermes_nb.notebook.display.views import bundle
from hermes_nb.safety.markup import safe_markdown
from hermes_nb.safety.scan import wrap
from hypothesis import given
from hypothesis import strategies as st

from tests.safety.test_markup import RENDERERS, obeyed

CALL = ToolCall(id="1", name="terminal", arguments={"command": "pytest -q"})


def folded(*events):
    transcript = Transcript(model="m")
    for event in (TurnStarted(1), MessageAdded(Message.user("go")), *events):
        transcript(event)
    return transcript


def called(*between, call=CALL, said="", status="ok", seconds=0.1, result="3 passed"):
    """Return the events of a call, from what was said before it to its result."""
    return (
        MessageAdded(Message.assistant(said, calls=[call])),
        ToolStarted(call),
        *between,
        ToolFinished(call, status, seconds),
        MessageAdded(Message.tool(call, result)),
    )


@pytest.mark.parametrize(
    ("given", "status", "told"),
    [
        (ApprovalGiven("1", "once"), "ok", "<code>pytest -q</code> · allowed once · 1.2 s"),
        (ApprovalGiven("1", "always"), "ok", "· always allowed · 1.2 s"),
        (ApprovalGiven("1", "deny"), "denied", "<code>pytest -q</code> · denied · 1.2 s"),
        (ApprovalGiven("1", "deny", "not <b>now</b>"), "denied", "· denied: not &lt;b&gt;now"),
    ],
)
def test_the_answer_to_a_question_stands_in_the_line_of_its_call(given, status, told):
    asked = ApprovalAsked(CALL, "it runs a command", "pytest -q")
    events = called(asked, given, status=status, seconds=1.25)
    transcript = folded(*events, TurnEnded("answered"))
    assert told in transcript.finished()
    assert "denied · denied" not in transcript.finished()
    assert "pytest -q · " in transcript.plain()


@given(st.text(max_size=120), st.text(max_size=60), st.text(max_size=60))
def test_nothing_in_the_line_of_a_call_is_obeyed(command, name, reason):
    call = ToolCall(id="1", name=name or "x", arguments={"command": command})
    denied = ApprovalGiven("1", "deny", f"<img src=x>{reason}")
    events = called(denied, call=call, status="denied", result="</details><script>")
    transcript = folded(*events, TurnEnded("answered"))
    for render in RENDERERS:
        page = render(transcript.finished())
        assert not obeyed(page)
        assert page.count("<details>") == page.count("</details>") == 2


def test_a_running_turn_shows_text_calls_and_status():
    transcript = folded(
        TextDelta("Let me "),
        MessageAdded(Message.assistant("Let me look.", calls=[CALL])),
        UsageReported(Usage(input=12_345, output=640, cached=10_000, requests=1), "qwen3"),
        ToolStarted(CALL),
        ToolProgress("1", "12 passed"),
    )
    shown = transcript.running()
    assert all(
        part in shown for part in ("Let me look.", "◌ **terminal** `pytest -q`", "12 passed")
    )
    assert "qwen3 · 1 request · 12.3k in (81 % cached) · 640 out" in shown
    assert transcript.running_call
    transcript(ToolFinished(CALL, "ok", 0.1))
    transcript(MessageAdded(Message.assistant("", calls=[CALL])))
    transcript(ToolStarted(CALL))
    assert transcript.running().startswith("Let me look.") and transcript.answer == ""


def test_a_question_stops_the_clock_of_its_call_and_of_its_turn(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    asked = ApprovalAsked(CALL, "it runs a command", "pytest -q")
    transcript = folded(MessageAdded(Message.assistant(calls=[CALL])), ToolStarted(CALL))
    now[0] += 2
    transcript(asked)
    now[0] += 221
    shown = transcript.running()
    assert "‖ **terminal** `pytest -q` · waiting for you" in shown
    assert "<sub>‖ waiting for you · m · worked 2 s</sub>" in shown and "running" not in shown
    assert transcript.status_line() == "‖ waiting for you · m · worked 2 s"
    transcript(ApprovalGiven("1", "once"))
    now[0] += 3
    assert "◌ **terminal** `pytest -q` · allowed once · 5.0 s" in transcript.running()
    transcript(ToolFinished(CALL, "ok", 226.0))
    transcript(TurnEnded("answered"))
    assert "allowed once · 5.0 s" in transcript.finished()
    assert "✓ 5.0 s" in transcript.finished() and "✓ 5.0 s" in transcript.plain()


def test_what_stands_in_a_running_turn_stays_where_it_is():
    """Texts and calls keep their order; what is new comes below, and nothing ends in two dots."""
    transcript = folded()
    before = ""
    for n in range(8):
        call = ToolCall(id=str(n), name="read_file", arguments={"path": f"{n}.csv"})
        for event in called(call=call, said=f"Now file {n}." if n % 3 else ""):
            transcript(event)
        body, _, _ = transcript.running().rpartition("\n\n<sub>")
        assert body.startswith(before), body
        before = body
    transcript(TextDelta("It goes on…"))
    assert transcript.running().startswith(before)
    assert "It goes on…\n" in transcript.running()


def test_the_last_lines_of_what_runs_are_below_its_call_until_it_is_over(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    transcript = folded(MessageAdded(Message.assistant(calls=[CALL])), ToolStarted(CALL))
    secret = "sk-" + "a1" * 20
    lines = "\n".join(f"  month {n}: <b>1</b> rows" for n in range(9))
    transcript(ToolProgress("1", f"{lines}\n{secret} {'long ' * 90}\n"))
    assert "month" not in transcript.running()  # most calls are over before anybody could read it
    now[0] += 1
    shown = transcript.running()
    assert ">   month 8: <b>1</b> rows  \n" in shown and "month 4" not in shown
    assert "[redacted] long" in shown and secret not in shown
    assert max(map(len, shown.splitlines())) < 110
    for render in RENDERERS:
        assert render(shown).count("<pre") == 1 and "b" not in obeyed(render(shown))
    transcript.live = lambda: "code prints\n"
    assert "code prints" in transcript.running() and "month" not in transcript.running()
    assert transcript.call("1").plain_lines()[1:] == ["code prints"]
    transcript(ToolFinished(CALL, "ok", 1.0))
    assert "code prints" not in transcript.running()


def test_what_is_not_final_is_taken_back():
    transcript = folded(TextDelta("wrong st"), RequestRetried("network: reset", 2.0, 1))
    assert "wrong st" not in transcript.running()
    assert "again in 2 s: network: reset" in transcript.running()
    transcript = folded(ReasoningDelta("thinking about it"))
    assert "thinking about it" in transcript.running()
    transcript(TextDelta("Answer"))
    assert "thinking about it" not in transcript.running()
    never = Transcript(model="m")
    never.notes.append("The weights are being fetched.")
    assert never.finished() == never.plain() == "The weights are being fetched."


def test_a_finished_turn_is_the_answer_with_folded_calls():
    transcript = folded(
        ReasoningDelta("first <b>this</b>, "),
        ReasoningDelta("then that"),
        *called(said="First, the tests.", seconds=1.25),
        MessageAdded(Message.assistant("All green.")),
        TurnEnded("answered"),
    )
    shown = transcript.finished()
    assert shown.startswith("All green.")
    assert "<details><summary>1 tool call</summary>" in shown
    head = "<details><summary>✓ <b>terminal</b> <code>pytest -q</code> · 1.2 s</summary>"
    assert f"{head}\n\n```text\n3 passed\n```\n\n</details>" in shown
    assert "First, the tests." in shown
    assert "<details><summary>reasoning</summary>\n\nfirst" in shown
    assert "then that\n\n</details>" in shown and "then that" not in transcript.plain()
    assert transcript.plain().splitlines()[0] == "All green."
    assert "✓ terminal pytest -q · 1.2 s" in transcript.plain()


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        (TurnEnded("interrupted"), "Stopped."),
        (TurnEnded("failed", "rate limit: wait"), "**Failed:** rate limit: wait"),
        (TurnEnded("budget"), "Out of requests"),
    ],
)
def test_other_endings_say_so(ending, text):
    transcript = folded(MessageAdded(Message.assistant("Half", interrupted=True)), ending)
    assert text in transcript.finished()
    assert "Half" in transcript.finished()


HOSTILE = ["<script>x</script>", "</details><img src=x onerror=y>", "`|`"]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_nothing_a_tool_or_a_model_says_is_obeyed(hostile):
    arguments = {"command": hostile, "other": f"```\n{hostile}"}
    call, result = ToolCall(id="1", name=hostile, arguments=arguments), f"```\n{hostile}\n~~~"
    progress = ToolProgress("1", hostile)
    events = called(progress, call=call, said=hostile, status="error", result=result)
    transcript = folded(*events, TextDelta(hostile))
    assert set(obeyed(transcript.running())) <= {"sub"}
    running = folded(*events[:2], ToolProgress("1", f"{result}\n"))
    running.call("1").started -= 60
    assert hostile in running.call("1").live
    assert set(obeyed(running.running())) <= {"sub"}
    transcript(TurnEnded("failed", hostile))
    assert set(obeyed(transcript.finished())) <= {"sub", "details", "summary"}


def test_secrets_and_hidden_characters_are_not_shown():
    secret = "sk-" + "a1" * 20
    arguments = {"command": f"curl -H {secret} \u202e\x1b[2J"}
    call = ToolCall(id="1", name="terminal", arguments=arguments)
    events = called(call=call, said=f"The key is {secret}", result=f"found {secret} \x1b[31m")
    transcript = folded(*events, TurnEnded("answered"))
    for shown in (transcript.running(), transcript.finished(), transcript.plain()):
        assert not [hidden for hidden in (secret, "\x1b", "\u202e") if hidden in shown]


LONG_TEXT = "A word in between with $5, $6 and <b>. " * 400
SHAPES = {
    "code": {"code": "x = 1\n" * 400},
    "many": {f"argument {n}": "y" * 3_000 for n in range(40)},
    "signs": {"command": "$<\x00😀" * 2_000},
    "name": {"path": "p/" * 5_000},
}


def of_calls(count, arguments, *, answer="Done.", said="", result="y😀" * 20_000):
    """Return the transcript of a turn with so many calls."""
    events = []
    for n in range(count):
        call = ToolCall(id=str(n), name="run_python", arguments=arguments)
        status = "error" if n % 10 == 0 else "ok"
        events += called(call=call, said=said, status=status, result=result)
    return folded(*events, MessageAdded(Message.assistant(answer)), TurnEnded("answered"))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("count", "said"), [(500, ""), (1_500, ""), (500, LONG_TEXT)], ids=["500", "1500", "talking"]
)
def test_a_long_turn_is_saved_small(count, shape, said):
    transcript = of_calls(count, SHAPES[shape], said=said, answer="Word $1 <b> $2. " * 4_000)
    saved = bundle(transcript, running=False)
    assert len(json.dumps(saved, ensure_ascii=False).encode()) < 200_000
    assert len(transcript.running()) < 10_000 + len(safe_markdown(transcript.answer))
    shown, whole = saved["text/markdown"], transcript.finished()
    # Counted, as pytest would compare texts of this size for minutes.
    assert shown.count(f"{count} tool calls, {count // 10} failed</summary>") == 1
    assert shown.count("earlier calls:") == (count > 1_000) or count == 500
    assert shown.count("<details>") == shown.count("</details>") <= 1 + KEPT_IN_FULL
    assert shown.count("`%hermes last` shows all of them") == 1
    assert whole.count("Word") == 4_000


@given(st.text(max_size=400), st.integers(1, 300))
def test_a_text_fits_into_its_room(text, room):
    assert len(fitted(text, room).encode(errors="replace")) <= room + 200


def test_code_that_is_still_being_written_leaves_the_rest_outside():
    transcript = folded(TextDelta("Look:\n```python\nx = 1\ny ="))
    page = RENDERERS[0](transcript.running())
    assert "y =\n</code></pre>" in page
    assert "running" in page.split("</pre>")[1]


def test_the_marks_that_a_model_reads_are_not_shown():
    said = wrap("ZeroDivisionError: division by zero", source="what code shows")
    transcript = folded(*called(status="denied", result=said), TurnEnded("answered"))
    shown = transcript.finished()
    assert "```text\nZeroDivisionError: division by zero\n```" in shown
    assert "1 tool call, 1 denied" in shown


def test_calls_that_are_mere_lines_stand_right_below_one_another_and_an_answer_is_whole():
    answer = "\n\n".join(f"Paragraph {n} of a report." for n in range(1_500))
    turn = of_calls(KEPT_IN_FULL + 3, {"code": "1"}, result="1", answer=answer)
    line = r"[✓✗] \*\*run_python\*\* `1`.* s"
    shown = turn.finished()
    assert len(re.findall(rf"^{line}  $", shown, re.MULTILINE)) == 2
    assert re.search(rf"^{line}\n\n<details><summary>", shown, re.MULTILINE)
    page = RENDERERS[0](shown)
    assert page.count("<details>") == page.count("</details>") == KEPT_IN_FULL + 1
    assert all(text.count(answer) == 1 for text in bundle(turn, running=False).values())


def test_a_plan_is_ticked_off_above_the_calls_and_folded_in_the_end():
    items = ["[x] read", "[>] <b>plot</b>", "[ ] write"]
    planned = called(call=ToolCall(id="p", name="todo", arguments={"items": items}))
    events = (*planned, ToolStarted(CALL))
    running = folded(*events).running()
    assert "☑ read  \n◐ &lt;b&gt;plot&lt;/b&gt;  \n☐ write  \n\n> ◌ **terminal**" in running
    again = ToolCall(id="q", name="todo", arguments={"items": ["[x] read", "[x] plot"]})
    done = folded(*events, *called(call=again), TurnEnded("answered")).finished()
    assert "<details><summary>plan: 2 of 2 done</summary>\n\n☑ read  \n☑ plot\n" in done
    refused = folded(*called(call=again, status="error"), TurnEnded("answered"))
    assert "plan:" not in refused.finished()


CHANGES = [
    Change(name="cell 3", kind="added", notebook="n", place=3, after="plot(df)"),
    Change(name="[5]", kind="edited", notebook="n", place=2, before="a = 1", after="a = <b>2"),
    Change(name="clean.py", kind="edited", before="x\n", after="x\ny\n"),
]


def test_a_finished_turn_says_what_it_changed_and_how_to_take_it_back():
    transcript = folded(*called(), TurnEnded("answered"))
    transcript.changes, transcript.learned = CHANGES, 1
    told = "cell 3 added · [5] edited · clean.py +1 · 1 note learned · %hermes undo 1"
    assert f"\n{told} · %hermes memory undo\n✓" in transcript.plain()
    head = "<summary>cell 3 added · &#91;5&#93; edited · clean.py +1 · 1 note learned"
    for shown in (transcript.finished(), transcript.finished(page=True)):
        assert f"{head} · <code>%hermes undo 1</code> · <code>%hermes memory undo</code>" in shown
    assert "```diff\n- a = 1\n+ a = <b>2\n```" in transcript.finished()
    assert "```diff" not in shown and "<b>2" not in shown and ">&lt;b&gt;2</ins></span>" in shown
    transcript.buttons = True  # in such a page, the text needs no command
    shown = transcript.finished(page=True)
    assert f'<details title="Changes of this turn">{head}</summary>' in shown
    assert "%hermes" not in shown and "%hermes undo 1" in transcript.finished() + transcript.plain()
    transcript.changes, transcript.learned = (), 0
    assert "undo" not in transcript.finished() + transcript.plain()


def test_a_finished_turn_says_which_variables_it_changed():
    transcript = folded(*called(), TurnEnded("answered"))
    transcript.variables = ["df 612×6 → 591×6", "kept changed", "+ model", "− tmp"]
    told = "± df 612×6 → 591×6 · kept changed · + model · − tmp"
    assert f"\n{told}\n✓" in transcript.plain()
    assert f"{told}\n\n<details>" in transcript.finished(page=True)
    transcript.session = "s"
    undo = '<code title="turn 1 of s">%hermes undo 1</code>'
    assert f"{told} · {undo}\n\n<details>" in transcript.finished(page=True)
    transcript.buttons = True
    assert f"{told}\n\n<details>" in transcript.finished(page=True)
    assert transcript.metadata == {"hermes": {"turn": "1 of s"}}
    transcript.buttons = False
    transcript.changes = CHANGES
    assert f"{told}\n\n<details><summary>cell 3 added · " in transcript.finished(page=True)
    assert f"\n{told}\ncell 3 added · " in transcript.plain()
    transcript.variables = [f"+ v{n}" for n in range(9)]
    assert "+ v5 · 3 more variables\ncell 3 added" in transcript.plain()


@pytest.mark.parametrize(
    ("statuses", "told"),
    [
        (["ok", "denied"], "! Not run: pip install x (denied)"),
        (["error", "error"], "! 2 calls failed"),
        (["denied", "error"], "! Not run: pytest -q (denied) · 1 call failed"),
        (["denied"] * 4, "! Not run: pytest -q (denied), pip install x (denied), 2 more"),
    ],
)
def test_a_turn_with_a_denied_or_failed_call_says_it_first(statuses, told):
    commands = ["pytest -q", "pip install x", "make", "ls"]
    events = [
        event
        for number, status in enumerate(statuses)
        for event in called(
            call=ToolCall(id=f"{number}", name="terminal", arguments={"command": commands[number]}),
            status=status,
        )
    ]
    transcript = folded(*events, TurnEnded("answered"))
    assert f"<sub>{told} · " in transcript.finished().replace("&#40;", "(").replace("&#41;", ")")
    assert f"\n{told} · " in transcript.plain()
    assert "✓" not in transcript.plain().splitlines()[-1]


@given(st.text(max_size=60), st.text(max_size=200), st.text(max_size=200))
def test_nothing_in_what_changed_is_obeyed(name, before, after):
    transcript = folded(TurnEnded("answered"))
    transcript.changes = [
        Change(name=name, kind="edited", before=before, after=after),
        Change(name="cell 1", kind="added", notebook=name, place=1, after=after),
    ]
    ours = {"sub", "details", "summary", "pre", "span", "ins", "del", "style"}
    assert set(obeyed(transcript.finished(page=True))) <= ours


TEXTS = (
    *(
        "Now file 2.",
        "```python\nx = 1\n",
        "| a | b |\n|---|---|",
        "$x$ <b>y</b> [z](w)",
        "sk-" * 9,
    ),
    "line\n" * 400,
)
ENDS = ("ok", "error", "denied", "interrupted", "skipped")


def random_events(random, count):
    """Return the events of a turn with parallel calls, children, plans, questions and retries."""
    found, running, calls = [TurnStarted(1)], [], [CALL]
    for number in range(count):
        text, usage = random.choice(TEXTS), Usage(input=number, requests=number)
        call, child = random.choice(calls[-2:]), random.randrange(2)
        name, items = random.choice(["todo", "f"]), {"items": [f"[x] {number}", text]}
        new = ToolCall(id=f"{number}", name=name, arguments=items)
        asked = random.choice(running or [CALL])
        events = [
            [MessageAdded(Message.assistant(text))],
            [ToolStarted(new)],
            [
                ToolFinished(asked, random.choice(ENDS), 1.5),
                MessageAdded(Message.tool(asked, text)),
            ],
            [ToolFinished(asked, "ok", 2.5)],
            [ChildStarted(call.id, 0, text), ChildStarted(call.id, 1, text)],
            [ChildProgress(call.id, child, text, usage)],
            [ChildFinished(call.id, child, random.choice(["done", "failed"]), 1.5, usage)],
            [ToolProgress(call.id, text)],
            [ApprovalAsked(asked, "why", text)],
            [ApprovalGiven(asked.id, random.choice(["once", "always", "deny"]), text)],
            [TextDelta(text)],
            [ReasoningDelta(text), RequestRetried(text, 2.0, 1)],
        ]
        chosen = random.choice(events[: None if running else 2])
        if chosen[0] == ToolStarted(new):
            running.append(new)
            calls.append(new)
        elif isinstance(chosen[0], ToolFinished):
            running.remove(asked)
        found += chosen
    return [*found, TurnEnded("answered")]


@pytest.mark.parametrize("seed", range(20))
def test_a_turn_that_is_shown_after_each_event_looks_as_one_that_is_shown_once(monkeypatch, seed):
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    random, shown, seen = Random(seed), Transcript(model="m"), []
    for event in random_events(random, 60):
        now[0] += random.choice([0.0, 0.25, 2.0])
        shown(event)
        seen.append((now[0], event))
        once = Transcript(model="m")
        for now[0], each in seen:
            once(each)
        assert shown.running() == once.running()
    assert (shown.finished(), shown.plain()) == (once.finished(), once.plain())


def test_a_running_turn_shows_what_the_model_is_writing():
    transcript = folded(TurnStarted(1), CallDelta(0, "run_python", '{"code": "a = \\"1\\"'))
    assert "◌ writing run_python · " in transcript.running().replace("&#95;", "_")
    pieces = [r"\nb = 'x", r"\\n'\nfor", r" c in b:\n", "\\tprint(c)"]
    for piece in pieces:
        transcript(CallDelta(0, "run_python", piece))
    shown = transcript.running()
    assert "```text\nfor c in b:\n    print(c)\n```" in shown
    assert "writing run_python · 4 lines · " in transcript.status_line()
    transcript(CallDelta(1, "write_file", '{"path": "a.py"'))
    assert "writing write_file · " in transcript.status_line()
    assert "print" not in transcript.running()
    transcript(RequestRetried("lost", 0.0, 1))
    assert "writing" not in transcript.status_line()
    transcript(CallDelta(0, "run_python", '{"code": "ghp_' + "a1" * 18 + r"\n"))
    assert "a1a1" not in transcript.running()
    for event in called():
        transcript(event)
    assert "writing" not in transcript.running()
