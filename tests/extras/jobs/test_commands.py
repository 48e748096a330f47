"""`%hermes schedule`: the commands of a cell, questions and answers included."""

from __future__ import annotations

import re
from contextlib import closing
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hermes_nb.core.errors import ConfigError
from hermes_nb.extras.jobs.schedule import Job, Schedule

from tests.loopback import Loopback, says


@pytest.fixture
def jobs(home):
    """Return a function that reads the home's jobs."""

    def read():
        schedule = Schedule(home)
        try:
            return schedule.jobs()
        finally:
            schedule.close()

    return read


def test_a_job_from_its_cell_to_its_history(desk, jobs, monkeypatch):
    with Loopback(says("Well, hello <b>.")) as server:
        monkeypatch.setenv("HERMES_NB_BASE_URL", server.url)
        monkeypatch.setenv("HERMES_NB_MODEL", "loopback-model")
        told = desk('schedule --approve edits "0 7 * * 1-5" --zone Europe/Berlin say hello')
        assert "Job 1: At 07:00 on Monday through Friday, Europe/Berlin" in told
        assert re.search(r"; next 20\d\d-\d\d-\d\d 07:00\.", told), "by the clocks of Berlin"
        assert "Due jobs have not been run yet" in told
        (job,) = jobs()
        assert (job.what, job.approve, job.cron) == ("say hello", "edits", "0 7 * * 1-5")
        assert "**done**" in desk("schedule run 1")
    assert "Well, hello" in desk("schedule history")
    assert "<b>" not in desk("schedule history")
    assert re.search(r"\| 1 \|.*say hello.*done", desk("schedule"))
    assert "paused" in desk("schedule pause 1")
    assert "next 20" in desk("schedule resume 1")
    desk("schedule remove 1")
    assert jobs() == []


def test_every_time_is_shown_in_the_zone_of_its_job(desk, home, monkeypatch):
    with Loopback(says("Hello.")) as server, monkeypatch.context() as served:
        served.setenv("HERMES_NB_BASE_URL", server.url)
        served.setenv("HERMES_NB_MODEL", "loopback-model")
        desk('schedule "0 7 * * 1-5" --zone America/Lima say hello')
        ran = desk("schedule run 1")
    with closing(Schedule(home)) as schedule:
        (run,) = schedule.runs(limit=9)
    lima = ZoneInfo("America/Lima")
    due, began = (f"{datetime.fromtimestamp(t, lima):%Y-%m-%d %H:%M}" for t in (run.due, run.began))
    for told in (ran, desk("schedule history"), desk("schedule history 1")):
        assert f"{due} America/Lima" in told
    assert f"done, {began}" in desk("schedule")


@pytest.mark.parametrize(("answer", "kept"), [("y", ["0 7 * * 1-5"]), ("", [])])
def test_a_time_in_words_is_the_models_and_the_line_the_users(
    desk, jobs, monkeypatch, answer, kept
):
    asked = []
    monkeypatch.setattr("builtins.input", lambda question: asked.append(question) or answer)
    monkeypatch.setattr("hermes_nb.extras.jobs.commands.can_ask", lambda _: True)
    desk.plays("The line:\n0 7 * * 1-5")
    if kept:
        desk('schedule "every weekday at 7" hello')
    else:
        with pytest.raises(ConfigError, match="nothing was changed"):
            desk('schedule "every weekday at 7" hello')
    assert "'every weekday at 7' is 0 7 * * 1-5 (At 07:00 on Monday through Friday" in asked[0]
    assert [job.cron for job in jobs()] == kept


def test_code_of_the_agent_schedules_nothing(desk, jobs):
    with desk.agent.permission.held(), pytest.raises(ConfigError, match="code that an agent runs"):
        desk('schedule "* * * * *" hello')
    assert jobs() == []


@pytest.mark.parametrize(
    "key",
    [
        *("ghp_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5", "password=hunter2-Zq81"),
        "Z2hwX2FCM2RFNWZHN2hKOWtMMW1OM3BRNXJTN3RVOXZXMXhZM3pBNQ==",
    ],
)
def test_a_prompt_that_holds_a_key_is_not_stored(desk, jobs, home, key):
    with pytest.raises(ConfigError, match="key"):
        desk(f'schedule "* * * * *" fetch it with {key}')
    with closing(Schedule(home)) as schedule:
        job = Job(cron="* * * * *", zone="UTC", what=f"go {key}", directory="/", approve="ask")
        with pytest.raises(ConfigError, match="looks like a key") as refused:
            schedule.add(job)
    assert key not in str(refused.value) and jobs() == []
    kept = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    assert not any(key.encode() in each for each in kept)


def test_a_mode_above_what_the_kernel_allows_is_lowered(desk, jobs, monkeypatch):
    monkeypatch.setattr("hermes_nb.notebook.approval.CEILING", "edits")
    monkeypatch.setattr("hermes_nb.agent.settings.sources.CEILING", "edits")
    desk('schedule "* * * * *" hello --approve all')
    assert [job.approve for job in jobs()] == ["edits"]


def test_a_slip_in_a_word_is_no_prompt(desk):
    with pytest.raises(ConfigError, match="did you mean"):
        desk("schedule pase 3")
    with pytest.raises(ConfigError, match="No closing quotation; put the prompt in quotes"):
        desk('schedule "0 7 * * *" what\'s new?')
    with pytest.raises(ConfigError, match="does not know that command"):
        desk("schedule pause")
