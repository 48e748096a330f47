"""Which calls of one answer run beside each other, as the events of a turn show it."""

from __future__ import annotations

import asyncio

import pytest
from hermes_nb import Hermes
from hermes_nb.core.events import ToolFinished, ToolStarted
from hermes_nb.models.scripted import ScriptedModel, call


def write(path):
    return call("write_file", path=path, content=f"The text of {path}.\n")


def most_at_once(hermes):
    """Take a turn and return the most of its calls that ran at once."""

    async def follow():
        running, most = set(), 0
        async for event in hermes.stream("go"):
            if isinstance(event, ToolStarted):
                running.add(event.call.id)
                most = max(most, len(running))
            elif isinstance(event, ToolFinished):
                running.discard(event.call.id)
        return most

    return asyncio.run(follow())


@pytest.mark.parametrize(
    ("mode", "paths", "most"),
    [
        ("edits", ["a.txt", "b.txt", "new/c.txt"], 3),
        ("all", ["a.txt", "b.txt", "new/c.txt"], 3),
        ("edits", ["a.txt", "./a.txt"], 1),
        ("edits", ["new", "new/c.txt"], 1),
        ("all", ["a.txt", "AGENTS.md"], 1),  # which an agent obeys later, so that it asks
        ("ask", ["a.txt", "b.txt"], 1),
    ],
)
def test_changes_of_different_files_run_side_by_side_where_they_do_not_ask(
    home, tmp_path, mode, paths, most
):
    work = tmp_path / "work"
    work.mkdir()
    model = ScriptedModel([[write(path) for path in paths], "Done."])
    hermes = Hermes(model, cwd=work, approve=mode)
    found = most_at_once(hermes)
    hermes.close()
    assert found == most
    if mode != "ask" and most > 1:
        assert all((work / path).read_text() == f"The text of {path}.\n" for path in paths)
