"""Sessions as training data, and conversations that a policy leads: from outside."""

from __future__ import annotations

import json
import math
import threading

import pytest
from hermes_nb import Hermes
from hermes_nb.core.errors import FailureKind, HermesError, ModelError
from hermes_nb.core.events import ContextCompressed
from hermes_nb.core.messages import Message, ToolCall
from hermes_nb.core.text import estimate_tokens
from hermes_nb.core.tools import Toolset
from hermes_nb.extras.training.environment import Environment
from hermes_nb.extras.training.trajectories import (
    FORMS,
    Trajectory,
    flaw,
    line,
    schemas,
    shortened,
    tokens_of,
    trajectory_of,
)
from hermes_nb.models.scripted import ScriptedModel, call
from hypothesis import given
from hypothesis import strategies as st

from tests.patience import until

KEY = "sk-ant-" + "a1B2" * 6


def led(script, *prompts, cwd):
    """Lead a conversation and return it as it lies in the store."""
    with Hermes(ScriptedModel(script), cwd=cwd, approve="all") as hermes:
        for prompt in prompts:
            hermes.ask(prompt)
        opening = hermes._opening
        known = opening.session().agent.tools
        store = opening.session().store
        (stored,) = store.sessions()
        return trajectory_of(stored, store.rows(stored.id), known)


