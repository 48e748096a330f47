"""The stop button and the clock, with real signals."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from contextlib import suppress

import pytest
from hermes_nb.notebook.interrupt import TimeLimit, stoppable, user_code

from tests.patience import SOON, until

pytestmark = pytest.mark.usefixtures("signals")


def press(after: float = 0.0) -> None:
    """Press the stop button, now or in a moment."""
    if after:
        threading.Timer(after, press).start()
    else:
        os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture
def soon():
    """Check that the test ended long before what it waits for."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < SOON


def nothing_is_left_over():
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def cancelled(turn, *presses):
    """Start a turn, do some things a moment apart, cancel it; say whether it was cancelled."""
    task = asyncio.create_task(turn())
    for do in (*presses, task.cancel):
        await asyncio.sleep(0.05)
        do()
    await asyncio.wait({task})
    return task.cancelled()


@pytest.mark.usefixtures("soon")
async def test_a_stop_wakes_an_idle_loop_and_ends_the_block_quietly():
    press(0.1)
    with stoppable() as stop:
        await asyncio.sleep(60)
        pytest.fail("not reached")
    nothing_is_left_over()
    await asyncio.sleep(0)
    assert stop.stopped


async def test_without_a_stop_nothing_happens_and_an_error_passes_through():
    with stoppable() as stop:
        await asyncio.sleep(0.01)
    assert not stop.stopped
    with pytest.raises(ZeroDivisionError), stoppable():
        raise ZeroDivisionError


async def test_a_foreign_cancellation_passes_through_and_wins_over_a_stop():
    async def turn():
        with stoppable():
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.1)

    assert await cancelled(turn)
    assert await cancelled(turn, press)


async def test_a_stop_that_the_block_swallows_leaves_no_cancellation():
    press(0.05)
    with stoppable() as stop, suppress(asyncio.CancelledError):
        await asyncio.sleep(60)
    nothing_is_left_over()
    assert stop.stopped


async def test_a_stop_in_the_last_moment_spills_into_nothing():
    with stoppable() as stop:
        press()  # handled at once, but the block ends before the loop hears of it
    await asyncio.sleep(0.05)
    assert stop.stopped


async def test_a_second_press_does_not_stop_the_cleaning_up():
    press(0.05)
    press(0.15)
    with stoppable() as stop:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.3)
            stop.cleaned = True
    assert stop.cleaned


@pytest.mark.usefixtures("soon")
async def test_a_late_second_press_ends_cleaning_up_that_hangs(monkeypatch):
    monkeypatch.setattr("hermes_nb.notebook.interrupt.PATIENCE", 0.1)
    press(0.05)
    with stoppable() as stop:
        try:
            await asyncio.sleep(60)
        finally:
            press(0.3)
            await asyncio.sleep(60)
    assert stop.stopped


async def test_nested_blocks_of_one_task_share_the_stop():
    press(0.05)
    with stoppable() as outer:
        with stoppable() as inner:
            await asyncio.sleep(60)
        pytest.fail("the outer block owns the stop")
    assert inner is outer and outer.stopped


def test_off_the_main_thread_or_without_a_task_it_does_nothing():
    async def main():
        with stoppable() as stop, user_code(0.01):
            await asyncio.sleep(0.05)
        return stop.stopped

    results = []
    thread = threading.Thread(target=lambda: results.append(asyncio.run(main())))
    thread.start()
    thread.join()
    assert results == [False]
    with stoppable() as stop:
        pass
    assert not stop.stopped


@pytest.mark.usefixtures("soon")
async def test_user_code_is_interrupted_inside_a_stoppable_block():
    press(0.05)
    with stoppable() as stop:
        with pytest.raises(KeyboardInterrupt), user_code() as signals:
            time.sleep(60)
        await asyncio.sleep(0.05)
    assert signals.interrupted and not stop.stopped


def test_a_time_limit_ends_code_that_swallows_exceptions():
    def stubborn():
        while True:
            with suppress(Exception):
                time.sleep(60)

    with pytest.raises(TimeLimit, match="stopped after"), user_code(0.05) as signals:
        stubborn()
    assert signals.timed_out and not signals.interrupted


def test_a_time_limit_strikes_again_when_it_is_swallowed(monkeypatch):
    monkeypatch.setattr("hermes_nb.notebook.interrupt.AGAIN", 0.0500001)
    struck = 0
    with user_code(0.05):
        while struck < 3:
            try:
                time.sleep(60)
            except BaseException:  # noqa: BLE001 - as careless code does
                struck += 1
    assert struck == 3


def test_where_a_signal_may_not_be_raised_it_is_reported():
    calls = []
    with user_code(0.02, inside=lambda _: False, elsewhere=lambda: calls.append(1)) as signals:
        press()
        time.sleep(0.1)
    assert signals.interrupted and signals.timed_out
    assert len(calls) == 2


@pytest.fixture
def fired():
    """Yield the times at which the user's own alarm fired."""
    fired = []
    old = signal.signal(signal.SIGALRM, lambda *_: fired.append(time.monotonic()))
    yield fired
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, old)


def test_the_users_timer_goes_on_with_the_time_it_has_left(fired):
    started = time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, 2)
    with user_code(10):
        time.sleep(0.1)
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 1.91
    until(lambda: fired)
    assert fired[0] - started > 1.9


def test_a_timer_that_ran_out_meanwhile_fires_at_once_afterwards(fired):
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    with user_code(10):
        time.sleep(0.1)
    until(lambda: fired)
    assert len(fired) == 1


def test_code_that_takes_over_the_alarm_keeps_it(fired):
    with user_code(10):
        signal.signal(signal.SIGALRM, lambda *_: fired.append(1))
        signal.setitimer(signal.ITIMER_REAL, 0.05)
    until(lambda: fired)
    assert fired == [1]


def test_handlers_are_put_back_after_an_error():
    with pytest.raises(ZeroDivisionError), user_code(10):  # `signals` looks at the rest
        raise ZeroDivisionError
