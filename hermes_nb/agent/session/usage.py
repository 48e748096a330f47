"""Tokens and costs of sessions and notebooks, and the budgets based on them.

A session's total includes its reviews and all other sessions created from it. A notebook's total
includes all of its sessions. For requests with an unknown price, only the tokens are counted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from weakref import WeakValueDictionary

from hermes_nb.agent.settings.config import BudgetSettings
from hermes_nb.core.budget import Budget, Limits
from hermes_nb.core.errors import StoreError
from hermes_nb.core.messages import Usage
from hermes_nb.core.protocols import SessionStore

_shared: WeakValueDictionary[tuple[int, str, Limits], Budget] = WeakValueDictionary()
"""Notebooks' budgets by store, path and limits, from which all sessions of this process spend."""


def total_usage(usages: Iterable[Usage]) -> Usage:
    """Return the sum; its cost is the sum of the known costs, or None if no cost is known."""
    found = list(usages)
    costs = [usage.cost for usage in found if usage.cost is not None]
    return replace(sum(found, Usage()), cost=sum(costs) if costs else None)


def session_usage(store: SessionStore, session_id: str) -> Usage:
    """Return the usage of a session and all sessions created from it; raise `StoreError`."""
    return total_usage(store.usage(session_id=session_id).values())


def usage_by_model(store: SessionStore, session_id: str, source: str) -> dict[str, Usage]:
    """Return the usage, by model, of the sessions with this `source` created from a session."""
    found = store.usage(session_id=session_id).items()
    return {model: usage for (each, model), usage in found if each == source and usage.requests}


def notebook_usage(store: SessionStore, notebook: str) -> Usage:
    """Return the usage of all of a notebook's sessions; raise `StoreError`."""
    return total_usage(store.usage(notebook=notebook).values())


def usage_since(store: SessionStore, since: float) -> Usage:
    """Return the usage of sessions started at `since` (epoch) or later; raise `StoreError`."""
    return total_usage(store.usage(since=since).values())


def standing_budgets(
    store: SessionStore, session_id: str, *, notebook: str, limits: BudgetSettings, known: Usage
) -> list[Budget]:
    """Return the budgets that apply to each turn of a session.

    Args:
        store: the session store
        session_id: the session's id
        notebook: the notebook's path; if "", the notebook's limits apply to the session alone
        limits: the session's and notebook's limits
        known: the session's usage, used if the store cannot be read
    """
    budgets = []
    for limit, scope in ((limits.session, "this session"), (limits.notebook, "this notebook")):
        if not limit:
            continue
        whole = scope == "this notebook" and notebook
        key = (id(store), notebook, limit)
        shared = _shared.get(key) if whole else None
        try:
            used = notebook_usage(store, notebook) if whole else session_usage(store, session_id)
        except StoreError:
            used = known if shared is None else shared.used
        budget = shared or Budget(limit, scope=scope, used=used)
        budget.recount(used)
        if whole:
            _shared[key] = budget
        budgets.append(budget)
    return budgets
