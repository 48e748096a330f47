"""Steps find what one regular expression would, in one pass over the text for each of them."""

from __future__ import annotations

import re

from hermes_nb.safety.reading.steps import MOST, Steps
from hypothesis import given
from hypothesis import strategies as st

PIECES = st.lists(st.sampled_from(["get", "got", " ", "x", ";", "\n", "| sh", "-d", "$key"]))


@given(PIECES.map("".join), st.integers(0, 12), st.sampled_from(["", ";", ";\n"]))
def test_two_steps_are_a_pattern_with_a_gap(text, within, barring):
    steps = Steps(patterns=("g[eo]t", r"\| sh"), within=(within,), barring=(barring,))
    gap = f"[^{barring}]" if barring else "(?s:.)"
    pattern = re.compile(rf"g[eo]t{gap}{{0,{within}}}?\| sh")
    assert [*steps.places(text)] == [match.span() for match in pattern.finditer(text)]


@given(PIECES.map("".join), st.integers(0, 12), st.integers(0, 12))
def test_three_steps_are_found_where_a_pattern_finds_them(text, one, two):
    steps = Steps(patterns=("get", "-d", r"\$key"), within=(one, two), barring=("\n", ";\n"))
    pattern = re.compile(rf"get[^\n]{{0,{one}}}-d[^;\n]{{0,{two}}}\$key")
    found = [*steps.places(text)]
    assert bool(found) is (pattern.search(text) is not None)
    for start, end in found:
        assert pattern.fullmatch(text, start, end)


def test_the_rest_of_a_flood_is_one_place():
    steps = Steps(patterns=("get", r"\| sh"), within=(9,), barring=("\n",))
    text = "get x | sh\n" * (2 * MOST)
    places = [*steps.places(text)]
    assert len(places) == MOST
    assert places[0] == (0, 10)
    assert places[-1] == (11 * (MOST - 1), len(text))
