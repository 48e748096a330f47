"""What characters a text has is asked once and answered as if it were looked through."""

from __future__ import annotations

from hermes_nb.safety.reading.characters import characters, counted, lowered, ranges
from hypothesis import given
from hypothesis import strategies as st


@given(st.text(st.sampled_from("aZ\u00e9\u0130\u4e00\ud55c\u200b")))
def test_a_text_is_what_it_is_made_of(text):
    assert characters(text) == set(text)
    assert lowered(text) == text.lower()
    letters, ideographs = counted(characters(text))
    assert letters == len(set(text) & set("\u00e9\u0130\u200b"))
    assert ideographs == len(set(text) & set("\u4e00\ud55c"))


def test_ranges_have_both_their_ends():
    assert ranges(("a", "c"), ("x", "x")) == set("abcx")
