"""Durable record of messages, the state of their answers, and each chat's session.

```
(none) --take--> waiting --begin--> begun --answer--> answered --(each part: tried, sent)--> done
waiting, begun --settle--> done
```
A message is stored before it is processed, its answer before it is sent, and each part of the
answer is recorded once the service has accepted it. Keys and passwords are removed. Messages that
are not `done` are resumed at the next start, even if the service does not deliver them again.
Messages that are `done` are never processed again.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from hermes_nb.core.text import number_of
from hermes_nb.extras.gateway.core import Incoming
from hermes_nb.safety.redact import redact
from hermes_nb.storage.database import Database, Warn
from hermes_nb.storage.opening import Schema, run_script
from hermes_nb.storage.salvage import records

State = Literal["waiting", "begun", "answered", "done"]
KEPT = 30 * 86_400.0
"""Seconds to remember an answered message; after that, services never deliver it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A message and its state."""

    adapter: str
    """Name of the adapter."""
    message: Incoming
    """The message, without its files' contents."""
    files: tuple[Path, ...] = ()
    """The folder with its files."""
    state: State = "waiting"
    """The message's processing state."""
    session: str = ""
    """Id of the session that contains its turn; "" before the turn starts."""
    began: float = 0.0
    """Start of its turn in seconds since the epoch; 0 before the turn starts."""
    parts: tuple[str | Path, ...] = ()
    """The answer's parts, each either text or a file path."""
    sent: int = 0
    """Number of parts sent."""
    tried: bool = False
    """Whether an attempt was made to send the next part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRow:
    """A chat's state."""

    adapter: str
    """Name of the adapter."""
    chat: str
    """Id of the chat."""
    session: str = ""
    """Id of the current session, or "" if none."""
    model: str = ""
    """Model chosen for the chat; "" for the default."""
    written: float = 0.0
    """Time of the last message in seconds since the epoch."""
    spent: tuple[str, ...] = ()
    """Ids of earlier sessions, whose usage counts against the chat's budget."""


_TABLES = """
CREATE TABLE messages (
    adapter TEXT NOT NULL, id TEXT NOT NULL, chat TEXT NOT NULL, message TEXT NOT NULL,
    files TEXT NOT NULL, state TEXT NOT NULL, session TEXT NOT NULL, began REAL NOT NULL,
    parts TEXT NOT NULL, sent INTEGER NOT NULL, tried INTEGER NOT NULL, at REAL NOT NULL,
    PRIMARY KEY (adapter, id)
);
CREATE INDEX unfinished ON messages (state) WHERE state <> 'done';
CREATE TABLE chats (
    adapter TEXT NOT NULL, chat TEXT NOT NULL, session TEXT NOT NULL, model TEXT NOT NULL,
    written REAL NOT NULL, spent TEXT NOT NULL,
    PRIMARY KEY (adapter, chat)
);
"""
_SIZES = (("messages", 12), ("chats", 6))


def _salvage(source: Path, target: Path) -> str:
    """Copy a damaged database's readable rows to a new one; return a report."""
    with closing(sqlite3.connect(target, isolation_level=None)) as connection:
        SCHEMA.migrate(connection)
        for table, columns in _SIZES:
            statement = f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * columns)})"  # noqa: S608 - ours
            for record in records(source, columns=columns):
                with suppress(sqlite3.Error):  # not a row in this table
                    connection.execute(statement, record.values)
        saved = connection.execute("SELECT count(*) FROM messages").fetchone()[0]
    return f"{number_of(saved, 'message')} could be saved into a new one"


SCHEMA = Schema(
    name="gateway",
    application=0x68676174,  # "hgat"
    steps=(lambda connection: run_script(connection, _TABLES),),
    tables=("messages", "chats"),
    first=("messages", "chats"),
    salvage=_salvage,
    rebuild=lambda _: None,  # no table is derived from another
)


