"""A session is sent a notebook's outline once, then only what has changed in it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.faults.cells import environment
from tests.kernels import kernel
from tests.loopback import calls, says
from tests.notebook.notebooks import PROMPT, Asked, Picture, asked, replayed

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(180)]
FINE = says("Fine.")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    with asked(tmp_path_factory.mktemp("shared"), cells=6) as story:
        yield story


@pytest.fixture
def story(shared: Asked) -> Asked:
    """Return a story whose session begins with a question below all cells."""
    shared.server.replies[:] = [FINE]
    shared.server.exchanges.clear()
    shared.kernel.run("%hermes new")
    assert "0 " in whole(shared.ask(shared.notebook.added(PROMPT)))
    return shared


def whole(text: str) -> str:
    assert ", changes:" not in text and "Cells above this one (" in text
    return text


def check(story: Asked) -> None:
    """Ask below all cells, and compare what the messages say with the notebook."""
    story.ask(story.notebook.added(PROMPT))
    Picture(story.contexts).check(story.notebook, len(story.notebook.cells) - 1)


def test_the_messages_alone_give_the_outline_after_any_edits(tmp_path: Path) -> None:
    turns, wholes = replayed(tmp_path, seed=7, cells=12, edits=80)
    assert wholes < turns / 2


def test_each_change_is_one_line_and_earlier_messages_stay(story: Asked) -> None:
    notebook = story.notebook
    first = story.server.bodies[-1]["messages"]
    notebook.cells[0]["source"] = "print('edited')\n"
    new = notebook.added("x = 1")
    prompt = notebook.added(PROMPT)
    at = len(notebook.cells) - 1
    assert story.ask(prompt).splitlines() == [
        f"Cells above this one ({at} {prompt['id']}), changes:",
        f"0 {notebook.cells[0]['id']} code: print('edited') * edited",
        f"{at - 1} {new['id']} code: x = 1 * new",
    ]
    assert story.server.bodies[-1]["messages"][: len(first)] == first
    assert story.ask(prompt) == ""
    notebook.ran(new, {"output_type": "error", "ename": "E", "evalue": "", "traceback": []})
    notebook.cells.remove(notebook.cells[0])
    lines = story.ask(notebook.added(PROMPT)).splitlines()
    assert (
        lines[1] == f"{at - 2} {new['id']} code [{new['execution_count']}]: x = 1 -> error * failed"
    )
    assert lines[2].startswith("deleted: 0 ")
    check(story)


def test_a_new_or_resumed_session_is_sent_the_outline(story: Asked) -> None:
    assert story.kernel.run("%hermes new").status == "ok"
    whole(story.ask(story.notebook.added(PROMPT)))
    assert story.kernel.run("%hermes resume").status == "ok"
    whole(story.ask(story.notebook.added(PROMPT)))
    check(story)


def test_what_a_compression_or_undo_removed_is_sent_again(story: Asked) -> None:
    for _ in range(14):
        story.ask(story.notebook.added(PROMPT))
    assert "no changes" in story.ask(story.notebook.added(PROMPT))
    shown = story.kernel.run("%hermes compress")
    assert "too short" not in shown.text, shown.text
    whole(story.ask(story.notebook.added(PROMPT)))
    check(story)
    story.notebook.cells[1]["source"] = "import os # edited"
    check(story)
    assert story.kernel.run("%hermes retry edit").status == "ok"
    assert "import os # edited" in whole(story.ask(story.notebook.added(PROMPT)))


def test_a_dry_run_does_not_count_as_sent(story: Asked) -> None:
    story.notebook.cells[0]["source"] = "first = 1"
    prompt = story.notebook.added(PROMPT)
    story.notebook.save()
    dry = story.kernel.run("%%hermes --dry-run\nx", cell_id=prompt["id"])
    assert "first = 1 * edited" in dry.text
    assert "first = 1 * edited" in story.ask(prompt)


def test_two_kernels_of_one_session_each_have_its_outline(story: Asked, tmp_path: Path) -> None:
    folder = story.notebook.path.parent
    with kernel(environment(story.server, folder), cwd=str(folder)) as running:
        other = Asked(running, story.server, story.notebook)
        assert running.run("%hermes resume").status == "ok"
        story.notebook.cells[0]["source"] = "second = 2"
        whole(other.ask(story.notebook.added(PROMPT)))
        check(other)
        story.notebook.cells[0]["source"] = "third = 3"
        check(story)
        check(other)


def test_children_leave_the_outline_of_their_parent_alone(story: Asked) -> None:
    story.server.replies[:] = [calls(("delegate_task", {"tasks": ["Count."]})), says("12"), FINE]
    story.server.exchanges.clear()
    story.notebook.cells[0]["source"] = "fourth = 4"
    story.ask(story.notebook.added(PROMPT))
    child: Any = next(b for b in story.server.bodies if "Count." in str(b["messages"][-1]))
    assert "Cells above" not in str(child["messages"])
    check(story)


def test_secrets_are_in_no_outline_and_no_update(story: Asked) -> None:
    story.notebook.cells[0]["source"] = "api_key = 'sk-" + "a1" * 20 + "'"
    assert "a1a1" not in story.ask(story.notebook.added(PROMPT))
    story.kernel.run("%hermes new")
    assert "a1a1" not in whole(story.ask(story.notebook.added(PROMPT)))


def test_the_context_command_shows_what_cells_cost(story: Asked) -> None:
    assert "the notebook's cells" in story.kernel.run("%hermes context").text
