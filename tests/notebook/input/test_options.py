"""What a magic line may say: answers into variables, budgets, rehearsals."""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from pathlib import Path

import pytest
from hermes_nb.core.budget import Limits
from hermes_nb.core.errors import ConfigError, SessionBusy
from hermes_nb.core.messages import Message, Reply, ToolCall, Usage
from hermes_nb.core.tools import Tool
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.notebook.commands.table import find, perform
from hermes_nb.notebook.interrupt import TurnFailed
from hermes_nb.notebook.line import TurnOptions, split_options
from hermes_nb.notebook.magics import HermesMagics, last_turn, load, unload
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


def costing(cost, text="done"):
    usage = Usage(input=1_000, output=10, requests=1, cost=cost)
    return Reply(message=Message.assistant(text), usage=usage)


def test_the_answer_goes_into_a_variable(magics, shell, capsys):
    plays(magics, "Forty-two.")
    line(magics, "--into answer", "What is it?")
    assert shell.user_ns["answer"] == "Forty-two."
    assert type(shell.user_ns["answer"]) is str
    turn = last_turn()
    assert (turn.text, turn.reason, turn.usage.requests) == ("Forty-two.", "answered", 1)
    assert "Forty-two." in capsys.readouterr().out


def test_a_quiet_answer_leaves_a_status_line_alone(magics, shell, capsys):
    plays(magics, call("list_files"), "Forty-two.")
    line(magics, "--into answer --quiet", "What is it?")
    shown = capsys.readouterr().out
    assert "Forty-two" not in shown
    assert "list_files" not in shown
    assert "2 requests" in shown
    assert shell.user_ns["answer"] == "Forty-two."


@pytest.mark.parametrize("name", ["2x", "class", "a.b", "a b", "None"])
def test_what_is_no_name_is_refused_before_anything_is_sent(magics, name):
    model = plays(magics, "never")
    with pytest.raises(ConfigError, match="not a variable's name"):
        line(magics, f"--into '{name}'", "What is it?")
    assert not model.requests


def test_a_turn_without_an_answer_binds_nothing(magics, shell):
    plays(magics, RuntimeError("broken"))
    with pytest.raises(TurnFailed):
        line(magics, "--into answer", "What is it?")
    assert "answer" not in shell.user_ns
    assert last_turn().reason == "failed"


def test_a_turn_keeps_to_its_budget_and_says_which(magics, shell, capsys):
    big = Usage(input=9_000, output=10, requests=1, cost=0.4)
    step = Reply(message=Message.assistant(calls=[ToolCall(id="a", name="list_files")]), usage=big)
    model = plays(magics, step, "never")
    line(magics, "--max-cost 0.5 --into x", "Look around")
    turn = last_turn()
    assert turn.reason == "budget"
    assert "$0.50 for this turn" in turn.note
    assert "$0.40 spent" in turn.note
    assert len(model.requests) == 1
    assert "x" not in shell.user_ns
    assert "$0.50 for this turn" in capsys.readouterr().out


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


@pytest.mark.parametrize("option", ["--max-cost 0", "--max-cost nan", "--max-tokens -4"])
def test_a_budget_is_a_number_above_zero(magics, option):
    with pytest.raises(ConfigError, match="above 0"):
        line(magics, option, "hello")


def test_a_sessions_budget_counts_all_its_turns(magics, monkeypatch):
    monkeypatch.setenv("HERMES_NB_BUDGET_COST", "0.25")
    plays(magics, costing(0.1, "one"), costing(0.1, "two"), costing(0.1, "three"))
    line(magics, "", "1")
    line(magics, "", "2")
    assert last_turn().reason == "answered"
    line(magics, "", "3")
    assert last_turn().reason == "budget"
    assert "this session" in last_turn().note
    agent = magics.agent
    told = asyncio.run(perform(find("status")[0], agent, ""))
    assert "0.20" in told
    assert "0.25" in told
    assert "0.20" in asyncio.run(perform(find("sessions")[0], agent, ""))
    line(magics, "--new", "4")
    assert last_turn().text == "three"


def test_an_unknown_cost_is_never_nothing(magics):
    plays(magics, costing(None))
    line(magics, "", "1")
    assert last_turn().cost is None
    assert "$" not in last_turn().status
    assert "| – |" in asyncio.run(perform(find("sessions")[0], magics.agent, ""))


def tree(home: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in home.rglob("*") if path.is_file()}


def test_a_rehearsal_sends_and_stores_nothing(magics, shell, home, capsys):
    shell.user_ns["secret"] = "x"
    model = plays(magics, "one", "two")
    line(magics, "--dry-run", "What is `$`1 + 1``?")
    shown = capsys.readouterr().out
    assert "Nothing was sent" in shown
    assert "What is" in shown
    assert not model.requests
    assert not tree(home)
    assert magics.agent.session is None
    assert last_turn() is None


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
    assert plan["model"] == "gpt-4o"
    assert plan["request"]["model"] == "gpt-4o"
    assert [each["role"] for each in plan["request"]["messages"]][-1] == "user"
    assert {"read_file", "run_python"} <= {
        each["function"]["name"] for each in plan["request"]["tools"]
    }
    assert "0123456789abcdef0123456789abcdef" not in json.dumps(plan)


def test_a_rehearsal_has_no_secrets(magics, shell, capsys):
    key = "sk-proj-" + "a1B2c3D4" * 6
    plays(magics, "one")
    line(magics, "--dry-run", f"My key is {key}")
    assert key not in capsys.readouterr().out
    line(magics, "--dry-run --into plan --quiet", f"My key is {key}")
    assert key not in json.dumps(shell.user_ns["plan"])


def test_a_wrong_expression_stops_a_rehearsal_as_it_stops_a_turn(magics):
    plays(magics, "one")
    with pytest.raises(ConfigError, match="no variable"):
        line(magics, "--dry-run", "What is $`nothing_here`?")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("--modle x", "did you mean --model"),
        ("--dryrun", "did you mean --dry-run"),
        ("--zzz", "the options are"),
    ],
)
def test_a_misspelt_option_is_named(magics, text, told):
    with pytest.raises(ConfigError, match=told):
        line(magics, text, "hello")


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


@pytest.mark.parametrize(
    "text", ["resume markdwn", "compress the plots", "export notbook of mine", "search shwo"]
)
def test_titles_and_wishes_are_no_misspelt_words(text):
    assert find(text) is not None


def test_every_option_is_explained(magics):
    told = HermesMagics.hermes.__doc__
    for option in ("--into", "--image", "--dry-run", "--max-cost", "--max-tokens"):
        assert option in told


def test_options_hold_for_one_turn(magics):
    plays(magics, "one", "two")
    options = TurnOptions(limits=Limits(tokens=10))
    asyncio.run(magics.agent.ask("a", options))
    assert last_turn().reason == "budget"
    asyncio.run(magics.agent.ask("b"))
    assert last_turn().reason == "answered"
