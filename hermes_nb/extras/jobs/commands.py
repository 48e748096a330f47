"""`%hermes schedule` and `jupyter hermes jobs`: manage scheduled jobs and their triggers."""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from hermes_nb.agent.fanout.executors import MapTask, perform
from hermes_nb.agent.settings.config import APPROVE_MODES
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.escapes import visible
from hermes_nb.core.files import write_atomic
from hermes_nb.core.protocols import ChatModel
from hermes_nb.core.text import one_line
from hermes_nb.extras.jobs.jupyter_scheduler import JUPYTER, JupyterScheduler
from hermes_nb.extras.jobs.schedule import (
    PROGRAM,
    Job,
    Run,
    Schedule,
    explained,
    is_notebook,
    local_time,
    local_zone,
    run_job,
    times,
    zone_named,
)
from hermes_nb.notebook.approval import ask_user
from hermes_nb.notebook.display.tables import grid
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.notebook.shell import can_ask
from hermes_nb.safety.markup import code_block, code_span, escape
from hermes_nb.safety.redact import redact

SILENT = 300.0
"""The user is warned after this many seconds without a check for due jobs."""
SHOWN = 160
"""Maximum characters of a run's output shown in the table of runs."""
WORDS = "list, show, pause, resume, run, history, remove, install, uninstall"
NAMES = frozenset(
    "SUN MON TUE WED THU FRI SAT JAN FEB MAR APR MAY JUN JUL AUG SEP OCT NOV DEC LW".split()
)
"""Words allowed in a cron expression.

If the text has other words, the model translates it to a cron expression.
"""
CLOCKS = {"cron", "systemd", JUPYTER}
HOW = 'an example is `{name} "0 7 * * 1-5" "What is new in data/?"`'
WHICH = (
    "Which cron line means this time? It has five fields: minute, hour, day of the month, month, "
    "day of the week. Answer with the line alone."
)


