"""Load instruction files for the prompt: find, read, scan and shorten them.

The first kind of project file that exists is used: `.hermes.md` or `HERMES.md` (from the working
directory up to the root of its repository), `AGENTS.override.md`, `AGENTS.md`, `CLAUDE.md`, then
all of Cursor's rules together. Empty and inaccessible files are skipped. `SOUL.md`, the agent's
identity, is read only from the Hermes directory. It may be a symbolic link to anywhere, because
many users keep such files in their own repository.

Every text is scanned before it reaches a prompt. A file of normal size is scanned completely. In a
longer file, `window` characters at both ends are scanned, several times more than are loaded, and
the shortened text is scanned again around the cut. Text that the user has accepted is not scanned.
"""

from __future__ import annotations

import codecs
import io
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from hermes_nb.core.escapes import visible
from hermes_nb.core.files import make_private
from hermes_nb.core.regular_files import Refused, open_inside, real_inside, repository
from hermes_nb.safety.provenance import Trust
from hermes_nb.safety.scan import Finding, ScanResult, ScanVerdict, scan

LIMIT = 20_000
"""Maximum number of characters to load from a file.

If it is longer, the head (70 %) and tail (20 %) are loaded.
"""
WINDOW = 65_536
"""Number of characters to scan at each end of a long file."""
LARGEST = 128 * 2**20
"""Maximum size of a file, in bytes. Reading 100 MB takes about 0.1 s of CPU time."""
_PIECE = 2**18
"""Number of bytes to read at a time."""
_SCANNED = 32
"""Maximum number of cached scan results. Each text has up to twice `WINDOW` characters."""
_SEAM = 500
"""Number of characters to rescan on each side of the cut, because they are now adjacent."""

_GIVES_ORDERS = "its path reads like an instruction"

Accepts = Callable[[Path, str], bool]
"""Returns whether the user accepted exactly this text at this path, which contains no links."""
Scan = Callable[[str, str], ScanResult]
"""Scans text. The second argument is its name in the notice shown if the text is blocked."""


def never(_path: Path, _text: str) -> bool:
    """Accept nothing."""
    return False


def commands(name: str) -> bool:
    """Return whether a path reads like an instruction, since the prompt shows it next to the text.

    Invisible characters are displayed as escapes there and are harmless.
    """
    plain = name
    if not name.isprintable():
        plain = "".join(character if character.isprintable() else " " for character in name)
    return scan(_read_aloud(plain)).verdict != "clean"


def _read_aloud(path: str) -> str:
    """Return the path as text to scan: the whole path, then each name as its own paragraph."""
    names = path.replace("/", "\n\n")
    return path if names == path else f"{path}\n\n{names}"


