"""A recording is found by what was said in it, whatever became of our own words since."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from contextlib import aclosing

import pytest
from hermes_nb.agent.learning.review import review_prompt
from hermes_nb.context.summary import LIVE, SHAPE
from hermes_nb.core.loop import NUDGE, OUT_OF_BUDGET
from hermes_nb.core.messages import Message, Text, ToolCall
from hermes_nb.core.protocols import Request
from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.models.canonical import FORM, WORDINGS
from hermes_nb.models.cassette import Cassette, CassetteError, CassetteMiss, Tape
from hermes_nb.models.scripted import ScriptedModel, call

from tests.contract.test_notebooks import HERE, NAMES
from tests.examples.runs import ROOT


def named(*names):
    facts = {"description": "Other words.", "parameters": {"type": "object"}}
    return Toolset(Tool(name=name, run=lambda *_: "", **facts) for name in names)


def answer(model, *messages, tools=()):
    async def ask():
        request = Request(messages=messages, tools=named(*tools))
        async with aclosing(model.stream(request)) as items:
            return [item async for item in items][-1].message

    return asyncio.run(ask())


def again(said, guidance):
    """Return a recorded message as it would be asked today, with other guidance."""
    parts = tuple(Text(part) for part in said.get("parts", ()))
    if said["role"] == "system":
        _, mark, project = parts[0].text.partition("# Project Context")
        return Message.system(f"{guidance}\n\n{mark}{project}")
    calls = [ToolCall(id=f"{n}", **each) for n, each in enumerate(said.get("calls", ()))]
    facts = {"name": said.get("name", ""), "failed": said.get("failed", False)}
    return Message(role=said["role"], parts=parts, calls=tuple(calls), **facts)


@pytest.mark.parametrize("name", NAMES)
def test_todays_recordings_are_found_with_other_guidance_and_tools(name):
    path = HERE / name.replace(".ipynb", ".hermes.jsonl")
    replay, tape = Cassette(None, path, "replay"), Tape(path)
    assert tape.recordings and {made.form for made in tape.recordings} == {1}
    for made in tape.recordings:
        messages = [again(link.said, "New guidance.") for link in tape.conversation(made)]
        found = answer(replay, *messages, tools=[*made.tools, "another"])
        recorded = made.reply.message
        assert found.text == recorded.text
        assert [each.id for each in found.calls] == [each.id for each in recorded.calls]
    assert not replay.tape.unused()


SUMMARISE = (
    "The summary so far follows. Update it.\n<summary>\nOld.\n</summary>\n\nThe transcript "
    "(part 1 of 2, in order):\n<transcript>\nUSER: Hi.\n</transcript>\n\n"
    "Write the summary, at most 9 words."
)
GUIDANCE = [
    (NUDGE, "Answer the question", "Say something"),
    (OUT_OF_BUDGET.format(limit="5 requests"), "Say in a few sentences", "Tell"),
    (f"{LIVE}\n\n{SHAPE}\n\nGive most of the room to this: bills", "short bullet points", "lists"),
    (review_prompt("both"), "The user does not see this turn.", "This turn is yours alone."),
    (SUMMARISE, "at most 9 words", "in fewer than 80 words"),
    (SUMMARISE, "(part 1 of 2, in order)", "(1 of 2)"),
]


@pytest.mark.parametrize(("text", "old", "new"), GUIDANCE)
def test_our_own_words_in_the_users_name_may_change(tmp_path, text, old, new):
    """One that begins otherwise needs a rule in `models/canonical.py`."""
    asked = Message.user("How many rows?")
    answer(Cassette(ScriptedModel(["x"]), tmp_path / "a", "record"), asked, Message.user(text))
    assert old in text
    replay = Cassette(None, tmp_path / "a", "replay")
    assert answer(replay, asked, Message.user(text.replace(old, new))).text == "x"
    for other in (text.replace("bills", "wings").replace("Hi.", "Ho."), "How many?"):
        if other != text:
            with pytest.raises(CassetteMiss):
                answer(replay, asked, Message.user(other))


def test_jobs_that_differ_in_guidance_alone_get_their_own_answers(tmp_path):
    """In any order while the guidance is as recorded, in that of the recording from then on."""
    hi, jobs = Message.user("hi"), ["Answer.", "Give a title."]
    record = Cassette(ScriptedModel(["Hello.", "Greeting"]), tmp_path / "a", "record")
    for job in jobs:
        answer(record, Message.system(job), hi)

    def said(*jobs):
        replay = Cassette(None, tmp_path / "a", "replay")
        return [answer(replay, Message.system(job), hi).text for job in jobs]

    assert said(*jobs[::-1], jobs[1]) == ["Greeting", "Hello.", "Greeting"]
    assert said("Answer well.", "Give a good title.") == ["Hello.", "Greeting"]


def test_a_call_of_a_tool_that_is_gone_is_a_miss(tmp_path):
    model = ScriptedModel([call("look"), "done"])
    record = Cassette(model, tmp_path / "a", "record")
    answer(record, Message.user("look"), tools=["look"])
    answer(record, Message.user("say"), tools=["look"])
    replay = Cassette(None, tmp_path / "a", "replay")
    assert answer(replay, Message.user("say")).text == "done"
    with pytest.raises(CassetteMiss, match="no longer exist: look"):
        answer(replay, Message.user("look"), tools=["see"])


def test_an_edited_answer_is_named_until_it_is_accepted(tmp_path):
    path, asked = tmp_path / "a.jsonl", [Message.user("Rows?")]
    record = Cassette(ScriptedModel(["There are 3.", "Sure."]), path, "record")
    asked += [answer(record, *asked), Message.user("Sure?")]
    answer(record, *asked)
    text = path.read_text().replace('"There ","are ","3."', '"There are 4."')
    path.write_text(text.replace("There are 3", "There are 4"))
    with pytest.raises(CassetteError, match=r"a.jsonl, line 2: the answer was edited.*--accept"):
        answer(Cassette(None, path, "replay"), asked[0])
    assert [Tape(path).accept(), Tape(path).accept()] == [1, 0]
    replay = Cassette(None, path, "replay")
    edited = answer(replay, asked[0])
    assert edited.text == "There are 4."
    assert answer(replay, asked[0], edited, asked[2]).text == "Sure."


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_tenth_of_the_benchmark_replays():
    """Zones, hash seeds and `-OO`; files that were there already."""
    command = [sys.executable, ROOT / "bench" / "replay.py", "--runs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 runs x 3 zones x 2 seeds, -OO: 0 with a miss" in done.stdout


def of_form(path, form):
    """Make a recording one of an earlier form, as it was keyed before a rule."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for line in lines:
        if "form" in line and form < line["form"]:
            line |= {"form": form, "key": "0" * len(line["key"])}
            line.pop("sum", None)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    Tape(path).accept()


