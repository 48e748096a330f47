"""What counts as a word, in a text and in a query, and as a day."""

from __future__ import annotations

import datetime as dt
import re
import sqlite3
import unicodedata

import pytest
from hermes_nb.memory.search import documents, ranking
from hermes_nb.memory.search.query import AllOf, AnyOf, Phrase, Without, parse
from hermes_nb.storage import words
from hypothesis import assume, example, given
from hypothesis import strategies as st


@given(
    st.from_regex(
        r"[a-z]{3,20}(ing|ed|s|ly|ness|ational|ization|iveness|ement|y|e)?", fullmatch=True
    )
)
@example("eed")
@example("byyness")
@example("byyying")
def test_stems_are_porters(word):
    if words._irregular().get(word) is None and "yyyyy" not in word:
        assert words.stem(word) == porter(word)


_PORTER = sqlite3.connect(":memory:")
_PORTER.execute("CREATE VIRTUAL TABLE f USING fts5(t, tokenize='porter ascii')")
_PORTER.execute("CREATE VIRTUAL TABLE v USING fts5vocab(f, 'row')")


def porter(word):
    _PORTER.execute("DELETE FROM f")
    _PORTER.execute("INSERT INTO f VALUES (?)", (word,))
    return _PORTER.execute("SELECT term FROM v").fetchone()[0]


@pytest.mark.parametrize(
    "forms",
    [
        *("go went gone going goes", "buy bought buying", "child children kids", "leaf leaves"),
        "run ran",
    ],
)
def test_irregular_forms_have_one_stem(forms):
    assert len({words.stem(form) for form in forms.split()}) == 1
    listed = [f for line in words._listed()["irregular"].split(";") for f in line.split()[1:]]
    assert len(listed) == len(set(listed))


@given(st.text())
@example("\u2474 (\u249c)")
def test_terms_fit_the_index(text):
    for term in words.indexed(text).split():
        assert term
        assert not any(c.isspace() or (c.isascii() and not c.isalnum()) for c in term)
        term.encode("utf-8")


@given(st.text())
def test_case_does_not_matter(text):
    assert words.terms(text.upper()) == words.terms(text.upper().lower().upper())
    assert words.fold(text) == words.fold(unicodedata.normalize("NFD", text))


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_both_ways_to_cut_a_text_agree(text):
    # But for words with two apostrophes and more, whose terms stand in users' indexes by now.
    assume(not any(run.strip("'").count("'") > 1 for run in re.findall("[a-zA-Z0-9']+", text)))
    foreign = words.terms(f"{text} \u00e9")
    assert foreign == [*words.terms(text), "e"]


@pytest.mark.parametrize(
    ("text", "speaker", "said"),
    [
        ("Ana: hello", "Ana", "hello"),
        ("Ana Lee: hello: you", "Ana Lee", "hello: you"),
        ("[1:56 pm on 8 May, 2023] Ana: hello", "Ana", "hello"),
        ("(8 May 2023) Ana: hello", "Ana", "hello"),
        ("2023-05-08 13:56 - Ana: hello", "Ana", "hello"),
        ('Ana said, "hello"', "Ana", '"hello"'),
        ("12:30", "", "12:30"),
        ("[see above] hello", "", "[see above] hello"),
        ("def f(x): return x", "", "def f(x): return x"),
    ],
)
def test_a_speaker_is_told_from_what_is_said(text, speaker, said):
    assert documents.speaker(text) == speaker
    assert documents.without_speaker(text) == said


def test_compounds_and_the_end_of_a_long_text_are_found(monkeypatch):
    found = words.indexed("DataFrame.read_csv2 raised HTTPError in x86_64").split()
    assert {"datafram", "datum", "frame", "read", "csv2", "csv", "httperror", "http"} <= set(found)
    text = "lorem ipsum " * 20_000 + "the zebra at last"
    assert {"zebra", "last"} <= set(words.indexed(text).split())
    before = words.indexed(text)
    monkeypatch.setattr(words, "_REMEMBERED", 2)
    words._FORMS.clear()
    assert words.indexed(text) == before
    assert len(words._FORMS) <= 2


@pytest.mark.parametrize(
    ("query", "kept"),
    [
        ("What did the dog do?", ["dog"]),
        ("Was hat der Hund gestern gefressen?", ["hund", "gestern", "gefressen"]),
        ("¿Qué comió el perro?", ["comio", "perro"]),
        ("что делает собака", ["делает", "собака"]),
        ("the", ["the"]),
        ("war and peace", ["war", "peac"]),
    ],
)
def test_stop_words_are_those_of_the_query_s_language(query, kept):
    assert [unit.terms[0] for unit in parse(query).units] == kept


@given(st.sampled_from(sorted(ranking._table())))
def test_alternatives_are_mutual(term):
    for other in ranking.alternatives(term):
        assert term in ranking.alternatives(other)
        assert other != term


def phrase(text, *, prefix=False):
    return Phrase(tuple(words.terms(text)), prefix=prefix)


@pytest.mark.parametrize(
    ("text", "must"),
    [
        ("a b", None),
        ("a and b or c not d", None),
        ("a AND b", AllOf((phrase("a"), phrase("b")))),
        ("a b AND c", AllOf((phrase("a"), phrase("b"), phrase("c")))),
        ("a OR b AND c", AnyOf((phrase("a"), AllOf((phrase("b"), phrase("c")))))),
        ("(a OR b) AND c", AllOf((AnyOf((phrase("a"), phrase("b"))), phrase("c")))),
        ("a AND NOT b", Without(phrase("a"), phrase("b"))),
        ("NOT b", Without(None, phrase("b"))),
        ("a OR", phrase("a")),
        ("AND a )", phrase("a")),
        ("(((a) OR b", AnyOf((phrase("a"), phrase("b")))),
        ('"a b"', phrase("a b")),
        ('"a b" "c', phrase("a b")),
        ("a AND ab*", AllOf((phrase("a"), phrase("ab", prefix=True)))),
        ("a AND ?", phrase("a")),
        (
            "(" * 500 + "a OR b" + ")" * 500 + " AND c",
            AllOf((AnyOf((phrase("a"), phrase("b"))), phrase("c"))),
        ),
    ],
)
def test_queries_mean_what_they_say(text, must):
    assert parse(text).must == must


@given(st.floats(min_value=-1e9, max_value=4e9).map(lambda at: round(at, 3)))
def test_days_are_local_ones(at):
    expected = dt.datetime.fromtimestamp(at, tz=dt.UTC).astimezone().date()
    assert documents._day(at) == f"{expected:%Y%m%d}"
    assert not any(map(documents._day, (None, float("nan"), float("inf"), 1e300, -1e300, 2.6e11)))


SOME = ["paint", "Painted", "re_paint", "repaint", "\u0130stanbul", "हिन्दी"]
PLACED = st.lists(st.sampled_from(SOME) | st.text(max_size=6), max_size=12).map(" ".join)


@given(PLACED)
def test_words_are_found_where_they_stand_and_those_that_begin_alike(text):
    every, found = list(words.places(text)), list(words.places(text, beginning=["paint"]))
    for at, piece in every + found:
        assert text.replace("_", " ")[at : at + len(piece)] == piece
    assert found == sorted(found)
    assert all(piece.lower().startswith("pai") for _, piece in found)
    whole = {at for at, piece in every if piece.lower().startswith("paint")}
    assert whole <= {at for at, _ in found}
