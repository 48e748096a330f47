"""nbformat 3, cells without ids, ids twice: read through an upgraded copy, and edited whole."""

from __future__ import annotations

import json

import pytest

from tests.faults.notebooks import refused, tools_on, use, valid, written

HEADING = {"cell_type": "heading", "level": 1, "metadata": {}, "source": "Old"}
CODE = {
    "cell_type": "code", "collapsed": False, "input": "1 + 1", "language": "python", "metadata": {},
    "outputs": [{"output_type": "pyout", "prompt_number": 4, "text": "2"}], "prompt_number": 4,
}  # fmt: skip
OLD = {
    "metadata": {"name": "old"}, "nbformat": 3, "nbformat_minor": 0,
    "worksheets": [{"metadata": {}, "cells": [HEADING, CODE]}],
}  # fmt: skip


def edited(document, cells):
    """Return a notebook's JSON with its cells changed by a function."""
    for cell in document["cells"]:
        cells(cell)
    return document


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "old.ipynb"
    path.write_text(json.dumps(OLD), encoding="utf-8")
    return path


def test_nbformat_3_is_read_and_becomes_4_with_the_first_edit(shell, old):
    before = old.read_bytes()
    tools = tools_on(shell, old)
    assert "1 + 1" in use(tools, "read_cells")
    assert "Old" in use(tools, "notebook_outline")
    assert old.read_bytes() == before
    assert "inserted" in use(tools, "insert_cell", source="new")
    document = valid(old)
    assert document["nbformat"] == 4
    assert [cell["cell_type"] for cell in document["cells"]] == ["markdown", "code", "code"]
    assert document["cells"][1]["outputs"][0]["data"]["text/plain"] in ("2", ["2"])


@pytest.mark.parametrize("ids", ["missing", "the same", "not a string", "too long"])
def test_odd_ids_are_made_good_without_touching_the_file(shell, tmp_path, ids):
    path = written(tmp_path / "n.ipynb", "a = 1", "b = 2", "c = 3")
    document = json.loads(path.read_text(encoding="utf-8"))
    odd = {"the same": "x", "not a string": 7, "too long": "x" * 200}
    for cell in document["cells"]:
        if ids == "missing":
            del cell["id"]
        else:
            cell["id"] = odd[ids]
    path.write_text(json.dumps(document), encoding="utf-8")
    before = path.read_bytes()
    tools = tools_on(shell, path)
    lines = use(tools, "notebook_outline").splitlines()[1:]
    shown = [line.split()[1] for line in lines]
    assert len(set(shown)) == 3
    assert use(tools, "notebook_outline").splitlines()[1:] == lines
    use(tools, "read_cells")
    assert path.read_bytes() == before
    assert "edited" in use(tools, "edit_cell", id=shown[1], new="b = 20")
    cells = valid(path)["cells"]
    assert ["".join(cell["source"]) for cell in cells] == ["a = 1", "b = 20", "c = 3"]
    assert len({cell["id"] for cell in cells}) == 3


def test_an_id_that_is_no_more_is_refused(shell, tmp_path):
    path = written(tmp_path / "n.ipynb", "a = 1", "b = 2")
    tools = tools_on(shell, path)
    use(tools, "read_cells")
    use(tools, "delete_cell", id="cell0")
    for name, arguments in (("edit_cell", {"new": "x"}), ("run_cell", {}), ("delete_cell", {})):
        assert "cell0" in refused(tools, name, id="cell0", **arguments)
    assert len(valid(path)["cells"]) == 1
