"""The toolset `terminal`: run shell commands in the working directory, as the guard permits.

A command gets only allowed environment variables and no input. It runs until it ends, times out or
is interrupted; then its process group is killed. The guard decides how it runs: as a *plan* (a list
of checked pipelines that run without a shell), in a sandbox with the permissions of a profile, or
without a sandbox.

A command that runs without approval can only read. If it fails because it needs more access, it has
had no side effects, and the user is asked whether to run it again with more. After a command that
could write, changes to some files are reverted until the user has seen and approved them: files
that a program would later execute or read as configuration, or that instruct an agent. The output
of a command without approval is redacted: other processes' arguments, addresses in `.git/config`
and variables may contain keys.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import shutil
import signal
import stat
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated

from hermes_nb.core.errors import ToolDenied, ToolError
from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Origin
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Arguments, Question, Risk, ToolContext, ToolOutput, Toolset
from hermes_nb.safety.child_environment import child_environment
from hermes_nb.safety.guard import Way, opens_network
from hermes_nb.safety.permissions import Need, NoSandboxError, SandboxProfile
from hermes_nb.safety.places import TMP
from hermes_nb.safety.protected import secret_name
from hermes_nb.safety.redact import redact
from hermes_nb.safety.sandbox import (
    HOME_SHOWN,
    Launch,
    RevertedChange,
    give_back,
    hidden,
    level,
    prepare,
    take_back,
    watch_later,
)
from hermes_nb.tools.process import MARK, ProcessResult, Program, kill_marked, run_pipeline
from hermes_nb.tools.process_output import Capture, plain
from hermes_nb.tools.schema import tool
from hermes_nb.tools.workspace import Workspace, size_text

if TYPE_CHECKING:
    from hermes_nb.safety.policy import Plan, Stage

FLOOD = 4_000_000_000
"""Maximum bytes of output; a command with more is killed, because it only wastes time."""
MORE_PROCESSES = 4_096
"""Processes and threads that a command may start, in addition to those already on the machine."""
_PROGRESS_EVERY = 0.4
_NAMED = 3
"""Number of protected files that a result lists."""
_NETWORK = re.compile(
    r"[Nn]ame resolution|Could not resolve|Name or service not known|Network is unreachable"
    r"|Connection refused|ECONNREFUSED|ENETUNREACH|EAI_AGAIN|getaddrinfo|Failed to connect"
    r"|Couldn't connect|Could not connect|connection to server|Max retries exceeded"
)
_WRITING = re.compile(
    r"Read-only file system|EROFS|Permission denied|PermissionError|EACCES|Operation not permitted"
    r"|EPERM|[Cc]annot create|unable to create|not writable|readonly database|No space left"
)
_NO_PROGRAM = 127
"""Exit code of a shell that cannot find a program."""
_MISSING = re.compile(
    r"No such file|not found|cannot access|cannot open|does not exist|[Cc]ould not find"
)
_ABSOLUTE = re.compile(r"(/[^\s'\":]{1,200}?)(?=[.,;:)]?(?:[\s'\":]|$))")
_NO_MODULE = re.compile(r"ModuleNotFoundError: No module named '(\w+)")
_SEES_ITSELF = frozenset({"ps", "pgrep", "free", "df", "ss", "nvidia-smi", "uptime", "w", "who"})
"""Programs that show the machine's state; run unconfined, since a sandbox would hide it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandRun:
    """A command and the conditions under which it runs."""

    command: str
    """The shell command."""
    root: Path
    """The workspace, without links."""
    cwd: Path
    """The directory in which it runs."""
    timeout: int
    """Limit in seconds."""

    async def run(self, way: Way, context: ToolContext) -> ToolOutput:
        """Run the command as the guard permits and return the result for the model.

        Raises:
            NoSandboxError: the command has to be confined but cannot be.
            OSError: the command cannot be started.
            ValueError: the command cannot be started.
        """
        if way.plan:
            confined = SandboxProfile.OUTSIDE not in way.profile
            try:
                text, ended = await self._planned(way.plan, context, confined=confined)
            except NoSandboxError:
                text, ended = await self._planned(self._bare_plan(), context, confined=False)
            elsewhere = any(stage.elsewhere for line in way.plan for stage in line.stages)
            origin: Origin = "outside" if elsewhere else "workspace"
            return ToolOutput(self._result_text(text, ended, []), origin=origin)
        try:
            text, ended, taken = await self._in_shell(way, context)
        except NoSandboxError as error:
            why = f"it cannot run in a sandbox here: {error}. It would run"
            answer = await self._offered(replace(way, profile=SandboxProfile.OUTSIDE), context, why)
            if answer is None:
                raise
            way = answer
            text, ended, taken = await self._in_shell(way, context)
        if way.profile is SandboxProfile.READ and (more := self._wanted(text, ended)):
            answer = await self._offered(replace(way, profile=more), context)
            if answer is not None:
                way = answer
                text, ended, taken = await self._in_shell(way, context)
        facts = self._sandbox_note(way.profile)
        if taken:
            facts.append(await self._settled(taken, context))
        elsewhere = SandboxProfile.NETWORK in way.profile or (
            SandboxProfile.OUTSIDE in way.profile
            and bool(way.needs & {Need.NETWORK, Need.CREDENTIALS})
        )
        origin = "outside" if elsewhere else "workspace"
        return ToolOutput(self._result_text(text, ended, facts), origin=origin)

    def _bare_plan(self) -> Plan:
        """Return a plan for a command that may run without a sandbox, because it only reads.

        Raises NoSandboxError for other commands.
        """
        from hermes_nb.safety.policy import CommandPlace, judge

        place = CommandPlace(workspace=self.root, directory=self.cwd, home=Path.home())
        verdict = judge(self.command, place)
        if verdict.decision != "allow":
            raise NoSandboxError(verdict.reason)
        return verdict.plan

    async def _planned(
        self, plan: Plan, context: ToolContext, *, confined: bool
    ) -> tuple[str, ProcessResult]:
        """Run the pipelines of a plan (see `policy.Pipeline`) without a shell.

        Return the output and how the last one ended. `confined` runs the programs in a sandbox.
        """
        capture, started, code = Capture(clean=_cleaned), time.monotonic(), 0
        ended = ProcessResult(code=0, seconds=0.0)
        for line in plan:
            if (line.after == "&&" and code) or (line.after == "||" and not code):
                continue
            launches: list[Launch] = []
            try:
                programs: list[Program] = []
                for stage in line.stages:
                    launch = await in_thread(self._stage, stage, line.directory, confined=confined)
                    launches.append(launch)
                    programs.append(
                        Program(
                            command=launch.command,
                            env=launch.environment,
                            stdin=stage.stdin,
                            out=stage.out,
                            err=stage.err,
                            descriptors=launch.descriptors,
                            kill=launch.kill,
                        )
                    )
                left = self.timeout - (time.monotonic() - started)
                ended = await _run(programs, line.directory, left, capture, context)
            finally:
                for launch in launches:
                    launch.close()
            code = ended.code
            if ended.timed_out or ended.cut_off:
                break
        text = await in_thread(capture.text)
        return plain(text), replace(ended, seconds=time.monotonic() - started)

    def _stage(self, stage: Stage, directory: Path, *, confined: bool) -> Launch:
        """Return how to start one program of a plan, confined if possible."""
        name = os.path.basename(stage.words[0])
        if not confined or level().name == "none" or name in _SEES_ITSELF:
            environment = {**child_environment(), "PWD": str(directory), **stage.environment}
            return Launch(list(stage.words), environment)
        return prepare(
            stage.words,
            SandboxProfile.READ,
            workspace=self.root,
            directory=directory,
            home=Path.home(),
            visible=stage.paths,
            extra=stage.environment,
        )

    async def _in_shell(
        self, way: Way, context: ToolContext
    ) -> tuple[str, ProcessResult, list[RevertedChange]]:
        """Run the command in a shell. Return the output, how it ended, and the reverted changes.

        Changes to files that run later are reverted (see `safety.restore`).
        """
        unasked = way.profile is SandboxProfile.READ
        capture, watched = Capture(clean=_cleaned if unasked else None), None
        launch = await in_thread(self._launch, way.profile, way.closed)
        taken: list[RevertedChange] = []
        try:
            if way.watched and way.profile is not SandboxProfile.READ:
                watched = await in_thread(watch_later, self.root, way.profile, launch=launch)
            mark = token_hex()
            outside = SandboxProfile.OUTSIDE in way.profile
            program = Program(
                command=launch.command,
                env={**launch.environment, MARK: mark} if outside else launch.environment,
                descriptors=launch.descriptors,
                kill=partial(kill_marked, mark) if outside else launch.kill,
            )
            ended = await _run([program], self.cwd, self.timeout, capture, context)
        finally:
            launch.close()
            if watched is not None:
                taken = take_back(watched)
        return plain(await in_thread(capture.text)), ended, taken

    def _launch(self, profile: SandboxProfile, closed: str) -> Launch:
        if opens_network(profile) and closed:
            raise ToolDenied(f"the command was not run: it may use the network, and {closed}")
        from hermes_nb.safety.needs import installs_only

        extra = {"PYTHONSAFEPATH": "1"} if installs_only(self.command) else {}
        if SandboxProfile.OUTSIDE in profile:
            environment = {**child_environment(), "PWD": str(self.cwd), **extra}
            return Launch(_bounded(_shell(), self.command), environment)
        return prepare(
            [_shell(), "-c", self.command],
            profile,
            workspace=self.root,
            directory=self.cwd,
            home=Path.home(),
            extra=extra,
        )

    def _wanted(self, text: str, ended: ProcessResult) -> SandboxProfile | None:
        """Return the profile that a failed command seems to need, judging by its output.

        Return None if it needs no different profile.
        """
        if not ended.code or ended.timed_out or ended.cut_off:
            return None
        masked = hidden(self.root, Path.home())
        if any(f"'{name}'" in text or f" {name}:" in text for name in masked):
            return SandboxProfile.OUTSIDE
        lines = text.splitlines()
        text = "\n".join(line for line in lines if not any(f"/{name}" in line for name in masked))
        if _NETWORK.search(text):
            carried = level().name == "bubblewrap"
            return (
                SandboxProfile.WORKSPACE | SandboxProfile.NETWORK
                if carried
                else SandboxProfile.OUTSIDE
            )
        for line in filter(_MISSING.search, text.splitlines()):
            for path in map(_at_home, _ABSOLUTE.findall(line)):
                if path and not path.is_relative_to(self.root):
                    first = path.relative_to(Path.home()).parts[0]
                    shown = not first.startswith(".") or first in HOME_SHOWN
                    secret = not shown or secret_name(path.parts)
                    return SandboxProfile.OUTSIDE if secret else SandboxProfile.HOME
        named = (
            re.search(r"line \d+: (\S+): No such file", text) if ended.code == _NO_PROGRAM else None
        )
        if named and (self.cwd / named[1]).exists():
            return SandboxProfile.OUTSIDE
        module = _NO_MODULE.search(text)
        if module and PathFinder.find_spec(module[1]):  # the kernel can import it, from home
            return SandboxProfile.HOME
        return SandboxProfile.WORKSPACE if _WRITING.search(text) else None

    async def _offered(
        self,
        way: Way,
        context: ToolContext,
        why: str = "it failed with read-only access. It would run again",
    ) -> Way | None:
        """Ask whether the command may run with more access. Return how, or None if denied."""
        if context.ask is None or (way.closed and opens_network(way.profile)):
            return None
        confined = SandboxProfile.OUTSIDE not in way.profile
        question = Question(
            why=f"{why} {way.profile.words}",
            shown=visible(self.command, lines=True),
            again=True,
            lasting=(
                "exactly this command, until the files that it names change or this kernel ends"
            ),
            outside=confined and not way.closed,
        )
        answer = await context.ask(question)
        if answer == "deny":
            return None
        if answer == "outside" or not confined:
            needs = way.needs | {Need.CREDENTIALS}  # unconfined, it can read these and use the net
            return replace(way, profile=SandboxProfile.OUTSIDE, needs=needs, watched=False)
        if answer == "always":
            context.remember(way)
        return way

    async def _settled(self, taken: Sequence[RevertedChange], context: ToolContext) -> str:
        """Ask whether to keep the reverted changes; if so, apply them again. Return a note."""
        stay = ", ".join(visible(self._short(each.path)) for each in taken if each.stays)
        left = f"{stay} could not be checked or restored; review it before you use it"
        taken = [each for each in taken if not each.stays]
        if not taken:
            return left
        names = ", ".join(visible(self._short(each.path)) for each in taken)
        left = f"; {left}" if stay else ""
        question = Question(
            why="the command changed files that programs run or obey later; approve to keep "
            "the changes",
            yes="Keep",
            shown="\n".join(visible(each.diff(), lines=True) for each in taken),
        )
        if context.ask is not None and await context.ask(question) != "deny":
            await in_thread(give_back, taken)
            return f"the user kept the changes to {names}{left}"
        return f"changes to {names} were reverted{left}"

    def _short(self, path: Path) -> str:
        return str(path.relative_to(self.root) if path.is_relative_to(self.root) else path)

    def _sandbox_note(self, profile: SandboxProfile) -> list[str]:
        """Return a note about the sandbox, or nothing if the command ran outside of it."""
        if SandboxProfile.OUTSIDE in profile:
            return []
        masked = hidden(self.root, Path.home())
        named = [visible(path) for path in masked[:_NAMED]]
        more = f" and {len(masked) - _NAMED} more" if len(masked) > _NAMED else ""
        kept = f" without {', '.join(named)}{more}" if masked else ""
        return [f"in a sandbox: {_brief(profile)}{kept}"]

    def _result_text(self, output: str, ended: ProcessResult, more: Sequence[str]) -> str:
        """Return the output, with a last line saying how the command ended."""
        facts = [_exit_text(ended, self.timeout), f"{ended.seconds:.1f} s"]
        if ended.cut_off:
            facts.insert(0, f"stopped after {size_text(FLOOD)} of output")
        if ended.left_behind and not ended.timed_out:
            facts.append("its background processes were stopped")
        facts += more
        body = output.rstrip("\n")
        return f"{body}\n[{', '.join(facts)}]" if body else f"[{', '.join(facts)}]"


