"""Tokens and costs of sessions and notebooks, and the budgets that follow from them.

A session's sum has its reviews in it, and whatever else was made from it; a notebook's has all its
sessions. Requests of unknown price count with their tokens, and the sum of money is what is known.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hermes_nb.agent.settings.config import BudgetSettings
from hermes_nb.core.budget import Budget
from hermes_nb.core.errors import StoreError
from hermes_nb.core.messages import Usage
from hermes_nb.core.protocols import SessionStore, StoredSession

MOST_SESSIONS = 10_000
"""Of a notebook, that are summed."""


def together(usages: Iterable[Usage]) -> Usage:
    """Return a sum whose cost is that of the usages that have one, None if none has."""
    found = list(usages)
    costs = [usage.cost for usage in found if usage.cost is not None]
    return replace(sum(found, Usage()), cost=sum(costs) if costs else None)


def session_usage(store: SessionStore, session_id: str) -> Usage:
    """Return what a session and all that was made from it have used; raise `StoreError`."""
    rows = (store.get(each) for each in store.lineage(session_id))
    return together(row.usage for row in rows if row)


def usage_by_model(store: SessionStore, session_id: str, source: str) -> dict[str, Usage]:
    """Return what those of a `source` used that were made from a session, such as its reviews."""
    found: dict[str, Usage] = {}
    for row in (store.get(each) for each in store.lineage(session_id)):
        if row and row.source == source and row.usage.requests:
            found[row.model] = together([row.usage, found.get(row.model, Usage())])
    return found


def notebook_usage(store: SessionStore, notebook: str) -> Usage:
    """Return what all the sessions of a notebook have used; raise `StoreError`."""
    return together(
        row.usage
        for row in _families(store, store.sessions(notebook=notebook, limit=MOST_SESSIONS))
    )


def usage_since(store: SessionStore, since: float) -> Usage:
    """Return what sessions have used that began at `since` or later; raise `StoreError`."""
    latest = [row for row in store.sessions(limit=MOST_SESSIONS) if row.written >= since]
    return together(row.usage for row in _families(store, latest) if row.started >= since)


def _families(store: SessionStore, sessions: Iterable[StoredSession]) -> Iterable[StoredSession]:
    """Return sessions with all that was made from them, each once."""
    ids = {each for session in sessions for each in store.lineage(session.id)}
    return [row for each in ids if (row := store.get(each)) is not None]


def standing_budgets(
    store: SessionStore, session_id: str, *, notebook: str, limits: BudgetSettings, known: Usage
) -> list[Budget]:
    """Return the budgets that hold for each turn of a session.

    `known` is what counts of the session where the store cannot be read. A session without a
    notebook is held to the notebook's limits by itself.
    """
    budgets = []
    for limit, scope in ((limits.session, "this session"), (limits.notebook, "this notebook")):
        if not limit:
            continue
        whole = scope == "this notebook" and notebook
        try:
            used = notebook_usage(store, notebook) if whole else session_usage(store, session_id)
        except StoreError:
            used = known
        budgets.append(Budget(limit, scope=scope, used=used))
    return budgets
