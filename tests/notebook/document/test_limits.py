"""Notebooks and values that are meant to hurt: told in plain words, in bounded time, unrun."""

from __future__ import annotations

import asyncio

import pytest
from hermes_nb.core.errors import ToolError
from hermes_nb.notebook.document.file import FileDocument
from hermes_nb.notebook.document.ipynb import CELLS
from hermes_nb.notebook.variables import describe, summaries

from tests.cpu import within


def _cell(number: int, count: str = "null") -> str:
    return (
        f'{{"cell_type": "code", "id": "c{number}", "metadata": {{}}, "outputs": [], '
        f'"execution_count": {count}, "source": "x = {number}"}}'
    )


def _write(path, *cells: str, metadata: str = "{}", major: int = 4):
    path.write_text(
        f'{{"cells": [{", ".join(cells)}], "metadata": {metadata}, "nbformat": {major}, '
        '"nbformat_minor": 5}'
    )
    return FileDocument(path)


@pytest.mark.parametrize("place", ["count", "metadata", "nbformat"])
def test_a_huge_number_is_damage_in_plain_words(tmp_path, place):
    huge = "9" * 5_000
    cell = _cell(1, huge if place == "count" else "null")
    metadata = f'{{"a": {huge}}}' if place == "metadata" else "{}"
    document = _write(tmp_path / "a.ipynb", cell, metadata=metadata)
    if place == "nbformat":
        path = tmp_path / "a.ipynb"
        path.write_text(path.read_text().replace('"nbformat": 4', f'"nbformat": {huge}'))
    with pytest.raises(ToolError, match=r"damaged at line 1 .*too many digits"):
        asyncio.run(document.cells())


def test_a_huge_number_in_an_output_is_told_where_it_is_looked_at_and_survives_an_edit(tmp_path):
    output = '{"output_type": "display_data", "metadata": {}, "data": {"application/json": %s}}'
    cell = _cell(1).replace('"outputs": []', f'"outputs": [{output % ("9" * 5_000)}]')
    document = _write(tmp_path / "a.ipynb", cell, _cell(2))
    assert [each.source for each in asyncio.run(document.sketch())] == ["x = 1", "x = 2"]
    with pytest.raises(ToolError, match="too many digits"):
        asyncio.run(document.cells(outputs=True))
    second = asyncio.run(document.cells())[1]
    asyncio.run(document.replace("c2", "y = 1", seen=second.hash))
    assert "9" * 5_000 in (tmp_path / "a.ipynb").read_text()


def test_too_many_cells_are_refused_in_bounded_time(tmp_path):
    document = _write(tmp_path / "a.ipynb", *map(_cell, range(CELLS + 1)))

    def refuse():
        with pytest.raises(ToolError, match=f"more than {CELLS:,} cells.*run_python"):
            asyncio.run(document.sketch())

    within(8, refuse, threads=True)  # two seconds on an idle machine


def test_no_property_of_a_subclass_is_run():
    pandas = pytest.importorskip("pandas")
    numpy = pytest.importorskip("numpy")
    ran = []

    class Frame(pandas.DataFrame):
        @property
        def shape(self):
            ran.append("shape")
            return (1, 1)

        @property
        def columns(self):
            ran.append("columns")
            return pandas.Index(["a"])

    class Lazy(pandas.Series):
        def __len__(self):
            ran.append("len")
            return 1

    class Array(numpy.ndarray):
        @property
        def shape(self):
            ran.append("array")
            return (1,)

    class Quiet(pandas.DataFrame):
        """One that changes nothing that is asked."""

    frame, lazy, array = Frame({"a": [1]}), Lazy([1]), numpy.zeros(2).view(Array)
    ran.clear()
    found = summaries({"frame": frame, "lazy": lazy, "array": array, "quiet": Quiet({"b": [1, 2]})})
    told = [describe("it", value) for value in (frame, lazy, array)]
    assert ran == []
    assert [(each.name, each.shape) for each in found if each.shape] == [("quiet", "2 x 1")]
    assert "of its own" in told[0]
    assert "first 2 rows" in describe("quiet", Quiet({"b": [1, 2]}))


@pytest.mark.parametrize("name", ["password", "db_password", "apiKey", "client_secret", "token"])
def test_a_column_of_secrets_shows_its_name_only(name):
    pandas = pytest.importorskip("pandas")
    secret = "correct-horse-battery"
    table = pandas.DataFrame({"user": ["ann"], name: [secret], ("x", name): [secret]})
    column = table[name]
    for told in (describe("t", table), describe("c", column), describe("i", table.set_index(name))):
        assert secret not in told
    assert name in describe("t", table)
    assert "ann" in describe("t", table)
    words = pandas.DataFrame({"token": ["the", "cat"], "key": ["a", "b"]})
    assert "cat" in describe("w", words)


def test_numbers_in_a_column_of_secrets_are_hidden_too():
    pandas = pytest.importorskip("pandas")
    assert "739154" not in describe("t", pandas.DataFrame({"pwd": [739154], "n": [1]}))
