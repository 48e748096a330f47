"""Which commands run unasked: literal words, pipes and `&&` of known readers, and nothing else.

What is judged is what runs: the plan that `judge` returns holds final words, expanded globs and
absolute programs, and is run without a shell. So nobody has to know what a shell would make of it.
Whatever is not of the grammar (an assignment, an expansion, a loop, a file written) is not known.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import time
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import SubprocessError
from typing import Literal

from hermes_nb.safety import programs
from hermes_nb.safety.destruction import destroys
from hermes_nb.safety.git import GIT_ENVIRONMENT, git_plan
from hermes_nb.safety.needs import Need, Wanted, wanted
from hermes_nb.safety.places import SYSTEM, python
from hermes_nb.safety.programs import SYSTEM_PATH, MayDoMoreError, NamesSecretError, readers, refuse
from hermes_nb.safety.protected import survey, why_secret
from hermes_nb.safety.shell import Draft, NeedsShellError, expand, needs_shell, parse

__all__ = ["LENGTH_LIMIT", "Need", "Pipeline", "Place", "Plan", "Stage", "Verdict", "judge"]

logger = logging.getLogger(__name__)

LENGTH_LIMIT = 10_000
SECONDS = 0.1
"""Of work for everything that looks at the disk; a few thousandths are usual."""
_WAITING = 0.4
"""Seconds after which a slow disk or a busy machine is waited for no longer."""
_MOST_TRIALS = 8
"""Programs of a command about which git or sed itself is asked."""
_HIDDEN = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|[\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Terminal sequences, control, zero-width, direction and tag characters."""

