"""A line of `%hermes` is a command, a slip of one, or a prompt: only the last is sent."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

import pytest
from hermes_nb.agent.session.usage import usage_since
from hermes_nb.core.messages import Message, Reply, Usage
from hermes_nb.notebook.commands.table import commands, find

from tests.notebook.conftest import shell
from tests.notebook.desks import Desk
from tests.notebook.test_modes import magics, plays

__all__ = ["magics", "shell"]

ROOT = Path(__file__).parents[3]
SLIPS = {
    "costs": "cost",
    "statsu": "status",
    "Stauts": "status",
    "udno": "undo",
    "hlep": "help",
    "sesions": "sessions",
    "sesion": "sessions",
    "memroy show": "memory show",
    "skils list": "skills list",
    "doctr --offline": "doctor --offline",
}
LONE = (
    "next more continue again go ok thanks why proceed done test plot refactor improve "
    "compare summarize translate start read clean hello hi cancel clear"
).split()


@pytest.mark.parametrize(("typed", "meant"), SLIPS.items())
def test_a_slip_sends_nothing_and_says_how_to_send_it(magics, shell, typed, meant):
    model = plays(magics, "Sent.")
    error = shell.run_cell(f"%hermes {typed}").error_in_exec
    assert "\n" not in str(error) and f"did you mean `%hermes {meant}`" in str(error)
    assert model.requests == []
    assert shell.run_cell(re.findall("`(.*?)`", str(error))[-1]).success
    assert model.requests[0].messages[-1].text.endswith(typed)


def test_an_answer_without_a_question_says_how_to_send_it_as_a_prompt(magics, shell):
    model = plays(magics, "Sent.")
    error = shell.run_cell("%hermes yes").error_in_exec
    assert "no turn is waiting" in str(error) and model.requests == []
    assert shell.run_cell(re.findall("`(.*?)`", str(error))[-1]).success
    assert model.requests[0].messages[-1].text == "yes"


def prose():
    """Yield what people write: the pages without their code, and the notebooks' prompts."""
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        yield from re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.S).split(
            "\n"
        )
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "markdown" or cell["source"][0].startswith("%%hermes"):
                yield from "".join(cell["source"][cell["cell_type"] == "code" :]).splitlines()


def test_prose_is_always_a_prompt():
    lines = {" ".join(words[at : at + count])
             for words in map(str.split, prose())
             for at in range(len(words))
             for count in (2, 3, 12)}  # fmt: skip
    sent = [line for line in lines if " " in line and line.split()[0] not in commands()]
    assert len(sent) > 10_000
    assert [line for line in (*sent, *LONE) if find(line) is not None] == []


def test_cost_says_what_was_used_what_for_and_by_which_model(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    desk = Desk(shell)
    try:
        assert "nothing yet" in desk("cost")
        used = Usage(input=1_000, output=10, requests=1, cost=0.25)
        desk.plays(Reply(message=Message.assistant("Hi."), usage=used, model="model-a"))
        desk.ask("hi")
        session = desk.agent.session
        session.spend(Usage(input=50, output=5, requests=2), "model-b")
        review = session.store.start(
            title="review", source="review", parent=session.id, model="model-c"
        )
        session.store.count(review, Usage(input=2_000, output=20, requests=1, cost=0.5))
        assert usage_since(session.store, 0.0).requests == 4
        assert usage_since(session.store, time.time() + 60).requests == 0
        rows = dict(re.findall(r"\| \*\*(.*?)\*\* \| (.*?) \|", desk("cost")))
    finally:
        desk.agent.close()
    assert "1 request, 1.0k in, 10 out" in rows["answers, model-a"]
    assert rows["recall and maps, model-b"] == "2 requests, 50 in, 5 out"
    assert "2.0k in" in rows["its reviews, model-c"] and "0.5" in rows["its reviews, model-c"]
    assert "sessions of today" in rows
    assert "4 requests" in rows["session in all"] and "0.75" in rows["session in all"]
