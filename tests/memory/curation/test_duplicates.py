from __future__ import annotations

import json
from pathlib import Path

import pytest
from hermes_nb.memory.duplicates import duplicate_of, same_fact
from hypothesis import given
from hypothesis import strategies as st

FACTS = json.loads(Path(__file__).with_name("facts.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("kind", FACTS)
def test_other_words_are_the_same_fact_and_other_numbers_names_and_negations_are_not(kind):
    for one, other in FACTS[kind]:
        assert same_fact(one, other) == same_fact(other, one) == (kind == "same"), (one, other)


@given(st.text(), st.text())
def test_it_is_symmetric_and_reflexive(one, other):
    assert same_fact(one, one)
    assert same_fact(one, other) == same_fact(other, one)
    assert duplicate_of(one, ["uses vim", one, one]) == one


@given(st.integers(0, 10**6), st.integers(0, 10**6))
def test_two_numbers_are_two_facts(one, other):
    first, second = f"The nightly job takes {one} seconds", f"The nightly job takes {other} seconds"
    assert same_fact(first, second) == (one == other)
