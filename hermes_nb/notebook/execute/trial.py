"""The tool `try_python`: run code on a copy of the variables, in a process that can change nothing.

The process runs in the read-only sandbox of commands. It is used once; the next one is started
right after it, imports the notebook's modules, and waits. Nothing that it returns is unpickled or
executed. Without a sandbox, the user is asked, as for `run_python`, and the same process runs
unconfined. In a turn with `--what-if`, one process runs the code of all calls.
"""

from __future__ import annotations

import asyncio
import json
import linecache
import os
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, cast
from weakref import WeakKeyDictionary

import hermes_nb
from hermes_nb.core.errors import ToolError
from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Json
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Question, ToolContext
from hermes_nb.notebook.execute.collector import Output
from hermes_nb.notebook.execute.copy_worker import MOST_REPLY, Job, Start
from hermes_nb.notebook.execute.handover import Handover, TooLargeError, hand_over
from hermes_nb.notebook.execute.nested import CellError, Execution
from hermes_nb.notebook.shell import Shell, next_number, turn_cell, working_directory
from hermes_nb.safety.guard import COPY, Way
from hermes_nb.safety.later import Mark, mark_of
from hermes_nb.safety.permissions import NoSandboxError, SandboxProfile
from hermes_nb.safety.places import editable, python
from hermes_nb.safety.protected import survey
from hermes_nb.safety.redact import redact
from hermes_nb.safety.sandbox import Launch, prepare
from hermes_nb.tools.process import signal_group

