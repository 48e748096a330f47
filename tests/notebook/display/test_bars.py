"""Bars add up, whatever they show."""

from __future__ import annotations

from itertools import pairwise

from hermes_nb.notebook.display.transcript import EMPTY, MARK, SHADES, gauge, stacked, widths
from hypothesis import given
from hypothesis import strategies as st

SIZES = st.lists(st.integers(0, 10**7), max_size=40)


@given(SIZES, st.integers(1, 80))
def test_parts_share_the_whole_width(sizes, width):
    found = widths(sizes, width)
    assert len(found) == len(sizes)
    assert sum(found) == (width if any(sizes) else 0)
    assert all(each >= 0 for each in found)
    assert all(not each for each, size in zip(found, sizes, strict=True) if not size)


@given(SIZES.filter(any))
def test_what_is_there_is_seen_and_more_is_never_shorter(sizes):
    found = widths(sizes, 60)
    assert all(each for each, size in zip(found, sizes, strict=True) if size)
    order = sorted(range(len(sizes)), key=lambda i: sizes[i])
    for less, more in pairwise(order):
        assert found[less] <= found[more] + 1
    assert len(stacked(sizes)) == 60


@given(st.floats(0, 1e9), st.floats(1, 1e9), st.floats(0, 1e9))
def test_a_gauge_has_its_width_and_at_most_one_mark(used, whole, mark):
    bar = gauge(used, whole, mark, 30)
    assert len(bar) == 30
    assert set(bar) <= {SHADES[0], EMPTY, MARK}
    assert bar.count(MARK) == (0 < mark <= whole)


def test_without_a_whole_there_is_no_gauge():
    assert gauge(5, 0) == ""
