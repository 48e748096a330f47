"""Cells of the user that begin with `%%checkpoint` can be undone."""

from __future__ import annotations

import asyncio

import pytest
from hermes_nb.agent.undo.undo import NothingToUndo
from hermes_nb.notebook import magics
from hermes_nb.notebook.commands.table import find, perform
from IPython.utils.capture import capture_output


@pytest.fixture
def cells(shell, tmp_path, monkeypatch):
    """Return a function that runs a cell, and one that runs a command and returns its text."""
    monkeypatch.chdir(tmp_path)
    magics.load(shell)
    agent = magics.hermes_magics(shell).agent

    def run(source):
        with capture_output() as shown:
            result = shell.run_cell(source, store_history=True)
        result.raise_error()
        return shown.stdout

    def command(line):
        found, words = find(line)
        return asyncio.run(perform(found, agent, words))

    yield run, command
    magics.unload(shell)


def test_a_checkpoint_restores_what_the_cell_changed_in_place(shell, cells):
    run, command = cells
    run("rows = [1, 2]\nalias = rows")
    assert run("%%checkpoint\nrows.append(3)\nn = len(rows)\nn").strip() == "Out[2]: 3"
    run("%%checkpoint\nrows.clear()")
    assert "`rows, alias` restored" in command("undo checkpoint")
    assert (shell.user_ns["rows"], shell.user_ns["n"]) == ([1, 2, 3], 3)
    told = command("undo checkpoint")
    assert "The last checkpoint" in told and "`n` removed" in told
    assert shell.user_ns["rows"] == [1, 2] and shell.user_ns["alias"] is shell.user_ns["rows"]
    with pytest.raises(NothingToUndo, match="no cell with `%%checkpoint`"):
        command("undo checkpoint")


def test_what_was_changed_since_is_left_alone_and_a_failed_cell_is_undone(shell, cells):
    run, command = cells
    run("rows = [1]")
    with pytest.raises(ZeroDivisionError):
        run("%%checkpoint\nrows.append(2)\n1 / 0")
    run("rows.append('mine')")
    assert "`rows` changed since" in command("undo checkpoint")
    assert "`rows` restored" in command("undo checkpoint --force")
    assert shell.user_ns["rows"] == [1]


def test_all_cells_with_a_setting(shell, cells):
    run, command = cells
    run("%config HermesMagics.checkpoint_cells = True")
    run("kept = [1]")
    run("kept.append(2)")
    command("undo checkpoint")
    assert shell.user_ns["kept"] == [1]
