"""Stale cells, as a turn and the commands `stale` and `why` name them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hermes_nb.core.errors import ConfigError
from hermes_nb.models.scripted import call
from hermes_nb.notebook.display.tables import plain_text
from hermes_nb.notebook.document.document import Cell
from hermes_nb.notebook.execute.cell_runs import note_cell, runs_of
from hermes_nb.notebook.shell import TurnCell, turn_cell

from tests.notebook.document.test_file import code, notebook, written
from tests.safety.seat import seated

SOURCES = {"load": "df = [1, 2]", "use": "total = sum(df)", "hermes": "%%hermes\ngo"}


@pytest.fixture
def seat(shell, tmp_path, monkeypatch):
    with seated(shell, tmp_path, mode="all", answer=None) as seat:
        monkeypatch.setenv("HERMES_NB_NOTEBOOK", str(seat.notebook))
        cells = [code(source, name) for name, source in SOURCES.items()]
        written(seat.notebook, notebook(*cells))
        request = {"metadata": {"cellId": "hermes"}}
        token = turn_cell.set(TurnCell(request, can_ask=False, count=1))
        yield seat
        turn_cell.reset(token)


def runs(*names):
    return call("run_cells", ids=list(names))


READ = call("read_cells")


def test_a_turn_names_the_cells_that_it_made_stale(seat):
    seat.turn("go", READ, runs("load", "use"))
    assert "stale" not in seat.agent.last.plain()
    seat.turn("again", runs("load"))
    assert "↻ stale now: [2] · %hermes stale" in seat.agent.last.plain()
    seat.turn("more", runs("load"))  # it was stale before
    assert "stale" not in seat.agent.last.plain()
    told = "[stale cells: 1 use reads `df` of 0, which ran later or is stale]"
    assert told in seat.model.requests[-1].messages[-1].text


def test_a_cell_that_only_may_be_stale_is_not_named_below_the_turn(seat):
    seat.turn("go", READ, runs("load", "use"))
    edit = call("edit_cell", id="use", old="total = sum(df)", new="df.append(sum(df))")
    seat.turn("fix", edit, runs("use", "use"))  # the second run reads what the first has changed
    assert "perhaps: ran with another `df`" in seat.command("stale")
    assert "stale" not in seat.agent.last.plain()


def test_stale_lists_the_cells_and_why_says_who_changed_what(seat):
    seat.turn("go", READ, runs("load", "use"), call("run_python", code="df.append(3)"))
    shown = seat.command("stale")
    assert "reads `df`, which code outside of the cells changed later" in shown
    assert "[2]" in plain_text(shown)
    assert "`df` was last changed by code outside of the cells (`df.append(3)`)" in (
        told := seat.command("why df")
    )
    assert "run by Hermes in turn 1." in told
    told = seat.command("why 2")
    assert "Written by you." in told and "Last run by Hermes in turn 1." in told
    assert "It is stale" in told
    with pytest.raises(ConfigError, match="no run in this kernel has changed a variable 'nope'"):
        seat.command("why nope")
    seat.turn("again", runs("load", "use"))
    assert seat.command("stale") == "No cell is stale."


def test_cells_of_the_user_count(shell):
    shell.events.register("post_run_cell", lambda result: note_cell(shell, result))
    shell.run_cell("kept = 1", store_history=True)
    shell.run_cell("kept += 1", store_history=True)
    last = runs_of(shell).last_change("kept")
    assert (last.source, last.count, last.session) == ("kept += 1", 2, "")


def test_a_cell_that_fails_makes_no_cell_below_it_stale(shell):
    """What it did not reach keeps its value, from the cells above or from its earlier run."""
    shell.events.register("post_run_cell", lambda result: note_cell(shell, result))
    sources = {
        "load": "df, rate = {'a': 1, 'b': 2}, 1",
        "fails": "kept = 5\nrate = missing\nnever = 1",
        "drop": "df.pop('a')\nsmall = dict(df)",
        "use": "total = kept + rate, small, df",
        "more": "print(total)",
    }
    cells, counts = [], {}
    for name in ("load", "fails", "drop", "use", "more", "drop"):  # the second `pop` fails
        counts[name] = shell.run_cell(sources[name], store_history=True, cell_id=name)
    for index, (name, source) in enumerate(sources.items()):
        count = counts[name].execution_count
        cells.append(
            Cell(id=name, index=index, type="code", source=source, execution_count=count, hash="")
        )
    found = runs_of(shell).stale(cells)
    assert [*found] in ([], ["drop"])  # it ran on what it has changed
    cells[1] = replace(cells[1], source="rate = 2")
    assert {"fails", "use", "more"} <= runs_of(shell).stale(cells).keys()
