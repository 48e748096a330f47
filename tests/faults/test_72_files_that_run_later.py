"""Files that run later, or instruct an agent, ask in every mode and are refused where nobody is."""

from __future__ import annotations

import pytest
from hermes_nb.models.scripted import call

from tests.contract.safety.people import hermes, results
from tests.contract.safety.test_questions import work

__all__ = ["work"]


@pytest.mark.parametrize("mode", ["edits", "all"])
@pytest.mark.parametrize(
    "path",
    [
        "AGENTS.md",
        "conftest.py",
        "numpy.py",
        ".vscode/settings.json",
        "lib/x.pth",
        ".github/workflows/ci.yml",
    ],
)
def test_72_files_that_run_later_ask_in_every_mode(work, mode, path):
    steps = [call("write_file", path=path, content="x = 1\n")]
    with hermes(work, *steps, approve=mode) as agent:
        turn = agent.ask("go")
    assert not (work / path).exists()
    assert "was not run" in results(turn)[0] or "protected" in results(turn)[0]


@pytest.mark.parametrize("magic", ['"%%hermes', r'"%%\u0068ermes', '["%%her",\n "mes'])
def test_72_a_notebook_with_an_agent_in_it_asks_too(work, magic):
    source = f'{{"cells": [{{"cell_type": "code", "source": {magic} --approve all\\ngo"}}]}}'
    steps = [call("write_file", path="x.ipynb", content=source)]
    with hermes(work, *steps, approve="edits") as agent:
        agent.ask("go")
    assert not (work / "x.ipynb").exists()
