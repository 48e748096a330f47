"""Scheduled prompts and notebooks: their times, due jobs, and the results of runs.

Cron or a timer starts `jupyter hermes jobs run` every minute. Only one process at a time runs due
jobs, each in a separate process as a headless `jupyter hermes run`.

```
(none) --begin--> running --settle--> done | refused | failed | stopped
                     |  --(the job's lock is free)--> unknown
(none) --begin, while the previous run continues--> skipped
```
A run's row and the job's next time are written in one transaction before anything runs. Each
scheduled time of a job has one row, so it never runs twice. The runner and the job's process hold
the job's lock jointly. If a row is `running` while the lock is free, its process was killed. Its
progress is unknown, so it is reported and not repeated.
"""

from __future__ import annotations

import asyncio
import datetime
import itertools
import math
import os
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.files import locked, make_private
from hermes_nb.core.text import head_tail
from hermes_nb.safety.administrator import policy
from hermes_nb.safety.redact import redact
from hermes_nb.storage.database import Database, Warn
from hermes_nb.storage.opening import Schema, run_script
from hermes_nb.storage.salvage import records

State = Literal["running", "done", "refused", "failed", "stopped", "unknown", "skipped"]
ENDED: dict[int, State] = {0: "done", 3: "refused", 130: "stopped"}
"""Run states for the exit codes of `jupyter hermes run`; any other code is a failure."""
LOST = "its process was killed; it may be partly done and is not run again"
OVERLAPS = "the previous run had not finished"
SIDE_BY_SIDE = 4
"""Maximum number of jobs that run concurrently."""
LOOK = 5.0
"""Seconds between two checks for due jobs while jobs are running."""
SET_BACK = 60.0
"""If the last check appears to be more than this many seconds in the future, the clock was set
back."""
BRIEFLY = 0.5
"""Seconds to wait for a job's lock.

A process that only checks whether a job is running holds it for less time.
"""
GRACE = 10.0
"""Seconds that a stopped job gets to clean up."""
KEPT = 50
"""Number of runs to keep per job, with their notebooks."""
COUNTED = 1_000
"""Maximum number of a job's missed times to count."""
TEXT = 20_000
"""Maximum characters to store of a run's output."""
FIVE = 5
PROGRAM = (sys.executable, "-P", "-m", "hermes_nb.cli")
"""Command that runs jobs. `-P` keeps modules in the working directory from shadowing installed
ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A scheduled prompt or notebook."""

    id: int = 0
    """Job number; 0 until it is stored."""
    cron: str
    """Cron expression with five fields."""
    zone: str
    """IANA name of the cron expression's time zone."""
    what: str
    """The prompt, or a notebook's absolute path."""
    directory: str
    """Working directory."""
    approve: str = "ask"
    """Approval mode."""
    model: str = ""
    """Model to use; "" for the model in the settings when it runs."""
    seconds: float = 3_600.0
    """Time limit for a run in seconds."""
    paused: bool = False
    """Whether the job is paused."""
    due: float = math.inf
    """Next scheduled time in seconds since the epoch; infinite if there is none."""
    to: str = ""
    """Gateway chat that receives the results, as `ADAPTER:CHAT`; "" for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of a job."""

    job: int
    """Number of the job."""
    due: float
    """The scheduled time in seconds since the epoch."""
    state: State
    """The run's state."""
    began: float
    """Start in seconds since the epoch."""
    ended: float = 0.0
    """End in seconds since the epoch; 0 while it is running."""
    missed: int = 0
    """Number of earlier times that were missed."""
    text: str = ""
    """The output: the answer, and messages such as errors."""
    output: str = ""
    """Path of the executed notebook, or "" for a prompt."""

    @property
    def came_to(self) -> str:
        """A description of the state and the number of missed times."""
        return self.state + (f", {self.missed} earlier ones missed" if self.missed else "")


