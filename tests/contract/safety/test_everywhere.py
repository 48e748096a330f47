"""The same holes through every way in: a cell, a script, a child agent, the command line."""

from __future__ import annotations

import pytest
from hermes_nb import use_model
from hermes_nb.cli.main import main
from hermes_nb.models.scripted import ScriptedModel, call

from tests.contract.safety.people import hermes
from tests.loopback import Loopback, stream, text_chunks, tool_chunks
from tests.notebook.conftest import shell
from tests.safety.holes import ARITHMETIC, SECRET, SECRETS, make_holes, make_repository

__all__ = ["shell"]

COMMANDS = [*ARITHMETIC[::5], *SECRETS[::6], "git -C vendor status", "git -C vendor diff HEAD"]


@pytest.fixture
def work(tmp_path, monkeypatch):
    folder = make_holes(tmp_path)
    make_repository(folder / "vendor", ("core.fsmonitor", "touch PWN; false"))
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HERMES_HOME", str(tmp_path / "hermes"))
    return folder


def calls():
    return [call("terminal", command=command, timeout=5) for command in COMMANDS]


def by_script(work, shell, capsys):
    with hermes(work, calls(), "done", approve="edits") as agent:
        agent.ask("go")
        return "\n".join(message.text for message in agent.messages if message.role == "tool")


def by_a_child(work, shell, capsys):
    steps = [call("delegate_task", goal="go"), calls(), "reported", "done"]
    with hermes(work, *steps) as agent:
        agent.ask("go")
        requests = agent._opening.current.agent.model.requests
    return "\n".join(
        message.text
        for request in requests
        for message in request.messages[1:]
        if message.role == "tool"
    )


def by_a_cell(work, shell, capsys):
    shell.run_line_magic("load_ext", "hermes_nb")
    model = ScriptedModel([calls(), "done"])
    use_model(model)
    shell.run_cell("%%hermes --approve edits\ngo")
    return "\n".join(m.text for m in model.requests[-1].messages if m.role == "tool")


def by_the_command_line(work, shell, capsys):
    made = [("terminal", {"command": command, "timeout": 5}) for command in COMMANDS]
    replies = [stream(tool_chunks(*made)), stream(text_chunks("done"))]
    with Loopback(*replies) as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("HERMES_NB_BASE_URL", server.url)
        patch.setenv("HERMES_NB_MODEL", "loopback")
        main(["run", "--approve", "edits", "go"])
        messages = server.bodies[-1]["messages"]
    return "\n".join(message["content"] for message in messages if message["role"] == "tool")


@pytest.mark.slow
@pytest.mark.parametrize("way", [by_script, by_a_child, by_a_cell, by_the_command_line])
def test_nothing_runs_and_nothing_is_told(work, shell, capsys, way):
    told = way(work, shell, capsys)
    ends = sum(map(told.count, ("[exit ", "was not run", "[timed out ", "[passage ")))
    assert ends >= len(COMMANDS)
    assert not list(work.rglob("PWN"))
    assert SECRET not in told
