"""A truncated notebook, or none at all: an error that says so, and the file as it was."""

from __future__ import annotations

import pytest
from hermes_nb.core.events import ToolFinished, TurnEnded
from hermes_nb.models.scripted import call

from tests.conftest import take_turn
from tests.faults.notebooks import refused, tools_on, written

CALLS = {
    "notebook_outline": {},
    "read_cells": {},
    "insert_cell": {"source": "x"},
    "edit_cell": {"id": "cell0", "new": "x"},
    "run_cell": {"id": "cell0"},
    "run_notebook": {"path": "n.ipynb"},
}


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("name", CALLS)
def test_a_truncated_notebook_is_named_and_left_alone(shell, tmp_path, name, share):
    path = written(tmp_path / "n.ipynb", "a = 1\n" * 50, "b = 2")
    damaged = path.read_bytes()[: int(path.stat().st_size * share)]
    path.write_bytes(damaged)
    assert "'n.ipynb'" in refused(tools_on(shell, path), name, **CALLS[name])
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("data", [b"PK\x03\x04", b"\x00" * 100, b"<html>", b"null", b"\xff\xfe{"])
def test_what_is_no_notebook_is_left_alone(shell, tmp_path, data):
    path = tmp_path / "n.ipynb"
    path.write_bytes(data)
    for name, arguments in CALLS.items():
        assert "'n.ipynb'" in refused(tools_on(shell, path), name, **arguments)
    assert path.read_bytes() == data


def test_a_turn_goes_on_over_a_damaged_notebook(shell, tmp_path, make_agent):
    path = written(tmp_path / "n.ipynb", "a = 1")
    path.write_bytes(path.read_bytes()[:-20])
    tools = tools_on(shell, path)
    agent = make_agent(
        call("read_cells"), call("insert_cell", source="x"), "It is damaged.", tools=list(tools)
    )
    events = take_turn(agent)
    assert [e.status for e in events if isinstance(e, ToolFinished)] == ["error", "error"]
    assert isinstance(events[-1], TurnEnded)
    assert events[-1].reason == "answered"


def test_a_notebook_renamed_or_deleted_meanwhile_is_said(shell, tmp_path):
    path = written(tmp_path / "n.ipynb", "a = 1")
    tools = tools_on(shell, path)
    path.rename(tmp_path / "other.ipynb")
    for name, arguments in CALLS.items():
        assert "n.ipynb" in refused(tools, name, **arguments)
    assert [each.name for each in tmp_path.glob("*.ipynb")] == ["other.ipynb"]
