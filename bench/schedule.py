"""Whether each of many scheduled jobs runs at most once, and none is forgotten, through kills.

Run with `make bench-schedule`: 1,000 jobs are due at once, whoever runs them is killed 20 times,
at random; every second time with the processes that do the work, as when the machine goes down. A
model on this machine counts what it is asked. At most 4 runs a kill may be unknown, no more than
were under way.
"""

from __future__ import annotations

import os
import random
import re
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from hermes_nb.extras.jobs.schedule import SIDE_BY_SIDE, Job, Schedule
from tests.loopback import Loopback, pause, says

JOBS, KILLS = 1_000, 20
YEARLY = "0 0 1 1 *"


@dataclass
class Trial:
    """What became of the jobs: how many runs ended in which state, and what was wrong."""

    states: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)


def trial(folder: Path, *, jobs: int, kills: int, seed: int) -> Trial:
    """Run so many jobs, kill so often, and count."""
    chance = random.Random(seed)
    moments = sorted(chance.sample(range(1, jobs), kills))
    schedule = Schedule(folder / "home")
    for number in range(jobs):
        schedule.add(Job(cron=YEARLY, zone="UTC", what=f"task {number}", directory=str(folder)))
    with sqlite3.connect(schedule.folder / "jobs.db") as connection:
        connection.execute("UPDATE jobs SET due = ? - id", (time.time(),))
    connection.close()
    result, began = Trial(), time.monotonic()
    reply = says("Done.")
    reply.steps = [pause(0.1), *reply.steps]
    with Loopback(reply) as server:
        variables = {
            "HERMES_HOME": str(schedule.home),
            "HERMES_NB_BASE_URL": server.url,
            "HERMES_NB_MODEL": "loopback",
        }
        while schedule.next_due() or any(
            run.state == "running" for run in schedule.runs(limit=jobs)
        ):
            runner = subprocess.Popen(
                [sys.executable, "-m", "hermes_nb.cli", "jobs", "run"],
                env={**os.environ, **variables},
                stdout=subprocess.DEVNULL,
            )
            if result.kills < kills:
                while len(server.exchanges) < moments[result.kills] and runner.poll() is None:
                    time.sleep(0.01)
                time.sleep(chance.uniform(0, 0.5))
                _kill(runner, workers=bool(result.kills % 2))
                result.kills += 1
            elif runner.wait() not in (0, 1):
                result.faults.append(f"it ended with {runner.returncode}")
                break
        result.seconds = time.monotonic() - began
        asked = Counter(
            found[1]
            for exchange in list(server.exchanges)
            for found in re.finditer(r"\btask (\d+)\b", str(exchange.json["messages"][-1]))
        )
    _judge(result, schedule, asked, jobs)
    schedule.close()
    return result


def _kill(runner: subprocess.Popen[bytes], *, workers: bool) -> None:
    children = psutil.Process(runner.pid).children() if runner.poll() is None else []
    runner.kill()
    runner.wait()
    for child in children:
        if workers:
            child.kill()
    psutil.wait_procs(children)


def _judge(result: Trial, schedule: Schedule, asked: Counter[str], jobs: int) -> None:
    runs = schedule.runs(limit=2 * jobs)
    result.states = Counter(run.state for run in runs)
    often = Counter(run.job for run in runs)
    for job in schedule.jobs():
        if often[job.id] != 1:
            result.faults.append(f"{job.what} has {often[job.id]} runs")
    for run in runs:
        times = asked[str(schedule_number(run.job))]
        if times > 1 or (run.state == "done" and times != 1):
            result.faults.append(f"job {run.job} is {run.state}, and was asked {times} times")
    if (
        set(result.states) - {"done", "unknown"}
        or result.states["unknown"] > SIDE_BY_SIDE * result.kills
    ):
        result.faults.append(f"states: {dict(result.states)}")


def schedule_number(job: int) -> int:
    """Return the number of a job's task: ids begin at 1."""
    return job - 1


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        result = trial(Path(name), jobs=JOBS, kills=KILLS, seed=1)
    print(f"{JOBS} jobs, {result.kills} kills, {result.seconds:.0f} s: {dict(result.states)}")
    print(*result.faults or ["each ran at most once, none was forgotten"], sep="\n")
    sys.exit(bool(result.faults))


if __name__ == "__main__":
    main()