def _at_home(named: str) -> Path | None:
    """Convert a path in a sandboxed command's output, where the home is /tmp, to the real path."""
    path, home = Path(named), Path.home()
    if path.is_relative_to(TMP) and os.path.exists(home / path.relative_to(TMP)):
        path = home / path.relative_to(TMP)
    return path if path != home and path.is_relative_to(home) else None


def _brief(profile: SandboxProfile) -> str:
    """Return a short description of what a profile permits."""
    names = ("workspace", "git", "environment", "network", "home")
    found = [name for name in names if SandboxProfile[name.upper()] in profile]
    return ", ".join(found) if profile is not SandboxProfile.READ else "read-only"


def _shell() -> str:
    shell = shutil.which("bash") or shutil.which("sh")
    if shell is None:
        raise ToolError("neither bash nor sh is available on this machine; use Python instead")
    return shell


def _bounded(shell: str, command: str) -> list[str]:
    """Return the shell with a command and a limit on its processes (Linux).

    Linux counts all of the user's processes and threads, so the limit is the number on the whole
    machine plus `MORE_PROCESSES`. It has no effect for root.
    """
    try:
        count = Path("/proc/loadavg").read_text(encoding="utf-8").split()[3].partition("/")[2]
        most = int(count) + MORE_PROCESSES
    except (OSError, ValueError, IndexError):
        return [shell, "-c", command]
    # Set by an outer shell: when the command is running, it may have forked already.
    return [shell, "-c", 'ulimit -u "$0" 2>/dev/null; exec "$1" -c "$2"', str(most), shell, command]


