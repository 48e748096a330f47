"""Decide which commands run without approval: known readers with literal words, pipes and `&&`.

Checking and execution use the same plan: a list of pipelines with final arguments, expanded globs
and absolute program paths. It runs without a shell, so there is no need to predict how a shell
would interpret the command. A command with anything outside the grammar (assignments, expansions,
loops, redirections to files) gets no plan.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import SubprocessError
from typing import Literal

from hermes_nb.safety import programs
from hermes_nb.safety.needs import CommandNeeds, wanted
from hermes_nb.safety.permissions import Need
from hermes_nb.safety.places import SYSTEM, python
from hermes_nb.safety.programs import (
    GIT_ENVIRONMENT,
    SYSTEM_PATH,
    MayDoMoreError,
    NamesSecretError,
    git_plan,
    readers,
    refuse,
)
from hermes_nb.safety.protected import Deadline, Survey, survey, why_secret
from hermes_nb.safety.shell import (
    Draft,
    Line,
    NeedsShellError,
    Stream,
    destroys,
    expand,
    needs_shell,
    parse,
)

logger = logging.getLogger(__name__)

LENGTH_LIMIT = 10_000
"""Longest command that is checked, in characters."""
SECONDS = 0.1
"""CPU seconds for all checks that access the disk. A few milliseconds is typical."""
_WAITING = 0.4
"""Wall-clock limit in seconds for a slow disk or a busy machine."""
_MOST_TRIALS = 8
"""Maximum number of times to run git or sed to check one command."""
_HIDDEN = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|[\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Terminal sequences and control, zero-width, bidirectional and tag characters."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One program in a pipeline."""

    words: tuple[str, ...]
    """The program's absolute path and its final arguments."""
    stdin: Path | None = None
    """The file to read as standard input. None means the previous stage's output, or nothing."""
    out: Stream = "out"
    """Where standard output goes."""
    err: Stream = "err"
    """Where standard error goes."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables to set."""
    paths: tuple[str, ...] = ()
    """Files outside the workspace that the program names and a sandbox has to expose."""
    elsewhere: bool = False
    """Whether the program shows a file that belongs neither to the workspace nor to installed
    software."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages joined by pipes."""

    after: str
    """The operator that joins this pipeline to the previous one. Empty for the first."""
    stages: tuple[Stage, ...]
    """The programs, in order."""
    directory: Path
    """The working directory."""


Plan = tuple[Pipeline, ...]


@dataclass(frozen=True, slots=True)
class CommandPlace:
    """The location where a command would run."""

    workspace: Path
    """The root of the workspace."""
    directory: Path
    """The working directory."""
    home: Path
    """The user's home directory."""
    hidden: bool = False
    """Whether the command runs in a sandbox that hides the workspace's secrets. Ignored if
    `directory` is outside the workspace, because the command then runs without a sandbox."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of checking a command."""

    decision: Literal["allow", "confine", "ask", "deny"]
    """`allow`: run the plan. `confine`: may run in a read-only sandbox. `ask`: needs approval.
    `deny`: never runs."""
    reason: str = ""
    """The reason the command is not simply allowed. Empty for `allow`."""
    plan: Plan = ()
    """For `allow`, the programs to run; otherwise empty."""
    needs: frozenset[Need] = frozenset()
    """For `ask`, the permissions that the command needs beyond reading."""


def judge(command: str, place: CommandPlace) -> Verdict:
    """Check a command. Never raises, and takes a few tenths of a second at most."""
    if len(command) > LENGTH_LIMIT:
        return _ask(f"it is longer than {LENGTH_LIMIT:,} characters", CommandNeeds())
    place = CommandPlace(_real(place.workspace), _real(place.directory), place.home, place.hidden)
    try:
        return _judged(command, place)
    except Exception:  # a command that cannot be checked is never allowed
        logger.exception("a command could not be judged")
        return _ask("it could not be checked beforehand", CommandNeeds())


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _ask(reason: str, seen: CommandNeeds) -> Verdict:
    return Verdict("ask", reason, needs=seen.needs or frozenset({Need.WRITE}))


