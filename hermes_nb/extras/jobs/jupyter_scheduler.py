"""Run due jobs with jupyter-scheduler: each job has one job definition with a notebook.

The scheduler runs in the user's Jupyter server, whose address and token are in Jupyter's runtime
directory. A definition contains only the job's times. The schedule in the Hermes directory
determines whether the job is due, so a job runs once per scheduled time, even if cron also checks.
"""

from __future__ import annotations

import json
import math
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast
from urllib.parse import urljoin, urlsplit

import nbformat
import psutil
from jupyter_core.paths import jupyter_runtime_dir

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Json
from hermes_nb.core.text import one_line
from hermes_nb.extras.jobs.schedule import PROGRAM, Job
from hermes_nb.models.profiles import is_loopback
from hermes_nb.safety.redact import redact

JUPYTER = "jupyter-scheduler"
SECONDS = 20.0
"""Timeout for server requests in seconds."""
MOST = 1_000
"""Maximum number of job definitions to read."""
CODE = """\
import os, subprocess

def jobs(*words):
    environment = {{**os.environ, "HERMES_HOME": {home!r}}}
    done = subprocess.run([*{program!r}, "jobs", *words], env=environment,
                          capture_output=True, text=True)
    print(done.stdout + done.stderr, end="")
    return done.returncode

odd = jobs("run")
jobs("history", "{job}")
assert not odd, "a run did not go as planned"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """A running Jupyter server."""

    url: str
    """Base URL."""
    token: str = field(repr=False)
    """API token."""
    root: Path
    """Its root directory for files."""

    def ask(self, path: str, body: Json = None, method: str = "") -> Json:
        """Send a request and return the parsed response; raise `ConfigError` if it fails."""
        request = urllib.request.Request(  # noqa: S310 - the server's own address
            urljoin(self.url, path),
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"token {self.token}", "Content-Type": "application/json"},
            method=method or None,
        )
        here = is_loopback(urlsplit(self.url).hostname or "")
        opener = urllib.request.build_opener(*[urllib.request.ProxyHandler({})] * here)
        try:
            with opener.open(request, timeout=SECONDS) as response:
                return cast("Json", json.loads(response.read() or b"null"))
        except urllib.error.HTTPError as error:
            with error:
                text = one_line(visible(error.read(2_000).decode("utf-8", "replace")), 200)
            raise ConfigError(f"{self.url} returned {error.code} for {path}: {text}") from error
        except (OSError, ValueError) as error:
            raise ConfigError(f"{self.url} did not respond to {path}: {error}") from error


def servers() -> Iterator[Server]:
    """Yield the user's running servers, newest first."""
    files = Path(jupyter_runtime_dir()).glob("jpserver-*.json")
    for _, file in sorted(((file.stat().st_mtime, file) for file in files), reverse=True):
        with suppress(OSError, ValueError, KeyError, TypeError):
            said = json.loads(file.read_bytes())
            if psutil.pid_exists(said["pid"]):
                yield Server(url=said["url"], token=said["token"], root=Path(said["root_dir"]))


class JupyterScheduler:
    """A Hermes directory's job definitions in a running jupyter-scheduler.

    `mark` identifies the Hermes directory. Methods raise `ConfigError`, as does the constructor if
    there is no such server.
    """

    def __init__(self, home: Path, mark: str) -> None:
        self._home, self._prefix = home, f"hermes-{mark}-"
        problems = []
        for server in servers():
            try:
                self._environments = server.ask("scheduler/runtime_environments")
            except ConfigError as error:
                problems.append(str(error))
            else:
                self._server, self.url = server, server.url
                return
        told = "; ".join(problems) or "you have no running Jupyter server"
        raise ConfigError(f"there is no Jupyter server with jupyter-scheduler: {told}")

    def code(self, job: int | str) -> str:
        """Return the code in a job's notebook."""
        return CODE.format(home=str(self._home), program=list(PROGRAM), job=job)

    def keep(self, jobs: Sequence[Job], *, only: int | None = None) -> None:
        """Create, update and remove definitions so that they match the jobs.

        A definition is active if its job is. With `only`, change just the definition of the job
        with this number, since the user may have paused others manually.
        """
        there, refused = self._definitions(), []
        wanted = {f"{self._prefix}{job.id}.ipynb": job for job in jobs}
        for name in there.keys() - wanted.keys():
            self._drop(there[name]["job_definition_id"])
        for name, job in wanted.items():
            active = not job.paused and not math.isinf(job.due)
            try:
                if name not in there and active:
                    self._define(name, job)
                elif name in there and only in (None, job.id) and active != there[name]["active"]:
                    self._activate(there[name]["job_definition_id"], active=active)
            except ConfigError as error:
                refused.append(f"job {job.id}: {error}")
        if refused:
            raise ConfigError("; ".join(refused))

    def _definitions(self) -> Mapping[str, Mapping[str, Json]]:
        """Return this Hermes directory's definitions, keyed by notebook name."""
        found = self._server.ask(f"scheduler/job_definitions?max_items={MOST}")
        rows = cast("Mapping[str, list[Mapping[str, Json]]]", found)["job_definitions"]
        named = {str(row["input_filename"]): row for row in rows}
        return {name: row for name, row in named.items() if name.startswith(self._prefix)}

    def _activate(self, number: Json, *, active: bool) -> None:
        self._server.ask(f"scheduler/job_definitions/{number}", {"active": active}, "PATCH")

    def _drop(self, number: Json) -> None:
        """Remove a definition.

        If its notebook is running, pause it instead, since removing it kills the run.
        """
        self._activate(number, active=False)
        running = f"scheduler/jobs?job_definition_id={number}&status=IN_PROGRESS"
        if not cast("Mapping[str, Json]", self._server.ask(running))["jobs"]:
            self._server.ask(f"scheduler/job_definitions/{number}", method="DELETE")

    def _define(self, name: str, job: Job) -> None:
        """Create a definition.

        The server copies its notebook, so the original is deleted afterwards.
        """
        cell = nbformat.v4.new_code_cell(self.code(job.id))
        kernel = {"name": self._kernel(), "display_name": "Python", "language": "python"}
        notebook = nbformat.v4.new_notebook(cells=[cell], metadata={"kernelspec": kernel})
        environments = cast("list[Mapping[str, str]]", self._environments)
        file = self._server.root / name
        try:
            nbformat.write(notebook, file)
            self._server.ask(
                "scheduler/job_definitions",
                {
                    "name": f"Hermes {job.id}: {one_line(visible(redact(job.what)), 60)}",
                    "input_uri": name,
                    "runtime_environment_name": environments[0]["name"],
                    "output_formats": ["ipynb"],
                    "schedule": job.cron,
                    "timezone": job.zone,
                },
            )
        except OSError as error:
            raise ConfigError(f"{file} cannot be written: {error.strerror or error}") from error
        finally:
            file.unlink(missing_ok=True)

    def _kernel(self) -> str:
        """Return the name of one of the server's Python kernels, preferably the default."""
        found = cast("Mapping[str, Json]", self._server.ask("api/kernelspecs"))
        specs = cast("Mapping[str, Mapping[str, Mapping[str, str]]]", found["kernelspecs"])
        names = [str(found["default"]), *specs]
        for name in names:
            if name in specs and specs[name]["spec"]["language"] == "python":
                return name
        raise ConfigError(f"{self.url} has no Python kernel")