SECONDS = 60.0
"""Time limit of the code."""
IDLE_SECONDS = 600.0
"""How long a process waits for the next code."""
_GRACE = 20.0
"""Additional seconds for starting, copying and ending."""
_LISTED = 8
_USUAL = ("pandas", "numpy", "matplotlib.pyplot")
_KILL = getattr(signal, "SIGKILL", signal.SIGTERM)
_PACKAGE = Path(hermes_nb.__file__).resolve().parent
_PROGRAM = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from hermes_nb.notebook.execute.copy_worker import main; main()"
)


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a process runs. One that waits is only used if this has not changed."""

    root: Path
    """The working directory, which it can read."""
    profile: SandboxProfile
    """Its permissions: read-only, or no sandbox."""
    secrets: tuple[tuple[str, Mark], ...] = ()
    """The paths that are hidden from it, with their state. The kernel drops what covers a path when
    another file takes its place."""

    @classmethod
    def now(cls, profile: SandboxProfile) -> _Place:
        root = working_directory().resolve()
        if SandboxProfile.OUTSIDE in profile:
            return cls(root, profile)
        home = Path.home().resolve()
        folders = (root, *map(Path, map(os.path.realpath, editable())))
        hidden = (path for each in folders for path in survey(each, home=home).secrets)
        return cls(root, profile, tuple((path, mark_of(path)) for path in hidden))


@dataclass(slots=True, weakref_slot=True)
class _Process:
    """A process that waits for code."""

    popen: subprocess.Popen[bytes]
    launch: Launch
    place: _Place
    sent: set[str] = field(default_factory=set)
    """The variables that it has."""

    def send(self, *parts: bytes | memoryview) -> None:
        """Write to the process; blocks. If it has ended, its missing reply will tell."""
        pipe = cast("BinaryIO", self.popen.stdin)
        with suppress(OSError, ValueError):
            for part in parts:
                pipe.write(part)
            pipe.flush()

    def ask(self, job: Job, handover: Handover) -> bytes:
        """Send a job and return the reply, or b"" if the process ended without one; blocks."""
        self.send(json.dumps(job).encode() + b"\n", handover.head, *handover.buffers)
        with suppress(OSError, ValueError):
            return cast("BinaryIO", self.popen.stdout).readline(MOST_REPLY + 1)
        return b""

    def end(self) -> None:
        """Kill the process and all that it started. Safe to call twice."""
        if self.popen.poll() is None:
            self.launch.kill(self.popen.pid)
            signal_group(self.popen.pid, _KILL)
            self.popen.wait()
        for stream in (self.popen.stdin, self.popen.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self.launch.close()


@dataclass(frozen=True, slots=True)
class Tried:
    """Code that a turn with `--what-if` ran on the copy."""

    code: str
    failed: bool
    """Whether it failed there."""


@dataclass(slots=True)
class WhatIf:
    """The code of a turn with `--what-if`, and the process in which it runs."""

    tried: list[Tried] = field(default_factory=list)
    """The code to run in the kernel if the user keeps it."""
    changes: list[str] = field(default_factory=list)
    """The variables that it changed in the copy, in a few words each."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held by the call that uses the process."""
    process: _Process | None = None
    """The process, from the first code on."""

    def add(self, name: str, code: str, result: _Result) -> None:
        """Add a call's code, unless it only looked at variables."""
        failed = result.execution.error is not None
        if result.changed or not (failed or name == COPY):
            self.tried.append(Tried(code, failed))
            self.changes = result.total

    def end(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.end()


def current_what_if() -> WhatIf | None:
    """Return what the calling turn has tried; None if it has no `--what-if`."""
    cell = turn_cell.get()
    found: WhatIf | None = cell.what_if if cell is not None else None
    return found


class Copies:
    """Runs code on copies of a shell's variables, and keeps a process ready for the next time."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._spare: _Process | None = None
        self._starting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start a process for code that will come soon, unless one is there."""
        if self._spare is None and (self._starting is None or self._starting.done()):
            self._starting = asyncio.create_task(self._prepare(None))

    async def run(self, context: ToolContext, code: str) -> tuple[Execution, str]:
        """Run code and return the result with a note for the model; raise `ToolError`."""
        way = context.permit if isinstance(context.permit, Way) else Way()
        if (what_if := current_what_if()) is not None:
            async with what_if.lock:
                process = await self._same(what_if, way.profile, context, code)
                result = await self._run(process, code, way, more=True)
                what_if.add(context.call.name, code, result)
        else:
            process = await self._taken(way.profile, context, code)
            result = await self._run(process, code, way)
            self._starting = asyncio.create_task(self._prepare(process.place))
        return result.execution, result.note

    async def _run(self, process: _Process, code: str, way: Way, *, more: bool = False) -> _Result:
        """Run code in a process, which ends unless there is `more` to come."""
        ends = True
        try:
            handover = hand_over(
                code, self._shell.user_ns, self._shell.user_ns_hidden, process.sent
            )
            job = Job(
                code=code,
                names=handover.names,
                head=len(handover.head),
                buffers=[each.nbytes for each in handover.buffers],
                count=next_number(self._shell),
                files=_sources(self._shell, handover.files),
                seconds=SECONDS,
                offline=way.offline or bool(way.closed),
                more=more,
            )
            process.sent.update(handover.names)
            reply = await asyncio.wait_for(in_thread(process.ask, job, handover), SECONDS + _GRACE)
            ends = not more
        except TooLargeError as error:
            ends = not more
            raise ToolError(f"the variables were not copied: {error}; use run_python") from error
        except TimeoutError as error:
            raise ToolError(f"the code was stopped after {SECONDS:g} s") from error
        finally:
            if ends:
                process.end()
        return _result(reply, handover.left)

    async def _same(
        self, what_if: WhatIf, profile: SandboxProfile, context: ToolContext, code: str
    ) -> _Process:
        """Return the process of a turn; ask the user again if it is not in a sandbox."""
        process = what_if.process
        if process is None:
            process = what_if.process = await self._taken(profile, context, code)
            return process
        if process.popen.poll() is not None:
            raise ToolError("the copy has ended, with all that this turn made in it; end the turn")
        used = process.place.profile
        if await in_thread(_Place.now, used) != process.place:
            raise ToolError("a file that is hidden from the copy has changed; end the turn")
        if used is not profile:
            await _ask(context, code, "its process was started without a sandbox")
        return process

    async def _taken(self, profile: SandboxProfile, context: ToolContext, code: str) -> _Process:
        """Return the waiting process if it can be used, or else a new one.

        If the working directory does not allow a sandbox, the user is asked.
        """
        if self._starting is not None:
            await asyncio.wait({self._starting})
        spare, self._spare = self._spare, None
        try:
            place = await in_thread(_Place.now, profile)
            if spare is not None and spare.place == place and spare.popen.poll() is None:
                return spare
            process = await self._started(place)
        except NoSandboxError as error:
            await _ask(context, code, str(error))
            process = await self._started(_Place.now(SandboxProfile.OUTSIDE))
        if spare is not None:
            spare.end()
        return process

    async def _prepare(self, place: _Place | None) -> None:
        """Start the process for the next time, by default in the sandbox."""
        with suppress(NoSandboxError, OSError):
            if place is None:
                place = await in_thread(_Place.now, SandboxProfile.READ)
            self._spare = await self._started(place, _modules(self._shell))

    async def _started(self, place: _Place, modules: Sequence[str] = ()) -> _Process:
        """Start a process, in the loop's own thread, because it is killed with its thread.

        It imports `modules` before it takes code.
        """
        launch = await in_thread(
            prepare,
            [sys.executable, "-I", "-c", _PROGRAM, str(_PACKAGE.parent)],
            place.profile,
            workspace=place.root,
            directory=place.root,
            home=Path.home(),
            visible=_own_package(),
        )
        popen = subprocess.Popen(  # noqa: ASYNC220 - takes a few milliseconds
            launch.command,
            env=launch.environment,
            cwd=place.root,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=launch.descriptors,
            start_new_session=True,
        )
        process = _Process(popen, launch, place)
        weakref.finalize(process, replace(process).end)
        start = Start(
            path=[str(each) for each in sys.path],
            modules=list(modules),
            fonts=_fonts(),
            idle=IDLE_SECONDS,
        )
        await in_thread(process.send, json.dumps(start).encode() + b"\n")
        return process


_copies: WeakKeyDictionary[Shell, Copies] = WeakKeyDictionary()


def copies_of(shell: Shell) -> Copies:
    """Return what runs code on copies of a kernel's variables."""
    return _copies.setdefault(shell, Copies(shell))


async def _ask(context: ToolContext, code: str, error: str) -> None:
    """Ask whether code may run without a sandbox; raise `ToolError` if not."""
    how = f"It would run {SandboxProfile.OUTSIDE.words}"
    why = f"it cannot run in a sandbox here: {error}. {how}"
    question = Question(why=why, shown=visible(code, lines=True))
    if context.ask is None or await context.ask(question) == "deny":
        raise ToolError(f"the code was not run: {error}; use run_python")


def _own_package() -> list[str]:
    """Return this package's folder, unless the sandbox shows it with Python's other packages."""
    return [] if any(map(_PACKAGE.is_relative_to, python())) else [str(_PACKAGE)]


def _modules(shell: Shell) -> list[str]:
    """Return the modules that the process should import before it gets code."""
    bound = {id(value) for value in list(shell.user_ns.values())}
    found = [name for name, module in list(sys.modules.items()) if id(module) in bound]
    return [*(name for name in _USUAL if name in sys.modules), *found]


def _sources(shell: Shell, files: Iterable[str]) -> dict[str, tuple[int, str]]:
    """Return the execution counts and sources of the notebook's cells among these files."""
    counts = shell.compile._filename_map  # there is no public API
    return {
        name: (counts[name], "".join(linecache.getlines(name)))
        for name in files
        if type(counts.get(name)) is int
    }


def _fonts() -> dict[str, str]:
    """Return the files of matplotlib's font cache; the process cannot see the home directory."""
    home = Path.home()
    found: dict[str, str] = {}
    for folder in (
        home / ".cache/matplotlib",
        home / ".matplotlib",
        home / "Library/Caches/matplotlib",
    ):
        for path in folder.glob("fontlist-*.json"):
            with suppress(OSError, UnicodeError):
                found[path.name] = path.read_text("utf-8")
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """The result of code in the copy."""

    execution: Execution
    note: str
    """What the model is told about the variables."""
    changed: bool
    """Whether the code changed variables."""
    total: list[str]
    """What all code in the process changed, in a few words each."""


def _result(reply: bytes, left: Mapping[str, str]) -> _Result:
    """Return the result from a reply, which code may have forged."""
    try:
        told = json.loads(reply)
        error = tuple(redact(str(each)) for each in told["error"])
        execution = Execution(
            outputs=[each for output in told["outputs"] if (each := _output(output))],
            error=CellError(error[0], error[-1]) if error else None,
            networked=bool(told["networked"]),
        )
        failed = {str(name): redact(str(why)) for name, why in dict(told["failed"]).items()}
        changes = redact(str(told["changes"]))
        total = [redact(str(each)) for each in told["total"]]
    except (ValueError, TypeError, KeyError, RecursionError) as problem:
        what = "it needed too much memory, or ended itself"
        raise ToolError(f"the code's process ended without a result: {what}") from problem
    missing = [f"{name} ({why})" for name, why in {**left, **failed}.items()]
    if len(missing) > _LISTED:
        missing[_LISTED:] = [f"{len(missing) - _LISTED} more"]
    notes = [f"[in the copy only: {changes.strip('[]')}]"] if changes else []
    notes += [f"[not in the copy: {', '.join(missing)}]"] if missing else []
    note = "\n".join(notes)
    return _Result(execution=execution, note=note, changed=bool(changes), total=total)


def _output(given: Json) -> Output | None:
    """Return an nbformat output with only text and images, or None if it is no such output."""
    kind = given["output_type"]
    if kind == "stream":
        return {"output_type": kind, "name": "stdout", "text": redact(str(given["text"]))}
    if kind == "error":
        lines = [redact(str(line)) for line in given["traceback"]]
        names = {name: redact(str(given[name])) for name in ("ename", "evalue")}
        return {"output_type": kind, **names, "traceback": lines}
    if kind not in ("display_data", "execute_result"):
        return None
    data = {
        str(mime): value if str(mime).startswith("image/") else redact(value)
        for mime, value in dict(given["data"]).items()
        if isinstance(value, str) and str(mime).startswith(("text/", "image/"))
    }
    return {"output_type": kind, "data": data, "metadata": {}}
