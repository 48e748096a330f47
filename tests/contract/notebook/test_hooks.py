"""Hooks of the user and of packages: they see calls and turns, and can refuse calls."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hermes_nb import use_hooks, use_model
from hermes_nb.core.errors import ConfigError
from hermes_nb.models.scripted import ScriptedModel, call

from tests.loopback import Loopback, stream, text_chunks, tool_chunks
from tests.notebook.conftest import shell

__all__ = ["shell"]

ROOT = Path(__file__).parents[3]
WRITE = call("write_file", path="a.txt", content="one")


class Notebook:
    """A shell with the extension, and a model that plays steps."""

    def __init__(self, shell, capsys):
        self.shell, self.capsys = shell, capsys
        shell.run_line_magic("load_ext", "hermes_nb")

    def ask(self, *steps, approve="all") -> str:
        """Run a cell with a prompt and return its output."""
        self.model = ScriptedModel(steps)
        use_model(self.model)
        self.capsys.readouterr()
        self.shell.run_cell(f"%%hermes --approve {approve}\ngo")
        return self.capsys.readouterr().out

    @property
    def results(self) -> list[str]:
        """The results that the model received last."""
        return [each.text for each in self.model.requests[-1].messages if each.role == "tool"]


@pytest.fixture
def notebook(shell, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERMES_NB_APPROVE", "all")
    return Notebook(shell, capsys)


def test_hooks_see_turns_and_calls_in_order(notebook):
    seen = []

    async def after(context, result):
        seen.append((context.call.name, result.splitlines()[0]))

    use_hooks(
        before_tool=lambda context: seen.append(dict(context.call.arguments)),
        after_tool=after,
        turn_started=seen.append,
        turn_ended=lambda session, ended: seen.append((session, ended.reason)),
    )
    notebook.ask(WRITE, "Done.", approve="edits")
    session = seen[0]
    written = ("write_file", notebook.results[0].splitlines()[0])
    assert session
    assert seen[1:] == [{"path": "a.txt", "content": "one"}, written, (session, "answered")]
    assert Path("a.txt").read_text() == "one"


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_refusal_comes_before_the_guard_and_has_its_reason(notebook, asynchronous):
    asked = []

    def refuse(context):
        asked.append(context.call.name)
        return "no writing on Fridays"

    async def refuse_later(context):
        return refuse(context)

    use_hooks(before_tool=refuse_later if asynchronous else refuse)
    notebook.ask(WRITE, "I could not.")
    assert asked == ["write_file"]
    assert "no writing on Fridays" in notebook.results[0]
    assert not Path("a.txt").exists()


@pytest.mark.parametrize("kind", ["raises", "hangs", "hangs asynchronously"])
def test_a_hook_that_fails_refuses_the_call_and_is_named(notebook, monkeypatch, kind):
    monkeypatch.setattr("hermes_nb.tools.hooks.SECONDS", 0.3)

    def raises(context):
        raise KeyError("rules")

    async def hangs_asynchronously(context):
        await asyncio.sleep(600)

    hooks = {"raises": raises, "hangs": lambda context: time.sleep(2)}
    use_hooks(before_tool=hooks.get(kind, hangs_asynchronously))
    notebook.ask(WRITE, "I could not.")
    assert "'use_hooks'" in notebook.results[0]
    assert ("KeyError" if kind == "raises" else "longer than") in notebook.results[0]
    assert not Path("a.txt").exists()


def test_what_fails_after_a_call_is_reported_and_changes_nothing(notebook):
    def fails(*_):
        raise OSError("the disk of the log is full")

    use_hooks(after_tool=fails, turn_started=fails, turn_ended=fails)
    shown = notebook.ask(WRITE, "Done.", approve="edits")
    assert Path("a.txt").read_text() == "one"
    assert "the disk of the log is full" in shown
    use_hooks()
    assert "log is full" not in notebook.ask("Hello.")


def test_code_that_hermes_runs_cannot_set_them(notebook):
    use_hooks(before_tool=lambda context: "no" if context.call.name == "write_file" else None)
    code = "import hermes_nb\nhermes_nb.use_hooks()"
    notebook.ask(call("run_python", code=code), WRITE, "I could not.")
    assert "code that Hermes runs cannot change hooks" in notebook.results[0]
    assert not Path("a.txt").exists()


@pytest.mark.parametrize(
    ("code", "what"),
    [
        (
            "from hermes_nb.models.scripted import ScriptedModel; use_model(ScriptedModel([]))",
            "the model",
        ),
        ("use_tools(print)", "tools"),
    ],
)
def test_code_that_hermes_runs_cannot_change_the_model_or_tools(notebook, code, what):
    code = f"from hermes_nb import use_model, use_tools\n{code}"
    notebook.ask(call("run_python", code=code), WRITE, "Done.", approve="all")
    assert f"code that Hermes runs cannot change {what}" in notebook.results[0]
    assert Path("a.txt").exists()  # the turn went on with its own model
    assert "Hello" in notebook.ask("Hello.")


def test_a_thread_that_such_code_starts_cannot_set_them_either(notebook):
    use_hooks(before_tool=lambda context: "no" if context.call.name == "write_file" else None)
    code = """
import hermes_nb, threading
from contextlib import suppress
def change():
    with suppress(Exception):
        hermes_nb.use_hooks()
thread = threading.Thread(target=change)
thread.start()
thread.join()
"""
    notebook.ask(call("run_python", code=code), WRITE, "I could not.")
    assert not Path("a.txt").exists()


def test_hooks_apply_to_child_agents(notebook):
    use_hooks(before_tool=lambda context: "not here" if context.call.name == "read_file" else None)
    Path("b.txt").write_text("the plan")
    delegate, read = call("delegate_task", task="read b.txt"), call("read_file", path="b.txt")
    notebook.ask(delegate, read, "Refused.", "It was refused.")
    texts = [each.text for request in notebook.model.requests for each in request.messages]
    assert any("not here" in text for text in texts)
    assert not any("the plan" in text for text in texts)


def test_the_extension_must_be_loaded(notebook):
    notebook.shell.run_line_magic("unload_ext", "hermes_nb")
    with pytest.raises(ConfigError):
        use_hooks()


PACKAGE = """
from hermes_nb.tools.hooks import Hooks

def check(context):
    return "the laboratory is closed" if context.call.name == "terminal" else None

hooks = Hooks(before_tool=check)
broken = 7
"""


@pytest.mark.parametrize("broken", [False, True])
def test_hooks_of_packages_also_apply_to_scripts(tmp_path, broken):
    (tmp_path / "lab_hooks.py").write_text(PACKAGE)
    info = tmp_path / "lab_hooks-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-hooks\nVersion: 1.0\n")
    point = f"lab = lab_hooks:{'broken' if broken else 'hooks'}"
    (info / "entry_points.txt").write_text(f"[hermes_nb.hooks]\n{point}\n")
    replies = [stream(tool_chunks(("terminal", {"command": "ls"}))), stream(text_chunks("Closed."))]
    with Loopback(*replies) as server:
        words = ["-m", "hermes_nb.cli", "run", "list it", "--approve", "all", "--model", "m"]
        done = subprocess.run(
            [sys.executable, *words],
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}",
                "HERMES_NB_BASE_URL": server.url,
            },
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        requests = server.bodies
    if broken:
        assert done.returncode != 0
        assert "'lab'" in done.stderr + done.stdout
        assert not requests
    else:
        assert done.returncode == 3, done.stderr
        assert "refused: terminal" in done.stderr
        assert "the laboratory is closed" in str(requests[-1])
