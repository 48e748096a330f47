"""The shipped memory provider: a directory of Markdown notes, searched for every message.

The notes are the user's files and are only read: no links followed, nothing hidden, everything
bounded. An index beside the curated memory is brought up to date by the files' times and sizes; it
is a cache, and made anew when it is damaged.
"""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from hermes_nb.core.atomic import make_private
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.messages import Message
from hermes_nb.core.text import one_line
from hermes_nb.memory.curation.notefile import Unusable, read_regular
from hermes_nb.memory.search.excerpts import excerpt, matcher, query_words
from hermes_nb.memory.search.words import terms

SUFFIXES = (".md", ".markdown", ".txt")
MOST_FILES = 2_000
MOST_BYTES = 512_000
"""Bytes read of one note."""
DEEPEST = 8
PASSAGE = 800
"""Characters of a passage: a few paragraphs, so that three of them say enough."""
RETURNED = 3
BUSY_SECONDS = 1.0

_HEADING = re.compile(r"#{1,6}\s+(.+)")
_SCHEMA = """
CREATE TABLE files (path TEXT PRIMARY KEY, mtime INTEGER NOT NULL, size INTEGER NOT NULL);
CREATE TABLE passages (id INTEGER PRIMARY KEY, path TEXT NOT NULL, heading TEXT NOT NULL,
                       body TEXT NOT NULL);
CREATE INDEX passages_of_a_file ON passages (path);
CREATE VIRTUAL TABLE words USING fts5(terms);
PRAGMA user_version = 1;
"""


