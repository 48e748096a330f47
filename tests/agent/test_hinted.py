"""Hints behind results: in every kind of result, and at the first call in call order."""

from __future__ import annotations

import threading
import time

import pytest
from hermes_nb.core.calls import as_output
from hermes_nb.core.errors import ToolDenied, ToolError
from hermes_nb.core.loop import Agent
from hermes_nb.core.messages import Image
from hermes_nb.core.tools import ToolOutput, Toolset
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.prompt.hints import HintTracker
from hermes_nb.tools.schema import tool
from hermes_nb.tools.wrappers import limited, with_hints

from tests.conftest import take_turn
from tests.patience import SOON
from tests.prompt.files import put
from tests.tools.support import run

HINT = "\n\n[Subdirectory context discovered: a/AGENTS.md]\nrules of a"


@tool
def look(path: str) -> str:
    """Look."""
    return f"saw {path}"


@tool
async def look_later(path: str) -> str:
    """Look later."""
    return f"saw {path}"


@tool
def draw(path: str) -> ToolOutput:
    """Draw."""
    return ToolOutput("", (Image("x"),))


@tool
def count(path: str) -> dict:
    """Count."""
    return {"n": 1}


@tool
def nothing(path: str) -> None:
    """Say nothing."""


@tool
def fail(path: str) -> str:
    """Fail."""
    raise ToolError("no such file")


@tool
async def fail_later(path: str) -> str:
    """Fail later."""
    raise ToolError("no such file")


@tool
def deny(path: str) -> str:
    """Refuse."""
    raise ToolDenied("refused")


SET = Toolset([look, look_later, draw, count, nothing, fail, fail_later, deny])


@pytest.fixture
def tools(tmp_path):
    return with_hints(SET, HintTracker(put(tmp_path, ("a/AGENTS.md", "rules of a"))))


def text_of(result):
    return result.text if isinstance(result, ToolOutput) else result


@pytest.mark.parametrize(
    ("name", "before"),
    [
        *(("look", "saw a/x"), ("look_later", "saw a/x"), ("draw", "(no output)")),
        *(("count", '{"n": 1}'), ("nothing", "(no output)")),
    ],
)
def test_a_hint_follows_what_a_tool_returns(tools, name, before):
    result = run(tools.get(name), path="a/x")
    assert text_of(result) == before + HINT
    assert run(tools.get(name), path="a/x") == as_output(run(SET.get(name), path="a/x"))
    if name == "draw":
        assert result.images == (Image("x"),)


@pytest.mark.parametrize("name", ["fail", "fail_later"])
def test_a_hint_follows_an_error_too(tools, name):
    with pytest.raises(ToolError) as caught:
        run(tools.get(name), path="a/x")
    assert str(caught.value) == f"no such file{HINT}"
    with pytest.raises(ToolError, match=r"^no such file$"):
        run(tools.get(name), path="a/x")


def test_a_denied_call_learns_nothing(tools):
    with pytest.raises(ToolDenied, match=r"^refused$"):
        run(tools.get("deny"), path="a/x")
    assert text_of(run(tools.get("look"), path="a/x")).endswith(HINT)


def test_a_hint_is_not_cut_off_with_the_output(tmp_path):
    @tool
    def shout(path: str) -> str:
        """Shout."""
        return "x" * 90_000

    tracker = HintTracker(put(tmp_path, ("a/AGENTS.md", "rules of a")))
    tools = with_hints(limited(Toolset([shout])), tracker)
    assert text_of(run(tools.get("shout"), path="a/x")).endswith(HINT)


def results(agent):
    return [message.text for message in agent.messages if message.role == "tool"]


@pytest.mark.parametrize("slow", [0, 1, 2])
def test_of_parallel_calls_the_first_in_call_order_gets_the_hint(tmp_path, slow):
    together = threading.Barrier(3, timeout=SOON)

    @tool
    def peek(path: str, number: int) -> str:
        """Peek."""
        together.wait()
        time.sleep(0.05 * (number == slow))
        return f"{number}"

    put(tmp_path, ("a/AGENTS.md", "rules of a"), ("a/b/AGENTS.md", "rules of b"))
    tools = with_hints(Toolset([peek]), HintTracker(tmp_path))
    calls = [call("peek", path=path, number=n) for n, path in enumerate(["a/x", "a/y", "a/b/z"])]
    agent = Agent(ScriptedModel([calls, "done"]), tools)
    take_turn(agent)
    below = "\n\n[Subdirectory context discovered: a/b/AGENTS.md]\nrules of b"
    assert results(agent) == [f"0{HINT}", "1", f"2{below}"]


def test_a_call_that_cannot_run_claims_nothing(tmp_path):
    put(tmp_path, ("a/AGENTS.md", "rules of a"))
    tools = with_hints(SET, HintTracker(tmp_path))
    calls = [
        call("lok", path="a/x"),
        call("look", path="a/x", extra=1),
        call("look", path="a/y"),
        call("look", path="a/z"),
    ]
    agent = Agent(ScriptedModel([calls, "done"]), tools)
    take_turn(agent)
    assert results(agent)[2:] == [f"saw a/y{HINT}", "saw a/z"]


def test_a_hint_of_a_call_that_broke_comes_with_the_next(tmp_path):
    @tool
    def crash(path: str) -> str:
        """Crash."""
        raise ZeroDivisionError

    put(tmp_path, ("a/AGENTS.md", "rules of a"))
    tools = with_hints(SET + Toolset([crash]), HintTracker(tmp_path))
    steps = [[call("crash", path="a/x"), call("look", path="a/y")], call("look", path="a/z"), "ok"]
    agent = Agent(ScriptedModel(steps), tools)
    take_turn(agent)
    assert results(agent)[1:] == ["saw a/y", f"saw a/z{HINT}"]
