"""A loop in a thread: it starts late, ends on time, and a fork gets its own."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time

import pytest
from hermes_nb.core import threads
from hermes_nb.core.threads import LoopThread, in_thread

from tests.patience import SOON


def names():
    return [thread.name for thread in threading.enumerate()]


def test_nothing_is_started_before_the_first_coroutine():
    loop = LoopThread("hermes-test-a")
    assert "hermes-test-a" not in names()
    assert loop.run(asyncio.sleep(0, "done")) == "done"
    assert "hermes-test-a" in names()
    loop.close()
    assert "hermes-test-a" not in names()


def test_closing_stops_what_runs_and_lets_it_clean_up():
    cleaned = []

    begun = threading.Event()

    async def work():
        try:
            begun.set()
            await asyncio.sleep(30)
        finally:
            await asyncio.sleep(0.01)
            cleaned.append(True)

    loop = LoopThread("hermes-test-b")
    future = loop.submit(work())
    assert begun.wait(SOON)
    began = time.monotonic()
    loop.close()
    assert time.monotonic() - began < SOON
    assert future.cancelled() or future.done()
    assert cleaned == [True]


def test_a_thread_is_used_again_unless_it_hangs():
    free = threading.Event()

    async def main():
        first = await in_thread(threading.get_ident)
        hanging = asyncio.ensure_future(in_thread(free.wait, SOON))
        await asyncio.sleep(0)
        others = {await in_thread(threading.get_ident) for _ in range(5)}
        free.set()
        assert await hanging
        return first, others

    first, others = asyncio.run(main())
    assert len(others) == 1
    assert first not in others


def test_an_error_is_raised_to_the_caller():
    async def fail():
        raise ValueError("no")

    loop = LoopThread("hermes-test-c")
    with pytest.raises(ValueError, match="no"):
        loop.run(fail())
    loop.close()


def test_it_can_be_used_again_after_it_was_closed():
    loop = LoopThread("hermes-test-d")
    loop.run(asyncio.sleep(0))
    loop.close()
    loop.close()
    assert loop.run(asyncio.sleep(0, 1)) == 1
    loop.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_fork_gets_a_loop_of_its_own():
    loop = LoopThread("hermes-test-e")
    loop.run(asyncio.sleep(0))
    child = os.fork()
    if child == 0:
        os._exit(0 if loop.run(asyncio.sleep(0, 7)) == 7 else 1)
    assert os.waitpid(child, 0)[1] == 0
    loop.close()


def test_a_stop_is_heard_where_the_loop_itself_hangs(monkeypatch):
    """What holds up the loop cannot be waited for; the stop stays a stop."""
    monkeypatch.setattr(threads, "STOP_SECONDS", 0.1)
    release = threading.Event()

    main = threading.main_thread().ident

    async def hang():
        threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGINT)).start()
        release.wait(30)

    loop = LoopThread("hermes-test-hung")
    with pytest.raises(KeyboardInterrupt):
        loop.run(hang())
    release.set()
    loop.close()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_ends_a_program_ends_neither_the_loop_nor_the_wait(kind):
    async def leave():
        raise kind

    loop = LoopThread("hermes-test-exit")
    with pytest.raises(kind):
        loop.submit(leave()).result(timeout=SOON)
    assert loop.run(asyncio.sleep(0, "still there")) == "still there"
    loop.close()
