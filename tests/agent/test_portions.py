"""Several that share a budget never overrun it by what each was allowed."""

from __future__ import annotations

from hermes_nb.core.budget import ANSWER_TOKENS, Budget, Limits, pools, portions
from hermes_nb.core.messages import Usage
from hypothesis import given
from hypothesis import strategies as st

STEPS = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 900), st.booleans()), max_size=60)


@given(STEPS, st.integers(1_000, 8_000))
def test_requests_side_by_side_stay_within_the_limit(steps, limit):
    """A request is allowed, is under way for a while, and uses no more than was forecast."""
    budget = Budget(Limits(tokens=limit), scope="this turn")
    (pool,) = pools([budget])
    sides = [portions([pool])[0] for _ in range(4)]
    under_way = {}
    for which, prompt, ends in steps:
        side = sides[which]
        if which in under_way:
            if ends:
                used = under_way.pop(which)
                side.spend(Usage(input=used, output=ANSWER_TOKENS, requests=1))
        elif side.refusal(prompt) is None:
            under_way[which] = prompt
        ahead = sum(under_way.values()) + ANSWER_TOKENS * len(under_way)
        spent = budget.used.input + budget.used.output
        assert spent + ahead <= limit
        assert side.used == budget.used


def test_what_is_held_back_comes_free_again():
    budget = Budget(Limits(tokens=2_000), scope="this turn")
    shared = pools([budget])
    (first,), (second,) = portions(shared), portions(shared)
    assert first.refusal(1_000) is None
    assert first.refusal(1_000) is None  # its own is not held against it
    told = second.refusal(1_000)
    assert told is not None and "2,000 tokens for this turn" in str(told)
    first.release()
    assert second.refusal(1_000) is None


def test_a_budget_of_money_holds_back_as_well():
    spent = Usage(input=1_000, output=0, requests=1, cost=0.01)
    budget = Budget(Limits(cost=0.05), scope="this turn", used=spent)
    shared = pools([budget])
    (first,), (second,) = portions(shared), portions(shared)
    assert first.refusal(2_000) is None
    assert second.refusal(2_000) is not None
