"""What is in the files that a command names, so that an approval holds for what was looked at.

Words are split roughly, as nothing depends on it but how long an answer lasts: a file that is
missed is one whose change does not ask again, and what runs is confined all the same.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

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
    words = dict.fromkeys(_WORDS.findall(command))
    for program, files in _IMPLIED.items():
        if program in words:
            words |= dict.fromkeys(files)
    found: list[Path] = []
    for word in words:
        path = directory / word.rpartition("=")[2]
        try:
            if path.is_file():
                found.append(path)
        except (OSError, ValueError):
            continue
        if len(found) == MOST_FILES:
            break
    return found


def _content(path: Path) -> str:
    try:
        status = path.stat()
        if status.st_size > LARGEST:
            return f"{status.st_size} {status.st_mtime_ns} {status.st_ino}"
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        return str(error.errno)
