"""Functions shared by subcommands in a terminal: ask a question, open the session store."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from hermes_nb.agent.session.stores import open_store
from hermes_nb.agent.settings.config import load_settings
from hermes_nb.core.protocols import SessionStore
from hermes_nb.notebook.approval import forget_typed
from hermes_nb.notebook.interrupt import user_code


def ask_on_terminal(question: str) -> str:
    """Return the user's answer, or "" at the end of input."""
    forget_typed()
    print(question, end="", file=sys.stderr, flush=True)
    with user_code():  # lets Ctrl-C end the wait
        return sys.stdin.readline()


@contextmanager
def opened() -> Iterator[SessionStore]:
    """Open the session store in the Hermes directory; report problems on standard error."""
    store = open_store(load_settings(), lambda told: print(told, file=sys.stderr))
    try:
        yield store
    finally:
        store.close()
