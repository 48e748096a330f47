"""`jupyter hermes jobs`: real processes, a loopback model, a crontab that is a file."""

from __future__ import annotations

import datetime
import itertools
import os
import re
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from zoneinfo import ZoneInfo

import nbformat
import psutil
import pytest
from hermes_nb import Hermes
from hermes_nb.cli.main import main
from hermes_nb.core.errors import ConfigError
from hermes_nb.extras.jobs.commands import cron_line, units, without
from hermes_nb.extras.jobs.schedule import _TABLES, SCHEMA, Schedule, times
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.storage.opening import run_script
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.conftest import start
from tests.loopback import Reply, calls, pause, says, stall
from tests.patience import until

pytestmark = pytest.mark.slow
ANALYZE = shutil.which("systemd-analyze")
YEARLY = "0 0 1 1 *"


@pytest.fixture
def schedule(home):
    """Yield the home's schedule."""
    found = Schedule(home)
    yield found
    found.close()


def scheduled(schedule, what, *options, cron=YEARLY):
    """Schedule something; return the job's number."""
    assert main(["jobs", cron, what, *options]) == 0
    return schedule.jobs()[-1].id


def due(schedule, number, seconds=0.5, when=None):
    """Have a job been due for so many seconds, or at a time."""
    with sqlite3.connect(schedule.folder / "jobs.db") as connection:
        when = when or time.time() - seconds
        connection.execute("UPDATE jobs SET due = ? WHERE id = ?", (when, number))
    connection.close()


def new_year(years=0):
    """Return when this year began by the local clock, or one so many years away."""
    return time.mktime((time.localtime().tm_year + years, 1, 1, 0, 0, 0, 0, 0, -1))


# -- what runs


def test_a_prompt_runs_when_it_is_due_and_its_answer_is_kept(serve, schedule, tmp_path, capsys):
    answer = "Two new files:\n\n- a.csv\n- b.csv"
    server = serve(says(answer))
    number = scheduled(schedule, "-what is new?")
    assert main(["jobs", "run"]) == 0
    assert server.bodies == []
    due(schedule, number)
    capsys.readouterr()
    assert main(["jobs", "run"]) == 0
    assert capsys.readouterr().out == "", "cron sends what is printed by mail"
    (run,) = schedule.runs()
    assert (run.state, run.text, run.missed) == ("done", answer, 0)
    assert "-what is new?" in str(server.bodies[0]["messages"])
    assert main(["jobs", "run"]) == 0
    assert len(server.bodies) == 1
    assert schedule.job(number).due > time.time()
    assert main(["jobs", "history", str(number)]) == 0
    assert answer in capsys.readouterr().out


def test_nobody_can_be_asked_and_the_job_says_what_may_run(serve, schedule, tmp_path, capsys):
    wants = calls(("write_file", {"path": "made.txt", "content": "x"}))
    serve(wants, says("I could not."), wants, says("Made."))
    work = tmp_path / "work"
    work.mkdir()
    first = scheduled(schedule, "make it", "--cwd", "work")
    due(schedule, first)
    capsys.readouterr()
    assert main(["jobs", "run"]) == 1
    assert "refused: write_file made.txt" in capsys.readouterr().out
    assert schedule.runs()[0].state == "refused"
    assert not (work / "made.txt").exists()
    assert main(["jobs", "pause", str(first)]) == 0
    due(schedule, scheduled(schedule, "make it", "--cwd", "work", "--approve", "edits"))
    assert main(["jobs", "run"]) == 0
    assert (work / "made.txt").exists()


def test_a_module_in_the_working_directory_is_not_imported(serve, schedule, tmp_path):
    serve(says("Fine."))
    (tmp_path / "asyncio.py").write_text("raise SystemExit(7)")
    due(schedule, scheduled(schedule, "hello"))
    assert main(["jobs", "run"]) == 0
    assert schedule.runs()[0].text == "Fine."