class Commands:
    """The schedule commands, for notebooks and the shell.

    Args:
        schedule: A Hermes directory's schedule.
        name: The command as quoted in messages.
        ask: Asks the user a question; returns None in headless mode.
        translate: Converts words to a cron expression.
    """

    def __init__(
        self,
        schedule: Schedule,
        name: str,
        ask: Callable[[str], str | None],
        translate: Callable[[str], Awaitable[str]],
    ) -> None:
        self.schedule = schedule
        self._name, self._ask, self._translate = name, ask, translate

    async def perform(self, options: argparse.Namespace) -> str:
        """Run a command and return Markdown to display; raise `ConfigError` if it fails."""
        schedule = self.schedule
        schedule.find_lost()
        match options.words:
            case [] | ["list"]:
                return self._listed()
            case ["show", number]:
                return _shown(schedule.job(_id(number)))
            case ["history", *some] if len(some) <= 1:
                runs = schedule.runs(_id(*some) if some else None)
                zones = {job.id: job.zone for job in schedule.jobs()}
                return _history(runs, zones, whole=bool(some))
            case ["remove", number]:
                job = schedule.remove(_id(number))
                return f"Job {job.id} and its history have been removed.{self._follow(job)}"
            case ["pause" | "resume" as word, number]:
                job = schedule.pause(_id(number), paused=word == "pause")
                return f"Job {job.id}: {_next(job)}.{self._follow(job)}"
            case ["run", number]:
                job = schedule.job(_id(number))
                run = await run_job(schedule, job, at_once=True)
                return _run_report(run, job.zone) if run else f"Job {number} has been removed."
            case ["install" | "uninstall" as word, *kind] if set(kind) <= CLOCKS and not kind[1:]:
                done = self._install if word == "install" else self._uninstall
                return done(*kind, yes=options.yes)
            case [when, *what] if what and when not in WORDS.split(", "):
                return await self._add(when, " ".join(what), options)
        raise ConfigError(
            f"`{self._name}` does not know that command; {HOW.format(name=self._name)}"
        )

    async def _add(self, when: str, what: str, options: argparse.Namespace) -> str:
        what, directory = _placed(what, options.cwd)
        if not 0 < options.timeout < math.inf or not what.strip():
            raise ConfigError("a job needs a prompt or a notebook, and a --timeout above 0 seconds")
        zone = zone_named(options.zone or local_zone()).key
        spoken = any(len(w) > 1 and w.isalpha() and w.upper() not in NAMES for w in when.split())
        cron = await self._translate(when) if spoken else when
        coming = ", ".join(
            local_time(each, zone) for each in islice(times(cron, zone, time.time()), 3)
        )
        if not coming:
            raise ConfigError(f"{cron!r} never occurs")
        if spoken:
            text = f"{cron} ({explained(cron, zone)}; next {coming})"
            self._agreed(f"{one_line(visible(when), 80)!r} is {text}: right?", yes=options.yes)
        if options.to and not all(options.to.partition(":")):
            raise ConfigError(
                "--to must be ADAPTER:CHAT, a chat of the gateway, such as telegram:1234"
            )
        job = Job(
            cron=cron,
            zone=zone,
            what=what,
            directory=directory,
            approve=options.approve,
            model=options.model,
            seconds=options.timeout,
            to=options.to,
        )
        job = self.schedule.add(job)
        return f"{_about(job)}{self._follow(job)}{self._silence()}"

    def _agreed(self, question: str, *, yes: bool) -> None:
        """Raise `ConfigError` unless the user agrees."""
        answer = "y" if yes else self._ask(f"{question} [y/N] ")
        if answer is None:
            raise ConfigError(f"no one can confirm this here; pass `--yes` to agree: {question}")
        if answer.strip().lower() not in ("y", "yes"):
            raise ConfigError("nothing was changed")

    def _listed(self) -> str:
        last = {run.job: run for run in reversed(self.schedule.runs(limit=10_000))}
        rows = [
            (
                job.id,
                f"{code_span(job.cron)} {escape(explained(job.cron, job.zone))}",
                escape(visible(one_line(redact(job.what), 60))),
                job.approve,
                _next(job).removeprefix("next "),
                _ended(last[job.id], job) if job.id in last else "",
            )
            for job in self.schedule.jobs()
        ]
        if not rows:
            return f"Nothing is scheduled; {HOW.format(name=self._name)}."
        return grid(("id", "when", "what", "approve", "next", "last"), rows) + self._silence()

    def _silence(self) -> str:
        """Return a warning if nothing checks for due jobs, otherwise ""."""
        looked = self.schedule.looked()
        late = self.schedule.next_due()
        if time.time() - looked < SILENT or (self._marker.exists() and not late):
            return ""
        since = f"since {local_time(looked, local_zone(), named=True)}" if looked else "yet"
        return f"\n\nDue jobs have not been run {since}; set that up with `{self._name} install`."

    @property
    def _marker(self) -> Path:
        """The file that exists while jupyter-scheduler is responsible for the jobs."""
        return self.schedule.lock(JUPYTER)

    def _scheduler(self) -> JupyterScheduler:
        home = self.schedule.home
        return JupyterScheduler(home, _mark(home).split()[-1])

    def _follow(self, job: Job) -> str:
        """Update a job in jupyter-scheduler if it runs the jobs; return a message if that fails."""
        if not self._marker.exists():
            return ""
        try:
            self._scheduler().keep(self.schedule.jobs(), only=job.id)
        except ConfigError as error:
            text = f"{JUPYTER} could not be updated: {escape(visible(str(error)))}"
            return f"\n\n{text}. Try again with `{self._name} install {JUPYTER}`."
        return ""

    def _define(self, *, yes: bool) -> str:
        scheduler = self._scheduler()
        shown = f"this at the times of each job?\n{scheduler.code('ID')}"
        self._agreed(f"Have {JUPYTER} at {scheduler.url} run {shown}", yes=yes)
        self._marker.touch(mode=0o600)
        scheduler.keep(self.schedule.jobs())
        return f"{JUPYTER} at {code_span(scheduler.url)} runs the jobs, while that server runs."

    def _install(self, kind: str = "", *, yes: bool) -> str:
        home = self.schedule.home
        if kind == JUPYTER:
            return self._define(yes=yes or self._marker.exists())
        line, files = cron_line(home), units(home)
        if kind == "cron" or (not kind and shutil.which("crontab")):
            if line in _crontab().splitlines():
                return f"Already in your crontab: {code_span(line)}"
            self._agreed(f"Add to your crontab?\n{line}\n", yes=yes)
            kept = without(_crontab(), home)
            ended = kept if kept.endswith("\n") or not kept else f"{kept}\n"
            _call("crontab", "-", given=f"{ended}{line}\n")
            return f"Added to your crontab: {code_span(line)}"
        if not shutil.which("systemctl"):
            raise ConfigError(
                "this machine has neither cron nor systemd; have this command run every minute: "
                f"{line}\nOr let a Jupyter server run the jobs: `{self._name} install {JUPYTER}`"
            )
        if all(file.is_file() and file.read_text("utf-8") == text for file, text in files.items()):
            return f"The timer already exists: {code_span(', '.join(map(str, files)))}"
        shown = "\n".join(f"{file}\n{text}" for file, text in files.items())
        self._agreed(f"Write and start this timer?\n{shown}\n", yes=yes)
        for file, text in files.items():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_atomic(file, text.encode("utf-8"))
        _call("systemctl", "--user", "daemon-reload")
        _call("systemctl", "--user", "enable", "--now", file.name)
        lasts = "to run it while you are logged out too, use `loginctl enable-linger`"
        return f"The timer {code_span(file.name)} is started; {lasts}."

    def _uninstall(self, kind: str = "", *, yes: bool) -> str:
        home, gone = self.schedule.home, []
        before = _crontab() if kind in ("", "cron") and shutil.which("crontab") else ""
        if ours := [line for line in before.splitlines() if line.rstrip().endswith(_mark(home))]:
            self._agreed("\n".join(["Remove from your crontab?", *ours, ""]), yes=yes)
            _call("crontab", "-", given=without(_crontab(), home))
            gone.append("the line in your crontab")
        if kind in ("", "systemd") and (files := [file for file in units(home) if file.is_file()]):
            self._agreed(f"Stop the timer and remove {', '.join(map(str, files))}?", yes=yes)
            _call("systemctl", "--user", "disable", "--now", files[-1].name)
            for file in files:
                file.unlink()
            _call("systemctl", "--user", "daemon-reload")
            gone.append("the timer")
        if kind in ("", JUPYTER) and self._marker.exists():
            scheduler = self._scheduler()
            self._agreed(f"Remove the jobs from {JUPYTER} at {scheduler.url}?", yes=yes)
            scheduler.keep([])
            self._marker.unlink()
            gone.append(f"the jobs of {JUPYTER}")
        return f"Removed: {' and '.join(gone)}." if gone else "There was nothing to remove."