def _cleaned(text: str) -> str:
    """Remove terminal codes and secrets from output, for commands without approval."""
    return redact(plain(text))


async def _run(
    programs: Sequence[Program], cwd: Path, timeout: float, capture: Capture, context: ToolContext
) -> ProcessResult:
    """Run programs, capture their output and display its end a few times a second."""

    def sink(chunk: bytes) -> bool:
        capture.add(chunk)
        return capture.size < FLOOD

    async def tell() -> None:
        shown = 0
        while True:
            await asyncio.sleep(_PROGRESS_EVERY)
            if capture.size != shown:
                shown = capture.size
                context.progress(f"{capture.latest()}\n")

    telling = asyncio.create_task(tell())
    try:
        return await run_pipeline(programs, cwd=cwd, timeout=timeout, sink=sink, stop=context.stop)
    finally:
        telling.cancel()


def _exit_text(ended: ProcessResult, timeout: int) -> str:
    if ended.timed_out:
        return f"timed out after {timeout} s and was stopped"
    if ended.code >= 0:
        return f"exit {ended.code}"
    try:
        name = signal.Signals(-ended.code).name
    except ValueError:
        name = f"signal {-ended.code}"
    return f"exit {128 - ended.code} ({name})"


def terminal(root: Path, *, allowed: Callable[[Path], bool] = lambda _: False) -> Toolset:
    """Return the terminal tool for `root`; `allowed(path)` permits other directories."""
    space = Workspace(root=root, allowed=allowed)

    @tool(
        toolset="terminal",
        risk=Risk.EXECUTE,
        exclusive=True,
        root=root,
        available=_available,
        describe=_gist,
    )
    async def terminal(
        context: ToolContext,
        command: str,
        timeout: Annotated[int, {"minimum": 1, "maximum": 600}] = 30,
        workdir: str | None = None,
    ) -> ToolOutput:
        """Run a bash command. stdin is closed; background processes are killed when it ends.

        Args:
            timeout: seconds
            workdir: default: the working directory
        """
        cwd = _directory(space, workdir)
        if "\0" in command:
            raise ToolError("the command contains a NUL character; remove it")
        way = context.permit if isinstance(context.permit, Way) else Way(SandboxProfile.OUTSIDE)
        shell = CommandRun(command=command, root=space.real_root(), cwd=cwd, timeout=timeout)
        try:
            return await shell.run(way, context)
        except NoSandboxError as error:
            message = f"the command was not run: {error}; ask the user to approve it"
            raise ToolError(message) from error
        except (OSError, ValueError) as error:
            raise _not_started(error) from error

    return Toolset([terminal])


def _gist(arguments: Arguments) -> str:
    return visible(str(arguments.get("command", "")))


def _available() -> str:
    if os.name != "posix":
        return "terminal needs a POSIX system; use run_python, or start Jupyter in WSL"
    return ""


def _not_started(error: OSError | ValueError) -> ToolError:
    if isinstance(error, OSError) and error.errno == errno.E2BIG:
        return ToolError("the command is too long; write the long part to a file with write_file")
    return ToolError(f"the shell could not be started: {error}; try again or ask the user")


def _directory(space: Workspace, workdir: str | None) -> Path:
    if workdir is None:
        return space.real_root()
    directory = space.resolve(workdir)
    with space.explained(directory):
        if stat.S_ISDIR(directory.stat().st_mode):
            return directory
    raise ToolError(f"{space.shown(directory)!r} is a file; `workdir` must be a directory")
