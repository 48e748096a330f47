"""What counts in a line is found wherever it stands, and however long the line is."""

from __future__ import annotations

import pytest
from hermes_nb.context.ledger import clipped, reason, weigh

from tests.cpu import within


@pytest.mark.parametrize("unit", ["0", "a", "ab1", "a/", "A-", "1.", "~", "x@", "://", "= ", "('"])
def test_time_is_linear(unit):
    line = unit * (80_000 // len(unit))
    for work in (weigh, reason):
        within(2, work, line)
    assert len(within(2, clipped, line)) < 1_000


@pytest.mark.parametrize(
    ("line", "place"),
    [
        *(("see https://a.example", 4), ("ab0http://a", 0), ("nothing here", 0)),
        *(("it said: error", 9), ("then x = 5", 5)),
    ],
)
def test_the_first_thing_that_counts_is_found(line, place):
    assert reason(line) == place


def test_a_long_line_is_cut_around_what_counts():
    assert "port = 8080" in clipped("0" * 50_000 + " port = 8080 " + "1" * 50_000)