@pytest.mark.kernel
def test_a_notebook_is_kept_as_it_ran(serve, schedule, tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print(6 * 7)")])
    nbformat.write(notebook, tmp_path / "sums.ipynb")
    due(schedule, scheduled(schedule, "sums.ipynb"))
    (tmp_path / "other").mkdir()
    os.chdir(tmp_path / "other")
    assert main(["jobs", "run"]) == 0
    (run,) = schedule.runs()
    assert run.state == "done"
    (cell,) = nbformat.read(run.output, as_version=4).cells
    assert cell.outputs[0].text == "42\n"
    assert nbformat.read(tmp_path / "sums.ipynb", as_version=4).cells[0].outputs == []


@pytest.mark.slow
def test_a_job_that_takes_too_long_is_stopped_with_all_that_it_started(serve, schedule, capsys):
    serve(Reply([stall]))
    due(schedule, scheduled(schedule, "think", "--timeout", "4"))
    assert main(["jobs", "run"]) == 1
    (run,) = schedule.runs()
    assert run.state == "stopped" and run.text.startswith("it exceeded its time limit of 4 s")
    assert not [
        p for p in psutil.Process().children(recursive=True) if "hermes_nb.cli" in p.cmdline()
    ]


# -- missed, overlapping, killed


def test_missed_times_run_once_and_are_counted(serve, schedule, capsys):
    server = serve(says("Caught up."))
    number = scheduled(schedule, "catch up")  # yearly: none comes due while the test runs
    due(schedule, number, when=new_year(-5))
    capsys.readouterr()
    assert main(["jobs", "run"]) == 0
    assert "done, 5 earlier ones missed" in capsys.readouterr().out
    assert main(["jobs", "run"]) == 0
    assert len(server.bodies) == 1
    (run,) = schedule.runs()
    assert (run.missed, run.due) == (5, new_year())


def test_a_paused_job_misses_nothing(serve, schedule):
    server = serve(says("Hello."))
    number = scheduled(schedule, "hello")
    assert main(["jobs", "pause", str(number)]) == 0
    due(schedule, number, seconds=3_600)
    assert main(["jobs", "run"]) == 0
    assert main(["jobs", "resume", str(number)]) == 0
    assert main(["jobs", "run"]) == 0
    assert server.bodies == [] and schedule.runs() == []


@pytest.mark.slow
def test_a_run_that_overlaps_is_skipped_and_told(serve, schedule, tmp_path, capsys):
    slow = says("Slow.")
    slow.steps = [pause(6), *slow.steps]
    server = serve(slow)
    number = scheduled(schedule, "go slowly")
    due(schedule, number)
    first = start(["jobs", "run"], tmp_path)
    assert until(lambda: server.bodies)
    due(schedule, number)
    os.utime(schedule.folder / "runner", times=(1, 1))
    assert main(["jobs", "run"]) == 0, "another one is at it"
    assert main(["jobs", "run", str(number)]) == 1
    assert "is running now" in capsys.readouterr().err
    out, _ = first.communicate(timeout=60)
    assert "skipped: the previous run had not finished" in out
    assert time.time() - schedule.looked() < 60, "it has looked all the time"
    assert sorted(run.state for run in schedule.runs()) == ["done", "skipped"]
    assert len(server.bodies) == 1


def test_a_clock_that_was_wrong_repeats_nothing_and_forgets_nothing(serve, schedule):
    server = serve(says("Hello."))
    number = scheduled(schedule, "hello")
    due(schedule, number, seconds=5)
    first = schedule.job(number).due
    assert main(["jobs", "run"]) == 0
    due(schedule, number, when=first)
    assert main(["jobs", "run"]) == 0
    assert len(server.bodies) == 1, "that time has had its run"
    # It ran in 2060, so it is due in 2061; then the clock is put right.
    due(schedule, number, seconds=-35 * 366 * 86_400)
    os.utime(schedule.folder / "runner", times=(2_840_140_800, 2_840_140_800))
    assert main(["jobs", "run"]) == 0
    assert 0 < schedule.job(number).due - time.time() < 366 * 86_400


def test_a_run_that_was_killed_midway_is_unknown_and_not_repeated(
    serve, schedule, tmp_path, capsys
):
    server = serve(Reply([stall]))
    number = scheduled(schedule, "go slowly")
    due(schedule, number)
    runner = start(["jobs", "run"], tmp_path)
    assert until(lambda: server.bodies)
    (worker,) = psutil.Process(runner.pid).children()
    runner.kill()
    runner.communicate()
    capsys.readouterr()
    assert main(["jobs", "list"]) == 0
    assert "running" in capsys.readouterr().out, "its worker goes on, and holds the lock"
    due(schedule, number)
    assert main(["jobs", "run"]) == 1
    assert "skipped" in capsys.readouterr().out
    worker.kill()
    assert until(lambda: main(["jobs", "run"]) == 1), "its last thread takes the lock with it"
    assert "unknown: its process was killed" in capsys.readouterr().out
    assert sorted(run.state for run in schedule.runs()) == ["skipped", "unknown"]
    assert main(["jobs", "run"]) == 0
    assert len(server.bodies) == 1


def test_a_worker_that_is_killed_leaves_an_unknown_run(serve, schedule, tmp_path):
    server = serve(Reply([stall]))
    due(schedule, scheduled(schedule, "go slowly"))
    runner = start(["jobs", "run"], tmp_path)
    assert until(lambda: server.bodies)
    (worker,) = psutil.Process(runner.pid).children()
    worker.kill()
    out, _ = runner.communicate(timeout=60)
    assert runner.returncode == 1 and ": unknown: " in out
    assert [run.state for run in schedule.runs()] == ["unknown"]


def test_a_stop_ends_what_runs_and_is_told(serve, schedule, tmp_path):
    server = serve(Reply([stall]))
    due(schedule, scheduled(schedule, "go slowly"))
    runner = start(["jobs", "run"], tmp_path)
    assert until(lambda: server.bodies)
    (worker,) = psutil.Process(runner.pid).children()
    runner.send_signal(signal.SIGTERM)
    runner.communicate(timeout=60)
    assert runner.returncode == 130
    assert not worker.is_running()
    assert [run.state for run in schedule.runs()] == ["stopped"]


@pytest.mark.slow
def test_ten_jobs_and_a_kill(tmp_path):
    """`make bench-schedule` does it with a thousand jobs and twenty kills."""
    from bench.schedule import trial

    assert trial(tmp_path, jobs=10, kills=1, seed=7).faults == []


def test_a_damaged_file_costs_no_job_and_repeats_none(serve, schedule, capsys):
    server = serve(says("Once."))
    number = scheduled(schedule, "once\n" * 40, "--to", "telegram:7", "--approve", "edits")
    capsys.readouterr()
    assert main(["jobs", "show", str(number)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("once") == 40 and "--approve edits" in shown and "--to telegram:7" in shown
    due(schedule, number)
    assert main(["jobs", "run"]) == 0
    schedule.close()
    path = schedule.folder / "jobs.db"
    data = bytearray(path.read_bytes())
    data[:100] = bytes(100)
    path.write_bytes(data)
    capsys.readouterr()
    assert main(["jobs", "list"]) == 0
    said = capsys.readouterr()
    assert "1 scheduled jobs could be saved" in said.err and "done" in said.out
    assert main(["jobs", "run"]) == 0
    assert len(server.bodies) == 1
    assert schedule.job(number).to == "telegram:7"


def test_a_file_of_before_there_were_chats_is_taken_over_also_where_it_is_damaged(home, schedule):
    schedule.folder.mkdir(parents=True)
    path = schedule.folder / "jobs.db"
    row = (1, YEARLY, "UTC", "old", "/", "ask", "", 3600.0, 0, 1.0)
    with closing(sqlite3.connect(path)) as connection:
        run_script(connection, _TABLES)
        connection.execute(f"INSERT INTO jobs VALUES ({', '.join('?' * 10)})", row)
        connection.executescript(
            f"PRAGMA application_id = {SCHEMA.application}; PRAGMA user_version = 1"
        )
        connection.commit()
    whole = path.read_bytes()
    assert schedule.job(1).what == "old" and schedule.job(1).to == ""
    schedule.close()
    for log in schedule.folder.glob("jobs.db-*"):
        log.unlink()
    path.write_bytes(bytes(100) + whole[100:])
    assert schedule.job(1).what == "old" and schedule.job(1).to == ""


# -- when


ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]
FIELD = st.sampled_from(
    ["*", "*/7", "0", "2", "1-5", "30", "2,3", "5/2", "MON", "L", "x", "", "60"]
)


@given(st.lists(FIELD, max_size=7).map(" ".join) | st.text(max_size=20), st.sampled_from(ZONES),
       st.integers(0, 4_000_000_000))  # fmt: skip
def test_times_go_up_or_the_line_is_refused(line, zone, after):
    try:
        found = list(itertools.islice(times(line, zone, after), 5))
    except ConfigError:
        return
    assert found == sorted(set(found)) and all(each > after for each in found)
    assert all(each % 60 == 0 for each in found)


@pytest.mark.parametrize(
    ("line", "began", "expected"),
    [
        ("30 2 * * *", "2026-03-28T12:00", ["29T03:00:00+02:00", "30T02:30:00+02:00"]),
        ("0 2,3 * * *", "2026-03-28T12:00", ["29T03:00:00+02:00", "30T02:00:00+02:00"]),
        ("30 2 * * *", "2026-10-24T12:00", ["25T02:30:00+02:00", "26T02:30:00+01:00"]),
        ("*/30 * * * *", "2026-10-25T02:20", ["25T02:30:00+02:00", "25T02:00:00+01:00"]),
    ],
)
def test_summer_time_begins_and_ends(line, began, expected):
    berlin = ZoneInfo("Europe/Berlin")
    after = datetime.datetime.fromisoformat(began).replace(tzinfo=berlin).timestamp()
    found = itertools.islice(times(line, "Europe/Berlin", after), 2)
    told = [datetime.datetime.fromtimestamp(each, berlin).isoformat() for each in found]
    assert [each[8:] for each in told] == expected


def test_a_time_in_words_is_made_a_line_and_asked_about(serve, schedule, tmp_path, capsys):
    server = serve(says("`0 7 * * 1-5`"))
    assert main(["jobs", "every weekday at 7", "hello", "--zone", "Europe/Berlin"]) == 1
    said = capsys.readouterr().err
    assert "no one can confirm this here" in said
    assert "0 7 * * 1-5 (At 07:00 on Monday through Friday, Europe/Berlin; next " in said
    assert schedule.jobs() == []
    assert main(["jobs", "every weekday at 7", "hello", "--yes"]) == 0
    asked = len(server.bodies)
    assert main(["jobs", "0 7 1-7 jan Mon", "hello"]) == 0, "that is a cron line"
    assert [job.cron for job in schedule.jobs()] == ["0 7 * * 1-5", "0 7 1-7 jan Mon"]
    assert len(server.bodies) == asked
    assert "every weekday at 7" in str(server.bodies[-1]["messages"])


@pytest.mark.parametrize(
    ("words", "gist"),
    [
        (["0 7 * *", "hello"], "is not a cron line; it needs five fields"),
        (["61 7 * * *", "hello"], "bad minute"),
        (["0 0 30 2 *", "hello"], "bad day-of-month"),
        ([YEARLY, "none.ipynb"], "there is no notebook"),
        ([YEARLY, " "], "needs a prompt"),
        ([YEARLY, "hello", "--zone", "Mars/Olympus"], "no time zone 'Mars/Olympus'"),
        ([YEARLY, "hello", "--cwd", "nowhere"], "there is no directory"),
        ([YEARLY, "hello", "--to", "telegram"], "--to must be ADAPTER:CHAT"),
        (
            ["sometimes", "hello"],
            "the model could not turn 'sometimes' into a cron line, but returned 'Well.'",
        ),
        (["pause", "7"], "there is no scheduled job 7"),
        (["remove", "all"], "is not a job number"),
        (["pause"], "does not know that command"),
    ],
)
def test_what_cannot_be_scheduled(serve, schedule, capsys, words, gist):
    serve(says("Well."))
    assert main(["jobs", *words]) == 1
    assert gist in capsys.readouterr().err
    assert schedule.jobs() == []


@pytest.mark.parametrize(
    "command",
    [
        f"{sys.executable} -m hermes_nb.cli jobs '* * * * *' evil --approve all",
        f"{sys.executable} -m hermes_nb.cli jobs install --yes",
        "jupyter hermes jobs install --yes",
        "echo '* * * * * evil' | crontab -",
    ],
)
def test_an_agent_with_nobody_there_schedules_nothing(schedule, crontab, tmp_path, command):
    model = ScriptedModel([call("terminal", command=command, timeout=30), "No."])
    with Hermes(model, cwd=tmp_path, approve="all") as hermes:
        hermes.ask("go on by yourself")
    assert "was not run: the user declined" in model.requests[-1].messages[-1].text
    assert schedule.jobs() == [] and not crontab.exists()


# -- the clock


CRONTAB = """#!{python}
import pathlib, sys
file = pathlib.Path({file!r})
if sys.argv[1:] == ["-l"]:
    if not file.exists():
        sys.exit("no crontab for somebody")
    sys.stdout.buffer.write(file.read_bytes())
elif sys.argv[1:] == ["-"]:
    file.write_bytes(sys.stdin.buffer.read())
else:
    sys.exit("usage")
"""
SYSTEMCTL = """#!{python}
import pathlib, sys
with pathlib.Path({file!r}).open("a") as log:
    log.write(" ".join(sys.argv[1:]) + "\\n")
"""


def program(folder, name, text, file):
    """Put a program on the path that keeps what it is given in a file; return that."""
    folder.mkdir(exist_ok=True)
    made = folder / name
    made.write_text(text.format(python=sys.executable, file=str(file)))
    made.chmod(made.stat().st_mode | stat.S_IXUSR)
    return file


@pytest.fixture
def crontab(tmp_path, monkeypatch):
    """A crontab that is a file; only it and a systemctl that is a log are on the path."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    program(tmp_path / "bin", "systemctl", SYSTEMCTL, tmp_path / "systemctl.log")
    return program(tmp_path / "bin", "crontab", CRONTAB, tmp_path / "crontab.txt")


OTHERS = b"MAILTO=me\n# mine, na\xefve\r\n0 3 * * * /usr/bin/backup 100\\%  \n"


def test_the_line_is_shown_written_once_and_taken_back(schedule, crontab, capsys):
    crontab.write_bytes(OTHERS)
    assert main(["jobs", "install"]) == 1
    said = capsys.readouterr().err
    assert crontab.read_bytes() == OTHERS
    for _ in range(2):
        assert main(["jobs", "install", "--yes"]) == 0
    line = crontab.read_bytes().removeprefix(OTHERS).decode()
    assert line.strip() in said and line.count("\n") == 1
    assert main(["jobs", "uninstall", "--yes"]) == 0
    assert crontab.read_bytes() == OTHERS
    assert main(["jobs", "uninstall"]) == 0
    assert "nothing to remove" in capsys.readouterr().out


def test_what_cron_runs_runs_what_is_due(serve, schedule, crontab, tmp_path, monkeypatch):
    serve(says("By the clock."))
    due(schedule, scheduled(schedule, "hello"))
    assert main(["jobs", "install", "--yes"]) == 0
    fields, command = re.fullmatch(r"((?:\S+ ){5})(.*)\n", crontab.read_text()).groups()
    assert fields == "* * * * * "
    # As cron does it: in the home directory, with hardly any environment.
    kept = ("HERMES_NB_BASE_URL", "HERMES_NB_MODEL")
    environment = {name: os.environ[name] for name in kept} | {"HOME": str(tmp_path)}
    done = subprocess.run(["/bin/sh", "-c", command.replace("\\%", "%")], env=environment,
                          cwd=tmp_path, capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stdout == "" and done.stderr == ""
    assert [run.text for run in schedule.runs()] == ["By the clock."]


def test_a_crontab_that_cannot_be_read_is_not_written(schedule, crontab, tmp_path, capsys):
    crontab.write_bytes(OTHERS)
    program(
        tmp_path / "bin", "crontab", "#!/bin/sh\necho you are not allowed >&2; exit 1\n", crontab
    )
    assert main(["jobs", "install", "--yes"]) == 1
    assert "you are not allowed" in capsys.readouterr().err
    assert crontab.read_bytes() == OTHERS


def test_a_timer_of_systemd_is_written_started_and_removed(
    schedule, crontab, tmp_path, home, capsys
):
    for _ in range(2):
        assert main(["jobs", "install", "systemd", "--yes"]) == 0
    service, timer = sorted((tmp_path / "config" / "systemd" / "user").iterdir())
    assert f'Environment="HERMES_HOME={home}"' in service.read_text()
    assert "OnCalendar=minutely" in timer.read_text()
    log = (tmp_path / "systemctl.log").read_text().splitlines()
    assert log == ["--user daemon-reload", f"--user enable --now {timer.name}"]
    assert main(["jobs", "uninstall", "--yes"]) == 0
    assert not timer.exists() and not service.exists()
    assert f"--user disable --now {timer.name}" in (tmp_path / "systemctl.log").read_text()
    assert not crontab.exists()


@pytest.mark.skipif(ANALYZE is None, reason="there is no systemd-analyze")
def test_systemd_takes_the_files(tmp_path, monkeypatch):
    for name in ("XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(tmp_path))
    for file, text in units(tmp_path / "my 100% home").items():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    command = [ANALYZE, "verify", "--user", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@given(
    st.lists(st.text(st.characters(exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")))
)
def test_other_lines_of_a_crontab_stay_as_they_are(others):
    """Also where the last one does not end."""
    home = Path("/home/me/100% mine")
    text = "\n".join(others)
    assert without(text, home) == text
    with_ours = f"{text}\n{cron_line(home)}\n"
    assert without(with_ours, home) == f"{text}\n"
    assert without(with_ours, Path("/home/you")) == with_ours
