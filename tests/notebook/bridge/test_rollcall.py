"""Who is chosen among the pages that say hello, and how long that may take."""

from __future__ import annotations

import asyncio
import time

import pytest
from hermes_nb.notebook import page_discovery
from hermes_nb.notebook.page_discovery import Info, RollCall
from hypothesis import given
from hypothesis import strategies as st

from tests.patience import SOON

OWN = Info(path="a", name="own", client="c", holds=True)
OTHER = Info(path="a", name="other", client="d", holds=True)
ELSEWHERE = Info(path="b", name="elsewhere", client="c", holds=False)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(page_discovery, "GRACE", 0.02)
    monkeypatch.setattr(page_discovery, "BUSY", 0.04)
    monkeypatch.setattr(page_discovery, "PAUSES", (0.02, 0.05))


def answered(call, *hellos, timeout=1.0):
    """Return who is chosen, how often was called, and the seconds that it took.

    `hellos` are seconds and who says hello then; the channel is of no interest here.
    """
    calls = []

    async def go():
        queue = asyncio.Queue()
        loop = asyncio.get_running_loop()
        for after, info in hellos:
            loop.call_later(after, queue.put_nowait, (None, info))
        return await call.answer(queue, lambda: calls.append(1), timeout)

    began = time.monotonic()
    chosen = asyncio.run(go())
    return chosen and chosen[1], len(calls), time.monotonic() - began


def test_the_page_that_ran_the_cell_ends_the_call_at_once():
    chosen, calls, seconds = answered(RollCall(cell="x", client="c"), (0, OWN), timeout=60)
    assert (chosen, calls) == (OWN, 1)
    assert seconds < SOON


@pytest.mark.parametrize("order", [(OTHER, ELSEWHERE, OWN), (ELSEWHERE, OTHER), (ELSEWHERE,)])
def test_the_best_of_those_who_come_soon_is_chosen(order):
    ranks = {OWN.name: 3, OTHER.name: 2, ELSEWHERE.name: 1}
    chosen, _, _ = answered(RollCall(cell="x", client="c"), *((0, info) for info in order))
    assert chosen == max(order, key=lambda info: ranks[info.name])


def test_a_page_that_was_left_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(page_discovery, "GRACE", 60)
    monkeypatch.setattr(page_discovery, "BUSY", 60)
    call = RollCall(cell="x", client="c", last="other", expected=True, left=True)
    assert answered(call, (0, OTHER), timeout=60)[2] < SOON


def test_a_page_that_has_answered_before_is_given_time_to_do_so_again(monkeypatch):
    monkeypatch.setattr(page_discovery, "BUSY", 60)
    hellos = (0, OTHER), (0.2, OWN)
    assert answered(RollCall(cell="x", client="c", expected=True), *hellos, timeout=60)[0] == OWN
    assert answered(RollCall(cell="x", client="c"), *hellos, timeout=60)[0] == OTHER


def test_it_calls_again_until_a_page_is_loaded():
    calls = []

    async def go():
        queue = asyncio.Queue()

        def called():
            calls.append(1)
            if len(calls) == 3:
                queue.put_nowait((None, OTHER))

        return await RollCall(cell="x", client="c").answer(queue, called, 60)

    assert asyncio.run(go()) == (None, OTHER)
    assert 3 <= len(calls) <= 5


@given(st.lists(st.sampled_from([OTHER, ELSEWHERE]), max_size=4), st.floats(0, 0.05))
def test_it_always_ends_in_time(infos, timeout):
    call = RollCall(cell="x", client="c")
    chosen, calls, seconds = answered(call, *((0, info) for info in infos), timeout=timeout)
    assert chosen in infos or (chosen is None and calls)
    assert seconds < timeout + SOON
