from __future__ import annotations

import time

import pytest
from hermes_nb.memory.curation.duplicates import duplicate_of, same_fact
from hypothesis import given
from hypothesis import strategies as st

SAME = [
    ("User prefers dark mode", "The user prefers dark mode."),
    ("User likes dark mode", "User prefers dark mode"),
    ("The project uses Python 3.11 and pytest", "Project uses Python 3.11 with pytest"),
    ("Project uses pytest for tests", "The project uses pytest for testing"),
    ("Do not use sudo with docker", "Don't use sudo for Docker"),
    ("Uses numpy, pandas, polars and scipy", "uses pandas, numpy, polars, scipy"),
    ("Prefers answers with code examples", "Prefers answers that include code examples"),
    ("- likes dark-mode UIs", "Likes dark mode UI"),
    ("tabs  over\n spaces", "Tabs over spaces."),
    ("Tests run in CI", "`Tests run in CI`"),
]
DIFFERENT = [
    ("The server listens on port 8080", "The server listens on port 9090"),
    ("python 3.11 is installed", "python 3.12 is installed"),
    ("The offset is 5 by default", "The offset is -5 by default"),
    ("Alice likes tea in the morning", "Bob likes tea in the morning"),
    ("Use sudo for docker", "Do not use sudo for docker"),
    ("Codes with tests", "Codes without tests"),
    ("Feature X is enabled in prod", "Feature X is disabled in prod"),
    ("The production database is in eu-west", "The staging database is in eu-west"),
    ("User prefers tabs over spaces", "User prefers spaces over tabs"),
    ("Frontend calls backend", "Backend calls frontend"),
    ("Migrate data from A to B", "Migrate data from B to A"),
    ("Project in C", "Project in C++"),
    ("Limit: a < b", "Limit: a > b"),
    ("API_KEY is set in prod", "api_key is set in prod"),
    ("All tests must pass", "Only tests must pass"),
    ("The server was on AWS", "The server is on AWS"),
    ("User wants a new black dog", "User has a new black dog"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_the_same_fact_in_other_words(one, other):
    assert same_fact(one, other) and same_fact(other, one)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_facts_that_differ_in_a_number_a_name_or_a_negation(one, other):
    assert not same_fact(one, other) and not same_fact(other, one)


@given(st.text(), st.text())
def test_it_is_symmetric_and_reflexive(one, other):
    assert same_fact(one, one)
    assert same_fact(one, other) == same_fact(other, one)


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_two_numbers_are_two_facts(one, other):
    first, second = f"The nightly job takes {one} seconds", f"The nightly job takes {other} seconds"
    assert same_fact(first, second) == (one == other)


def test_the_first_twin_is_named():
    assert duplicate_of("likes tea", ["uses vim", "Likes tea.", "likes tea"]) == "Likes tea."
    assert duplicate_of("likes coffee", ["likes tea"]) is None


@pytest.mark.parametrize("unit", ["\n", " ", "- ", "# ", "a-", "\n ", "'", "a'"])
def test_an_entry_of_any_length_is_compared_in_time(unit):
    entry = unit * (100_000 // len(unit))
    started = time.process_time()
    same_fact(entry, f"{entry}b")
    assert time.process_time() - started < 4
