"""What the user reads of a call: cells by their number, code by the line that does something."""

from __future__ import annotations

import pytest
from hermes_nb.notebook.document.known import editing, moving, reading, several, telling
from hypothesis import example, given
from hypothesis import strategies as st


def name(cell_id):
    return f"cell {cell_id.removeprefix('id')}"


@pytest.mark.parametrize(
    ("code", "told"),
    [
        *(("df.shape", "df.shape"), ("import os; os.getcwd()", "import os; os.getcwd()")),
        ("import pandas as pd\nfrom a import b\n\n# mean\ndf.mean()", "df.mean() …"),
        ("%matplotlib inline\nplt.plot(x)\nplt.show()", "plt.plot(x) …"),
        *(("import a\nimport b", "import a …"), ("", ""), ("x = '\u202e'", "x = '\\u202e'")),
    ],
)
def test_code_is_told_by_what_it_does(code, told):
    assert telling(code) == told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({}, "all cells"),
        ({"outputs": False}, "all cells, without outputs"),
        ({"ids": ["id1"]}, "cell 1"),
        ({"ids": ["id1", "id2", "id5"]}, "cells 1, 2 and 5"),
        ({"range": "3-7"}, "cells 3–7"),
        ({"section": "Cleaning", "outputs": False}, "section Cleaning, without outputs"),
    ],
)
def test_reading(arguments, told):
    assert reading(arguments, name) == told


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"id": "id5", "new": "x = 1"}, "cell 5: x = 1"),
        ({"id": "id5", "old": "a\nb", "new": "a\nc\nd"}, "cell 5: c …"),
        ({"id": "id5", "old": "a", "new": ""}, "cell 5: without a"),
        ({"id": "id5", "new": ""}, "cell 5: emptied"),
    ],
)
def test_editing(arguments, told):
    assert editing(arguments, name) == told


def test_moving_and_many():
    assert moving({"id": "id5", "after": "id2"}, name) == "cell 5 behind cell 2"
    assert moving({"id": "id5"}, name) == "cell 5 to the top"
    assert several([f"id{i}" for i in range(20)], name) == "cells 0, 1, 2, 3, 4 and 15 more"


@example({"id": "\n"})
@given(st.dictionaries(st.sampled_from(["id", "ids", "old", "new", "range", "after"]), st.text()))
def test_odd_arguments_are_told_on_one_line(arguments):
    for tell in (editing, moving, reading):
        assert "\n" not in tell(arguments, name)
        assert "\n" not in several(arguments.get("ids"), str)