@pytest.mark.parametrize("form", [2, FORM])
def test_where_a_command_ran_does_not_count(tmp_path, form):
    def story(place):
        reply = Message.assistant("", calls=(ToolCall(id="1", name="terminal", arguments={}),))
        result = Message.tool(reply.calls[0], f"out\n[exit 0, 0.1 s{place}]")
        return [Message.user("go"), reply, result]

    path = tmp_path / "x.hermes.jsonl"
    record = Cassette(ScriptedModel(["fine"]), path, "record")
    answer(record, *story(", in a sandbox: read-only without .env, a.key"), tools=["terminal"])
    of_form(path, form)
    for place in ("", ", in a sandbox: read-only", ", in a sandbox: workspace, git"):
        replay = Cassette(None, path, "replay")
        assert answer(replay, *story(place), tools=["terminal"]).text == "fine"
    taken = ", in a sandbox: workspace, changes of AGENTS.md were taken back"
    with pytest.raises(CassetteMiss):
        answer(Cassette(None, path, "replay"), *story(taken), tools=["terminal"])


BEFORE = """KeyError: 'b'
[... 3 frames left out ...]
File pandas/_libs/hashtable_class_helper.pxi:7726, in pandas._libs.hashtable.get_item()
-> 7726 'Could not get source, probably due dynamically evaluated source code.'
File pandas/_libs/hashtable_class_helper.pxi:7734, in pandas._libs.hashtable.get_item()
-> 7734 'Could not get source, probably due dynamically evaluated source code.'
KeyError: 'b'
The above exception was the direct cause of the following exception:
KeyError                                  Traceback (most recent call last)
Cell In[1], line 3
      2 df = pd.DataFrame({'a': [1]})
----> 3 df['b']
[... 1 frame left out ...]
File /x/site-packages/pandas/core/indexes/base.py:3823, in Index.get_loc(self, key)
   3818     if isinstance(casted_key, slice) or (
   3819         isinstance(casted_key, abc.Iterable)
-> 3823     raise KeyError(key) from err
   3824 except TypeError:"""
