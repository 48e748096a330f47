"""What a magic line may say: answers into variables, budgets, rehearsals."""

from __future__ import annotations

import argparse
import asyncio
import json
import re

import pytest
from hermes_nb.core.budget import Limits
from hermes_nb.core.errors import ConfigError, SessionBusy
from hermes_nb.core.messages import Message, Reply, ToolCall, Usage
from hermes_nb.core.tools import Tool
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.notebook.commands.table import find, perform
from hermes_nb.notebook.interrupt import TurnFailed
from hermes_nb.notebook.magics import last_turn, load, unload
from hermes_nb.notebook.options import split_options
from hermes_nb.notebook.turn import TurnOptions
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture
def magics(shell, tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    load(shell)
    found = shell.magics_manager.registry["HermesMagics"]
    yield found
    unload(shell)


def plays(magics, *steps, **options):
    model = ScriptedModel(steps, **options)
    magics.agent.use(model)
    return model


def line(magics, text, cell=None):
    asyncio.run(magics.hermes(text, cell))


def command(magics, name):
    return asyncio.run(perform(find(name)[0], magics.agent, ""))


def costing(cost, text="done"):
    usage = Usage(input=1_000, output=10, requests=1, cost=cost)
    return Reply(message=Message.assistant(text), usage=usage)


def test_the_answer_goes_into_a_variable(magics, shell, capsys):
    plays(magics, "Forty-two.", call("list_files"), "Forty-three.", RuntimeError("broken"))
    line(magics, "--into answer", "What is it?")
    assert shell.user_ns["answer"] == "Forty-two."
    assert type(shell.user_ns["answer"]) is str
    turn = last_turn()
    assert (turn.text, turn.reason, turn.usage.requests) == ("Forty-two.", "answered", 1)
    assert "Forty-two." in capsys.readouterr().out
    line(magics, "--into answer --quiet", "And now?")  # a status line alone
    shown = capsys.readouterr().out
    assert "Forty" not in shown and "list_files" not in shown and "2 requests" in shown
    assert shell.user_ns.pop("answer") == "Forty-three."
    with pytest.raises(TurnFailed):
        line(magics, "--into answer", "What is it?")
    assert "answer" not in shell.user_ns
    assert last_turn().reason == "failed"


@pytest.mark.parametrize(
    ("option", "told"),
    [
        *((f"--into '{name}'", "not a variable's name") for name in ("2x", "class", "a.b", "a b")),
        *((f"--max-{wrong}", "above 0") for wrong in ("cost 0", "cost nan", "tokens -4")),
        *(("--modle x", "did you mean --model"), ("--dryrun", "did you mean --dry-run")),
        ("--zzz", "the options are"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_sent(magics, option, told):
    model = plays(magics, "never")
    with pytest.raises(ConfigError, match=told):
        line(magics, option, "What is it?")
    assert not model.requests


def test_a_turn_keeps_to_its_budget_and_says_which(magics, shell, capsys):
    big = Usage(input=9_000, output=10, requests=1, cost=0.4)
    step = Reply(message=Message.assistant(calls=[ToolCall(id="a", name="list_files")]), usage=big)
    model = plays(magics, step, "one", "two")
    line(magics, "--max-cost 0.5 --into x", "Look around")
    assert last_turn().reason == "budget"
    assert "$0.50 for this turn" in last_turn().note and "$0.40 spent" in last_turn().note
    assert len(model.requests) == 1 and "x" not in shell.user_ns
    assert "$0.50 for this turn" in capsys.readouterr().out
    for limits, reason in ((Limits(tokens=10), "budget"), (Limits(), "answered")):
        asyncio.run(magics.agent.ask("a", TurnOptions(limits=limits)))
        assert last_turn().reason == reason


@pytest.mark.parametrize(
    ("text", "words", "rest"),
    [
        ("--session my plan", ["--session=my"], "plan"),
        ("--session 'my plan' go on", ["--session=my plan"], "go on"),
        ('--session="my plan" it\'s "fine"', ["--session=my plan"], 'it\'s "fine"'),
        ('--image "df[\\"x\\"]" why?', ['--image=df["x"]'], "why?"),
        ("--image \"df['x']\" why?", ["--image=df['x']"], "why?"),
        ('--session "open', ['--session="open'], ""),
        ("--session 'x\\' y", ["--session=x\\"], "y"),
        ("--new\tgo\ton", ["--new"], "go\ton"),
        ("--max-cost -4 go", ["--max-cost=-4"], "go"),
        ("--session= go", ["--session="], "go"),
        ("--session", ["--session"], ""),
        ("--new -- --not-an-option", ["--new"], "--not-an-option"),
    ],
)
def test_options_stand_before_the_prompt(magics, text, words, rest):
    assert split_options(text, magics.hermes.parser) == (words, rest)


@given(st.text(max_size=60))
def test_no_line_breaks_the_splitting(text):
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--new", action="store_true")
    parser.add_argument("--session")
    for line in (text, f"--new {text}", f"--session {text}", f"--session={text}"):
        try:
            words, rest = split_options(line, parser)
        except ConfigError:
            continue
        assert all(word.startswith("--") for word in words)
        assert rest == rest.lstrip() and line.strip().endswith(rest)


async def test_a_second_turn_in_the_kernel_is_refused_and_the_first_goes_on(magics, shell, capsys):
    go_on = asyncio.Event()

    async def wait(context, arguments):
        await go_on.wait()
        return "waited"

    tool = Tool(name="wait", description="w", parameters={"type": "object"}, run=wait)
    magics.agent.use_tools([tool])
    plays(magics, call("wait"), "Forty-two.")
    first = asyncio.create_task(magics.hermes("--into answer --approve all", "What is it?"))
    while not (magics.agent.session and magics.agent.session.messages):
        assert not first.done(), await first
        await asyncio.sleep(0.01)
    view = magics.agent.view
    with pytest.raises(SessionBusy):
        await magics.hermes("", "And now?")
    assert magics.agent.view is view
    go_on.set()
    await first
    assert shell.user_ns["answer"] == "Forty-two."
    assert [m.text for m in last_turn().messages if m.role == "user"] == ["What is it?"]


def test_a_sessions_budget_counts_all_its_turns(magics, monkeypatch):
    monkeypatch.setenv("HERMES_NB_BUDGET_COST", "0.25")
    plays(magics, costing(0.1, "one"), costing(0.1, "two"), costing(0.1, "three"))
    for prompt, reason in (("1", "answered"), ("2", "answered"), ("3", "budget")):
        line(magics, "", prompt)
        assert last_turn().reason == reason
    assert "this session" in last_turn().note
    told = command(magics, "status")
    assert "0.20" in told and "0.25" in told
    assert "0.20" in command(magics, "sessions")
    line(magics, "--new", "4")
    assert last_turn().text == "three"
    plays(magics, costing(None))  # what is not known is never nothing
    line(magics, "--new", "1")
    assert last_turn().cost is None and "$" not in last_turn().status
    assert "| – |" in command(magics, "sessions")


def test_a_rehearsal_sends_stores_and_tells_nothing(magics, shell, home, capsys):
    key = "sk-proj-" + "a1B2c3D4" * 6
    model = plays(magics, "one", "two")
    line(magics, "--dry-run", f"What is `$`1 + 1`` with {key}?")
    shown = capsys.readouterr().out
    assert "Nothing was sent" in shown and "What is" in shown and key not in shown
    line(magics, "--dry-run --into plan --quiet", f"My key is {key}")
    assert key not in json.dumps(shell.user_ns["plan"])
    with pytest.raises(ConfigError, match="no variable"):
        line(magics, "--dry-run", "What is $`nothing_here`?")
    assert not model.requests
    assert not [path for path in home.rglob("*") if path.is_file()]
    assert magics.agent.session is None and last_turn() is None


def test_a_rehearsal_shows_what_the_turn_then_sends(magics, shell):
    model = plays(magics, "one", "two", "three")
    line(magics, "", "First, $`1 + 1`")
    session = magics.agent.session
    usage, before = session.usage, len(session.messages)
    shell.user_ns["new_variable"] = 3
    line(magics, "--dry-run --into plan --quiet", "Second, $`2 + 2`")
    plan = shell.user_ns.pop("plan")
    assert (session.usage, len(session.messages)) == (usage, before)
    line(magics, "", "Second, $`2 + 2`")
    sent = [message.to_dict() for message in model.requests[-1].messages]
    assert plan["request"]["messages"] == sent
    assert plan["session"] == session.id
    assert plan["tokens"]["this message"] > 0
    json.dumps(plan)


def test_a_rehearsal_of_another_model_changes_none(magics, shell, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-0123456789abcdef0123456789abcdef")
    plays(magics, "one")
    line(magics, "", "hello")
    name = magics.agent.models.name
    line(magics, "--dry-run --model gpt-4o --into plan", "again")
    assert magics.agent.models.name == name
    plan = shell.user_ns["plan"]
    request = plan["request"]
    assert plan["model"] == request["model"] == "gpt-4o"
    assert request["messages"][-1]["role"] == "user"
    assert {"read_file", "run_python"} <= {each["function"]["name"] for each in request["tools"]}
    assert "0123456789abcdef0123456789abcdef" not in json.dumps(plan)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        *(("skills shwo", "%hermes skills show"), ("memory udno", "%hermes memory undo")),
        *(("cassette recrod", "%hermes cassette record"), ("panel memroy", "%hermes panel memory")),
        *(("compress --udno", "%hermes compress --undo"), ("statsu", "%hermes status")),
    ],
)
def test_a_misspelt_word_suggests_the_nearest(text, told):
    with pytest.raises(ConfigError, match=re.escape(told)):
        find(text)
    for title in ("resume markdwn", "compress the plots", "export notbook of mine", "search shwo"):
        assert find(title) is not None