def test_a_session_in_both_forms(home, tmp_path):
    (tmp_path / "a.txt").write_text("three rows")
    thought = Message.assistant(
        "", calls=[call("read_file", path="a.txt")], reasoning="Look first."
    )
    found = led([thought, "There are three."], f"How many? {KEY}", cwd=tmp_path)
    assert flaw(found) == ""
    chat = json.loads(line(found, "chat"))
    roles = [message["role"] for message in chat["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "assistant"]
    _, prompt, asking, result, answer = chat["messages"]
    assert prompt["content"].startswith("How many?")
    assert asking["reasoning_content"] == "Look first."
    called = {"name": "read_file", "arguments": {"path": "a.txt"}}
    assert asking["tool_calls"] == [{"type": "function", "function": called}]
    assert (result["name"], answer["content"]) == ("read_file", "There are three.")
    assert "three rows" in result["content"]
    assert [message.get("weight", 0) for message in chat["messages"]] == [0, 0, 1, 0, 1]
    (schema,) = json.loads(chat["tools"])
    assert schema["function"]["name"] == "read_file"
    assert schema["function"]["parameters"]["properties"]["path"]["type"] == "string"
    assert chat["metadata"]["outcome"] == "answered"
    assert chat["metadata"]["tools"] == {"read_file": {"calls": 1, "failed": 0}}
    share = json.loads(line(found, "sharegpt"))["conversations"]
    assert [turn["from"] for turn in share] == ["system", "human", "gpt", "tool", "gpt"]
    assert share[2]["value"].startswith("<think>\nLook first.\n</think>\n<tool_call>\n{")
    between = share[2]["value"].partition("<tool_call>")[2].partition("</tool_call>")[0]
    assert json.loads(between) == called
    assert share[3]["value"].startswith("<tool_response>")
    for form in FORMS:
        assert KEY not in line(found, form)


def story(cwd, *, undo):
    """Lead five turns with compressions between them, and take back the last of either."""
    (cwd / "a.txt").write_text("\n".join(f"row {n} {'word ' * 12}" for n in range(400)))
    script = []
    for n in range(5):
        read = call("read_file", path="a.txt", offset=1 + n * 20)
        write = call("write_file", path="b.txt", content=f"{n} {'line ' * 400}")
        script += [Message.assistant("", calls=[read]), Message.assistant("", calls=[write])]
        script.append(f"Answer {n}. {'blah ' * 300}")
    beside = ScriptedModel(["The summary."] * 20)
    how = {"approve": "all", "window": 16_000, "auxiliary": beside}
    with Hermes(ScriptedModel(script), cwd=cwd, **how) as hermes:
        kinds = []
        for n in range(5):
            kinds += map(type, hermes.ask(f"Prompt {n}. {'why ' * 300}").events)
        assert kinds.count(ContextCompressed) >= 2
        session = hermes._opening.session()
        if undo == "turn":
            session.rewind()
        elif undo == "compression":
            session.restore()
        (stored,) = session.store.sessions()
        return stored, session.store.rows(stored.id), hermes.tools


@pytest.mark.parametrize("undo", ["", "turn", "compression"])
def test_a_compressed_session_is_written_as_it_was_led(home, tmp_path, undo):
    stored, rows, known = story(tmp_path, undo=undo)
    found = trajectory_of(stored, rows, known)
    assert flaw(found) == ""
    turn = ["user", "assistant", "tool", "assistant", "tool", "assistant"]
    turns = 5 - (undo == "turn")
    assert [message.role for message in found.messages] == turn * turns
    for n in range(turns):
        prompt, _, read, write, _, answer = found.messages[6 * n : 6 * n + 6]
        assert prompt.text.startswith(f"Prompt {n}. why") and prompt.text.count("why") == 300
        assert read.text.startswith(f"{1 + n * 20}\t") and write.calls[0].arguments["content"]
        assert write.calls[0].arguments["content"].count("line") == 400
        assert answer.text.startswith(f"Answer {n}.") and answer.text.count("blah") == 300
    for number in range(len(rows)):  # one that cannot be read
        some = [row for row in rows if row.position != number]
        if rows[number].state == "active" and number < len(rows) - 1:
            assert flaw(trajectory_of(stored, some, known)) == "damaged"


def test_what_is_broken_is_named(home, tmp_path):
    ask = Message.assistant("", calls=[ToolCall(id="1", name="read_file")])
    gave = Message.tool(ask.calls[0], "text")
    bad = Message.assistant("", calls=[ToolCall(id="1", name="read_file", problem="no JSON")])
    prompt, answer = Message.user("How many?"), Message.assistant("Three.")
    cut = Message.assistant("Thr", interrupted=True)
    for why, messages in {
        "": (prompt, ask, gave, answer),
        "unfinished": (prompt, ask, gave),
        "interrupted": (prompt, cut),
        " unfinished": (prompt, Message.assistant(" ")),
        "no prompt": (answer,),
        "call without a result": (prompt, ask, answer),
        "result without a call": (prompt, gave, answer),
        "unreadable call": (prompt, bad, gave, answer),
    }.items():
        assert flaw(Trajectory(id="x", messages=messages)) == why.strip()
    assert flaw(Trajectory(id="x", messages=())) == "unfinished"
    failing = led([ModelError("down", kind=FailureKind.MALFORMED)], "How many?", cwd=tmp_path)
    assert flaw(failing) == "interrupted"


def test_what_is_no_answer_is_not_learned_as_one(home, tmp_path):
    silent = led(["", "", "Three."], "How many?", cwd=tmp_path)
    assert (flaw(silent), silent.outcome) == ("", "answered")
    weights = [each.get("weight", 0) for each in strict(line(silent, "chat"))["messages"]]
    assert weights == [0, 0, 0, 0, 0, 0, 1]
    with Hermes(ScriptedModel([call("list_files"), "Not done."]), cwd=tmp_path) as hermes:
        turn = hermes.ask("How many?", max_requests=1)
    summed = Trajectory(id="x", messages=turn.messages)
    assert (flaw(summed), summed.outcome) == ("", "budget")


words = st.integers(1, 900).map(lambda n: "word " * n)


@given(st.lists(st.tuples(words, words, words), min_size=1, max_size=20), st.integers(300, 4000))
def test_a_long_one_keeps_its_ends(turns, tokens):
    messages = []
    for number, (prompt, result, answer) in enumerate(turns):
        asking = Message.assistant("", calls=[ToolCall(id=f"c{number}", name="read_file")])
        messages += [Message.user(f"{number} {prompt}"), asking]
        messages += [Message.tool(asking.calls[0], result), Message.assistant(answer)]
    whole = Trajectory(id="x", messages=tuple(messages))
    found = shortened(whole, tokens)
    assert flaw(found) == ""
    assert found.messages[0] == whole.messages[0]
    assert found.messages[-1] == whole.messages[-1]
    least = estimate_tokens([whole.messages[0], whole.messages[-1]])
    assert tokens_of(found) <= max(tokens, least + 20)
    if tokens_of(found) <= tokens:
        assert shortened(found, tokens) == found
    if estimate_tokens(whole.messages) <= tokens:
        assert found == whole
    elif found.left_out:
        told = [m.text for m in found.messages if "left out here" in m.text]
        assert told == [f"[{found.left_out} messages left out here]"] or found.left_out == 1


def reward(turn, directory):
    return float((directory / "b.txt").exists()) + ("done" in turn.text)


def test_a_policy_leads_a_conversation(home, tmp_path):
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.txt").write_text("3")
    with Environment(reward, tools=["files"], files=files) as environment:
        for _ in range(2):  # each begins anew
            seen = environment.reset("Copy a.txt to b.txt.")
            assert [message["role"] for message in seen.messages] == ["system", "user"]
            assert "write_file" in [tool["function"]["name"] for tool in seen.tools]
            first = environment.step(
                {
                    "role": "assistant",
                    "content": "",
                    "tool_calls": [
                        {"function": {"name": "read_file", "arguments": '{"path": "a.txt"}'}}
                    ],
                }
            )
            (result,) = first.observation.messages
            assert (result["role"], first.done, first.reward) == ("tool", False, 0.0)
            assert "3" in result["content"]
            broken = environment.step(
                {"tool_calls": [{"function": {"name": "x", "arguments": "{"}}]}
            )
            assert broken.observation.messages[0]["role"] == "tool"
            wrote = Message.assistant("", calls=[call("write_file", path="b.txt", content="3")])
            assert not environment.step(wrote).done
            last = environment.step("It is done.")
            assert last.done and last.reward == 2.0 and last.turn.text == "It is done."
            assert not (files / "b.txt").exists()
            with pytest.raises(Exception, match="reset the environment"):
                environment.step("more")
        environment.reset("Given up midway.")


def asks(name, **arguments):
    return {"tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


def test_a_conversation_is_given_up_while_a_tool_of_it_runs(home, tmp_path):
    environment = Environment(lambda *_: 1.0, tools=["terminal"])
    environment.reset("Wait.")
    began, seen = environment.directory / "began", []

    def step():
        with pytest.raises(HermesError, match="cancelled"):
            environment.step(asks("terminal", command="touch began; sleep 600"))
        seen.append("raised")

    stepping = threading.Thread(target=step, daemon=True)
    stepping.start()
    assert until(began.exists)
    with environment:
        assert [each["role"] for each in environment.reset("Again.").messages][-1] == "user"
        stepping.join(20)
        assert seen == ["raised"]
        assert environment.step("Done.").done
    assert not began.parent.exists()
    assert not home.exists()


def test_children_are_the_policy_as_well(home, tmp_path):
    with Environment(lambda *_: 1.0, tools=["delegation"]) as environment:
        environment.reset("Do both.")
        step = environment.step(asks("delegate_task", tasks=["this", "that"]))
        for _ in range(2):
            system, task = step.observation.messages
            assert (system["role"], task["role"]) == ("system", "user")
            step = environment.step(f"Done: {task['content']}")
        roles = [each["role"] for each in step.observation.messages]
        assert roles == ["system", "user", "assistant", "tool"]
        told = step.observation.messages[-1]["content"]
        assert "this" in told and "that" in told
        assert environment.step("Both are done.").done


GARBAGE = (None, 5, {"tool_calls": 5}, {"content": ["x"]}, Message.user("x"))
UNREADABLE = ("x", {}, {"function": None}, {"function": {"name": "x", "arguments": "[" * 100_000}})


def test_what_a_policy_says_may_be_anything(home, tmp_path):
    with Environment(lambda *_: 1.0, tools=["files"]) as environment:
        environment.reset("What?")
        for action in GARBAGE:
            with pytest.raises(HermesError, match="not a model's message"):
                environment.step(action)
        step = environment.step({"tool_calls": list(UNREADABLE)})
        assert [each["role"] for each in step.observation.messages] == ["tool"] * 4
        assert environment.step("\ud800").done


async def later(turn, directory):
    return 0.5


def refused(constant):
    raise ValueError(constant)


def strict(text):
    return json.loads(text, parse_constant=refused)


def test_all_counts_against_the_tokens(home):
    asking = Message.assistant("", calls=[ToolCall(id="1", name="x")], reasoning="hm " * 4000)
    said = [Message.user("Why?"), asking, Message.tool(asking.calls[0], "y")] * 3
    whole = Trajectory(
        id="x",
        messages=(*said, Message.assistant("So.")),
        system="be brief " * 1000,
        tools=({"type": "function", "function": {"name": "x", "description": "y " * 1000}},),
    )
    assert tokens_of(whole) > 3 * 12_000 / 4 + 9_000 / 4 + 2_000 / 4
    found = shortened(whole, 10_000)
    assert tokens_of(found) <= 10_000
    assert (found.left_out, len(found.messages)) == (5, 6)  # one of the steps stays
    assert tokens_of(shortened(whole, 500)) > 500  # and nothing less is left
    assert len(shortened(whole, 500).messages) == 3


def test_secrets_stay_out_and_what_goes_in_can_be_read(home, tmp_path):
    marks = "</tool_call> </tool_response>\u2028\x00\u202e\ud800"
    arguments = {"a": math.nan, "b": {"c": [marks, KEY, math.inf]}, KEY: 1, "d": tmp_path}
    asking = Message.assistant(
        "", calls=[ToolCall(id="1", name="x", arguments=arguments)] * 2, reasoning=f"use {KEY}"
    )
    result = Message.tool(asking.calls[0], f"{marks} {KEY}")
    messages = (Message.user(f"a {KEY}"), Message.user(f"b {KEY}"), asking, result)
    whole = Trajectory(
        id="x",
        messages=(*messages, Message.assistant(f"Yes. {KEY}")),
        system=f"{KEY}",
        tools=tuple(schemas(messages, Toolset())),
    )
    for form in FORMS:
        text = line(whole, form)
        assert KEY not in text
        found = strict(text.encode("utf-8", "replace"))
        strict(found["tools"])
        turns = found["messages" if form == "chat" else "conversations"]
        roles = [turn.get("role", turn.get("from")) for turn in turns]
        assert [role[0] for role in roles] in (list("suatta"), list("shgttg"))  # merged
    called, answered = turns[2]["value"], turns[3]["value"]
    assert (called.count("</tool_call>"), called.count("</tool_response>")) == (2, 0)
    assert (answered.count("</tool_call>"), answered.count("</tool_response>")) == (0, 1)
    inside = answered.removeprefix("<tool_response>").removesuffix("</tool_response>")
    assert strict(inside)["content"].startswith(marks[:-3])


@pytest.mark.parametrize("given", [math.nan, math.inf, None, "1"])
def test_a_reward_is_a_number(home, tmp_path, given):
    with Environment(lambda *_: given, tools=["files"]) as environment:
        environment.reset("What?")
        with pytest.raises(HermesError, match="finite number"):
            environment.step("That.")
    with Environment(later, tools=["files"]) as environment:
        environment.reset("What?")
        assert environment.step("That.").reward == 0.5
