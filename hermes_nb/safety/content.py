"""What is in the files that a command names, so that an approval holds for what was looked at.

Words are split roughly, as nothing depends on it but how long an answer lasts: a file that is
missed is one whose change does not ask again, and what runs is confined all the same.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import time
from collections.abc import Iterator
from pathlib import Path

from hermes_nb.safety.shell import NeedsShellError, expand

MOST_FILES = 64
LARGEST = 8_000_000
"""Bytes of a file that are looked at; of a larger one size and time count."""
SHOWN = 100_000
"""Characters of a script that a question shows."""
_WORDS = re.compile(r"[^\s'\"|&;()<>`$]{1,400}")
_RUNNERS = re.compile(
    r"(?:^|[|&;(\s/])(?:ba|z|da|k)?sh\b|\b(?:source|python[\d.]*|perl|ruby|node|Rscript|julia|awk"
    r"|make|papermill|jupyter|pytest|psql|sqlite3)\b|(?:^|[|&;(]\s*)\.{0,2}/"
)
_CD = re.compile(
    r"(?:^|[;&|(]\s{0,9})(?:cd|pushd)\s{1,9}('[^']{1,400}'|\"[^\"]{1,400}\"|[^\s;&|)]{1,400})"
)
_MODULE = re.compile(r"\bpython[\d.]{0,9}\s(?:[^|;&\n]{0,200}?\s)?-m\s{0,9}([\w.]{1,200})")
_LONGEST = 10_000
"""Characters of a command that is split as a shell would."""
_MOST_ENTERED = 4
_SECONDS = 0.05
"""For patterns, of all words together."""
_IMPLIED = {"make": ("Makefile", "makefile", "GNUmakefile"), "npm": ("package.json",)}


def contents(command: str, directory: Path) -> dict[str, str]:
    """Return the files that a command names, each with what tells its content from another."""
    return {str(path): _content(path) for path in _named(command, directory)}


def scripts(command: str, directory: Path) -> Iterator[tuple[str, str]]:
    """Yield name and text of the scripts that a command would run."""
    if not _RUNNERS.search(command):
        return
    for path in _named(command, directory):
        try:
            with path.open("rb") as file:
                data = file.read(SHOWN + 1)
            text = data.decode("utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if "\0" not in text and path.suffix not in _DATA:
            more = "\n(longer than is shown here)" if len(data) > SHOWN else ""
            yield path.name, text + more


_DATA = frozenset({".csv", ".tsv", ".json", ".txt", ".md", ".log", ".yaml", ".yml", ".toml"})


def _named(command: str, directory: Path) -> list[Path]:
    words = dict.fromkeys([*_WORDS.findall(command), *_unquoted(command)])
    for program, files in _IMPLIED.items():
        if program in words:
            words |= dict.fromkeys(files)
    for module in _MODULE.findall(command):
        place = module.replace(".", "/")
        words |= dict.fromkeys([f"{place}.py", f"{place}/__main__.py"])
    entered = (_at_home(found.strip("'\"")) for found in _CD.findall(command)[:_MOST_ENTERED])
    places = [directory, *(directory / place for place in entered)]
    enough, found = time.monotonic() + _SECONDS, list[Path]()
    for word in words:
        for path in _files(_at_home(word.rpartition("=")[2]), places, enough):
            if path not in found:
                found.append(path)
            if len(found) == MOST_FILES:
                return found
    return found


def _unquoted(command: str) -> list[str]:
    """Return the words as a shell splits them, whose quotes may hold blanks."""
    try:
        return shlex.split(command) if len(command) <= _LONGEST else []
    except ValueError:
        return []


def _at_home(word: str) -> str:
    """Return a word with the home in it; `$` parts words."""
    first, _, rest = word.partition("/")
    return f"{Path.home()}/{rest}" if rest and first in ("~", "$HOME", "${HOME}", "HOME") else word


def _files(word: str, places: list[Path], enough: float) -> Iterator[Path]:
    """Yield the files of a word, which may be a pattern."""

    def hurry() -> None:
        if time.monotonic() > enough:
            raise ValueError("a pattern that is slow to look up")

    for place in places:
        try:
            if (place / word).is_file():
                yield place / word
            elif re.search(r"[*?\[]", word):
                paths = (place / name for name in expand(word, place, hurry)[:MOST_FILES])
                yield from (path for path in paths if path.is_file())
        except (OSError, ValueError, NeedsShellError):
            continue


def _content(path: Path) -> str:
    try:
        status = path.stat()
        if status.st_size > LARGEST:
            return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return str(error.errno)