Stream = Literal["out", "err", "null"]
After = Literal["", "&&", "||", ";"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One program of a pipeline: final words, the program absolute, and where its streams go.

    `paths` are the files outside of the workspace that it names, for a sandbox to show them;
    `elsewhere` says that it shows what is in one that no installed software brought.
    """

    words: tuple[str, ...]
    stdin: Path | None = None
    out: Stream = "out"
    err: Stream = "err"
    environment: Mapping[str, str] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Stages joined by pipes; `after` is how they follow the pipeline before."""

    after: After
    stages: tuple[Stage, ...]
    directory: Path


Plan = tuple[Pipeline, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a command would run. `hidden`: in a sandbox that hides the workspace's secrets.

    A plan that starts outside of the workspace is judged as if nothing were hidden: no sandbox has
    such a place, so that it runs without one.
    """

    workspace: Path
    directory: Path
    home: Path
    hidden: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """`allow` runs the plan; `confine` may run in a read-only sandbox; `ask` says what it needs."""

    decision: Literal["allow", "confine", "ask", "deny"]
    reason: str = ""
    plan: Plan = ()
    needs: frozenset[Need] = frozenset()


def judge(command: str, place: Place) -> Verdict:
    """Judge a command; never raises, and takes a few tenths of a second at worst."""
    if len(command) > LENGTH_LIMIT:
        return _ask(f"it is longer than {LENGTH_LIMIT:,} characters", Wanted())
    place = Place(_real(place.workspace), _real(place.directory), place.home, place.hidden)
    try:
        return _judged(command, place)
    except Exception:  # what cannot be judged is not allowed, whatever the cause
        logger.exception("a command could not be judged")
        return _ask("it could not be checked beforehand", Wanted())


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _ask(reason: str, seen: Wanted) -> Verdict:
    return Verdict("ask", reason, needs=seen.needs or frozenset({Need.WRITE}))


def _judged(command: str, place: Place) -> Verdict:
    plain = unicodedata.normalize("NFKC", _HIDDEN.sub("", command))
    for text in dict.fromkeys((command, plain)):
        if lost := destroys(text, place.home):
            return Verdict("deny", lost)
    if _HIDDEN.search(command):
        return _ask("it has invisible characters, which can hide what it does", Wanted())
    try:
        return Verdict("allow", plan=_Judge(place).plan(parse(command, place.home)))
    except (NeedsShellError, MayDoMoreError, OSError, ValueError, SubprocessError) as why:
        reason, secret = str(why), isinstance(why, NamesSecretError)
    seen = wanted(command, workspace=place.workspace, home=place.home)
    if secret:
        return Verdict("ask", reason, needs=seen.needs | {Need.CREDENTIALS})
    if place.hidden and not seen.needs:
        return Verdict("confine", reason)
    return _ask(seen.deed or reason, seen)


@dataclass(slots=True)
class _Extras:
    """What a stage gets beside its words."""

    environment: dict[str, str] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)
    elsewhere: bool = False


class _Judge:
    """Judges what was written in its place: expands globs, finds programs, looks at files."""

    def __init__(self, place: Place) -> None:
        self.place, self.directory = place, place.directory
        self.hidden = place.hidden and place.directory.is_relative_to(place.workspace)
        self.deadline, self.trials = time.monotonic() + _WAITING, 0
        self.enough = time.thread_time() + SECONDS
        self._linked: frozenset[tuple[int, int]] | None = None

    def plan(self, lines: list[tuple[str, list[Draft]]]) -> Plan:
        """Return what runs; raise for what may do more than read."""
        out: list[Pipeline] = []
        for number, (after, drafts) in enumerate(lines):
            if drafts[0].words[0] == "cd":
                following = lines[1][0] if len(lines) > 1 else ""
                if number or len(drafts) > 1 or following not in ("&&", ";"):
                    needs_shell("a change of directory comes first, and something follows")
                self._change(drafts[0])
                continue
            joined: After = _JOINED[after] if out else ""
            out.append(Pipeline(joined, tuple(map(self._stage, drafts)), self.directory))
        return tuple(out)

    def _change(self, draft: Draft) -> None:
        if len(draft.words) != 2 or any(draft.patterns):  # noqa: PLR2004 - `cd` and where to
            needs_shell("it changes the directory in an unusual way")
        self.directory = _real(self.directory / draft.words[1])
        if not self.directory.is_dir():
            refuse(f"there is no directory {draft.words[1]!r}")
        self.hidden = self.hidden and self.inside(self.directory)
        self.reads(_Extras(), [str(self.directory)])

    def _stage(self, draft: Draft) -> Stage:
        self._hurry()
        name = draft.words[0]
        if draft.patterns[0]:
            needs_shell("the name of the program is a pattern")
        words: list[str] = []
        for word, glob in zip(draft.words[1:], draft.patterns[1:], strict=True):
            found = expand(glob, self.directory, self._hurry) if glob else []
            words += found or [word]
        extras = _Extras(environment=dict(_ENVIRONMENT))
        if draft.stdin is not None:
            self.reads(extras, [draft.stdin])
        if name == "command":
            if words[:1] not in (["-v"], ["-V"]):
                needs_shell("it runs a program in another way")
            words = words[1:]
        program, name = programs.found(name, self.place.workspace)
        words = self._judged(name, words, extras)
        return Stage(
            words=(program, *words),
            stdin=None if draft.stdin is None else self.directory / draft.stdin,
            out=draft.out,
            err=draft.err,
            environment=dict(extras.environment),
            paths=tuple(dict.fromkeys(extras.paths)),
            elsewhere=extras.elsewhere,
        )

    def _judged(self, name: str, words: list[str], extras: _Extras) -> list[str]:
        known = (name in programs.versioned() and name != "pip") or name in readers()
        if known and (words == ["--version"] or (words == ["--help"] and name not in _LONG_HELP)):
            return words
        if special := _SPECIAL.get(name):
            return special(self, name, words, extras)
        if name not in readers():
            programs.unknown(name)
        self._ordinary(name, words, extras)
        return words

    def _ordinary(self, name: str, words: list[str], extras: _Extras) -> None:
        rule = readers()[name]
        read = rule.read(name, words)
        operands = read.operands
        if rule.operands == "pattern" and not read.options & {"e", "regexp"}:
            operands = operands[1:]
        if name in ("test", "[", "printf") and any(word.startswith(("-v", "-R")) for word in words):
            refuse(f"{name} looks up a variable")
        if rule.operands != "text":
            self.reads(extras, [value for value in read.values if "/" in value or "." in value])
        match rule.operands:
            case "names":
                self.names(extras, operands or ["."])
            case "none" if operands:
                refuse(f"{name} with {operands[0]!r} may change something")
            case "plus" if not all(word.startswith("+") for word in operands):
                refuse(f"{name} with {operands[0]!r} may change something")
            case "one" if len(operands) > 1:
                refuse(f"{name} writes to {operands[1]!r}")
            case "files" | "pattern" | "one":
                deep = name in ("rg", "diff") or bool(read.options & {"r", "recursive"})
                self.reads(extras, operands or (["."] if deep else []), deep=deep)
                if name == "diff":
                    self._leads_out(operands)
            case _:
                pass

    def reads(self, extras: _Extras, words: list[str], *, deep: bool = False) -> None:
        """Check files that are read; `deep` also all that is below them."""
        for word in words:
            self._hurry()
            path = self.directory / word
            masked = self.hidden and self.inside(path)
            linked = frozenset[tuple[int, int]]() if masked else self._links(path)
            if word != "-" and (why := why_secret(path, linked)):
                refuse(f"{word} may show {why}", NamesSecretError)
            if masked:
                continue
            if not self.inside(path) and (deep or path.is_file()):
                extras.paths.append(os.path.normpath(path))
                extras.elsewhere |= not any(
                    map(_real(path).is_relative_to, (*SYSTEM, "/etc", "/proc", *python()))
                )
            if deep and path.is_dir():
                self._below(word, _real(path))

    def _below(self, word: str, path: Path) -> None:
        """Refuse a folder below which a secret is, or another name of one of the workspace's."""
        found = [survey(path, home=self.place.home, seconds=self._left())]
        if path.is_relative_to(self.place.workspace) and not found[0].secrets:
            found.append(survey(self.place.workspace, home=self.place.home, seconds=self._left()))
        secrets = (secret for each in found for secret in each.secrets)
        if not all(each.complete for each in found) or any(
            Path(secret).is_relative_to(path) for secret in secrets
        ):
            refuse(f"there may be secrets below {word!r}")

    def _leads_out(self, words: list[str]) -> None:
        """Refuse a folder with a link out of it, which `diff` follows."""
        for root in (self.directory / word for word in words):
            if self.hidden and self.inside(root):
                continue
            for place, folders, names in os.walk(root):
                self._hurry()
                for path in (Path(place, name) for name in (*folders, *names)):
                    if path.is_symlink() and not _real(path).is_relative_to(_real(root)):
                        refuse(f"{path.name!r} leads out of {root.name!r}")

    def names(self, extras: _Extras, words: list[str]) -> None:
        """Let a program that shows no content look outside of the workspace too."""
        for word in words:
            self._hurry()
            if not self.inside(self.directory / word):
                extras.paths.append(os.path.normpath(self.directory / word))

    def inside(self, path: Path) -> bool:
        return _real(path).is_relative_to(self.place.workspace)

    def _links(self, path: Path) -> frozenset[tuple[int, int]]:
        """Return the inodes of secrets with a second name, if this file may be one."""
        try:
            if path.stat().st_nlink < 2 or path.is_dir():  # noqa: PLR2004 - itself and another
                return frozenset()
        except (OSError, ValueError):
            return frozenset()
        if self._linked is None:
            found = survey(self.place.workspace, home=self.place.home, seconds=self._left())
            if not found.complete:
                refuse(f"{path.name!r} has a second name that could not be looked up")
            self._linked = found.linked
        return self._linked

    def tries(self) -> None:
        """Count that a program is started to judge another."""
        self.trials += 1
        if self.trials > _MOST_TRIALS:
            refuse("it would take long to check")

    def _left(self) -> float:
        return max(0.01, min(0.15, self.deadline - time.monotonic()))

    def _hurry(self) -> None:
        if time.monotonic() > self.deadline or time.thread_time() > self.enough:
            refuse("it could not be checked in time")


_ENVIRONMENT = {"PATH": SYSTEM_PATH, "LD_LIBRARY_PATH": "", "PYTHONPATH": ""}
"""No folder of the user's, from which a program would load what a workspace may hold."""
_LONG_HELP = frozenset({"ipython", "jupyter", "conda"})
"""Their help imports half of what is installed, which may write caches."""
_JOINED: dict[str, After] = {"&&": "&&", "||": "||", ";": ";"}
_Special = Callable[[_Judge, str, list[str], _Extras], list[str]]


def _scripted(judge: _Judge, name: str, words: list[str], extras: _Extras) -> list[str]:
    read = programs.jq(words) if name == "jq" else programs.awk(words)
    judge.reads(extras, read.operands)
    return words


def _sed(judge: _Judge, _: str, words: list[str], extras: _Extras) -> list[str]:
    files, kind, told = programs.sed(words)
    judge.reads(extras, files)
    if kind == "prints":
        return words
    judge.tries()
    program = shutil.which("sed", path=SYSTEM_PATH) or "/usr/bin/sed"
    tried = [program, "--sandbox", *told, os.devnull]
    done = subprocess.run(tried, capture_output=True, timeout=0.1, env={}, check=False)  # noqa: S603
    if done.returncode:
        refuse("this sed script may write or run something")
    return ["--sandbox", *words]


def _find(judge: _Judge, _: str, words: list[str], extras: _Extras) -> list[str]:
    judge.names(extras, programs.find(words))
    return words


def _which(_: _Judge, __: str, words: list[str], extras: _Extras) -> list[str]:
    del extras.environment["PATH"]  # the user's, which is what is asked about
    return programs.which(words)


def _pip(_: _Judge, __: str, words: list[str], ___: _Extras) -> list[str]:
    return programs.pip(words)


def _python(judge: _Judge, _: str, words: list[str], extras: _Extras) -> list[str]:
    if words != ["-V"] and words[:2] != ["-m", "pip"]:
        refuse("it runs Python")
    return words if words == ["-V"] else _pip(judge, "pip", words[2:], extras)


def _ps(_: _Judge, __: str, words: list[str], ___: _Extras) -> list[str]:
    programs.ps(words)
    return words


def _archive(judge: _Judge, name: str, words: list[str], extras: _Extras) -> list[str]:
    judge.reads(extras, programs.archive(name, words))
    return words


def _git(judge: _Judge, _: str, words: list[str], extras: _Extras) -> list[str]:
    judge.tries()
    hidden_in = judge.place.workspace if judge.hidden else None
    plan = git_plan(words, judge.directory, hidden_in=hidden_in)
    files = [str(plan.place / word) for word in plan.operands]
    judge.reads(extras, [word for word in files if Path(word).exists()])
    judge.names(extras, [str(plan.root or plan.place)])
    extras.elsewhere |= not judge.inside(plan.place)
    extras.environment |= GIT_ENVIRONMENT
    return plan.words


_SPECIAL: dict[str, _Special] = {
    **dict.fromkeys(("awk", "gawk", "mawk", "jq"), _scripted),
    **dict.fromkeys(("tar", "unzip"), _archive),
    "find": _find,
    "git": _git,
    "pip": _pip,
    "ps": _ps,
    "python": _python,
    "sed": _sed,
    "which": _which,
}
