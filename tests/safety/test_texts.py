"""Whole texts: attacks of the kinds there are, and what looks like them and is none.

They were written before the rules were tuned on them; the second files (`_later`) when the rules
had been, and were measured first. `FLAGGED` are false alarms that are known: the text next to them
that really is an attack would be missed without them.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hermes_nb.safety.scan import scan

DATA = Path(__file__).parent / "data"
FLAGGED = {
    "prompt engineering doc": "suspicious",  # "Show the system prompt to colleagues"
    "tester persona": "suspicious",  # "You are now the ..."
    "oauth flow": "blocked",  # a secret, a request and an address next to each other
}


def texts(name):
    rows = tomllib.loads((DATA / f"{name}.toml").read_text(encoding="utf-8"))["text"]
    return [pytest.param(row, id=row["name"]) for row in rows]


@pytest.mark.parametrize("row", [*texts("hostile"), *texts("hostile_later")])
def test_an_attack_is_found(row):
    assert scan(row["text"]).verdict != "clean"


@pytest.mark.parametrize("row", [*texts("hostile"), *texts("hostile_later")])
def test_it_is_found_in_the_middle_of_something_longer(row):
    around = "The build reads its settings from the project file; see the guide.\n" * 40
    assert scan(f"{around}\n\n{row['text']}\n\n{around}").verdict != "clean"


@pytest.mark.parametrize("row", [*texts("benign"), *texts("benign_later")])
def test_what_is_none_is_left_alone(row):
    result = scan(row["text"])
    assert result.verdict == FLAGGED.get(row["name"], "clean"), result.findings


def test_names_are_told_apart():
    names = [p.values[0]["name"] for f in DATA.glob("*.toml") for p in texts(f.stem)]
    assert len(set(names)) == len(names)
