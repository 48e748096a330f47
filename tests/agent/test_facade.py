"""`Hermes` for scripts: the whole agent without Jupyter."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from hermes_nb import Hermes
from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.events import TurnEnded
from hermes_nb.core.protocols import Approval
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.tools.schema import tool

from tests.conftest import every_call_has_one_result
from tests.patience import SOON, until


def test_a_question_a_tool_and_an_answer(tmp_path, home):
    (tmp_path / "a.csv").write_text("x\n1\n2\n", encoding="utf-8")
    model = ScriptedModel([call("read_file", path="a.csv"), "Two rows."])
    with Hermes(model, cwd=tmp_path) as hermes:
        turn = hermes.ask("How many rows?")
        assert turn.text == "Two rows."
        assert turn.reason == "answered"
        assert turn.usage.requests == 2
        assert turn.cost is None
        assert turn.events[-1] == TurnEnded("answered")
        assert "2" in next(message for message in turn.messages if message.role == "tool").text
        stored = SqliteStore(home / "notebook.db")
        assert stored.messages(hermes.session_id) == hermes.messages
        assert stored.get(hermes.session_id).system_prompt == hermes.system_prompt
        stored.close()
    model.done()


def test_nothing_is_built_before_the_first_turn(home):
    Hermes(ScriptedModel([])).close()
    assert not home.exists()


def test_a_conversation_goes_on(tmp_path):
    model = ScriptedModel(["one", "two"])
    with Hermes(model, cwd=tmp_path) as hermes:
        hermes.ask("first")
        hermes.ask("second")
    texts = [message.text for message in model.requests[1].messages[1:]]
    assert texts == ["first", "one", "second"]


def test_what_asks_is_refused_without_anybody_to_ask(tmp_path):
    steps = [call("terminal", command="touch made"), "It was refused."]
    with Hermes(ScriptedModel(steps), cwd=tmp_path) as hermes:
        turn = hermes.ask("make it")
    assert not (tmp_path / "made").exists()
    result = next(message for message in turn.messages if message.role == "tool")
    assert "approve='all'" in result.text
    with Hermes(ScriptedModel(steps), cwd=tmp_path, approve="all") as hermes:
        hermes.ask("make it")
    assert (tmp_path / "made").exists()


def test_an_approver_of_ones_own_is_asked(tmp_path):
    asked = []

    class Yes:
        async def ask(self, request):
            asked.append(request.shown)
            return Approval("once")

    steps = [call("terminal", command="touch made"), "Done."]
    with Hermes(ScriptedModel(steps), cwd=tmp_path, approve=Yes()) as hermes:
        hermes.ask("make it")
    assert asked == ["touch made"]
    assert (tmp_path / "made").exists()


def test_tools_are_chosen_by_name_and_joined_by_ones_own(tmp_path):
    @tool
    def shout(word: str) -> str:
        """Return a word in capitals."""
        return word.upper()

    model = ScriptedModel([call("shout", word="hi"), "HI"])
    with Hermes(model, cwd=tmp_path, tools=[shout, "read_file"]) as hermes:
        hermes.ask("shout")
    assert [each.name for each in model.requests[0].tools] == ["shout", "read_file"]
    assert model.requests[1].messages[-1].text == "HI"


def test_ask_works_inside_a_running_loop(tmp_path):
    async def story():
        with Hermes(ScriptedModel(["fine"]), cwd=tmp_path) as hermes:
            return hermes.ask("hello").text

    assert asyncio.run(story()) == "fine"


def test_events_stream(tmp_path):
    async def story():
        async with Hermes(ScriptedModel(["one two"]), cwd=tmp_path) as hermes:
            return [event async for event in hermes.stream("hello")]

    assert asyncio.run(story())[-1] == TurnEnded("answered")


def test_failures_are_returned_and_can_be_raised(tmp_path):
    failure = HermesError("no such luck")
    with Hermes(ScriptedModel([failure]), cwd=tmp_path) as hermes:
        turn = hermes.ask("hello")
    assert (turn.reason, turn.error, turn.text) == ("failed", "no such luck", "")
    with pytest.raises(HermesError, match="no such luck"):
        turn.raise_for_failure()


@pytest.mark.parametrize(
    ("options", "text"), [({"approve": "maybe"}, "approve"), ({"window": 0}, "window")]
)
def test_bad_options_are_one_line(options, text):
    with pytest.raises(ConfigError, match=text):
        Hermes(ScriptedModel([]), **options)


def test_an_empty_prompt_is_refused(tmp_path):
    with Hermes(ScriptedModel([]), cwd=tmp_path) as hermes, pytest.raises(ConfigError):
        hermes.ask("  \n")


@pytest.mark.parametrize(
    "prompt", ["{'a': {x!r}}", "100 % {} {{ }}", "back\\slash \\n", "é" * 1_000_000, "\ud800"]
)
def test_any_prompt_arrives_as_it_is(tmp_path, prompt):
    model = ScriptedModel(["ok"])
    with Hermes(model, cwd=tmp_path) as hermes:
        assert hermes.ask(prompt).reason == "answered"
    assert model.requests[0].messages[-1].text == prompt


def test_ctrl_c_stops_the_turn_and_keeps_the_conversation_valid(tmp_path):
    @tool
    async def waits() -> str:
        """Wait, until the user loses patience."""
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(60)
        return ""

    hermes = Hermes(ScriptedModel([call("waits")]), cwd=tmp_path, tools=[waits], approve="all")
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        hermes.ask("wait")
    assert time.monotonic() - started < SOON
    assert every_call_has_one_result(hermes.messages)
    assert hermes.messages[-1].interrupted
    hermes.close()


def test_the_store_may_fail_without_the_turn(tmp_path, home):
    home.mkdir()
    (home / "notebook.db").mkdir()
    with Hermes(ScriptedModel(["fine"]), cwd=tmp_path) as hermes:
        assert hermes.ask("hello").text == "fine"
        assert len(hermes.warnings) == 1
        assert "not being saved" in hermes.warnings[0]


def test_no_model_names_the_ways_out(home):
    script = (
        "from hermes_nb import Hermes\n"
        "import importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'xllamacpp' else find(name, *a)\n"
        "Hermes().ask('hello')\n"
    )
    env = {"PATH": os.environ["PATH"], "HERMES_HOME": str(home), "HERMES_NB_LOCAL_SERVERS": "off"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "ConfigError" in last
    assert "OPENAI_API_KEY" in last
    assert "Ollama" in last


class Closing(ScriptedModel):
    """Says when it is closed; `problem` is raised then."""

    def __init__(self, steps, *, problem=None):
        super().__init__(steps)
        self.closed = 0
        self.problem = problem

    async def aclose(self):
        self.closed += 1
        if self.problem:
            raise self.problem


def loops():
    return [thread for thread in threading.enumerate() if thread.name == "hermes-loop"]


def test_a_tool_that_is_not_there_is_said(tmp_path):
    with (
        pytest.raises(ConfigError, match="no tool or toolset 'flies'; did you mean 'files'"),
        Hermes(ScriptedModel(["x"]), cwd=tmp_path, tools=["flies"]) as hermes,
    ):
        hermes.ask("go")


def test_a_tool_that_breaks_is_told_to_the_model_and_not_printed(tmp_path):
    code = f"""
