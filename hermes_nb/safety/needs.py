"""What a command says: what it does and wants, and which files it names, with what is in them.

No boundary. It makes a question readable, proposes the profile that the command would run in, and
spares a read-only sandbox the commands that could only fail there. An approval holds for the files
as they were: one that is missed here is one whose change does not ask again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.machinery import all_suffixes
from itertools import islice, takewhile
from pathlib import Path, PurePosixPath
from posixpath import basename, join, normpath

from hermes_nb.safety import table
from hermes_nb.safety.places import Need, python
from hermes_nb.safety.programs import readers
from hermes_nb.safety.protected import Deadline, secret_name
from hermes_nb.safety.shell import NeedsShellError, Rough, bare, expand, rough_commands


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a command is seen to want; `deed` is "" if nothing of it is known."""

    deed: str = ""
    needs: frozenset[Need] = frozenset()


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
"""Characters of a name that is told."""


@dataclass(frozen=True, slots=True)
class _Row:
    verbs: frozenset[str]
    unless: str
    needs: frozenset[Need]
    deed: str


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


def wanted(command: str, *, workspace: Path, home: Path, directory: Path) -> Wanted:
    """Return what a command says that it wants, in time that grows with its length only."""
    deeds: list[str] = []
    needs: set[Need] = set()
    if not installs_only(command):
        deeds += _runs_here(command, directory)
    for deed, more in _seen(command, workspace, home):
        deeds += [deed] if deed else []
        needs |= more
    return Wanted(deeds[0] if deeds else "", frozenset(needs))


_PYTHON = re.compile(r"python[\d.]*")


def _runs_here(command: str, directory: Path) -> Iterator[str]:
    """Yield the modules of the working folder that `python -m` finds before those installed."""
    for rough in islice(rough_commands(command), _MOST_COMMANDS):
        program, *rest = bare(rough.words, ()) or [""]
        told = list(takewhile(lambda word: word.startswith("-"), rest))
        runs = _PYTHON.fullmatch(basename(program)) and told[-1:] == ["-m"]
        if not runs or not {"-P", "-I"}.isdisjoint(told):
            continue
        for name in (word.partition(".")[0] for word in rest[len(told) : len(told) + 1]):
            if any(os.path.lexists(directory / f"{name}{end}") for end in ("", *all_suffixes())):
                yield f"it runs {name!r} of the working folder"