_TABLES = """
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    cron TEXT NOT NULL, zone TEXT NOT NULL, what TEXT NOT NULL, directory TEXT NOT NULL,
    approve TEXT NOT NULL, model TEXT NOT NULL, seconds REAL NOT NULL,
    paused INTEGER NOT NULL CHECK (paused IN (0, 1)),
    due REAL NOT NULL CHECK (typeof(due) = 'real')
);
CREATE TABLE runs (
    job INTEGER NOT NULL CHECK (typeof(job) = 'integer'),
    due REAL NOT NULL CHECK (typeof(due) = 'real'),
    state TEXT NOT NULL,
    began REAL NOT NULL, ended REAL NOT NULL, missed INTEGER NOT NULL,
    text TEXT NOT NULL, output TEXT NOT NULL,
    PRIMARY KEY (job, due)
);
CREATE INDEX runs_in_work ON runs (job) WHERE state = 'running';
"""


def _salvage(source: Path, target: Path) -> str:
    """Copy a damaged database's readable jobs and runs to a new one; return a report."""
    with closing(sqlite3.connect(target, isolation_level=None)) as connection:
        SCHEMA.migrate(connection)
        for table, columns, added in (("jobs", 10, ("",)), ("runs", 8, ())):
            places = ", ".join("?" * (columns + len(added)))
            statement = f"INSERT OR IGNORE INTO {table} VALUES ({places})"  # noqa: S608 - ours
            for record in records(source, columns=columns):
                values = (*record.values, *added[: columns + 1 - len(record.values)])
                values = (record.rowid, *values[1:]) if table == "jobs" else values
                with suppress(sqlite3.Error):  # not a row in this table
                    connection.execute(statement, values)
        saved = connection.execute("SELECT count(*) FROM jobs").fetchone()[0]
    return f"{saved} scheduled jobs could be saved into a new one"


def _add_to(connection: sqlite3.Connection) -> None:
    connection.execute("ALTER TABLE jobs ADD COLUMN 'to' TEXT NOT NULL DEFAULT ''")


SCHEMA = Schema(
    name="schedule",
    application=0x68736368,  # "hsch"
    steps=(lambda connection: run_script(connection, _TABLES), _add_to),
    tables=("jobs", "runs"),
    first=("jobs", "runs"),
    salvage=_salvage,
    rebuild=lambda _: None,  # no table is derived from another
)


def zone_named(name: str) -> ZoneInfo:
    """Return a time zone by its IANA name; raise `ConfigError` if it is unknown."""
    try:
        return ZoneInfo(name)
    except (LookupError, ValueError, OSError) as error:
        raise ConfigError(
            f"there is no time zone {name!r}; use a name such as Europe/Berlin"
        ) from error


def local_zone() -> str:
    """Return the name of this machine's time zone, or `UTC` if it is unknown."""
    linked = Path("/etc/localtime").resolve().as_posix().rpartition("zoneinfo/")[2]
    for name in (os.environ.get("TZ", "").lstrip(":"), linked):
        with suppress(ConfigError):
            return zone_named(name).key
    return "UTC"


def local_time(seconds: float, zone: str, *, named: bool = False) -> str:
    """Format a time as a local date and time in a zone, with the zone's name if `named`.

    If the zone is empty or unknown, this machine's zone is used.
    """
    try:
        zone_named(zone)
    except ConfigError:
        zone = local_zone()
    shown = datetime.datetime.fromtimestamp(seconds, zone_named(zone)).strftime("%Y-%m-%d %H:%M")
    return f"{shown} {zone}" if named else shown


def times(cron: str, zone: str, after: float) -> Iterator[float]:
    """Yield a cron expression's times after `after` in ascending order, in seconds since the epoch.

    Changes to and from daylight saving time are handled as in Debian's cron: times in the skipped
    hour run right after it, and fixed times in the repeated hour run once.

    Raises:
        ConfigError: the expression does not have five valid fields.
    """
    if len(cron.split()) != FIVE:
        raise ConfigError(f"{cron!r} is not a cron line; it needs five fields, such as 0 7 * * 1-5")
    try:
        for each in CronSim(cron, datetime.datetime.fromtimestamp(after, zone_named(zone))):
            if (found := each.timestamp()) > after:
                yield found
                after = found
    except CronSimError as error:
        raise ConfigError(f"{cron!r} is not a cron line: {str(error).lower()}") from error
    except OverflowError:  # beyond the maximum year
        return


