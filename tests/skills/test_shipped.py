"""The skills that ship: valid by the format's own validator, and their scripts do what they say."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pandas as pd
import pytest
from skills_ref import validate

ROOT = Path(__file__).parents[2]
SKILLS = sorted(ROOT.glob("skills/*/*/SKILL.md"))
assert len(SKILLS) >= 10
PENGUINS = ROOT / "notebooks/data/penguins.csv"


def script(name):
    (path,) = ROOT.glob(f"skills/*/*/scripts/{name}.py")
    return runpy.run_path(str(path))


@pytest.mark.parametrize("path", SKILLS, ids=lambda path: path.parent.name)
def test_it_is_valid_and_names_the_files_that_it_has(path):
    assert validate(path.parent) == []
    text = path.read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:scripts|references|assets|templates)/[\w./-]+)`", text))
    there = {
        str(file.relative_to(path.parent))
        for file in path.parent.rglob("*")
        if file.is_file() and file != path and "__pycache__" not in file.parts
    }
    assert named == there


def test_profiling_a_table_finds_what_is_wrong_with_it():
    profile = script("profile_table")["profile"]
    frame = pd.DataFrame(
        {
            "id": range(40),
            "mass": [999.0 if n % 10 == 0 else float(n) for n in range(40)],
            "day": [f"2026-01-{n % 28 + 1:02}" for n in range(40)],
            "code": [f"{n:03}" for n in range(40)],
            "place": ["Oslo ", "oslo", "Rome", None] * 10,
            "same": 1,
            "lists": [[n] for n in range(40)],
        }
    )
    before = frame.copy()
    for empty in (pd.DataFrame(), pd.DataFrame({"a": []}), pd.DataFrame({"a": [None]})):
        assert profile(empty).startswith(f"{len(empty)} rows")
    assert "344 rows" in profile(pd.read_csv(PENGUINS))
    told = profile(frame)
    for found in (
        "40 rows x 7 columns",
        "id: every value is different",
        "999.0" if "999.0 in" in told else "999 in 10.0% of the rows may stand for missing",
        "day: dates stored as text",
        "code: numbers stored as text",
        "place: spaces around some values",
        "place: values that differ only in case",
        "same: constant",
        "25.0% missing",
    ):
        assert found in told
    pd.testing.assert_frame_equal(frame, before)


def test_checking_a_notebook_finds_what_usually_goes_wrong(tmp_path):
    def cell(number, source, count, outputs=()):
        return {
            "cell_type": "code",
            "id": f"c{number}",
            "source": source,
            "execution_count": count,
            "outputs": list(outputs),
        }

    book = {
        "cells": [
            cell(0, "import os, sys\nimport numpy as np", 5),
            cell(1, "total = later + 1", 2, [{"output_type": "error"}]),
            cell(2, "later = np.random.normal()\nopen('/home/me/data.csv')", 3),
            cell(3, "api_key = 'abcdefgh'\nprint(sys.path)", None),
            cell(4, "def f(a, *b, c=later, **d):\n    return a, b, c, d, unknown", 6),
            cell(5, "[x for x in range(3)]\n%matplotlib inline", 7),
        ]
    }
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps(book), encoding="utf-8")
    told = script("check_notebook")["check"](str(path))
    for found in (
        *("cell 1 (c1): ran before a cell above it", "cell 1 (c1): shows an error"),
        "cell 1 (c1): uses later before any cell defines it",
        *("cell 2 (c2): absolute or personal path", "cell 2 (c2): random numbers without a seed"),
        *("cell 3 (c3): never run", "cell 3 (c3): looks like a secret"),
        *("cell 4 (c4): uses unknown before", "cell 0 (c0): os is imported and not used"),
    ):
        assert found in told
    assert "sys is imported" not in told
    assert "(c5)" not in told


BY_PROMPT = {"11_an_analysis.ipynb": {"bills"}, "16_many_files.ipynb": {"table", "changed"}}
"""Variables that a prompt of an example makes, which no cell's code shows."""


def test_the_example_notebooks_pass_the_check():
    for path in ROOT.glob("notebooks/*.ipynb"):
        report = script("check_notebook")["check"](str(path))
        for names in re.findall("uses (.*) before any cell defines it", report):
            assert set(names.split(", ")) <= BY_PROMPT.get(path.name, set())


def test_profiling_code_names_the_slow_function():
    told = script("profile_code")["profile_code"](
        "def slow():\n    return sum(i * i for i in range(200_000))\nresult = slow()", {}
    )
    assert "slow" in told
    assert "computing" in told


def test_versions_are_those_that_were_imported(monkeypatch):
    import __main__

    monkeypatch.setattr(__main__, "frame_library", pd, raising=False)
    told = script("versions")["versions"]()
    assert told.startswith("# Python 3.")
    assert f"pandas=={pd.__version__}" in told


def test_the_style_sheet_is_valid():
    matplotlib = pytest.importorskip("matplotlib")
    (path,) = ROOT.glob("skills/*/*/assets/print.mplstyle")
    style = matplotlib.rc_params_from_file(path, use_default_template=False)
    assert style["font.size"] == 8
    assert len(style["axes.prop_cycle"]) == 7