def _judged(command: str, place: CommandPlace) -> Verdict:
    plain = unicodedata.normalize("NFKC", _HIDDEN.sub("", command))
    for text in dict.fromkeys((command, plain)):
        if lost := destroys(text, place.home):
            return Verdict("deny", lost)
    if _HIDDEN.search(command):
        return _ask("it has invisible characters, which can hide what it does", CommandNeeds())
    try:
        return Verdict("allow", plan=_Judge(place).plan(parse(command, place.home)))
    except (NeedsShellError, MayDoMoreError, OSError, ValueError, SubprocessError) as why:
        reason, secret = str(why), isinstance(why, NamesSecretError)
    seen = wanted(command, workspace=place.workspace, home=place.home, directory=place.directory)
    if secret:
        return Verdict("ask", reason, needs=seen.needs | {Need.CREDENTIALS})
    if place.hidden and not seen.needs:
        return Verdict("confine", reason)
    return _ask(seen.deed or reason, seen)


class _Judge:
    """Checks a parsed command in its directory: expands globs, finds programs, inspects files."""

    def __init__(self, place: CommandPlace) -> None:
        self.place, self.directory = place, place.directory
        self.hidden = place.hidden and place.directory.is_relative_to(place.workspace)
        self.deadline, self.trials = Deadline(SECONDS, waiting=_WAITING), 0
        self.environment: dict[str, str] = {}
        self.paths: list[str] = []
        self.elsewhere = False
        self._linked: frozenset[tuple[int, int]] | None = None

    def plan(self, lines: list[Line]) -> Plan:
        """Return the plan to run. Raise if it may do more than read."""
        out: list[Pipeline] = []
        for number, (after, drafts) in enumerate(lines):
            if drafts[0].words[0] == "cd":
                following = lines[1][0] if len(lines) > 1 else ""
                if number or len(drafts) > 1 or following not in ("&&", ";"):
                    needs_shell("it changes the directory and then does something else")
                self._change(drafts[0])
            else:
                stages = tuple(map(self._stage, drafts))
                out.append(Pipeline(after if out else "", stages, self.directory))
        return tuple(out)

    def _change(self, draft: Draft) -> None:
        if len(draft.words[1:]) != 1 or any(draft.patterns):
            needs_shell("it changes the directory in an unusual way")
        self.directory = _real(self.directory / draft.words[1])
        if not self.directory.is_dir():
            refuse(f"there is no directory {draft.words[1]!r}")
        self.hidden = self.hidden and self._inside(self.directory)
        self._reads([str(self.directory)])

    def _stage(self, draft: Draft) -> Stage:
        self._check_deadline()
        self.environment, self.paths, self.elsewhere = dict(_ENVIRONMENT), [], False
        name = draft.words[0]
        if draft.patterns[0]:
            needs_shell("the name of the program is a pattern")
        words: list[str] = []
        for word, glob in zip(draft.words[1:], draft.patterns[1:], strict=True):
            words += (expand(glob, self.directory, self._check_deadline) if glob else []) or [word]
        if draft.stdin is not None:
            self._reads([draft.stdin])
            if self.hidden and self._inside(self.directory / draft.stdin):
                # A plan's input is opened outside of the sandbox, where nothing is hidden.
                needs_shell(f"it reads {draft.stdin!r} as its input")
        if name == "command":
            if words[:1] not in (["-v"], ["-V"]):
                needs_shell("it runs a program in an unusual way")
            words = words[1:]
        program, name = programs.found(name, self.place.workspace)
        return Stage(
            words=(program, *self._judged(name, words)),
            stdin=None if draft.stdin is None else self.directory / draft.stdin,
            out=draft.out,
            err=draft.err,
            environment=self.environment,
            paths=tuple(dict.fromkeys(self.paths)),
            elsewhere=self.elsewhere,
        )

    def _judged(self, name: str, words: list[str]) -> list[str]:
        """Return the program's arguments. Raise if they may do more than read."""
        known = (name in programs.versioned() and name != "pip") or name in readers()
        if known and (words == ["--version"] or (words == ["--help"] and name not in _LONG_HELP)):
            return words
        match name:
            case "find":
                self._names(programs.find(words))
            case "ps":
                programs.ps(words)
            case "git":
                return self._git(words)
            case "sed":
                return self._sed(words)
            case "which":
                del self.environment["PATH"]  # `which` searches the user's own PATH
                return programs.which(words)
            case "pip" | "python":
                return programs.pip(words) if name == "pip" else programs.python(words)
            case _ if name in programs.SHOWS:
                self._reads(programs.SHOWS[name](words))
            case _ if name in readers():
                self._ordinary(name, words)
            case _:
                programs.unknown(name)
        return words

    def _ordinary(self, name: str, words: list[str]) -> None:
        rule = readers()[name]
        read = rule.read(name, words)
        operands = read.operands
        if rule.operands == "pattern" and not read.options & {"e", "regexp"}:
            operands = operands[1:]
        if name in ("test", "[", "printf") and any(word.startswith(("-v", "-R")) for word in words):
            refuse(f"{name} looks up a variable")
        if rule.operands != "text":
            self._reads([value for value in read.values if "/" in value or "." in value])
        match rule.operands:
            case "names":
                self._names(operands or ["."])
            case "none" if operands:
                refuse(f"{name} with {operands[0]!r} may change something")
            case "plus" if not all(word.startswith("+") for word in operands):
                refuse(f"{name} with {operands[0]!r} may change something")
            case "one" if len(operands) > 1:
                refuse(f"{name} writes to {operands[1]!r}")
            case "files" | "pattern" | "one":
                deep = name in ("rg", "diff") or bool(read.options & {"r", "recursive"})
                self._reads(operands or (["."] if deep else []), deep=deep)
                if name == "diff":
                    self._leads_out(operands)
            case _:
                pass

    def _reads(self, words: list[str], *, deep: bool = False) -> None:
        """Check files that are read and, with `deep`, everything under them."""
        for word in words:
            self._check_deadline()
            path = self.directory / word
            masked = self.hidden and self._inside(path)
            linked = frozenset[tuple[int, int]]() if masked else self._links(path)
            if word != "-" and (why := why_secret(path, linked)):
                refuse(f"{word} may show {why}", NamesSecretError)
            if masked:
                continue
            if not self._inside(path) and (deep or path.is_file()):
                self.paths.append(os.path.normpath(path))
                self.elsewhere |= not any(map(_real(path).is_relative_to, (*_OURS, *python())))
            if deep and path.is_dir():
                self._below(word, _real(path))

    def _below(self, word: str, path: Path) -> None:
        """Refuse a folder containing a secret or a hard link to one of the workspace's secrets."""
        found = [self._survey(path)]
        if path.is_relative_to(self.place.workspace) and not found[0].secrets:
            found.append(self._survey(self.place.workspace))
        secrets = (secret for each in found for secret in each.secrets)
        if not all(each.complete for each in found) or any(
            Path(secret).is_relative_to(path) for secret in secrets
        ):
            refuse(f"there may be secrets under {word!r}")

    def _leads_out(self, words: list[str]) -> None:
        """Refuse a folder containing a link to somewhere outside it, which `diff` would follow."""
        for root in (self.directory / word for word in words):
            if not root.is_dir() or (self.hidden and self._inside(root)):
                continue
            for place, folders, names in os.walk(root, onerror=_unseen):
                self._check_deadline()
                for path in (Path(place, name) for name in (*folders, *names)):
                    if path.is_symlink() and not _real(path).is_relative_to(_real(root)):
                        refuse(f"{path.name!r} leads out of {root.name!r}")

    def _names(self, words: list[str]) -> None:
        """Record paths outside the workspace for a program that shows no file contents."""
        for word in words:
            self._check_deadline()
            if not self._inside(self.directory / word):
                self.paths.append(os.path.normpath(self.directory / word))

    def _inside(self, path: Path) -> bool:
        return _real(path).is_relative_to(self.place.workspace)

    def _links(self, path: Path) -> frozenset[tuple[int, int]]:
        """Return the inodes of hard-linked secrets if this file may be one of them."""
        try:
            if path.stat().st_nlink <= 1 or path.is_dir():
                return frozenset()
        except (OSError, ValueError):
            return frozenset()
        if self._linked is None:
            found = self._survey(self.place.workspace)
            if not found.complete:
                refuse(f"{path.name!r} has another name that could not be determined")
            self._linked = found.linked
        return self._linked

    def _survey(self, root: Path) -> Survey:
        seconds = max(0.01, min(0.15, self.deadline.left()))
        return survey(root, home=self.place.home, seconds=seconds)

    def _git(self, words: list[str]) -> list[str]:
        self._tries()
        hidden_in = self.place.workspace if self.hidden else None
        plan = git_plan(words, self.directory, hidden_in=hidden_in)
        files = [str(plan.place / word) for word in plan.operands]
        self._reads([word for word in files if Path(word).exists()])
        self._names([str(plan.root or plan.place)])
        self.elsewhere |= not self._inside(plan.place)
        self.environment |= GIT_ENVIRONMENT
        return plan.words

    def _sed(self, words: list[str]) -> list[str]:
        files, prints, told = programs.sed(words)
        self._reads(files)
        if prints:
            return words
        self._tries()
        program = shutil.which("sed", path=SYSTEM_PATH) or "/usr/bin/sed"
        tried = [program, "--sandbox", *told, os.devnull]
        done = subprocess.run(tried, capture_output=True, timeout=0.1, env={}, check=False)
        if done.returncode:
            refuse("this sed script may write or run something")
        return ["--sandbox", *words]

    def _tries(self) -> None:
        """Count each run of git or sed to check the command. Refuse more than `_MOST_TRIALS`."""
        self.trials += 1
        if self.trials > _MOST_TRIALS:
            refuse("checking it would take too long")

    def _check_deadline(self) -> None:
        if self.deadline.over():
            refuse("it could not be checked in time")