def explained(cron: str, zone: str) -> str:
    """Describe a valid cron expression in words."""
    return f"{CronSim(cron, datetime.datetime.now(datetime.UTC)).explain()}, {zone}"


def is_notebook(what: str) -> bool:
    """Return whether a job's `what` is the path of a notebook rather than a prompt."""
    return what.endswith(".ipynb") and "\n" not in what and Path(what).is_absolute()


class Schedule:
    """A Hermes directory's jobs and runs.

    Calls raise `StoreError` on failure and `ConfigError` for an unknown id.
    """

    def __init__(self, home: Path, *, warn: Warn | None = None) -> None:
        self.home, self.folder = home, home / "schedule"
        self._database = Database(self.folder / "jobs.db", SCHEMA, warn=warn)
        self.close = self._database.close

    def add(self, job: Job) -> Job:
        """Store a new job and return it with its id and next time.

        Raises:
            ConfigError: the policy forbids it, or the prompt contains a key.
        """
        policy().check("schedules")
        policy().check("modes", job.approve)
        if redact(job.what) != job.what:  # a redacted prompt would be a different one
            raise ConfigError(
                "the prompt contains something that looks like a key, which would be stored in "
                "clear text; put the key into a file or HERMES_HOME/.env, and refer to that "
                "instead"
            )
        job = replace(job, due=next(times(job.cron, job.zone, time.time()), math.inf))
        made = self._database.write(lambda c: _insert(c, "jobs", job).lastrowid)
        return replace(job, id=made or 0)

    def jobs(self) -> list[Job]:
        """Return all jobs, ordered by id."""
        return self._database.read(
            lambda c: [_job(row) for row in c.execute("SELECT * FROM jobs ORDER BY id")]
        )

    def job(self, number: int) -> Job:
        """Return one job."""
        found = next((job for job in self.jobs() if job.id == number), None)
        if found is None:
            raise ConfigError(f"there is no scheduled job {number}")
        return found

    def pause(self, number: int, *, paused: bool) -> Job:
        """Pause or resume a job. Times during the pause do not count as missed."""
        job = self.job(number)
        due = next(times(job.cron, job.zone, time.time()), math.inf)
        self._database.write(
            lambda c: c.execute(
                "UPDATE jobs SET paused = ?, due = ? WHERE id = ?", (paused, due, number)
            )
        )
        return replace(job, paused=paused, due=due)

    def remove(self, number: int) -> Job:
        """Delete a job and its runs, but not its notebooks."""
        job = self.job(number)

        def remove(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM jobs WHERE id = ?", (number,))
            connection.execute("DELETE FROM runs WHERE job = ?", (number,))

        self._database.write(remove)
        return job

    def runs(self, number: int | None = None, limit: int = KEPT) -> list[Run]:
        """Return the latest runs of one job or of all jobs, newest first."""
        return self._database.read(
            lambda c: [
                Run(**row)
                for row in c.execute(
                    "SELECT * FROM runs WHERE ? IS NULL OR job = ?"
                    " ORDER BY began DESC, due DESC LIMIT ?",
                    (number, number, limit),
                )
            ]
        )

    def lock(self, number: int | str) -> Path:
        """Return the path of a job's lock, or of the lock for the `runner` of all jobs."""
        make_private(self.folder)
        return self.folder / str(number)

    def begin(self, number: int, *, at_once: bool = False, overlaps: bool = False) -> Run | None:
        """Record a due job's start (or skip) and its next time; return None if it is not due."""
        now = time.time()

        def begin(connection: sqlite3.Connection) -> Run | None:
            row = connection.execute("SELECT * FROM jobs WHERE id = ?", (number,)).fetchone()
            if row is None or not (at_once or (row["due"] <= now and not row["paused"])):
                return None
            job = _job(row)
            run = Run(job=number, due=now, state="running", began=now)
            if not at_once:
                run, upcoming = _now(job, run)
                connection.execute("UPDATE jobs SET due = ? WHERE id = ?", (upcoming, number))
            if overlaps:
                run = replace(run, state="skipped", ended=now, text=OVERLAPS)
            elif is_notebook(job.what):
                stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
                run = replace(run, output=str(self.folder / str(number) / f"{stamp}.ipynb"))
            made = _insert(connection, "runs", run)
            # No row was added: the clock was set back, and the job has already run for this time.
            return run if made.rowcount else None

        return self._database.write(begin)

    def settle(self, run: Run, state: State, text: str = "") -> Run | None:
        """Record the end of a run and delete old runs; return None if it has already ended."""
        ended = replace(run, state=state, ended=time.time(), text=head_tail(redact(text), TEXT))

        def settle(connection: sqlite3.Connection) -> tuple[int, list[str]]:
            made = connection.execute(
                "UPDATE runs SET state = ?, ended = ?, text = ?"
                " WHERE job = ? AND due = ? AND state = 'running'",
                (ended.state, ended.ended, ended.text, ended.job, ended.due),
            )
            old = connection.execute(
                "SELECT due, output FROM runs WHERE job = ? AND state <> 'running'"
                " ORDER BY began DESC LIMIT -1 OFFSET ?",
                (run.job, KEPT),
            ).fetchall()
            for row in old:
                connection.execute("DELETE FROM runs WHERE job = ? AND due = ?", (run.job, row[0]))
            return made.rowcount, [row["output"] for row in old if row["output"]]

        noted, outputs = self._database.write(settle)
        for output in outputs:
            Path(output).unlink(missing_ok=True)
        return ended if noted else None

    def find_lost(self) -> list[Run]:
        """Record and return the runs whose process died; their progress is unknown."""
        lost = []
        for run in self._database.read(
            lambda c: [
                Run(**row) for row in c.execute("SELECT * FROM runs WHERE state = 'running'")
            ]
        ):
            with suppress(TimeoutError), locked(self.lock(run.job), 0, required=True):
                lost.append(self.settle(run, "unknown", LOST))
        return [run for run in lost if run is not None]

    def next_due(self) -> Job | None:
        """Return the job that has been due the longest, or None."""
        statement = "SELECT * FROM jobs WHERE due <= ? AND NOT paused ORDER BY due LIMIT 1"
        found = self._database.read(lambda c: c.execute(statement, (time.time(),)).fetchone())
        return _job(found) if found is not None else None

    def looked(self) -> float:
        """Return the time of the last check for due jobs, or 0 if there was none."""
        with suppress(FileNotFoundError):
            return self.lock("runner").stat().st_mtime
        return 0.0


def _insert(connection: sqlite3.Connection, table: str, row: Job | Run) -> sqlite3.Cursor:
    """Insert a row unless its key already exists."""
    values = [value or None if name == "id" else value for name, value in asdict(row).items()]
    statement = f"INSERT OR IGNORE INTO {table} VALUES ({', '.join('?' * len(values))})"  # noqa: S608 - ours
    return connection.execute(statement, values)


def _job(row: sqlite3.Row) -> Job:
    return Job(**{**row, "paused": bool(row["paused"])})


def _now(job: Job, run: Run) -> tuple[Run, float]:
    """Return a due job's run for its most recent time, and the job's next time."""
    now = run.began
    try:
        ahead = itertools.islice(times(job.cron, job.zone, job.due), COUNTED)
        past = list(itertools.takewhile(now.__ge__, ahead))
        upcoming = next(times(job.cron, job.zone, now), math.inf)
    except ConfigError as error:  # an unknown time zone on this machine
        return replace(run, due=job.due, state="failed", ended=now, text=str(error)), math.inf
    return replace(run, due=[job.due, *past][-1], missed=len(past)), upcoming


async def run_due(schedule: Schedule, tell: Callable[[Run], None]) -> None:
    """Run all due jobs; `tell` is called for each finished or lost run.

    Does nothing while another process runs them. Cancelling it stops running jobs.

    Raises:
        ConfigError: the administrator does not allow scheduled runs.
    """
    policy().check("schedules")
    running: set[asyncio.Task[Run | None]] = set()
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(schedule.lock("runner"), 0, required=True))
        except TimeoutError:
            return
        if schedule.looked() > time.time() + SET_BACK:
            for each in schedule.jobs():  # recomputes next times that were set by a wrong clock
                schedule.pause(each.id, paused=each.paused)
        try:
            while True:
                schedule.lock("runner").touch(mode=0o600)
                for lost in schedule.find_lost():
                    tell(lost)
                while len(running) < SIDE_BY_SIDE and (job := schedule.next_due()):
                    running.add(asyncio.create_task(run_job(schedule, job)))
                    await asyncio.sleep(0)  # let it start, so that it is no longer due
                if not running:
                    return
                over, running = await asyncio.wait(
                    running, timeout=LOOK, return_when=asyncio.FIRST_COMPLETED
                )
                for run in filter(None, [task.result() for task in over]):
                    tell(run)
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)


