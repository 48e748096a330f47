"""How commands put things: tables where no tables are drawn, bars that add up."""

from __future__ import annotations

from itertools import pairwise

from hermes_nb.notebook.commands.table import commands_table
from hermes_nb.notebook.display.bars import EMPTY, MARK, SHADES, gauge, stacked, widths
from hermes_nb.notebook.display.tables import aligned, facts, grid, plain_text, printed
from hypothesis import given
from hypothesis import strategies as st


def test_a_table_of_facts_becomes_two_columns():
    shown = plain_text(facts([("model", "qwen3"), ("requests a turn", "15")]))
    assert shown == "model            qwen3\nrequests a turn  15"
    assert plain_text(facts([("model", "a|b & c"), ("x", "y")])) == "model  a|b & c\nx      y"


def test_of_facts_only_commands_are_code():
    shown = facts([("key", "none: `%hermes key` asks, `<b>` and `%hermes | x` do not")])
    assert "`%hermes key`" in shown and shown.count("`") == 2


def test_a_table_keeps_its_header_and_what_stands_around_it():
    table = grid(["command", "what it does"], [["`%hermes last`", "the last turn"], ["`%x`", "y"]])
    assert plain_text(f"Before.\n\n{table}\n\nAfter.") == (
        "Before.\n\n"
        "command       what it does\n"
        "%hermes last  the last turn\n"
        "%x            y\n\n"
        "After."
    )


@given(st.lists(st.text(st.characters(blacklist_characters="|\n\r"), max_size=8), max_size=8))
def test_what_is_no_table_stays(lines):
    text = "\n".join(lines)
    assert aligned(text) == text


@given(st.text(alphabet="|-: a\n", max_size=80), st.integers(0, 30))
def test_no_word_is_lost(text, width):
    assert aligned(text, width).count("a") == text.count("a")


def test_a_table_that_is_read_as_text_fits_a_page():
    told = printed(commands_table(), 100)
    assert max(map(len, told.splitlines())) == 100
    assert sorted(told.split()) == sorted(printed(commands_table()).split())


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
    assert gauge(5, 0) == ""
