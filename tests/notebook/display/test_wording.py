"""Tables of commands where no tables are drawn."""

from __future__ import annotations

from hermes_nb.notebook.display.transcript import aligned, facts, grid, plain_text
from hypothesis import given
from hypothesis import strategies as st


def test_a_table_of_facts_becomes_two_columns():
    shown = plain_text(facts([("model", "qwen3"), ("requests a turn", "15")]))
    assert shown == "model            qwen3\nrequests a turn  15"


def test_a_bar_in_a_cell_is_no_border():
    assert plain_text(facts([("model", "a|b & c"), ("x", "y")])) == "model  a|b & c\nx      y"


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


@given(st.text(alphabet="|-: a\n", max_size=80))
def test_no_word_is_lost(text):
    assert aligned(text).count("a") == text.count("a")
