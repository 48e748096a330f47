"""What runs is listed while it runs, told of, and stopped once."""

from __future__ import annotations

import contextlib
import threading

import pytest
from hermes_nb.agent.jobs import Jobs


def test_a_job_is_listed_for_as_long_as_it_runs():
    jobs, told, stopped = Jobs(), [], []
    end = jobs.listen(lambda: told.append([job.doing for job in jobs]))
    with jobs.running("map", "many  words\nhere", lambda: stopped.append(1)) as job:
        assert [each.title for each in jobs] == ["many words here"]
        jobs.says(job, "1 of 2")
        jobs.says(job, "1 of 2")
        assert jobs.get(job.id) is job
        job.stop()
        job.stop()
        assert stopped == [1] and job.stopping
    assert told == [[""], ["1 of 2"], []]
    end()
    with contextlib.suppress(RuntimeError), jobs.running("child", "x", lambda: None):
        raise RuntimeError
    assert len(jobs) == 0 and len(told) == 3


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


def test_what_is_not_there_is_none():
    assert Jobs().get("1") is None
    with pytest.raises(StopIteration):
        next(iter(Jobs()))
