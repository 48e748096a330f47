"""Where the administrator's policy forbids schedules, nothing runs by the clock."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hermes_nb.cli.main import main
from hermes_nb.core.errors import ConfigError
from hermes_nb.extras.jobs.schedule import Job, Schedule, run_due

from tests.safety.test_policy import notebook, shell, work

__all__ = ["notebook", "shell", "work"]


def test_nothing_runs_by_the_clock(work, home, administered, notebook, capsys):
    schedule = Schedule(home)
    job = Job(cron="* * * * *", zone="UTC", what="say hello", directory=str(work))
    made = schedule.add(job)
    administered(modes={"all": "force-off"})
    with pytest.raises(ConfigError, match="modes: all"):
        schedule.add(replace(job, approve="all"))
    administered(schedules="force-off")
    with pytest.raises(ConfigError, match="schedules"):
        schedule.add(job)
    with pytest.raises(ConfigError, match="schedules"):
        asyncio.run(run_due(schedule, print))
    notebook.run_cell("%hermes schedule '* * * * *' hello")
    assert main(["jobs", "run", str(made.id)]) == 1
    assert "schedules" in capsys.readouterr().err
    assert len(schedule.jobs()) == 1
    assert not schedule.runs()
    schedule.close()