def _unseen(error: OSError) -> None:
    refuse(f"{error.filename!r} could not be read")


_ENVIRONMENT = {"PATH": SYSTEM_PATH, "LD_LIBRARY_PATH": "", "PYTHONPATH": ""}
"""Search paths without the user's own entries, which could contain files from the workspace."""
_OURS = (*SYSTEM, "/etc", "/proc")
"""System folders whose files do not count as `elsewhere` (see `Stage`)."""
_LONG_HELP = frozenset({"ipython", "jupyter", "conda"})
"""Programs whose `--help` imports many installed packages, which may write caches."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """The policy's decision about a command."""

    decision: Literal["allow", "ask", "deny"]
    """Whether and how the command may run."""
    reason: str = ""
    """A short reason. Empty for `allow`."""


def assess(command: str, *, directory: Path | None = None) -> Assessment:
    """Check a shell command that would run in `directory` (default: the process's). Never raises.

    The check assumes that there is no sandbox. `deny` is for commands that would destroy the
    system, a home directory or a disk. `allow` is for commands that are known to be read-only and
    read no secret. Everything else is `ask`.
    """
    try:
        place = directory or Path.cwd()
    except OSError:
        return Assessment("ask", "its directory no longer exists")
    verdict = judge(command, CommandPlace(workspace=place, directory=place, home=Path.home()))
    decision = "ask" if verdict.decision == "confine" else verdict.decision
    return Assessment(decision, verdict.reason)