class Journal:
    """A Hermes directory's messages and chats.

    Changes are durable when a call returns. Calls raise `StoreError` on failure.
    """

    def __init__(self, path: Path, *, warn: Warn | None = None) -> None:
        self._database = Database(path, SCHEMA, warn=warn)
        self.close = self._database.close

    def take(self, entry: Entry) -> Entry | None:
        """Store a message and return None; return the stored entry if it is already known."""
        made = replace(entry.message, files=())

        def take(connection: sqlite3.Connection) -> Entry | None:
            found = connection.execute(
                "SELECT * FROM messages WHERE adapter = ? AND id = ?", (entry.adapter, made.id)
            ).fetchone()
            if found is not None:
                return _entry(found)
            values = (entry.adapter, made.id, made.chat, _dumped(made), _paths(entry.files))
            states = (
                entry.state,
                entry.session,
                entry.began,
                _paths(entry.parts),
                0,
                0,
                time.time(),
            )
            connection.execute(
                f"INSERT INTO messages VALUES ({', '.join('?' * 12)})",  # noqa: S608 - ours
                (*values, *states),
            )
            connection.execute(
                "INSERT INTO chats VALUES (?, ?, '', '', ?, '[]') ON CONFLICT DO UPDATE"
                " SET written = excluded.written",
                (entry.adapter, made.chat, time.time()),
            )
            return None

        return self._database.write(take)

    def note(self, entry: Entry) -> Entry:
        """Store a message's state and return it."""
        values = (
            _dumped(entry.message), entry.state, entry.session, entry.began, _paths(entry.parts),
            entry.sent, int(entry.tried), entry.adapter, entry.message.id,
        )  # fmt: skip
        self._database.write(
            lambda c: c.execute(
                "UPDATE messages SET message = ?, state = ?, session = ?, began = ?, parts = ?,"
                " sent = ?, tried = ? WHERE adapter = ? AND id = ?",
                values,
            )
        )
        return entry

    def unfinished(self) -> list[Entry]:
        """Return the messages that are not done, in order of arrival."""
        return self._database.read(
            lambda c: [
                _entry(row)
                for row in c.execute("SELECT * FROM messages WHERE state <> 'done' ORDER BY rowid")
            ]
        )

    def forget(self) -> None:
        """Delete messages that were done long ago."""
        before = time.time() - KEPT
        self._database.write(
            lambda c: c.execute("DELETE FROM messages WHERE state = 'done' AND at < ?", (before,))
        )

    def chat(self, adapter: str, chat: str) -> ChatRow:
        """Return a chat's state."""
        row = self._database.read(
            lambda c: c.execute(
                "SELECT * FROM chats WHERE adapter = ? AND chat = ?", (adapter, chat)
            ).fetchone()
        )
        return ChatRow(adapter=adapter, chat=chat) if row is None else _chat(row)

    def chats(self) -> list[ChatRow]:
        """Return all chats with a session."""
        return self._database.read(
            lambda c: [_chat(row) for row in c.execute("SELECT * FROM chats WHERE session <> ''")]
        )

    def keep(self, row: ChatRow) -> None:
        """Store a chat's state, except for the time of its last message."""
        self._database.write(
            lambda c: c.execute(
                "INSERT INTO chats VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE"
                " SET session = excluded.session, model = excluded.model, spent = excluded.spent",
                (row.adapter, row.chat, row.session, row.model, row.written, json.dumps(row.spent)),
            )
        )


def _entry(row: sqlite3.Row) -> Entry:
    known = json.loads(row["message"])
    return Entry(
        adapter=row["adapter"],
        message=Incoming(**{**known, "left_out": tuple(known["left_out"])}),
        files=tuple(Path(each["path"]) for each in json.loads(row["files"])),
        state=row["state"],
        session=row["session"],
        began=row["began"],
        parts=tuple(
            Path(each["path"]) if isinstance(each, dict) else each
            for each in json.loads(row["parts"])
        ),
        sent=row["sent"],
        tried=bool(row["tried"]),
    )


def _chat(row: sqlite3.Row) -> ChatRow:
    return ChatRow(**{**row, "spent": tuple(json.loads(row["spent"]))})


def _dumped(message: Incoming) -> str:
    names = ("id", "chat", "user", "left_out", "receipt")
    texts = {name: redact(getattr(message, name)) for name in ("text", "quoted")}
    return json.dumps({name: getattr(message, name) for name in names} | texts)


def _paths(parts: Sequence[str | Path]) -> str:
    return json.dumps([{"path": str(p)} if isinstance(p, Path) else p for p in parts])
