"""Text shows what it is, and what scripts and emoji need stays."""

from __future__ import annotations

import pytest
from hermes_nb.core.escapes import readable, visible
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        *(("\x1b[31mred", "\\x1b[31mred"), ("pay \u202eevil\u202c", "pay \\u202eevil\\u202c")),
        *(("a\u200bb \U000e0041", "a\\u200bb \\U000e0041"), ("a\u200db", "a\\u200db")),
        *(("👩‍💻 می‌خواهم 🏳️‍🌈", "👩‍💻 می‌خواهم 🏳️‍🌈"), ("a\r\nb\rc\td", "a\nb\nc\td")),
        ("שלום\u200f!", "שלום\u200f!"),
    ],
)
def test_prose_hides_and_reorders_nothing(text, shown):
    assert readable(text) == shown


@given(st.text())
def test_nothing_hides_in_any_text(text):
    assert visible(visible(text)) == visible(text)
    hidden = {"\x1b", "\u202e", "\u2066", "\u200b", "\r", "\x00"}
    assert not hidden & set(readable(text))
    assert not hidden & set(visible(text))


@given(st.text(alphabet=st.characters(codec="ascii", categories=("L", "N", "P", "S", "Zs"))))
def test_plain_text_stays(text):
    assert readable(text) == visible(text) == text


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("plain ASCII", "plain ASCII"),
        ("größer 漢字 🚀", "größer 漢字 🚀"),
        ("a\tb\nc\rd\0", "a\\tb\\nc\\rd\\x00"),
        ("\x1b[31m\x9b", "\\x1b[31m\\x9b"),
        ("\u202e\u200b\u2028\ufeff", "\\u202e\\u200b\\u2028\\ufeff"),
        ("\U000e0041\ud800", "\\U000e0041\\ud800"),
        ("\U000e0000\U000e0fff", "\\U000e0000\\U000e0fff"),
    ],
)
def test_visible(text, seen):
    assert visible(text) == seen
    assert visible("a\n\tb\r", lines=True) == "a\n\tb\\r"
