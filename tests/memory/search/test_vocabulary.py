"""The list of words holds what was committed, and is looked at whole, by every process."""

from __future__ import annotations

import sqlite3

import pytest
from hermes_nb.core.messages import Message
from hermes_nb.memory import schema
from hermes_nb.memory.search import index
from hermes_nb.memory.search.documents import WRITTEN, Vocabulary, grams, known, word_list
from hermes_nb.memory.search.postings import Filter, Postings
from hermes_nb.memory.sessions import SqliteStore
from hypothesis import given
from hypothesis import strategies as st

WORDS = st.text("abcd", min_size=4, max_size=9)
FORMS = st.sets(st.sampled_from(["walrus", "heron", "stork", "ab", "x1", "\u00a7w1"]), max_size=4)


@pytest.fixture(autouse=True)
def forgetful():
    known.cache_clear()


def connected(*batches):
    """Return an index that has words, added some at a time, and a mark."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.SCHEMA.migrate(connection)
    index.rebuild(connection)
    for words in ([WRITTEN + "20261121"], *batches):
        connection.executemany(
            "INSERT OR IGNORE INTO search_words (word) VALUES (?)", [(word,) for word in words]
        )
        word_list(connection, index.name(connection))
    return connection


def listed(connection):
    found = {word for (word,) in connection.execute("SELECT word FROM search_words")}
    return found - {WRITTEN + "20261121"}


@given(st.lists(st.tuples(st.lists(FORMS, max_size=3), st.booleans()), max_size=6))
def test_what_was_rolled_back_is_added_again(transactions):
    known.cache_clear()
    connection = connected()
    expected = set()
    for batches, commits in transactions:
        connection.execute("BEGIN")
        adding = Vocabulary(connection, "n")
        for forms in batches:
            adding.add(forms)
        connection.execute("COMMIT" if commits else "ROLLBACK")
        if commits:
            expected |= {f for forms in batches for f in forms if len(f) > 3 or f[0] == "\u00a7"}
            expected -= {"x1"}
        assert listed(connection) == expected


@given(st.lists(st.lists(WORDS, max_size=8), max_size=3), st.text("abcd", min_size=1, max_size=5))
def test_a_part_finds_the_words_that_contain_it(batches, part):
    connection = connected(*batches)
    known = word_list(connection, index.name(connection))
    expected = {word for words in batches for word in words if part in word}
    assert sorted(known.containing(part, most=100)) == sorted(expected)
    assert len(known.containing(part, most=2)) == min(2, len(expected))


@given(st.lists(WORDS, max_size=20), WORDS, st.integers(1, 5))
def test_a_misspelt_word_finds_those_with_most_of_its_trigrams(words, word, most):
    connection = connected(words)
    found = word_list(connection, index.name(connection)).alike(word, most=most)
    shared = {each: len(grams(each) & grams(word)) for each in words if grams(each) & grams(word)}
    best = sorted(shared.items(), key=lambda one: (-one[1], abs(len(one[0]) - len(word)), one[0]))
    assert found == best[:most]


def test_words_of_another_process_are_read_too(tmp_path):
    path = tmp_path / "n.db"
    mine, other = SqliteStore(path), SqliteStore(path)
    session = mine.start()
    mine.append(session, Message.user("the hippopotamus"))
    assert [hit.position for hit in mine.search("potam")] == [0]
    other.append(session, Message.user("a bathysphere"))
    assert other.search("bathysphere")
    assert [hit.position for hit in mine.search("thysph")] == [1]
    mine.close()
    other.close()


def test_a_file_put_back_from_a_copy_has_the_words_of_the_copy():
    connection = connected(["walrus"])
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO search_words (word) VALUES (?)", [("heron",), ("stork",)])
    Vocabulary(connection, "n").add({"keyerror\x1fkei error\x1f", "two words"})
    assert {"keyerror", "error", "words"} <= listed(connection)
    name = index.name(connection)
    assert word_list(connection, name).containing("2026", most=9) == []
    assert word_list(connection, name).alike("20261121", most=9) == []
    assert word_list(connection, name).containing("eron", most=9) == ["heron"]
    connection.execute("ROLLBACK")
    assert word_list(connection, name).containing("eron", most=9) == []
    connection.execute("INSERT INTO search_words (word) VALUES ('osprey')")
    assert word_list(connection, name).containing("spre", most=9) == ["osprey"]
    index.rebuild(connection)
    postings = Postings(connection, Filter(), name=index.name(connection))
    assert postings.words_like("spre") == []