class NotesProvider:
    """Recalls passages from the Markdown files below `directory`; `index` is a file of its own."""

    def __init__(self, directory: Path, index: Path) -> None:
        self.directory = directory
        self.index = index

    @classmethod
    def from_settings(cls, home: Path, settings: Mapping[str, Any]) -> NotesProvider:
        """Return the provider for `memory.notes.directory`, by default `notes` in the home.

        Raises ConfigError when the directory does not exist.
        """
        chosen = settings.get("directory") or home / "notes"
        directory = Path(str(chosen)).expanduser()
        if not directory.is_absolute():
            directory = home / directory
        if not directory.is_dir():
            message = f"there is no directory of notes at {str(directory)!r}; make it, or set "
            raise ConfigError(message + "memory.notes.directory")
        return cls(directory, home / "memories" / ".hermes_nb" / "notes.db")

    @property
    def name(self) -> str:
        """The name it is chosen by."""
        return "notes"

    def static_block(self) -> str:
        """Return one line on what there is."""
        count = sum(1 for _ in self._found())
        if not count:
            return ""
        return (
            f"The user keeps {count:,} notes in {str(self.directory)!r}; what fits a message is "
            "quoted with it, by file name."
        )

    def prefetch(self, query: str) -> str:
        """Return the passages that fit best, each under its file's name; "" for none."""
        found = list(dict.fromkeys(term for word in query_words(query) for term in terms(word)))
        if not found or not self.directory.is_dir():
            return ""
        expression = " OR ".join('"' + term.replace('"', "") + '"' for term in found)
        rows = self._search(expression)
        pattern = matcher(query)
        return "\n\n".join(
            f"{path}{f' ({heading})' if heading else ''}:\n{excerpt(body, pattern, PASSAGE)}"
            for path, heading, body in rows
        )

    def on_memory_write(self, target: str, action: str, before: str, after: str) -> None:
        """Do nothing: the notes are the user's."""

    def before_compress(self, messages: Sequence[Message]) -> None:
        """Do nothing: the notes are the user's."""

    def on_delegation(self, task: str, result: str) -> None:
        """Do nothing: the notes are the user's."""

    def session_ended(self, messages: Sequence[Message]) -> None:
        """Do nothing: nothing is held open."""

    def _search(self, expression: str) -> list[tuple[str, str, str]]:
        for attempt in range(2):
            try:
                with closing(self._open()) as connection:
                    self._update(connection)
                    return connection.execute(
                        "SELECT p.path, p.heading, p.body FROM words w JOIN passages p"
                        " ON p.id = w.rowid WHERE words MATCH ? ORDER BY rank LIMIT ?",
                        (expression, RETURNED),
                    ).fetchall()
            except sqlite3.DatabaseError as error:
                damaged = error.sqlite_errorcode in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
                if attempt or not damaged:
                    raise
                self.index.unlink(missing_ok=True)
        return []

    def _open(self) -> sqlite3.Connection:
        make_private(self.index.parent)
        os.close(os.open(self.index, os.O_RDWR | os.O_CREAT, 0o600))
        connection = sqlite3.connect(self.index, timeout=BUSY_SECONDS, isolation_level=None)
        try:
            connection.execute("BEGIN IMMEDIATE")
            if not connection.execute("PRAGMA user_version").fetchone()[0]:
                for statement in _SCHEMA.split(";"):
                    connection.execute(statement)
            connection.execute("COMMIT")
        except BaseException:
            connection.close()
            raise
        return connection

    def _update(self, connection: sqlite3.Connection) -> None:
        """Bring the index up to date with the files, in one transaction."""
        before = {
            path: (mtime, size)
            for path, mtime, size in connection.execute("SELECT path, mtime, size FROM files")
        }
        now = dict(self._found())
        changed = [path for path, stamp in now.items() if before.get(path) != stamp]
        gone = [path for path in before if path not in now]
        if not changed and not gone:
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            for path in [*gone, *changed]:
                _forget(connection, path)
            for path in changed:
                self._learn(connection, path, now[path])
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def _learn(self, connection: sqlite3.Connection, path: str, stamp: tuple[int, int]) -> None:
        try:
            data = read_regular(self.directory / path, MOST_BYTES).data
        except (Unusable, OSError):  # it went, or became something else, since it was listed
            return
        connection.execute("INSERT INTO files VALUES (?, ?, ?)", (path, *stamp))
        for heading, body in passages(data.decode("utf-8", "replace")):
            row = connection.execute(
                "INSERT INTO passages (path, heading, body) VALUES (?, ?, ?)",
                (path, heading, body),
            )
            text = " ".join(terms(f"{path} {heading} {body}"))
            connection.execute(
                "INSERT INTO words (rowid, terms) VALUES (?, ?)", (row.lastrowid, text)
            )

    def _found(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Yield the notes' paths relative to the directory, each with its time (ns) and size."""
        waiting = [(self.directory, 0)]
        left = MOST_FILES
        while waiting:
            directory, depth = waiting.pop()
            try:
                entries = sorted(os.scandir(directory), key=lambda entry: entry.name)
            except OSError:  # it went, or is not readable
                continue
            for entry in entries:
                if entry.name.startswith(".") or entry.is_symlink():
                    continue
                if entry.is_dir() and depth < DEEPEST:
                    waiting.append((Path(entry.path), depth + 1))
                elif entry.is_file() and entry.name.lower().endswith(SUFFIXES):
                    try:
                        status = entry.stat(follow_symlinks=False)
                    except OSError:
                        continue
                    if not left:
                        return
                    left -= 1
                    path = Path(entry.path).relative_to(self.directory).as_posix()
                    yield (
                        os.fsencode(path).decode("utf-8", "replace"),
                        (
                            status.st_mtime_ns,
                            status.st_size,
                        ),
                    )


def passages(text: str) -> Iterator[tuple[str, str]]:
    """Cut a note at headings and blank lines into pairs of heading and text of moderate size."""
    heading, body = "", ""
    for block in re.split(r"\n\s*\n", text.replace("\r\n", "\n")):
        lines = block.strip("\n")
        if not lines.strip():
            continue
        title = _HEADING.match(lines)
        if body and (title or len(body) + len(lines) > PASSAGE):
            yield heading, body
            body = ""
        if title:
            heading = one_line(title[1], 80)
        body = f"{body}\n\n{lines}" if body else lines
        while len(body) > PASSAGE * 2:
            yield heading, body[:PASSAGE]
            body = body[PASSAGE:]
    if body:
        yield heading, body


def _forget(connection: sqlite3.Connection, path: str) -> None:
    connection.execute(
        "DELETE FROM words WHERE rowid IN (SELECT id FROM passages WHERE path = ?)", (path,)
    )
    connection.execute("DELETE FROM passages WHERE path = ?", (path,))
    connection.execute("DELETE FROM files WHERE path = ?", (path,))