def installs_only(command: str) -> bool:
    """Say whether all that a command names is pip and what only reads.

    Then Python need not look into the working folder, where a `pip.py` would run in pip's place.
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
        deed = "it changes what Hermes runs by the clock"
        yield deed, frozenset({Need.CREDENTIALS, Need.LATER})
    for pattern, need in ((_WRITES, Need.WRITE), (_NETWORK, Need.NETWORK), (_ELSE, Need.WRITE)):
        if pattern.search(text):
            yield "", frozenset({need})


def _by_name(rough: Rough) -> Iterator[tuple[str, frozenset[Need]]]:
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
    """Yield that a word names a secret, or what is in the home and not in the workspace."""
    path = re.sub(r"^(~|\$HOME|\$\{HOME\})(?=/|$)", home, word.partition("=")[2] or word)
    plain = "/" not in path and "." not in path  # what is looked for as often as it is a file
    if secret_name(PurePosixPath(path).parts) and not (
        plain and not os.path.lexists(join(workspace, path))
    ):
        yield f"{word[:_LONGEST]!r} may hold secrets", frozenset({Need.CREDENTIALS})
    elif path.startswith(("/", "../")):
        full = normpath(join(workspace, path))
        inside = full.startswith(f"{workspace}/") or full == workspace
        shown = Path(full).parent.resolve().is_relative_to
        if any(map(shown, python())):
            return
        if full.startswith(f"{home}/." if inside else f"{home}/") and full != home:
            yield f"{word[:_LONGEST]!r} is in your home", frozenset({Need.HOME})


def _listed(operands: Sequence[str]) -> str:
    names = [each for each in operands if each and not each.startswith("-")]
    shown = [each if len(each) <= _LONGEST else f"{each[:_LONGEST]}…" for each in names[:_LISTED]]
    if len(names) > _LISTED:
        shown = [", ".join(shown), f"{len(names) - _LISTED} more"]
    return " and ".join(shown) or "something"


MOST_FILES = 64
LARGEST = 8_000_000
"""Bytes of a file that are digested; of a larger one size and time count."""
SHOWN = 100_000
"""Characters of a script that a question shows."""
_WORDS = re.compile(r"[^\s'\"|&;()<>`$]{1,400}")
_RUNNERS = re.compile(
    r"(?:^|[|&;(\s/])(?:ba|z|da|k)?sh\b|\b(?:source|python[\d.]*|perl|ruby|node|Rscript|julia|awk"
    r"|make|papermill|jupyter|pytest|psql|sqlite3)\b|(?:^|[|&;(]\s*)\.{0,2}/"
)
_MODULE = re.compile(r"\bpython[\d.]{0,9}\s(?:[^|;&\n]{0,200}?\s)?-m\s{0,9}([\w.]{1,200})")
_LONGEST_COMMAND = 10_000
"""Characters of a command that is split as a shell would."""
_MOST_FOLDERS = 8
"""Folders of a command in which the files are looked for that it names."""
_SECONDS = 0.05
"""Of work for patterns, of all words together."""
_WAITING = 0.4
"""Seconds after which a slow disk or a busy machine is waited for no longer."""
_IMPLIED = {"make": ("Makefile", "makefile", "GNUmakefile"), "npm": ("package.json",)}


@dataclass(frozen=True, slots=True)
class Files:
    """Files as they were, each read once: a digest by path, and the scripts as name and text.

    A digest is of where the path leads and of what is there. `whole` is false if one was too large
    or could not be read, or if not all could be found: then something may change without a change
    of the digests.
    """

    digests: dict[str, str]
    scripts: tuple[tuple[str, str], ...]
    whole: bool


def files_of(command: str, directory: Path) -> Files:
    """Return the files that a command names, and of them the scripts that it would run."""
    named, complete = _named(command, directory)
    read = read_files([directory, *named])
    scripts = read.scripts if _RUNNERS.search(command) else ()
    return Files(read.digests, scripts, read.whole and complete)


def read_files(paths: Iterable[Path]) -> Files:
    """Return what is in files; of a path that is no file, where it leads."""
    digests: dict[str, str] = {}
    scripts: list[tuple[str, str]] = []
    whole = True
    for path in paths:
        try:
            digests[str(path)] = leads = os.path.realpath(path)
            if not path.is_file():
                continue
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                large = status.st_size > LARGEST
                data = file.read(SHOWN + 1 if large else LARGEST + 1)
        except (OSError, ValueError) as error:  # half a character is in no name
            digests[str(path)], whole = str(error), False
            continue
        large |= len(data) > LARGEST  # it has grown since
        version = f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"
        digests[str(path)] = f"{version if large else hashlib.sha256(data).hexdigest()} {leads}"
        whole &= not large
        if path.suffix not in _DATA and (text := _script(data)) is not None:
            scripts.append((path.name, text))
    return Files(digests, tuple(scripts), whole)


def _script(data: bytes) -> str | None:
    """Return a script as a question shows it, None for what is no text."""
    shown = data[: SHOWN + 1]
    try:
        text = shown.decode("utf-8")
    except UnicodeDecodeError:
        return None
    more = "\n(longer than is shown here)" if len(shown) > SHOWN else ""
    return None if "\0" in text else text + more


_DATA = frozenset({".csv", ".tsv", ".json", ".txt", ".md", ".log", ".yaml", ".yml", ".toml"})


def _named(command: str, directory: Path) -> tuple[list[Path], bool]:
    """Return the files that a command names, and whether these are all of them.

    They are looked for in each folder that it names, too, and with them what is run of a folder.
    """
    words = dict.fromkeys([*_WORDS.findall(command), *_unquoted(command)])
    programs = {basename(word) for word in words}
    for program, files in _IMPLIED.items():
        if program in programs:
            words |= dict.fromkeys(files)
    for module in _MODULE.findall(command):
        place = module.replace(".", "/")
        words |= dict.fromkeys([f"{place}.py", f"{place}/__main__.py"])
    words |= {"__main__.py": None}
    names = list(dict.fromkeys(_at_home(word.rpartition("=")[2]) for word in words))
    enough, found = Deadline(_SECONDS, waiting=_WAITING), list[Path]()
    places, complete = _entered(names, directory, enough)
    for name in names:
        try:
            for path in _files(name, places, enough):
                if path not in found:
                    found.append(path)
                if len(found) == MOST_FILES:
                    return found, False
        except (PermissionError, TimeoutError, NeedsShellError):
            complete = False
    return found, complete


def _entered(names: Sequence[str], directory: Path, enough: Deadline) -> tuple[list[Path], bool]:
    """Return a folder and those that are named, one in another too, and whether these are all."""
    places = [directory]
    for name in names:
        for place in [Path(normpath(each / name)) for each in places]:
            if enough.over() or len(places) > _MOST_FOLDERS:
                return places, False
            with suppress(OSError, ValueError):  # no name that a folder could have
                if place not in places and place.is_dir():
                    places.append(place)
    return places, True


def _unquoted(command: str) -> list[str]:
    """Return the words as a shell splits them, whose quotes may hold blanks."""
    words = shlex.shlex(command[:_LONGEST_COMMAND], posix=True, punctuation_chars=True)
    words.whitespace_split, words.commenters = True, ""
    found: list[str] = []
    with suppress(ValueError):  # a quote without an end
        found.extend(words)
    return found


def _at_home(word: str) -> str:
    """Return a word with the home in it; `$` parts words."""
    first, _, rest = word.partition("/")
    return f"{Path.home()}/{rest}" if rest and first in ("~", "$HOME", "${HOME}", "HOME") else word


def _files(word: str, places: list[Path], enough: Deadline) -> Iterator[Path]:
    """Yield the files of a word, which may be a pattern.

    Raises TimeoutError or NeedsShellError for a pattern that takes long or names very many files,
    PermissionError where it may not look.
    """

    def hurry() -> None:
        if enough.over():
            raise TimeoutError

    for place in places:
        try:
            if (place / word).is_file():
                yield place / word
            elif re.search(r"[*?\[]", word):
                paths = (place / name for name in expand(word, place, hurry)[:MOST_FILES])
                yield from (path for path in paths if path.is_file())
        except (PermissionError, TimeoutError):
            raise
        except (OSError, ValueError):  # no name that a file could have
            continue