@lru_cache(maxsize=_SCANNED)
def scanned(text: str, name: str) -> ScanResult:
    """Return the result of a scan, cached: a rebuilt prompt usually has the same files."""
    return scan(text, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextFile:
    """An instruction file for the prompt."""

    name: str
    """The file's name as displayed in the prompt."""
    path: Path
    """Its path without links."""
    verdict: ScanVerdict
    """The worst verdict of the scans."""
    findings: tuple[Finding, ...] = ()
    """The scans' findings."""
    text_loaded: str
    """Its text in the prompt: a one-line notice if it is blocked, shortened if `truncated`."""
    characters: int
    """Length of the text in the file."""
    truncated: bool = False
    """Whether the text was shortened."""
    trusted: bool = False
    """Whether the user has accepted the text, so that it was not scanned."""
    source: str = field(default="", repr=False)
    """The text that was passed to `accepts`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedFile:
    """An existing file that was not loaded."""

    name: str
    """Its name."""
    path: Path
    """Its path."""
    reason: str
    """Why it was not loaded."""


@dataclass(frozen=True, slots=True)
class Excerpt:
    """The text read from a file: all of it, or both ends."""

    parts: tuple[str, ...]
    """The whole text, or its head and tail."""
    left_out: int = 0
    """Number of characters between them."""

    @property
    def text(self) -> str:
        """The parts as one text."""
        return "\n".join(self.parts)

    @property
    def characters(self) -> int:
        """Length of the whole text."""
        return sum(map(len, self.parts)) + self.left_out


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextFileReader:
    """Loads instruction files from a directory."""

    root: Path
    """The directory, without links. Files outside it are refused."""
    accepts: Accepts = never
    """Returns whether the user has accepted a text."""
    limit: int = LIMIT
    """Maximum number of characters to load from a file."""
    window: int = WINDOW
    """Number of characters to scan at each end of a long file."""
    named: bool = False
    """Whether to scan names too, for files that may have any name, since the prompt shows it."""
    scan: Scan = scanned
    """Scans text."""

    def load(
        self, path: Path, name: str, prepare: Callable[[str], str] = str.strip
    ) -> ContextFile | None:
        """Return the file at `path`, or None if it contains only white space.

        `prepare` removes a leading header, such as frontmatter. Raises FileNotFoundError, and
        `Refused` for an inaccessible file or one whose name reads like an instruction.
        """
        real = real_inside(path, self.root)
        with open_inside(real, self.root) as file:
            excerpt = read(file, self.window)
        parts = [prepare(excerpt.parts[0]), *excerpt.parts[1:]]
        parts[0] = parts[0].lstrip()
        parts[-1] = parts[-1].rstrip()
        excerpt = Excerpt(tuple(parts), excerpt.left_out)
        if not excerpt.text.strip():
            return None
        trusted = self.accepts(real, excerpt.text)
        results = [] if trusted else self._results(name, excerpt.parts)
        if self.named and trusted and commands(name):
            raise Refused(_GIVES_ORDERS)
        return self._judged(real, visible(name), excerpt, results)

    def _results(self, name: str, parts: tuple[str, ...]) -> list[ScanResult]:
        """Scan a text's parts; raise `Refused` if the name reads like an instruction.

        Name and text are scanned together unless one could affect the result for the other, as a
        code mark in a name might. If the result is not clean, they are scanned separately.
        """
        shown = visible(name)
        if self.named:
            alone = len(parts) > 1 or parts[0].startswith("---") or not name.isprintable()
            if not (alone or "`" in name or "~" in name):
                both = f"{_read_aloud(name)}\n\n---\n\n{parts[0]}"
                if self.scan(both, shown).verdict == "clean":
                    return [ScanResult(verdict="clean", text=parts[0])]
            if commands(name):
                raise Refused(_GIVES_ORDERS)
        return [self.scan(part, shown) for part in parts]

    def _judged(
        self, real: Path, name: str, excerpt: Excerpt, results: list[ScanResult]
    ) -> ContextFile:
        trusted = not results
        verdicts = {result.verdict for result in results}
        verdict: ScanVerdict = next((each for each in _WORST_FIRST if each in verdicts), "clean")
        if verdict == "blocked":
            text = next(result.text for result in results if result.verdict == "blocked")
            truncated = False
        else:
            parts = tuple(result.text for result in results) or excerpt.parts
            text, truncated = self._cut(name, parts, excerpt.characters, trusted=trusted)
        return ContextFile(
            name=name,
            path=real,
            verdict=verdict,
            findings=tuple(finding for result in results for finding in result.findings),
            text_loaded=text,
            characters=excerpt.characters,
            truncated=truncated,
            trusted=trusted,
            source=excerpt.text,
        )

    def _cut(
        self, name: str, parts: tuple[str, ...], characters: int, *, trusted: bool
    ) -> tuple[str, bool]:
        """Return the text to load, and whether it was shortened."""
        if len(parts) == 1 and len(parts[0]) <= self.limit:
            return parts[0], False
        head, tail = parts[0][: self.limit * 7 // 10], parts[-1][-(self.limit * 2 // 10) :]
        # An attacker could place the halves of a harmful sentence so that the cut joins them.
        if not trusted and self.scan(f"{head[-_SEAM:]}\n{tail[:_SEAM]}", name).verdict != "clean":
            tail = ""
        marker = (
            f"[...truncated {name}: kept {len(head)}+{len(tail)} of {characters} chars. "
            "Use file tools to read the full file.]"
        )
        return f"{head}\n\n{marker}\n\n{tail}".rstrip(), True


_WORST_FIRST: tuple[ScanVerdict, ...] = ("blocked", "suspicious")


def read(file: BinaryIO, window: int) -> Excerpt:
    """Read the relevant part of a file's text: all of it, or `window` characters at both ends.

    The encoding is UTF-8, or UTF-16 with a byte order mark. Invalid bytes become U+FFFD, line
    endings become newlines, and NUL is removed. Raises `Refused` for files over `LARGEST` bytes and
    for system errors.
    """
    try:
        piece = file.read(_PIECE)
        marked = piece.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        codec = codecs.getincrementaldecoder("utf-16" if marked else "utf-8-sig")
        decoder = io.IncrementalNewlineDecoder(codec("replace"), translate=True)
        head, tail, total, size = "", "", 0, 0
        while True:
            size += len(piece)
            if size > LARGEST or os.fstat(file.fileno()).st_size > LARGEST:
                raise Refused(f"it is larger than {LARGEST // 2**20} MiB")
            text = decoder.decode(piece, final=not piece).replace("\0", "")
            total += len(text)
            if len(head) < 2 * window:
                head += text
            else:
                tail = (tail + text)[-window:]
            if not piece:
                break
            piece = file.read(_PIECE)
    except OSError as error:
        raise Refused(f"it cannot be read: {(error.strerror or str(error)).lower()}") from error
    if total <= 2 * window:
        return Excerpt((head,))
    return Excerpt((head[:window], (head[window:] + tail)[-window:]), total - 2 * window)


INTRODUCTION = "Written for agents that work on this project; follow it where it fits the task."
HERMES = (".hermes.md", "HERMES.md")
AGENTS = ("AGENTS.override.md", "AGENTS.md", "agents.md")
"""The first is a personal file that replaces the shared one."""
CLAUDE = ("CLAUDE.md", "claude.md")
CURSOR = ".cursorrules"
RULES = Path(".cursor", "rules")
TOTAL = 60_000
"""Maximum number of characters in all files together. Only Cursor's rules can be several files."""
_MOST_ENTRIES = 1_000
"""Maximum number of entries in the rules folder."""
_FRONTMATTER = re.compile(r"---[ \t]*\n(?:.*\n)*?(?:---|\.\.\.)[ \t]*(?:\n|\Z)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectContext:
    """The result of the search for context files."""

    files: tuple[ContextFile, ...] = ()
    """The files, in the prompt's order."""
    skipped: tuple[SkippedFile, ...] = ()
    """Files that were not loaded."""

    @property
    def block(self) -> str:
        """The prompt's layer, or "" if there are no files."""
        if not self.files:
            return ""
        sections = [f"## {file.name}\n\n{file.text_loaded}" for file in self.files]
        return "\n\n".join([f"# Project Context\n\n{INTRODUCTION}", *sections])


def context_block(directory: str | Path, *, home: str | Path | None = None) -> str:
    """Return the prompt layer with a working directory's context files, or "" if there are none.

    With the Hermes directory `home`, files that the user trusts are loaded without a scan.
    """
    accepts = never if home is None else Trust(Path(home)).accepts
    return find_context(directory, accepts=accepts).block


def find_context(
    directory: str | Path, *, accepts: Accepts = never, scan: Scan = scanned
) -> ProjectContext:
    """Find a working directory's context files.

    Text that `accepts` allows is not scanned.
    """
    here = Path(os.path.realpath(directory))
    root = repository(here)
    search = _Search(ContextFileReader(root=root or here, accepts=accepts, scan=scan))
    upwards = [here]
    if root is not None:
        upwards += [each for each in here.parents if each.is_relative_to(root)]
    files = (
        search.first([each / name for each in upwards for name in HERMES], hermes=True)
        or search.first([here / name for name in AGENTS])
        or search.first([here / name for name in CLAUDE])
        or search.cursor(here)
    )
    return ProjectContext(files=tuple(files), skipped=tuple(search.skipped))


@dataclass(slots=True)
class _Search:
    """Loads candidates and records those that cannot be used."""

    reader: ContextFileReader
    skipped: list[SkippedFile] = field(default_factory=list)

    def first(self, paths: list[Path], *, hermes: bool = False) -> list[ContextFile]:
        """Return the first non-empty file, as a list."""
        prepare = without_frontmatter if hermes else str.strip
        found = (self._load(path, path.name, prepare) for path in paths)
        return list(islice(filter(None, found), 1))

    def cursor(self, here: Path) -> list[ContextFile]:
        """Return Cursor's non-empty rules, up to the total limit."""
        names = [CURSOR, *(str(RULES / name) for name in self._rules(here))]
        files: list[ContextFile] = []
        room = TOTAL
        for name in names:
            file = self._load(here / name, Path(name).as_posix())
            if file is None:
                continue
            if len(file.text_loaded) > room:
                self._skip(here / name, name, f"the rules exceed {TOTAL:,} characters in total")
            else:
                room -= len(file.text_loaded)
                files.append(file)
        return files

    def _rules(self, here: Path) -> Iterator[str]:
        """Yield the names of rule files, sorted by code point for any locale."""
        directory = here / RULES
        try:
            with os.scandir(real_inside(directory, self.reader.root)) as entries:
                names = [entry.name for entry in islice(entries, _MOST_ENTRIES)]
        except (FileNotFoundError, NotADirectoryError):
            return
        except Refused as refusal:
            self._skip(directory, RULES.as_posix(), str(refusal))
            return
        except OSError as error:
            self._skip(directory, RULES.as_posix(), f"it cannot be read: {error.strerror}".lower())
            return
        for name in sorted(name for name in names if name.endswith(".mdc")):
            if commands(name):
                self._skip(directory / name, name, "its name reads like an instruction")
            else:
                yield name

    def _load(
        self, path: Path, name: str, prepare: Callable[[str], str] = str.strip
    ) -> ContextFile | None:
        try:
            return self.reader.load(path, name, prepare)
        except FileNotFoundError:
            return None
        except Refused as refusal:
            self._skip(path, name, str(refusal))
            return None

    def _skip(self, path: Path, name: str, reason: str) -> None:
        self.skipped.append(SkippedFile(name=visible(name), path=path, reason=reason))


def without_frontmatter(text: str) -> str:
    """Return the text after YAML frontmatter. Unclosed frontmatter counts as text."""
    found = _FRONTMATTER.match(text)
    return text[found.end() :] if found else text


NAME = "SOUL.md"
"""The file with the agent's identity."""


def read_identity(
    home: Path, default: str = "", *, accepts: Accepts = never, scan: Scan = scanned
) -> ContextFile | SkippedFile | None:
    """Return SOUL.md, scanned and shortened like a context file, or None if it is missing or empty.

    Most users have the `default`. It doesn't need to be scanned, which saves loading 5 MB of rules.
    """
    path = home / NAME
    root = Path(Path(os.path.realpath(path)).anchor)

    def fine(real: Path, text: str) -> bool:
        return text == default.strip() or accepts(real, text)

    try:
        return ContextFileReader(root=root, accepts=fine, scan=scan).load(path, NAME)
    except FileNotFoundError:
        return None
    except Refused as refusal:
        return SkippedFile(name=NAME, path=path, reason=str(refusal))


def identity_text(found: ContextFile | SkippedFile | None, default: str) -> str:
    """Return the prompt's first layer: the file's text, otherwise `default`.

    If the file is blocked, the default is followed by a notice.
    """
    if not isinstance(found, ContextFile):
        return default
    return f"{default}\n\n{found.text_loaded}" if found.verdict == "blocked" else found.text_loaded


def ensure_identity(home: Path, default: str) -> bool:
    """Write `default` to SOUL.md if it does not exist. Return whether it was written.

    Creates a missing Hermes directory (0700); the file is 0600. Raises OSError if it cannot be
    written; a turn should not fail because of that. A process killed during the call leaves an
    empty file, which also means the default.
    """
    make_private(home)
    try:
        handle = os.open(home / NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(f"{default.strip()}\n")
    return True
