"""Sentences are found by the classes that they have words of, whatever their order."""

from __future__ import annotations

from hermes_nb.safety.language.alphabet import PARAGRAPH, SENTENCE, having, masks
from hermes_nb.safety.language.rules import mask
from hermes_nb.safety.language.sentences import Sentences
from hypothesis import given
from hypothesis import strategies as st

TAGS = [*sorted(having(mask("SENDS|READ|URL")))[:12], SENTENCE, PARAGRAPH, "."]
NEEDS = st.lists(st.sampled_from([mask("SENDS"), mask("READ|URL"), mask("URL")]), min_size=1)


@given(st.lists(st.sampled_from(TAGS), max_size=150).map("".join), NEEDS)
def test_a_sentence_has_what_one_of_its_tags_stands_for(row, needs):
    tags = PARAGRAPH + row
    sentences = Sentences(tags, frozenset(masks()))
    found = sentences.having(needs)
    for first, last, number in sentences.places:
        piece = tags[first - 1 : last]
        assert sentences.pieces[number] == piece
        present = [masks().get(tag, 0) for tag in piece]
        assert (number in found) is all(any(m & need for m in present) for need in needs)


@given(st.integers(1, 200))
def test_long_sentences_are_read_in_pieces_that_overlap(size):
    sentences = Sentences(PARAGRAPH + "." * size, frozenset())
    read = {at for first, last, _ in sentences.places for at in range(first, last)}
    assert read == set(range(1, size + 1))
    assert all(last - first <= 48 for first, last, _ in sentences.places)