from hermes_nb import Hermes
from hermes_nb.models.scripted import ScriptedModel, call
def divide(by: int) -> str:
    return str(1 // by)
model = ScriptedModel([call("divide", by=0), "Sorry."])
with Hermes(model, cwd={str(tmp_path)!r}, tools=[divide]) as hermes:
    assert hermes.ask("divide").text == "Sorry."
print(model.requests[1].messages[-1].text)
"""
    environment = os.environ | {"HERMES_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert "ZeroDivisionError" in done.stdout
    assert done.stderr == ""


def test_closing_closes_both_models_and_the_store_whatever_fails(tmp_path, home):
    main = Closing(["one"], problem=OSError("stuck"))
    beside = Closing([])
    hermes = Hermes(main, cwd=tmp_path, auxiliary=beside)
    hermes.ask("go")
    with pytest.raises(OSError, match="stuck"):
        hermes.close()
    assert (main.closed, beside.closed) == (1, 1)
    assert loops() == []
    main.problem = None
    hermes.close()


def test_asking_in_an_async_with_leaves_no_thread(tmp_path):
    async def story():
        async with Hermes(Closing(["one"]), cwd=tmp_path) as hermes:
            turn = await asyncio.to_thread(hermes.ask, "go")
            assert turn.text == "one"
            assert loops()

    asyncio.run(story())
    assert loops() == []


def test_closing_works_where_a_loop_is_running(tmp_path):
    async def story():
        hermes = Hermes(Closing(["one"]), cwd=tmp_path)
        events = [event async for event in hermes.stream("go")]
        assert events[-1] == TurnEnded("answered")
        hermes.close()
        assert hermes._opening._model.closed == 1

    asyncio.run(story())
    assert loops() == []


def test_the_external_memory_hears_of_the_end(tmp_path, home, monkeypatch):
    from hermes_nb.memory import providers

    heard = []

    class Provider:
        name = "ears"

        def static_block(self):
            heard.append("opened")
            return ""

        def prefetch(self, query):
            heard.append(f"asked {query}")
            return ""

        def turn_ended(self, messages):
            heard.append([message.text for message in messages])

        def on_memory_write(self, *_):
            pass

        def before_compress(self, messages):
            pass

        def on_delegation(self, *_):
            pass

        def session_ended(self, messages):
            heard.append(len(messages))

    point = SimpleNamespace(
        name="notes", module="theirs", load=lambda: lambda home, settings: Provider()
    )
    monkeypatch.setattr(providers, "plugins", lambda *_: [point])
    monkeypatch.setenv("HERMES_NB_MEMORY_PROVIDER", "ears")
    with Hermes(ScriptedModel(["one", "two"]), cwd=tmp_path) as hermes:
        for number, prompt in enumerate(["first", "second"], start=1):
            hermes.ask(prompt)
            assert until(lambda n=number: len(heard) == 1 + 2 * n), "a kill would lose no turn"
    assert heard == [
        "opened",
        *("asked first", ["first", "one"]),
        *("asked second", ["second", "two"]),
        4,
    ]