async def cron_for(words: str, model: ChatModel) -> str:
    """Have a model convert words to a cron expression; raise `ConfigError` if it fails."""
    result = await perform(MapTask(prompt=WHICH, name="time", text=words), model)
    for line in result.text.splitlines():
        with suppress(ConfigError):
            cron = line.strip(" `")
            next(times(cron, "UTC", time.time()), None)
            return cron
    text = one_line(result.text or result.error, 80)
    raise ConfigError(
        f"the model could not turn {words!r} into a cron line, but returned {text!r}; write "
        "the line "
        "yourself"
    )


def _placed(what: str, cwd: str) -> tuple[str, str]:
    """Return the prompt or the notebook's absolute path, and the working directory."""
    directory = Path(cwd).expanduser().absolute()
    if is_notebook(str(file := directory / Path(what).expanduser())):
        if file.is_file():
            what, directory = str(file), directory if cwd else file.parent
        elif len(what.split()) == 1:
            raise ConfigError(f"there is no notebook {file}")
    if not directory.is_dir():
        raise ConfigError(f"there is no directory {directory}")
    return what, str(directory)


def _id(word: str) -> int:
    if not (word.isascii() and word.isdigit()):
        raise ConfigError(f"{one_line(word, 40)!r} is not a job number")
    return int(word)


def _about(job: Job) -> str:
    return f"Job {job.id}: {explained(job.cron, job.zone)} ({code_span(job.cron)}); {_next(job)}."


def _shown(job: Job) -> str:
    """Return a job's full description."""
    options = {"approve": job.approve, "model": job.model, "timeout": f"{job.seconds:g}"}
    options |= {"cwd": job.directory, "to": job.to}
    given = " ".join(f"--{name} {shlex.quote(value)}" for name, value in options.items() if value)
    return f"{_about(job)}\n\n{code_span(visible(given))}\n\n{code_block(redact(job.what))}"


def _next(job: Job) -> str:
    coming = "never" if math.isinf(job.due) else f"next {local_time(job.due, job.zone)}"
    return "paused" if job.paused else coming


def _ended(run: Run, job: Job) -> str:
    return f"{run.state}, {local_time(run.began, job.zone)}"


def _run_report(run: Run, zone: str) -> str:
    """Return a run's result with its complete output."""
    made = f"\n\n{code_span(run.output)}" if run.output else ""
    when = local_time(run.due, zone, named=True)
    return f"Job {run.job}, {when}: **{run.came_to}**{made}\n\n{code_block(run.text)}"


