"""`jupyter hermes sessions` and `export`: stored conversations, without a kernel."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from hermes_nb.agent.session.export import export as exported
from hermes_nb.agent.session.manager import the_one
from hermes_nb.agent.session.quotes import Quote, quotes
from hermes_nb.agent.session.session import CHILD
from hermes_nb.agent.session.stores import is_stored
from hermes_nb.agent.settings.config import load_settings
from hermes_nb.cli.command import OK
from hermes_nb.cli.terminal import opened
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.escapes import visible
from hermes_nb.core.files import write_atomic
from hermes_nb.core.protocols import SessionStore, StoredSession
from hermes_nb.core.text import number_of, one_line
from hermes_nb.notebook.display.tables import moment
from hermes_nb.safety.redact import redact

TITLE = 60
"""Maximum length of a title, in characters."""
SNIPPET = 100
"""Maximum length of a line's last column in a terminal, in characters; JSON output is not
shortened."""


def list_command(arguments: argparse.Namespace) -> int:
    """List the most recent sessions, or search results."""
    rows = _listed(arguments.search, arguments.limit) if is_stored(load_settings()) else []
    if arguments.json:
        print(json.dumps(rows, indent=2, ensure_ascii=False))
    else:
        _print(rows)
    return OK


def _listed(query: str, limit: int) -> list[dict[str, object]]:
    with opened() as store:
        if not query:
            return [_session(each) for each in store.sessions(limit=limit)]
        return [_hit(each, store) for each in quotes(store, query, limit=limit)]


def export(arguments: argparse.Namespace) -> int:
    """Write a session to a file, or to standard output."""
    if not is_stored(load_settings()):
        raise ConfigError("there are no sessions yet")
    with opened() as store:
        stored = the_one(store, arguments.session)
        if stored is None:
            message = f"there is no session {arguments.session!r}"
            raise ConfigError(f"{message}; `jupyter hermes sessions` lists them")
        rows = [row for row in store.rows(stored.id) if row.state != "undone"]
    text = exported(stored, rows, arguments.format)
    data = text.encode("utf-8", "replace")
    if arguments.output == "-":
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return OK
    path = Path(arguments.output)
    if path.exists():
        raise ConfigError(f"{path} already exists; move it first, or choose another file")
    try:
        write_atomic(path, data, mode=0o600)
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror or error}") from error
    print(f"wrote {path} ({number_of(len(rows), 'message')}, without secrets)", file=sys.stderr)
    return OK


def _session(stored: StoredSession) -> dict[str, object]:
    return {
        "id": stored.id,
        "written": stored.written,
        "messages": stored.messages,
        "notebook": redact(stored.notebook),
        "title": redact(stored.title),
    }


def _hit(quote: Quote, store: SessionStore) -> dict[str, object]:
    hit = quote.hit
    stored = store.get(hit.session_id)
    return {
        "session": hit.session_id,
        "child_of": stored.parent if stored is not None and stored.source == CHILD else "",
        "when": hit.when,
        "position": hit.position,
        "role": hit.role,
        "text": quote.text,
    }


def _print(rows: list[dict[str, object]]) -> None:
    """Print rows as lines; control characters are escaped."""
    if not rows:
        print("nothing was found", file=sys.stderr)
    for row in rows:
        cells = (_cell(name, value) for name, value in row.items())
        print("  ".join(cell for cell in cells if cell))


def _cell(name: str, value: object) -> str:
    if name in ("written", "when"):
        return moment(float(str(value)))
    if name == "messages":
        return f"{value:>4}"
    if name == "child_of":
        return f"child of {visible(str(value))}" if value else ""
    if name == "notebook":
        return one_line(visible(Path(str(value)).name or "-"), 30)
    return one_line(visible(str(value)), SNIPPET if name == "text" else TITLE)
