"""What runs is listed while it runs, told of, and stopped once."""

from __future__ import annotations

import asyncio
import threading

import pytest
from hermes_nb.agent import jobs as jobs_module
from hermes_nb.agent.jobs import Jobs, side_by_side


def test_a_job_is_listed_for_as_long_as_it_runs_and_told_of(monkeypatch):
    monkeypatch.setattr(jobs_module, "NEWS", 0.01)
    jobs, told, at = Jobs(), [], ["0 of 2"]
    end = jobs.listen(lambda: told.append([job.doing for job in jobs]))

    async def work():
        (job,) = jobs
        assert (job.title, jobs.get(job.id)) == ("many words here", job)
        at[0] = "1 of 2"
        while told[-1] != ["1 of 2"]:
            await asyncio.sleep(0.01)
        return job.kind

    def run(coroutine):
        return asyncio.run(jobs.run("map", "many  words\nhere", coroutine, doing=lambda: at[0]))

    assert run(work()) == "map"
    assert told == [["0 of 2"], ["0 of 2"], ["1 of 2"], []]
    end()

    async def broken():
        raise RuntimeError

    with pytest.raises(RuntimeError):
        run(broken())
    assert len(jobs) == 0 and len(told) == 4


def test_a_job_is_stopped_once_from_any_thread_and_its_starter_goes_on():
    jobs, cleaned = Jobs(), []

    async def one(number):
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)  # a stop comes once, so that this comes to its end
            cleaned.append(number)

    def work():
        return side_by_side(2, 2, one)

    def stop():
        (job,) = jobs
        job.stop()
        job.stop()
        assert job.stopping

    async def story():
        thread = threading.Timer(0.1, stop)
        thread.start()
        assert await jobs.run("child", "x", work(), doing=str) is None
        thread.join()
        waiting = asyncio.create_task(jobs.run("child", "x", work(), doing=str))
        await asyncio.sleep(0.05)
        stop()
        await asyncio.sleep(0.02)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(story())
    assert cleaned == [0, 1] * 2 and len(jobs) == 0


def test_so_many_run_side_by_side_and_a_fault_ends_the_others():
    running, most, cleaned = [], [], []

    async def work(number):
        running.append(number)
        most.append(len(running))
        try:
            await asyncio.sleep(0.01 if number < 7 else 60)
            if number == 6:
                raise ValueError("no luck")
        finally:
            running.remove(number)
            cleaned.append(number)
        return number * 10

    assert asyncio.run(side_by_side(3, 6, work)) == [0, 10, 20, 30, 40, 50]
    assert max(most) == 3
    with pytest.raises(ValueError, match="no luck"):
        asyncio.run(side_by_side(4, 20, work))
    assert not running and sorted(cleaned[6:]) == list(range(10))


def test_a_listener_that_fails_harms_nobody(caplog):
    jobs, told = Jobs(), []

    def broken():
        raise ValueError("no screen")

    jobs.listen(broken)
    jobs.listen(lambda: told.append(1))
    with jobs.running("map", "x", lambda: None):
        pass
    assert told == [1, 1]
    assert "no screen" in caplog.text


def test_jobs_begin_and_end_on_many_threads():
    jobs = Jobs()
    seen = []

    def work():
        for _ in range(50):
            with jobs.running("child", "x", lambda: None) as job:
                seen.append(job.id)
                list(jobs)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 400 and len(jobs) == 0
