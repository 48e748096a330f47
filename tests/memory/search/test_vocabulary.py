"""The list of words holds what was committed, whatever this process believes to know."""

from __future__ import annotations

import sqlite3

import pytest
from hermes_nb.memory.search import index, vocabulary
from hermes_nb.memory.store import migrations
from hypothesis import given
from hypothesis import strategies as st


@pytest.fixture(autouse=True)
def forgetful():
    vocabulary._known.cache_clear()


def connected():
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrations.migrate(connection)
    index.rebuild(connection)
    return connection


def listed(connection):
    return {word for (word,) in connection.execute("SELECT word FROM search_words")}


FORMS = st.sets(st.sampled_from(["walrus", "heron", "stork", "ab", "x1", "\u00a7w1"]), max_size=4)


@given(st.lists(st.tuples(st.lists(FORMS, max_size=3), st.booleans()), max_size=6))
def test_what_was_rolled_back_is_added_again(transactions):
    vocabulary._known.cache_clear()
    connection = connected()
    expected = set()
    for batches, commits in transactions:
        connection.execute("BEGIN")
        adding = vocabulary.Vocabulary(connection, "n")
        for forms in batches:
            adding.add(forms)
        connection.execute("COMMIT" if commits else "ROLLBACK")
        if commits:
            expected |= {f for forms in batches for f in forms if len(f) > 3 or f[0] == "\u00a7"}
            expected -= {"x1"}
        assert listed(connection) == expected


def test_compounds_are_taken_apart():
    connection = connected()
    vocabulary.Vocabulary(connection, "n").add({"keyerror\x1fkei error\x1f", "two words"})
    assert listed(connection) == {"keyerror", "error", "words"}