AFTER = """KeyError: 'b'
[... 5 frames left out ...]
Cell In[1], line 3
      2 df = pd.DataFrame({'a': [1]})
----> 3 df['b']
[... 1 frame left out ...]
File /x/site-packages/pandas/core/indexes/base.py:3823, in Index.get_loc(self, key)
-> 3823     raise KeyError(key) from err"""


@pytest.mark.parametrize("form", [4, FORM])
def test_which_frames_of_an_error_stay_does_not_count(tmp_path, form):
    def story(text):
        reply = Message.assistant("", calls=(ToolCall(id="1", name="run_python", arguments={}),))
        return [Message.user("go"), reply, Message.tool(reply.calls[0], f"before\n{text}\nafter")]

    path = tmp_path / "x.hermes.jsonl"
    record = Cassette(ScriptedModel(["fine"]), path, "record")
    answer(record, *story(BEFORE), tools=["run_python"])
    of_form(path, form)
    for text in (BEFORE, AFTER):
        replay = Cassette(None, path, "replay")
        assert answer(replay, *story(text), tools=["run_python"]).text == "fine"
    for other in (AFTER.replace("KeyError: 'b'", "KeyError: 'c'"), f"{AFTER}\nFile x: 3"):
        with pytest.raises(CassetteMiss):
            answer(Cassette(None, path, "replay"), *story(other), tools=["run_python"])


@pytest.mark.parametrize("form", [8, FORM])
def test_which_variables_are_reported_as_changed_does_not_count(tmp_path, form):
    def story(text):
        reply = Message.assistant("", calls=(ToolCall(id="1", name="run_python", arguments={}),))
        return [Message.user("go"), reply, Message.tool(reply.calls[0], text)]

    for number, (old, new, other) in enumerate(
        (
            ("(no output)", "[changed xs: list, 2 items]", "1"),
            ("1\n[new x = 1]", "1\n[new x = 1 | changed ys: list, 1 item]", "2\n[new x = 1]"),
            ("<b>", "<b>\n[changed df: pandas DataFrame, 2 x 2]", "<c>"),
        )
    ):
        path = tmp_path / f"{number}.hermes.jsonl"
        answer(Cassette(ScriptedModel(["fine"]), path, "record"), *story(old), tools=["run_python"])
        of_form(path, form)
        replay = Cassette(None, path, "replay")
        assert answer(replay, *story(new), tools=["run_python"]).text == "fine"
        with pytest.raises(CassetteMiss):
            answer(Cassette(None, path, "replay"), *story(other), tools=["run_python"])


@pytest.mark.parametrize("form", [3, FORM])
def test_which_lines_stay_of_what_was_shortened_does_not_count(tmp_path, form):
    def story(code="", lines="", position=2):
        left = f"x = 1\n[… 900 characters left out; session_search around=1{code} …]\ny = 2"
        call = ToolCall(id="1", name="run_python", arguments={"code": left})
        text = f"[shortened #{position}] run_python `x = 1` → 80 lines; session_search around=2"
        reply = Message.assistant("", calls=(call,))
        return [Message.user("go"), reply, Message.tool(call, text + lines)]

    path = tmp_path / "x.hermes.jsonl"
    answer(Cassette(ScriptedModel(["fine"]), path, "record"), *story(), tools=["run_python"])
    of_form(path, form)
    for code, lines in (("", "\n· a = 3"), ("; in it: z = 4 | s = ']'", "\n· a = 3\n· b")):
        replay = Cassette(None, path, "replay")
        assert answer(replay, *story(code, lines), tools=["run_python"]).text == "fine"
    for other in (story(position=3), story(lines="\nnot ours")):
        with pytest.raises(CassetteMiss):
            answer(Cassette(None, path, "replay"), *other, tools=["run_python"])


