"""The approval mode is the user's: neither the agent's code nor a stranger's notebook raises it."""

from __future__ import annotations

import asyncio
import io
import sys
import threading

import nbformat
import pytest
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.notebook.execute.verify import clean_run
from hermes_nb.notebook.magics import load, unload

from tests.faults.cells import environment
from tests.kernels import kernel
from tests.loopback import Loopback, says, stream, tool_chunks
from tests.notebook.conftest import shell

__all__ = ["shell"]

RAISED = [
    "import os; os.environ['HERMES_NB_APPROVE'] = 'all'",
    "%config HermesMagics.approve = 'all'",
    "%hermes approve all",
    "%hermes config approve all",
    "get_ipython().magics_manager.registry['HermesMagics'].agent.guard.mode = 'all'",
]
TOUCH = "open('made', 'w').close()"


@pytest.fixture
def magics(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERMES_NB_APPROVE", "")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    load(shell)
    yield shell.magics_manager.registry["HermesMagics"]
    unload(shell)


def plays(magics, *steps):
    model = ScriptedModel(steps)
    magics.agent.use(model)
    return model


@pytest.mark.parametrize("code", RAISED)
def test_code_that_the_agent_runs_does_not_raise_its_mode(magics, shell, tmp_path, code):
    model = plays(magics, call("run_python", code=code), "ok", call("run_python", code=TOUCH), "ok")
    assert shell.run_cell("%%hermes --approve all\ngo").success
    if code.startswith("%hermes"):  # `%config` logs it
        assert "code that an agent runs cannot" in model.requests[1].messages[-1].text
    assert shell.run_cell("%%hermes\ngo").success
    assert "no one can approve calls" in model.requests[3].messages[-1].text
    assert not (tmp_path / "made").exists()


LEFT = """
import asyncio, threading

async def go(line):
    try:
        await get_ipython().find_line_magic("hermes")(line)
    except Exception as error:
        said.append(str(error))

def later():
    begin.wait()
    for line in ("approve all", "--new save this"):
        asyncio.run(go(line))
        asyncio.run_coroutine_threadsafe(go(line), loop).result()

thread = threading.Thread(target=later)
thread.start()
"""


def test_a_thread_left_by_the_agents_code_neither_raises_the_mode_nor_sends_a_prompt(magics, shell):
    """Neither by itself nor by a callback in the event loop of the main thread."""
    model = plays(magics, call("run_python", code=LEFT), "ok", "done")
    with asyncio.Runner() as runner:
        begin, said = threading.Event(), []
        shell.user_ns |= {"loop": runner.get_loop(), "begin": begin, "said": said}
        assert shell.run_cell("%%hermes --approve all\ngo").success
        begin.set()
        runner.run(asyncio.to_thread(shell.user_ns["thread"].join))
    assert magics.agent.settings().approve == "ask" and len(model.requests) == 2
    assert [each.startswith("code that an agent runs cannot") for each in said] == [True] * 4


@pytest.mark.parametrize("code", RAISED[:4])
def test_the_users_own_cell_does(magics, shell, tmp_path, code):
    shell.run_cell(code)
    plays(magics, call("run_python", code=TOUCH), "ok")
    assert shell.run_cell("%%hermes\ngo").success
    assert (tmp_path / "made").exists()  # a terminal: what is typed there is the user's


def touches():
    return stream(tool_chunks(("run_python", {"code": TOUCH})))


@pytest.mark.kernel
def test_a_notebook_that_was_not_seen_asks_once(tmp_path, monkeypatch):
    monkeypatch.delenv("HERMES_NB_CEILING")
    made = tmp_path / "made"
    cell = "%%hermes --approve all\ngo"
    with Loopback() as server:

        def run(kernel, code=cell, **how):
            made.unlink(missing_ok=True)
            server.replies[:] = [touches(), says("ok")]
            server.exchanges.clear()
            result = kernel.run(code, **how)
            assert result.status == "ok", result.error
            return result

        path = str(tmp_path / "n.ipynb")
        env = environment(server, tmp_path, HERMES_NB_NOTEBOOK=path)
        with kernel(env, cwd=str(tmp_path)) as running:
            assert running.run("%load_ext hermes_nb").status == "ok"
            result = run(running)  # as nbclient runs it
            assert "stays `ask`" in result.markdown and not made.exists()
            run(running, "import os; os.environ['HERMES_NB_APPROVE'] = 'all'")
            assert "stays `ask`" in run(running, "%hermes approve all").markdown
            run(running, "%%hermes\ngo")
            assert not made.exists()
            (asked,) = run(running, answers=("y",)).prompts
            assert "run and change anything" in asked and "n.ipynb" in asked and made.exists()
            assert not run(running, allow_stdin=True).prompts and made.exists()
        with kernel(env, cwd=str(tmp_path)) as running:
            assert running.run("%load_ext hermes_nb").status == "ok"
            assert run(running) and made.exists()
            assert path in running.run("%hermes trust").markdown
            assert running.run(f"%hermes trust --forget {path}").status == "ok"
        with kernel(env | {"HERMES_NB_APPROVE": "all"}, cwd=str(tmp_path)) as running:
            assert running.run("%load_ext hermes_nb").status == "ok"
            assert run(running) and made.exists()


@pytest.mark.kernel
def test_agents_in_a_notebook_that_an_agent_runs_have_no_approvals(tmp_path, monkeypatch):
    script = (
        "from hermes_nb import Hermes\nwith Hermes(approve='all') as hermes:\n    hermes.ask('go')"
    )
    cells = [
        "import os; os.environ.update(HERMES_NB_CEILING='all', HERMES_NB_APPROVE='all')",
        "%load_ext hermes_nb",
        *RAISED[:4],
        "%%hermes --approve all\ngo",
        script,
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    with Loopback(touches(), says("ok"), touches(), says("ok")) as server:
        for name, value in environment(server, tmp_path).items():
            monkeypatch.setenv(name, value)
        run = clean_run(notebook, name="n.ipynb", directory=tmp_path, timeout=60)
        told = asyncio.run(run)
        assert "without errors" in told
        assert len(server.exchanges) == 4
    assert not (tmp_path / "made").exists()
