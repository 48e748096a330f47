import json

import pytest
from bench.lexicon import table, words
from hermes_nb.safety.language.lexicon import DISGUISED, LONGEST_STEM, TABLE, Lexicon, lexicon
from hermes_nb.safety.reading.normalise import fold
from hypothesis import given
from hypothesis import strategies as st

SOME = {
    "en": dict.fromkeys(DISGUISED, "ignore"),
    "de": {"IGNORE": "missacht* übergeh*", "SECRET": "schlüssel"},
    "vi": {"SECRET": "mật_khẩu đóng"},
    "zh": {"FORGET": "忘记 忘", "ALL": "忘记所有"},
}


@pytest.fixture
def some():
    return Lexicon(table(SOME))


def test_the_table_is_what_the_lists_say():
    message = "run `make lexicon`"
    assert json.loads(TABLE.read_text(encoding="utf-8")) == table(words()), message


def test_no_stem_is_longer_than_what_is_looked_up():
    stems = json.loads(TABLE.read_text(encoding="utf-8"))["stems"]
    assert max(map(len, stems)) <= LONGEST_STEM


def test_words_are_known_without_the_letters_that_a_keyboard_lacks(some):
    assert some.classes("schlussel") == {"SECRET"}, "folded"
    assert some.classes("schluessel") == {"SECRET"}, "spelled out"
    assert some.classes("uebergehe") == {"IGNORE"}
    assert some.classes("dong") == {"SECRET"}


def test_a_long_word_is_also_what_it_begins_with(some):
    assert list(some.inside("忘记所有")) == [(0, 4, {"FORGET", "ALL"})]


def test_phrases_are_found_by_their_first_word(some):
    assert some.pairs["mat"]["khau"] == {"SECRET"}


@given(st.sampled_from([w for c in words()["de"].values() for w in c.split() if "_" not in w]))
def test_every_listed_word_is_known(word):
    plain = fold(word.rstrip("*")).lower()
    listed = {
        name for name, some in words()["de"].items() if word in some.split() and len(plain) > 2
    }
    assert listed <= lexicon().classes(plain)


def test_every_set_of_classes_is_named():
    known = lexicon().sets()
    for language in words().values():
        for some in language.values():
            for word in some.split():
                assert lexicon().classes(fold(word.rstrip("*")).lower()) in known | {frozenset()}


def test_a_word_ends_where_the_text_does(some):
    assert list(some.inside("忘记所有")) == [(0, 4, {"FORGET", "ALL"})]
    assert list(some.inside("所有忘记")) == [(2, 4, {"FORGET"})]
    assert list(some.inside("忘")) == [(0, 1, {"FORGET"})]
