"""A text's chunks are what stands between its spaces, and its vocabulary has what it has."""

from __future__ import annotations

import pytest
from hermes_nb.safety.reading.vocabulary import EMPTY, Vocabulary, vocabulary
from hypothesis import given
from hypothesis import strategies as st

TEXTS = st.lists(
    st.sampled_from(["a", "b.c", " ", "  ", "\n", "\t", "\n\n", "之前", "ไทย", "é", "x" * 301])
).map("".join)


@given(TEXTS)
def test_each_chunk_stands_where_it_is_said_to(text):
    found = Vocabulary(text)
    end = 0
    for chunk, at in zip(found.chunks, found.places, strict=True):
        assert text.startswith(chunk, at)
        assert text[end:at].isspace() or end == at
        end = at + len(chunk)
    assert "".join(found.chunks).replace(EMPTY, "") == "".join(text.split())
    assert list(found.distinct) == list(dict.fromkeys(found.chunks))


@given(TEXTS, st.text("ab.c x之", min_size=1, max_size=4))
def test_a_vocabulary_has_what_the_text_has(text, part):
    assert Vocabulary(text).has(part) is (part in text)


@given(TEXTS)
def test_no_chunk_is_long_or_of_two_scripts(text):
    for chunk in Vocabulary(text).chunks:
        assert len(chunk) <= 300
        assert len({sign > "\u0e00" for sign in chunk}) == 1


@pytest.mark.parametrize("text", ["one two\n\nthree", "one two\n \t\n\n three"])
def test_empty_lines_are_a_chunk(text):
    assert Vocabulary(text).chunks == ["one", "two", EMPTY, "three"]
    assert vocabulary(text) is vocabulary(text)
