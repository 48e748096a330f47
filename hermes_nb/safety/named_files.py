"""Find the files that a command refers to, and read their contents.

An approval applies to the files' current contents. If this module misses a file, a change to it
does not require a new approval.
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
"""Maximum number of files per command."""
LARGEST = 8_000_000
"""Maximum bytes of a file to hash. Larger files are identified by size and modification time."""
SHOWN = 100_000
"""Maximum characters of a script in an approval prompt."""
_WORDS = re.compile(r"[^\s'\"|&;()<>`$]{1,400}")
_RUNNERS = re.compile(
    r"(?:^|[|&;(\s/])(?:ba|z|da|k)?sh\b|\b(?:source|python[\d.]*|perl|ruby|node|Rscript|julia|awk"
    r"|make|papermill|jupyter|pytest|psql|sqlite3)\b|(?:^|[|&;(]\s*)\.{0,2}/"
)
"""Matches a program that runs a script."""
_MODULE = re.compile(
    r"\bpython[\d.]{0,9}\s(?:[^|;&\n]{0,200}?\s)?-[A-Za-z]{0,9}?m\s{0,9}([\w.]{1,200})"
)
_EXPANDED = re.compile(
    r"\$\{[^}]{0,400}\}|\$\([^()]{0,400}\)|`[^`]{0,400}`|\$\w{1,99}|~\+|\{[^{}\s]{0,400},[^{}\s]{0,400}\}"
)
"""Matches an expansion, which a shell replaces with text that is not known here."""
_LONGEST_COMMAND = 10_000
"""Number of characters of a command to split into words as a shell would."""
_MOST_FOLDERS = 8
"""Maximum number of folders in a command to search for its files."""
_SECONDS = 0.05
"""CPU seconds for expanding all of a command's patterns."""
_WAITING = 0.4
"""Wall-clock limit in seconds for a slow disk or a busy machine."""
_IMPLIED = {"make": ("Makefile", "makefile", "GNUmakefile"), "npm": ("package.json",)}
"""Files that a program reads by default."""


@dataclass(frozen=True, slots=True)
class Files:
    """The contents of files at one point in time."""

    digests: dict[str, str]
    """A digest of each file's content and resolved path, by path."""
    scripts: tuple[tuple[str, str], ...]
    """The scripts' names and text."""
    whole: bool
    """False if a file was too large, unreadable or not found, so a change may go unnoticed."""


def files_of(command: str, directory: Path) -> Files:
    """Return the files that a command refers to, and the scripts that it would run."""
    named, complete = _named(command, directory)
    read = read_files([directory, *named])
    scripts = read.scripts if _RUNNERS.search(command) else ()
    return Files(read.digests, scripts, read.whole and complete)


def read_files(paths: Iterable[Path]) -> Files:
    """Return the contents of files. For any other path, the digest is the resolved path."""
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
        except (OSError, ValueError) as error:  # ValueError: an invalid name
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
    """Return a script for display, or None if it is not text."""
    shown = data[: SHOWN + 1]
    try:
        text = shown.decode("utf-8")
    except UnicodeDecodeError:
        return None
    more = "\n(longer than is shown here)" if len(shown) > SHOWN else ""
    return None if "\0" in text else text + more


_DATA = frozenset({".csv", ".tsv", ".json", ".txt", ".md", ".log", ".yaml", ".yml", ".toml"})
"""Extensions of data files, which are not displayed as scripts."""


def _named(command: str, directory: Path) -> tuple[list[Path], bool]:
    """Return the files that a command refers to, and whether the list is complete.

    Names are also resolved in the folders that the command refers to. The list includes files that
    are run implicitly, such as a folder's `__main__.py`.
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
    words |= dict.fromkeys(_expanded(command))
    words |= {word[2:]: None for word in words if re.match(r"-\w.", word)}  # make -fFILE
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
    """Return `directory` and the folders among `names`, and whether the list is complete.

    Each name is also resolved in the folders found before it.
    """
    places = [directory]
    for name in names:
        for place in [Path(normpath(each / name)) for each in places]:
            if enough.over() or len(places) > _MOST_FOLDERS:
                return places, False
            with suppress(OSError, ValueError):  # not a valid name
                if place not in places and place.is_dir():
                    places.append(place)
    return places, True


def _unquoted(command: str) -> list[str]:
    """Return the words as a shell splits them. Quoted words may contain spaces."""
    words = shlex.shlex(command[:_LONGEST_COMMAND], posix=True, punctuation_chars=True)
    words.whitespace_split, words.commenters = True, ""
    found: list[str] = []
    with suppress(ValueError):  # an unclosed quote
        found.extend(words)
    return found


def _expanded(command: str) -> Iterator[str]:
    """Yield each word that contains an expansion as a glob pattern, such as `*.sh` for `$name.sh`.

    An expansion before a slash can produce any folder, including the working directory
    (`$PWD/run.sh`), so `run.sh` is also yielded.
    """
    pattern = _EXPANDED.sub("*", command[:_LONGEST_COMMAND])
    for word in _unquoted(pattern) if pattern != command else ():
        if "*" in word and re.search(r"\w", word):
            yield from (word, word.removeprefix("*/"))


def _at_home(word: str) -> str:
    """Return a word with the home directory expanded.

    `HOME/…` also counts, because words are also split at `$`.
    """
    first, _, rest = word.partition("/")
    return f"{Path.home()}/{rest}" if rest and first in ("~", "$HOME", "${HOME}", "HOME") else word


def _files(word: str, places: list[Path], enough: Deadline) -> Iterator[Path]:
    """Yield the files for a word, which may be a glob pattern.

    Raises TimeoutError or NeedsShellError for a pattern that takes too long or matches too many
    files, and PermissionError for an inaccessible path.
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
        except (OSError, ValueError):  # not a valid name
            continue