EXAMPLES = (
    (
        "terminal was not run: the user declined: nobody can be asked here, so it was not run; a. "
        "Do not try the same another way; go on without it",
        "terminal was not run: the user declined: no one can approve calls here, so it was not "
        "run; b. Do not try the same thing in another way; continue without it",
    ),
    (
        "terminal was not run: a sandbox of the level landlock is required, and there is none. "
        "Do not try the same another way; go on without it",
        "terminal was not run: a sandbox of level landlock is required, but only none is "
        "available. Do not try the same thing in another way; continue without it",
    ),
    (
        "`old` is there 3 times, at lines 1, 4, 9; add",
        "`old` occurs 3 times, at lines 1, 4, 9; add",
    ),
    (
        "the command was not run: Landlock does not carry the network; ask the user to approve it",
        "the command was not run: this kernel has none; ask the user to approve it",
    ),
    (
        "MEMORY.md leads out of the home directory, to '/x'; put a file there instead of a link",
        "MEMORY.md is a link out of the Hermes directory, to '/x'; replace it with a file",
    ),
    (
        "skill 'a' is not loaded: one of that name in home comes first",
        "skill 'a' is not loaded: a skill of the same name in home takes precedence",
    ),
    (
        "skill 'a' is not loaded: it stands in for the tool web_fetch, which is there",
        "skill 'a' is not loaded: it replaces the tool web_fetch, which is available",
    ),
    (
        "memory was not run: missing `content`. Expected memory(action?: add, old_text: string)",
        "memory was not run: missing `content`. Expected memory(action: add, old: string)",
    ),
    ("columns:\n  a  int64\n  … -7 more\nfirst", "columns:\n  a  int64\n  … 3 more\nfirst"),
    (
        "out\n[ended after 50.0 MB of output, exit 137 (SIGKILL), 1.0 s, in a sandbox: workspace, "
        "changes of a.pth, b.pth were taken back; c could not be checked or put back: look at it "
        "before you use it]",
        "out\n[stopped after 50.0 MB of output, exit 137 (SIGKILL), 1.0 s, in a sandbox: "
        "read-only, "
        "changes to a.pth, b.pth were reverted; c could not be checked or restored; review it "
        "before you use it]",
    ),
    (
        "'a/.env' may not be read, it is protected: a secret; ask the user",
        "'a/.env' is protected and cannot be read: a secret; ask the user",
    ),
    ("there is no host 'a.example'", "the host 'a.example' was not found"),
    (
        "[9 characters of output left out: the 200,000 characters that a turn's tool output may "
        "have are used up]",
        "[9 characters of output left out: the tool output of this turn has reached its limit of "
        "200,000 characters]",
    ),
)


@pytest.mark.parametrize(
    ("then", "now"), [*EXAMPLES, *((f"a{then}b", f"a{now}b") for now, then in WORDINGS)]
)
def test_a_result_that_was_reworded_is_found(tmp_path, then, now):
    def story(text):
        reply = Message.assistant("", calls=(ToolCall(id="1", name="terminal", arguments={}),))
        return [Message.user("go"), reply, Message.tool(reply.calls[0], text)]

    path = tmp_path / "x.hermes.jsonl"
    answer(Cassette(ScriptedModel(["fine"]), path, "record"), *story(then), tools=["terminal"])
    of_form(path, 7)
    for text in (then, now):
        replay = Cassette(None, path, "replay")
        assert answer(replay, *story(text), tools=["terminal"]).text == "fine"
    with pytest.raises(CassetteMiss):
        answer(Cassette(None, path, "replay"), *story(f"other: {now}"), tools=["terminal"])
