"""Files that a command names, with what is in them.

An approval holds for the files as they were: one that is missed here is one whose change does not
ask again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from posixpath import basename, normpath

from hermes_nb.safety.protected import Deadline
from hermes_nb.safety.shell import NeedsShellError, expand

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
