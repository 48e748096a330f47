"""What sessions and notebooks have used in all, and the budgets that are left of it."""

from __future__ import annotations

import pytest
from hermes_nb import Hermes
from hermes_nb.agent.session.usage import (
    notebook_usage,
    session_usage,
    standing_budgets,
    total_usage,
)
from hermes_nb.agent.settings.config import BudgetSettings, load_settings
from hermes_nb.core.budget import Limits
from hermes_nb.core.errors import ConfigError, StoreError
from hermes_nb.core.messages import Usage
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import ScriptedModel
from hypothesis import given
from hypothesis import strategies as st

NOTEBOOK = "/work/a.ipynb"


def used(cost, tokens=100):
    return Usage(input=tokens, output=1, requests=1, cost=cost)


@pytest.fixture
def store(tmp_path):
    store = SqliteStore(tmp_path / "notebook.db", warn=print)
    yield store
    store.close()


@pytest.fixture
def family(store):
    first = store.start(title="first", notebook=NOTEBOOK)
    review = store.start(title="review: memory", source="review", parent=first)
    second = store.start(title="second", notebook=NOTEBOOK)
    other = store.start(title="other", notebook="/work/b.ipynb")
    for session, cost in ((first, 0.1), (review, 0.02), (second, None), (other, 9.0)):
        store.count(session, used(cost))
    return first, review, second, other


def test_a_sessions_reviews_count_with_it(store, family):
    assert session_usage(store, family[0]).cost == pytest.approx(0.12)
    assert session_usage(store, family[0]).requests == 2
    assert session_usage(store, family[2]).cost is None


def test_turns_of_two_sessions_spend_from_one_budget_of_the_notebook(store, family):
    limits = BudgetSettings(notebook_tokens=2_000)
    two = [family[0], family[2]]
    (one,), (other,) = (
        standing_budgets(store, each, notebook=NOTEBOOK, limits=limits, known=Usage())
        for each in two
    )
    one.spend(used(0.1, 900))
    other.spend(used(0.1, 900))
    assert one.used.input == other.used.input == 2_100
    assert one.refusal(0) and other.refusal(0)


def test_a_notebook_is_all_its_sessions(store, family):
    whole = notebook_usage(store, NOTEBOOK)
    assert whole.cost == pytest.approx(0.12)
    assert whole.requests == 3


def test_budgets_know_what_was_used_before(store, family):
    limits = BudgetSettings(cost=0.2, notebook_tokens=303)
    budgets = standing_budgets(store, family[0], notebook=NOTEBOOK, limits=limits, known=Usage())
    assert [budget.scope for budget in budgets] == ["this session", "this notebook"]
    assert budgets[0].used.cost == pytest.approx(0.12)
    assert budgets[1].refusal(0) is not None
    assert not standing_budgets(
        store, family[0], notebook="", limits=BudgetSettings(), known=Usage()
    )


class Broken:
    def usage(self, **_):
        raise StoreError("locked")


def test_where_the_store_is_broken_the_kernel_counts():
    limits = BudgetSettings(cost=0.2)
    (budget,) = standing_budgets(Broken(), "s", notebook="", limits=limits, known=used(0.15))
    assert budget.used.cost == 0.15


@given(st.lists(st.one_of(st.none(), st.floats(0, 10)), max_size=8))
def test_sums_have_what_is_known(costs):
    whole = total_usage(used(cost) for cost in costs)
    known = [cost for cost in costs if cost is not None]
    assert whole.requests == len(costs)
    assert whole.cost == (pytest.approx(sum(known)) if known else None)


def test_budgets_are_settings(home):
    home.mkdir()
    text = "hermes_nb:\n  budget:\n    cost: 1.5\n    notebook_tokens: 1000\n"
    (home / "config.yaml").write_text(text)
    budget = load_settings().budget
    assert budget.session == Limits(cost=1.5)
    assert budget.notebook == Limits(tokens=1_000)
    assert budget.without_cost().session == Limits()
    for wrong in ("0", "-1", "a lot", "nan"):
        with pytest.raises(ConfigError, match=r"budget\.cost"):
            load_settings(overrides={"budget.cost": wrong})


def test_other_kernels_spending_is_read_once_a_minute_and_our_own_at_once(home, monkeypatch):
    home.mkdir(exist_ok=True)
    text = "hermes_nb:\n  budget:\n    tokens: 1000\n"
    (home / "config.yaml").write_text(text)
    with Hermes(ScriptedModel(["One.", "Two."])) as hermes:
        hermes.ask("first")
        session = hermes._opening.session()

        def counted():
            (budget,) = session.open_budgets()
            return budget.used.requests

        before = counted()
        other = SqliteStore(home / "notebook.db", warn=print)
        other.count(session.id, used(None, tokens=10))
        other.close()
        assert counted() == before
        session.spend(used(None, tokens=10))  # between two turns
        assert counted() == before + 2
        monkeypatch.setattr("hermes_nb.agent.session.session.FRESH", -1.0)
        session.store.count(session.id, used(None, tokens=10))
        assert counted() == before + 3
