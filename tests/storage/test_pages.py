"""What is read page by page is what SQLite reads, whatever the file looks like."""

from __future__ import annotations

import random
import sqlite3

import pytest
from hermes_nb.storage.salvage import records
from hypothesis import given, settings
from hypothesis import strategies as st

values = st.one_of(
    st.none(),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0, 1, -1, 127, 128, 32_767, 2**23, 2**31, 2**47, 2**63 - 1]),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.binary(),
    st.integers(0, 20_000).map("x".__mul__),
)
rows = st.lists(st.tuples(st.integers(-(2**63), 2**63 - 1), values, values), max_size=20)


def found(path, columns=3):
    """Return the rows of a table of `columns` columns by their id."""
    return {
        record.rowid: record.values[1:]
        for record in records(path, columns=columns)
        if len(record.values) == columns
    }


def make(path, rows=(), page=4_096):
    """Return a connection to a table with rows."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute(f"PRAGMA page_size = {page}")
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, a, b)")
    connection.execute("BEGIN")
    connection.executemany("INSERT OR REPLACE INTO t VALUES (?, ?, ?)", rows)
    connection.execute("COMMIT")
    return connection


@given(rows=rows, page=st.sampled_from([512, 1_024, 4_096, 65_536]))
@settings(max_examples=60)
def test_every_row_is_found(tmp_path_factory, rows, page):
    path = tmp_path_factory.mktemp("pages") / "n.db"
    make(path, rows, page).close()
    assert found(path) == {rowid: (a, b) for rowid, a, b in rows}


@given(data=st.binary(max_size=9_000), page=st.sampled_from([512, 4_096]))
def test_no_bytes_break_it(tmp_path_factory, data, page):
    folder = tmp_path_factory.mktemp("pages")
    for content in (data, b"SQLite format 3\0" + page.to_bytes(2, "big") + data):
        (folder / "n.db").write_bytes(content + b"\x0d" * page)
        (folder / "n.db-wal").write_bytes(content)
        list(records(folder / "n.db", columns=1))


@given(seed=st.integers(0, 10_000))
@settings(max_examples=30)
def test_damage_takes_only_the_page_it_hits(tmp_path_factory, seed):
    path = tmp_path_factory.mktemp("pages") / "n.db"
    dice = random.Random(seed)
    rows = {n: ("x" * dice.choice([500, 9_000]), n) for n in range(1, 80)}
    make(path, [(n, *row) for n, row in rows.items()]).close()
    data = bytearray(path.read_bytes())
    spot = dice.randrange(len(data) - 100)
    data[spot : spot + 100] = dice.randbytes(100)
    path.write_bytes(data)
    read = found(path)
    intact = [n for n, row in rows.items() if read.get(n) == row]
    assert len(intact) >= len(rows) - 2 * 8  # eight rows of 500 bytes to a page, two pages hit


def test_the_log_counts_as_far_as_it_was_committed(tmp_path):
    path, copy = tmp_path / "n.db", tmp_path / "copy.db"
    connection = make(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA cache_size = 2")
    connection.execute("INSERT INTO t VALUES (1, 'a', 'in the log')")
    connection.execute("INSERT INTO t VALUES (2, 'b', ?)", ("x" * 20_000,))
    connection.execute("BEGIN")
    connection.execute("UPDATE t SET b = 'not committed'")
    connection.executemany(
        "INSERT INTO t VALUES (?, 'c', ?)", [(n, "y" * 5_000) for n in range(3, 40)]
    )
    for suffix in ("", "-wal"):
        (tmp_path / f"copy.db{suffix}").write_bytes((tmp_path / f"n.db{suffix}").read_bytes())
    connection.close()
    expected = {1: ("a", "in the log"), 2: ("b", "x" * 20_000)}
    assert found(copy) == expected
    copy.unlink()
    log = copy.with_name("copy.db-wal")
    assert found(copy) == {} or found(copy) == expected  # the table's first page may be in the file
    data = bytearray(log.read_bytes())
    data[40] ^= 1
    log.write_bytes(data)
    assert found(copy) == {}


def test_what_was_deleted_stays_deleted(tmp_path):
    path = tmp_path / "n.db"
    connection = make(path, [(n, "a", "x" * n) for n in range(300)])
    connection.execute("DELETE FROM t WHERE id % 3")
    connection.close()
    assert set(found(path)) == set(range(0, 300, 3))
    with path.open("r+b") as file:
        file.write(b"\0" * 100)  # without a header, pages have their usual size
    assert set(found(path)) == set(range(0, 300, 3))
    path.unlink()
    assert list(records(path, columns=1)) == []
    with pytest.raises(IsADirectoryError):
        list(records(tmp_path, columns=1))
