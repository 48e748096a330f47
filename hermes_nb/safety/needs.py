"""Estimate from a command's text what it does and which permissions it needs.

This is not a security boundary. It makes approval prompts readable, selects the sandbox profile to
propose, and avoids running commands in a read-only sandbox if they are certain to fail.
"""

from __future__ import annotations

import os
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.machinery import all_suffixes
from itertools import islice
from pathlib import Path, PurePosixPath
from posixpath import basename, join, normpath

from hermes_nb.safety import table
from hermes_nb.safety.permissions import Need
from hermes_nb.safety.places import python
from hermes_nb.safety.programs import readers
from hermes_nb.safety.protected import secret_name
from hermes_nb.safety.shell import RoughCommand, bare, on_one_line, rough_commands


@dataclass(frozen=True, slots=True)
class CommandNeeds:
    """A command's estimated action and needs."""

    deed: str = ""
    """Description of the action. Empty if unknown."""
    needs: frozenset[Need] = frozenset()
    """Needs beyond reading."""


_WRITES = re.compile(
    r"\b(?:rmtree|os\.system|popen|subprocess|execSync|child_process|shutil|to_csv|to_parquet"
    r"|savefig|write_text|write_bytes|open\([^)]{0,200}['\"][wax]|rm|unlink|truncate|mkfs|delete"
    r"|drop\s{1,9}(?:table|database)|eval|chmod|chown)\b|-exec(?:dir)?\b.{0,100}\b(?:rm|mv|sh|bash)\b"
    r"|--(?:in-?place|output|write|fix|delete|execute|replace|pre|filter|checkpoint-action"
    r"|compress-prog|use-compress-program|hostname-bin|open-files-in-pager)\b"
)
_NETWORK = re.compile(
    r"\b(?:urllib|requests|urlopen|socket|httpx|curl|wget|nc|ssh|http\.server)\b|/dev/(?:tcp|udp)/"
)
_ELSE = re.compile(r"LD_PRELOAD|\bPATH=|\b(?:pkexec|nsenter|unshare|chroot|sysctl|systemd-run)\b")
_SCHEDULES = re.compile(r"\bhermes(?:_nb\.cli)?\s{1,9}jobs\s{1,9}(?!list\b|history\b)\S")
_HARMLESS_TARGET = re.compile(r"/dev/(null|stderr|stdout)|/tmp/.*|&?[0-9-]*")
_MOST_COMMANDS = 100
_MOST_WORDS = 300
_LISTED = 2
_LONGEST = 40
"""Maximum characters of a name in a description."""


@dataclass(frozen=True, slots=True)
class _Row:
    verbs: frozenset[str]
    """The command must have one of these arguments. Empty means any arguments."""
    unless: str
    """Pattern for arguments that make the command need nothing beyond reading."""
    needs: frozenset[Need]
    """Needs beyond reading."""
    deed: str
    """Template for the description of the action."""


@cache
def _rows() -> dict[str, list[_Row]]:
    out: dict[str, list[_Row]] = {}
    for told in table("commands")["wants"]:
        needs = frozenset(map(Need, told["needs"].split()))
        verbs = frozenset(told.get("verbs", "").split())
        row = _Row(verbs, told.get("unless", "(?!)"), needs, told.get("deed", ""))
        for name in told["programs"].split():
            out.setdefault(name, []).append(row)
    return out


def wanted(command: str, *, workspace: Path, home: Path, directory: Path) -> CommandNeeds:
    """Return a command's estimated action and needs, in time linear in its length."""
    command = on_one_line(command)
    deeds: list[str] = []
    needs: set[Need] = set()
    if not installs_only(command):
        deeds += _runs_here(command, directory)
    for deed, more in _seen(command, workspace, home):
        deeds += [deed] if deed else []
        needs |= more
    return CommandNeeds(deeds[0] if deeds else "", frozenset(needs))


_PYTHON = re.compile(r"python[\d.]*")
_MODULE = re.compile(r"(?:^| )-[bBdEhiOqsSuvVx]{0,9}m ?([^ .]{1,200})")
"""Matches Python's module option, even combined with others (`-Bm NAME`, `-mNAME`)."""
_SAFE = re.compile(r"(?:-[^ ]{1,99} ){0,9}-[bBdEhiOqsSuvVx]{0,9}[PI]")
"""Matches options that stop Python from searching the working folder."""


