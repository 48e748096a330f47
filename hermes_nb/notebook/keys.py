"""Refuse a line that contains an API key, and remove it from IPython's history."""

from __future__ import annotations

import re
import sqlite3
from typing import TYPE_CHECKING

from hermes_nb.core.errors import ConfigError
from hermes_nb.safety.redact import redact

if TYPE_CHECKING:
    from hermes_nb.notebook.shell import Shell


KEY_OPTION = re.compile(r"--?(?:api[-_]?key|token|secret)\b", re.IGNORECASE)
"""An option whose value would be a key."""
REMOVED = "# (a line with an API key was removed)"
ADVICE = (
    "an API key does not belong in a notebook; this line was removed from the history. Enter "
    "keys with `%hermes key`, which hides the input. Delete the key from the cell, and create a "
    "new one at the provider: this one has been exposed"
)


def refuse_key(shell: Shell, line: str) -> None:
    """Raise `ConfigError` if a line contains a key, and remove the line from the history."""
    if KEY_OPTION.search(line) or redact(line) != line:
        forget(shell)
        raise ConfigError(ADVICE)


def forget(shell: Shell) -> None:
    """Remove the running cell's input from the history: lists, cache and database."""
    manager = shell.history_manager
    number = len(manager.input_hist_raw) - 1
    if number < 1:
        return
    manager.input_hist_raw[number] = REMOVED
    manager.input_hist_parsed[number] = REMOVED
    shell.user_ns["_i"] = manager._i00 = REMOVED  # noqa: SLF001 - IPython's copy of the last input
    shell.user_ns[f"_i{number}"] = REMOVED
    cache = manager.db_input_cache
    cache[:] = [
        (n, REMOVED, REMOVED) if n == number else (n, parsed, raw) for n, parsed, raw in cache
    ]
    if not manager.enabled:
        return
    manager.writeout_cache()
    try:
        with manager.db:
            manager.db.execute(
                "UPDATE history SET source = ?, source_raw = ? WHERE session = ? AND line = ?",
                (REMOVED, REMOVED, manager.session_number, number),
            )
    except sqlite3.Error as error:
        message = f"the key is still in IPython's history ({error}); `%history -g` shows where"
        raise ConfigError(message) from error