async def run_job(schedule: Schedule, job: Job, *, at_once: bool = False) -> Run | None:
    """Run a job if it is due or `at_once`; return its run, or None if it was not due.

    Raises:
        ConfigError: with `at_once`, the job is already running.
    """
    policy().check("schedules")
    with ExitStack() as stack:
        try:
            lock = stack.enter_context(locked(schedule.lock(job.id), BRIEFLY, required=True))
        except TimeoutError:
            if at_once:
                raise ConfigError(f"job {job.id} is running now") from None
            return schedule.begin(job.id, overlaps=True)
        run = schedule.begin(job.id, at_once=at_once)
        if run is None or run.state != "running":
            return run
        try:
            state, text = await _perform(schedule, job, run, lock)
        except asyncio.CancelledError:
            schedule.settle(run, "stopped", "it was stopped")
            raise
        return schedule.settle(run, state, text)


async def _perform(schedule: Schedule, job: Job, run: Run, lock: int) -> tuple[State, str]:
    """Run a job with `jupyter hermes run` and return its state and output."""
    words = [job.what, "--output", run.output] if run.output else ["-"]
    words += ["--approve", job.approve, *(("--model", job.model) if job.model else ())]
    note = ""
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as told:
        given.write(b"" if run.output else job.what.encode("utf-8", "replace"))
        given.seek(0)
        try:
            if run.output:
                make_private(Path(run.output).parent)
            process = await asyncio.create_subprocess_exec(
                *PROGRAM, "run", *words,
                cwd=job.directory, stdin=given, stdout=told, stderr=told,
                env={**os.environ, "HERMES_HOME": str(schedule.home)},
                start_new_session=True, pass_fds=(lock,) if os.name == "posix" else (),
            )  # fmt: skip
        except OSError as error:
            return "failed", f"it could not be started: {error}"
        try:
            async with asyncio.timeout(job.seconds):
                code = await process.wait()
            state = "unknown" if code < 0 else ENDED.get(code, "failed")
            note = LOST if code < 0 else ""
        except TimeoutError:
            state, note = "stopped", f"it exceeded its time limit of {job.seconds:g} s"
        finally:
            await _end(process)
        told.seek(0)
        text = told.read(50 * TEXT).decode("utf-8", "replace").strip()
    return state, "\n".join(filter(None, [note, text]))


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a running process: terminate it, then kill its process group."""
    if process.returncode is not None:
        return
    process.terminate()
    try:
        async with asyncio.timeout(GRACE):
            await process.wait()
    except TimeoutError:
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