def _runs_here(command: str, directory: Path) -> Iterator[str]:
    """Yield a message for each `python -m MODULE` that would run a module in `directory`.

    Python finds it there before an installed one.
    """
    for rough in islice(rough_commands(command), _MOST_COMMANDS):
        program, *rest = bare(rough.words, ()) or [""]
        if not _PYTHON.fullmatch(basename(program)):
            continue
        text = " ".join(rest)
        found = None if _SAFE.match(text) else _MODULE.search(text)
        if found is not None:
            name = found[1]
            if any(os.path.lexists(directory / f"{name}{end}") for end in ("", *all_suffixes())):
                yield f"it runs {name!r} from the working directory"


def installs_only(command: str) -> bool:
    """Return whether a command consists only of pip, `cd` and read-only programs.

    Python can then run without the working directory in its path, where a `pip.py` would be run
    instead of pip.
    """
    for rough in islice(rough_commands(command), _MOST_COMMANDS):
        program, *rest = bare(rough.words, ()) or ["cd"]
        name = basename(program)
        pip = name in ("pip", "pip3") or (_PYTHON.fullmatch(name) and rest[:2] == ["-m", "pip"])
        if not (pip or name == "cd" or name in readers()):
            return False
    return True


def _seen(command: str, workspace: Path, home: Path) -> Iterator[tuple[str, frozenset[Need]]]:
    looked_at: set[str] = set()
    for rough in islice(rough_commands(command), _MOST_COMMANDS):
        yield from _by_name(rough)
        for operator, path in rough.writes:
            if not _HARMLESS_TARGET.fullmatch(path) and not (operator == ">&" and path.isdigit()):
                yield f"it writes to {path!r}", frozenset({Need.WRITE})
        new = [word for word in dict.fromkeys(rough.words) if word not in looked_at]
        looked_at.update(new[: _MOST_WORDS - len(looked_at)])
        for word in new[:_MOST_WORDS]:
            yield from _by_place(word, str(workspace), str(home))
    text = unicodedata.normalize("NFKC", command)
    if _SCHEDULES.search(text):
        deed = "it changes Hermes' scheduled jobs"
        yield deed, frozenset({Need.CREDENTIALS, Need.LATER})
    for pattern, need in ((_WRITES, Need.WRITE), (_NETWORK, Need.NETWORK), (_ELSE, Need.WRITE)):
        if pattern.search(text):
            yield "", frozenset({need})


def _by_name(rough: RoughCommand) -> Iterator[tuple[str, frozenset[Need]]]:
    first = basename(rough.words[0]) if rough.words else ""
    name, *rest = bare(rough.words, _rows().keys()) or [""]
    for program in dict.fromkeys((first, basename(name))):
        for row in _rows().get(program, ()):
            verb = next((word for word in rest if word in row.verbs), "")
            if verb or not row.verbs:
                deed = row.deed.format(_listed(rest), name=program, verb=verb)
                if _PYTHON.fullmatch(program) and rest[:2] != ["-m", "pip"]:
                    deed = "it runs Python code, which may change what is installed"
                reads = re.search(row.unless, " ".join(rest))
                yield deed, frozenset() if reads else row.needs
                break


def _by_place(word: str, workspace: str, home: str) -> Iterator[tuple[str, frozenset[Need]]]:
    """Yield a message and needs if a word is a secret or a path in the home directory.

    Paths in the workspace do not count, unless they are hidden entries of the home directory.
    """
    path = re.sub(r"^(~|\$HOME|\$\{HOME\})(?=/|$)", home, word.partition("=")[2] or word)
    plain = "/" not in path and "." not in path  # probably a search term, unless such a file exists
    if secret_name(PurePosixPath(path).parts) and not (
        plain and not os.path.lexists(join(workspace, path))
    ):
        yield f"{word[:_LONGEST]!r} may contain secrets", frozenset({Need.CREDENTIALS})
    elif path.startswith(("/", "../")):
        full = normpath(join(workspace, path))
        inside = full.startswith(f"{workspace}/") or full == workspace
        shown = Path(full).parent.resolve().is_relative_to
        if any(map(shown, python())):
            return
        if full.startswith(f"{home}/." if inside else f"{home}/") and full != home:
            yield f"{word[:_LONGEST]!r} is in your home directory", frozenset({Need.HOME})


def _listed(operands: Sequence[str]) -> str:
    names = [each for each in operands if each and not each.startswith("-")]
    shown = [each if len(each) <= _LONGEST else f"{each[:_LONGEST]}…" for each in names[:_LISTED]]
    if len(names) > _LISTED:
        shown = [", ".join(shown), f"{len(names) - _LISTED} more"]
    return " and ".join(shown) or "something"
