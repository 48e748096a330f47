"""The server that plays scripts says what they say, and complains about every other request."""

from __future__ import annotations

import importlib.util
import os
import sys

import pytest
from hermes_nb.core.errors import HermesError
from hermes_nb.core.messages import Message
from hermes_nb.core.tools import Toolset
from hermes_nb.models.chat.client import OpenAIChat
from hermes_nb.safety.redact import redact
from hermes_nb.testing import run_notebook
from hermes_nb.tools.schema import tool

from tests.examples.runs import ROOT, isolated
from tests.models.test_cassette import ask
from tests.notebook.test_cassette_runs import write


@pytest.fixture(scope="module")
def scripted():
    spec = importlib.util.spec_from_file_location("scripted", ROOT / "notebooks" / "scripted.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["scripted"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["scripted"]


@tool
def rows() -> str:
    """Count the rows."""
    return "rows: 344.25"


def test_a_script_is_played_through_the_adapter(scripted):
    steps = [
        ["Let me see. ", scripted.call("rows")],
        lambda seen: f"{seen.prompt}: {seen.number(r'rows: (.+)')} of {seen.body['model']}",
    ]
    with scripted.Player(steps) as player:
        model = OpenAIChat("m", base_url=player.url)
        first = ask(model, Message.user("How many?"), tools=Toolset([rows]))[-1]
        assert first.message.text == "Let me see. "
        (called,) = first.message.calls
        result = Message.tool(called, "rows: 344.25")
        conversation = (Message.user("How many?"), first.message, result)
        second = ask(model, *conversation, tools=Toolset([rows]))[-1]
    assert second.message.text == "How many?: 344.2 of m"
    assert 0 < first.usage.input < second.usage.input
    assert 0 < second.usage.cached <= first.usage.input
    assert player.problems == []


def test_a_script_with_a_price_reports_what_each_request_cost(scripted):
    price = scripted.Price(input=1.0, cached=0.1, output=4.0)
    with scripted.Player(["One.", "Two."], price=price) as player:
        model = OpenAIChat("m", base_url=player.url)
        usages = [ask(model, Message.user(text))[-1].usage for text in ("a" * 400, "a" * 400)]
    for usage in usages:
        new = usage.input - usage.cached
        assert usage.cost == pytest.approx((new + 0.1 * usage.cached + 4 * usage.output) / 1e6)
    assert usages[1].cached > 0
    assert usages[1].cost < usages[0].cost


def test_what_the_script_does_not_foresee_is_a_problem(scripted):
    steps = [lambda seen: seen.found("(nothing)"), "left over"]
    with scripted.Player(steps) as player, pytest.raises(HermesError, match="which is not in"):
        ask(OpenAIChat("m", base_url=player.url), Message.user("a"))
    assert [problem[:20] for problem in player.problems] == [
        "the script looks for",
        "1 of 2 steps were no",
    ]
    with scripted.Player([]) as player, pytest.raises(HermesError, match="one too many"):
        ask(OpenAIChat("m", base_url=player.url), Message.user("a"))


SECRET = "sk-proj-" + "qW3eR5tY7uI9oP1aS3dF5gH7"
STORY = (
    "%load_ext hermes_nb",
    "import os\ntoken = os.environ['SERVICE_TOKEN']",
    "%%hermes --approve all\nCheck that the token $`token` works.",
    "%hermes history",
    "%hermes export markdown",
)


@pytest.mark.kernel
@pytest.mark.slow
def test_a_planted_secret_gets_nowhere(scripted, tmp_path, monkeypatch):
    """It is in a prompt, a variable, the environment, a tool's output and a model's words."""
    assert SECRET not in redact(SECRET)
    folder, home = tmp_path / "story", tmp_path / "home"
    folder.mkdir()
    path = write(folder / "n.ipynb", *STORY)
    for name, value in isolated(tmp_path).items():
        monkeypatch.setenv(name, value)
    steps = [
        [
            scripted.call("run_python", code="print(token, os.environ['SERVICE_TOKEN'])"),
            scripted.call("terminal", command=f"echo {SECRET}"),
            scripted.call("inspect_variable", name="token"),
        ],
        f"The token {SECRET} is fine.",
    ]
    secret = {"SERVICE_TOKEN": SECRET}
    with scripted.Player(steps) as player:
        model = {"HERMES_NB_BASE_URL": player.url, "HERMES_NB_MODEL": "scripted"}
        run_notebook(path, mode="record", home=home, env=model | secret)
    assert player.problems == []
    run_notebook(path, home=home, env=secret)
    kept = [each for top in (folder, home) for each in top.rglob("*") if each.is_file()]
    assert {each.name for each in kept} > {"n.ipynb", "n.hermes.jsonl", "notebook.db"}
    assert any(each.suffix == ".md" for each in kept)  # the export
    for each in kept:
        assert SECRET.encode() not in each.read_bytes(), each
        assert os.fsencode(SECRET[8:]) not in each.read_bytes(), each