def _history(runs: list[Run], zones: Mapping[int, str], *, whole: bool) -> str:
    rows = [
        (
            run.job,
            local_time(run.due, zones.get(run.job, ""), named=True),
            run.came_to,
            f"{run.ended - run.began:.0f} s" if run.ended else "",
            escape(visible(one_line(run.text, SHOWN))),
        )
        for run in runs
    ]
    table = grid(("job", "for", "state", "took", "said"), rows) if rows else "No runs yet."
    return "\n\n".join(
        [table, *(_run_report(run, zones.get(run.job, "")) for run in runs[: int(whole)])]
    )


def cron_line(home: Path) -> str:
    """Return the crontab line that runs due jobs; raise `ConfigError` if `home` can't be quoted."""
    if set('\n"\\') & set(str(home)):
        raise ConfigError(
            f"the Hermes directory {str(home)!r} cannot be used in a crontab: its name has a "
            "quote, backslash or line break"
        )
    words = shlex.join([*PROGRAM, "jobs", "run"])
    line = f"* * * * * HERMES_HOME={shlex.quote(str(home))} {words} {_mark(home)}"
    return line.replace("%", "\\%")


def _mark(home: Path) -> str:
    return f"# hermes_nb schedule {hashlib.sha256(os.fsencode(home)).hexdigest()[:8]}"


def without(crontab: str, home: Path) -> str:
    """Return a crontab without this Hermes directory's line, otherwise unchanged."""
    lines = crontab.splitlines(keepends=True)
    return "".join(line for line in lines if not line.rstrip().endswith(_mark(home)))


def units(home: Path) -> dict[Path, str]:
    """Return the contents of the user's systemd service and timer files, by path."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "systemd/user"
    name = f"hermes-nb-{_mark(home).split()[-1]}"
    quoted = [f'"{each}"'.replace("%", "%%") for each in (f"HERMES_HOME={home}", *PROGRAM)]
    service = f"Environment={quoted[0]}\nExecStart={' '.join(quoted[1:])} jobs run\nType=oneshot\n"
    timer = "OnCalendar=minutely\nAccuracySec=1s\n\n[Install]\nWantedBy=timers.target\n"
    about = "[Unit]\nDescription=Scheduled runs of hermes_nb\n\n"
    return {
        folder / f"{name}.service": f"{about}[Service]\n{service}",
        folder / f"{name}.timer": f"{about}[Timer]\n{timer}",
    }


def _crontab() -> str:
    try:
        return _call("crontab", "-l")
    except ConfigError as error:
        if "no crontab for" in str(error):
            return ""
        raise


def _call(*command: str, given: str = "") -> str:
    """Return a program's unchanged output; raise `ConfigError` if it fails."""
    english = {**os.environ, "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, input=os.fsencode(given), capture_output=True, check=False, env=english
        )
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be run: {error.strerror or error}") from error
    if done.returncode:
        text = one_line(visible(os.fsdecode(done.stderr)), 300)
        raise ConfigError(f"`{shlex.join(command)}` failed: {text}")
    return os.fsdecode(done.stdout)


async def schedule(agent: KernelAgent, words: str) -> str:
    """Run `%hermes schedule`: schedule a prompt or a notebook, or manage jobs."""

    def ask(question: str) -> str | None:
        return ask_user(question) if can_ask(agent.shell) else None

    async def translate(when: str) -> str:
        await agent.models.make_ready(agent.note)
        return await cron_for(when, agent.models.main)

    parser = MagicArgumentParser("%hermes schedule", add_help=False)
    parser.add_argument("words", nargs="*")
    parser.add_argument("--approve", choices=APPROVE_MODES, default="ask")
    parser.add_argument("--timeout", type=float, default=3_600.0)
    for name in ("--model", "--zone", "--cwd", "--to"):
        parser.add_argument(name, default="")
    parser.add_argument("--yes", action="store_true")
    try:
        options = parser.parse_intermixed_args(shlex.split(words))
    except (UsageError, ValueError) as error:
        raise ConfigError(f"{error}; put the prompt in quotes") from None
    options.approve = agent.permission.granted(options.approve)
    found = Schedule(agent.settings().home, warn=agent.note)
    try:
        return await Commands(found, "%hermes schedule", ask, translate).perform(options)
    finally:
        found.close()
