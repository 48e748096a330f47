"""Instruction files on their way into a prompt: found, read within bounds, scanned, then cut.

Of the project's files the first kind that is there wins: `.hermes.md` or `HERMES.md` (from the
working directory up to the root of its repository), `AGENTS.override.md`, `AGENTS.md`, `CLAUDE.md`,
then Cursor's rules, these all together. A file that says nothing, or that may not be read, lets the
next one have its turn. `SOUL.md`, who the agent is, is read from the home alone; a link there is
followed wherever it leads, since many people keep such files in a repository of their own.

Nothing reaches a prompt unscanned. A file of ordinary size is scanned whole; of a longer one the
`window` characters at either end, several times what is kept of it, and what the cut brought
together once more. The text that a user accepted is loaded without a scan.
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
"""Characters of a file that are loaded; of a longer one its head (70 %) and tail (20 %)."""
WINDOW = 65_536
"""Characters at either end of a long file that are scanned."""
LARGEST = 128 * 2**20
"""Bytes of the largest file that is looked at; reading one of 100 MB takes about 0.1 s of CPU."""
_PIECE = 2**18
_SCANNED = 32
"""Texts whose verdicts are remembered; they are up to `WINDOW` characters long."""
_SEAM = 500
"""Characters on either side of the cut that are scanned again, now that they are neighbours."""

_GIVES_ORDERS = "its path reads like an instruction"

Accepts = Callable[[Path, str], bool]
"""Says whether the user accepted this very text at this path, given without links."""
Scan = Callable[[str, str], ScanResult]
"""Says what a text is, and calls it by a name where it is blocked."""


def never(_path: Path, _text: str) -> bool:
    """Accept nothing."""
    return False


def commands(name: str) -> bool:
    """Return whether a path reads like an instruction; it stands in the prompt like the text.

    What is invisible in it is shown there as an escape and commands nothing.
    """
    plain = name
    if not name.isprintable():
        plain = "".join(character if character.isprintable() else " " for character in name)
    return scan(_read_aloud(plain)).verdict != "clean"


def _read_aloud(path: str) -> str:
    """Return a path as one reads it: as a whole, and name by name."""
    names = path.replace("/", "\n\n")
    return path if names == path else f"{path}\n\n{names}"


@lru_cache(maxsize=_SCANNED)
def scanned(text: str, name: str) -> ScanResult:
    """Return what a text is; a prompt that is built again has the same files as a rule."""
    return scan(text, name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextFile:
    """A file that has something to say to the agent.

    `name` is how the prompt calls it, `path` where it is, without links. `text_loaded` is what
    stands in the prompt: one line if it was `blocked`, shortened if it was `truncated`.
    `characters` counts the text in the file. `source` is what `accepts` is asked about.
    """

    name: str
    path: Path
    verdict: ScanVerdict
    findings: tuple[Finding, ...] = ()
    text_loaded: str
    characters: int
    truncated: bool = False
    trusted: bool = False
    source: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedFile:
    """A file that is there and was not loaded, and why."""

    name: str
    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What was read of a text: all of it, or its two ends with `left_out` characters between."""

    parts: tuple[str, ...]
    left_out: int = 0

    @property
    def text(self) -> str:
        """What was read."""
        return "\n".join(self.parts)

    @property
    def characters(self) -> int:
        """How long the whole is."""
        return sum(map(len, self.parts)) + self.left_out


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextFileReader:
    """Loads files below `root`, a directory without links.

    `limit` and `window` are in characters, for what is kept and what is scanned at either end.
    `named` says that names are not ours alone and stand in the prompt: they are scanned as well.
    """

    root: Path
    accepts: Accepts = never
    limit: int = LIMIT
    window: int = WINDOW
    named: bool = False
    scan: Scan = scanned

    def load(
        self, path: Path, name: str, prepare: Callable[[str], str] = str.strip
    ) -> ContextFile | None:
        """Return the file at `path`, or None when it holds white space alone.

        `prepare` takes off the beginning what is not meant to be read. Raises FileNotFoundError,
        and `Refused` for a file that may not or cannot be read, or whose name gives orders.
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
        """Return what the parts of a text are; raise `Refused` if its name gives orders.

        Both are looked at in one go where neither can excuse what the other one says, as a name
        with a sign of code in it might. What then is not clean is looked at by itself.
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
        """Return what is loaded of a text, and whether that is less than all of it."""
        if len(parts) == 1 and len(parts[0]) <= self.limit:
            return parts[0], False
        head, tail = parts[0][: self.limit * 7 // 10], parts[-1][-(self.limit * 2 // 10) :]
        # Two halves of a sentence, each harmless, could have been laid out to meet here.
        if not trusted and self.scan(f"{head[-_SEAM:]}\n{tail[:_SEAM]}", name).verdict != "clean":
            tail = ""
        marker = (
            f"[...truncated {name}: kept {len(head)}+{len(tail)} of {characters} chars. "
            "Use file tools to read the full file.]"
        )
        return f"{head}\n\n{marker}\n\n{tail}".rstrip(), True


_WORST_FIRST: tuple[ScanVerdict, ...] = ("blocked", "suspicious")


def read(file: BinaryIO, window: int) -> Excerpt:
    """Read a text as far as it matters: all of it, or `window` characters at either end.

    UTF-8, or UTF-16 behind its byte order mark; what is neither becomes U+FFFD, line ends become
    newlines, NUL goes. Raises `Refused` over `LARGEST` bytes and for what the system refuses.
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
"""The first is one's own for a directory, in place of the one that all share."""
CLAUDE = ("CLAUDE.md", "claude.md")
CURSOR = ".cursorrules"
RULES = Path(".cursor", "rules")
TOTAL = 60_000
"""Characters of all files together; only Cursor's rules are ever more than one file."""
_MOST_ENTRIES = 1_000
_FRONTMATTER = re.compile(r"---[ \t]*\n(?:.*\n)*?(?:---|\.\.\.)[ \t]*(?:\n|\Z)")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProjectContext:
    """What was found: the files in the prompt's order, and what was passed over and why."""

    files: tuple[ContextFile, ...] = ()
    skipped: tuple[SkippedFile, ...] = ()

    @property
    def block(self) -> str:
        """The prompt's layer, "" without files."""
        if not self.files:
            return ""
        sections = [f"## {file.name}\n\n{file.text_loaded}" for file in self.files]
        return "\n\n".join([f"# Project Context\n\n{INTRODUCTION}", *sections])


def context_block(directory: str | Path, *, home: str | Path | None = None) -> str:
    """Return the context files of a working directory as a prompt carries them, "" without any.

    With Hermes' `home`, what the user trusts is loaded as it stands.
    """
    accepts = never if home is None else Trust(Path(home)).accepts
    return find_context(directory, accepts=accepts).block


def find_context(
    directory: str | Path, *, accepts: Accepts = never, scan: Scan = scanned
) -> ProjectContext:
    """Find the context files of a working directory; a text that `accepts` is not scanned."""
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
    """Reads candidates, and notes which are there and cannot be used."""

    reader: ContextFileReader
    skipped: list[SkippedFile] = field(default_factory=list)

    def first(self, paths: list[Path], *, hermes: bool = False) -> list[ContextFile]:
        """Return the first file that says something, as a list."""
        prepare = without_frontmatter if hermes else str.strip
        found = (self._load(path, path.name, prepare) for path in paths)
        return list(islice(filter(None, found), 1))

    def cursor(self, here: Path) -> list[ContextFile]:
        """Return Cursor's rules that say something, within the total."""
        names = [CURSOR, *(str(RULES / name) for name in self._rules(here))]
        files: list[ContextFile] = []
        room = TOTAL
        for name in names:
            file = self._load(here / name, Path(name).as_posix())
            if file is None:
                continue
            if len(file.text_loaded) > room:
                self._skip(here / name, name, f"the rules are over {TOTAL:,} characters together")
            else:
                room -= len(file.text_loaded)
                files.append(file)
        return files

    def _rules(self, here: Path) -> Iterator[str]:
        """Yield the names of rule files, by code point whatever the locale."""
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
    """Return the text behind YAML frontmatter; one that is never closed is text."""
    found = _FRONTMATTER.match(text)
    return text[found.end() :] if found else text


NAME = "SOUL.md"


def read_identity(
    home: Path, default: str = "", *, accepts: Accepts = never, scan: Scan = scanned
) -> ContextFile | SkippedFile | None:
    """Return SOUL.md, scanned and cut like a context file; None when absent or empty.

    Most have the `default`, for which the scan's words, 5 MB, need not be loaded.
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
    """Return the prompt's first layer: the file's text, or else `default`.

    A blocked file leaves the default in place and says behind it that it was blocked.
    """
    if not isinstance(found, ContextFile):
        return default
    return f"{default}\n\n{found.text_loaded}" if found.verdict == "blocked" else found.text_loaded


def ensure_identity(home: Path, default: str) -> bool:
    """Write `default` to SOUL.md if nothing is there yet; say whether it was written.

    Makes the home directory (0700) where it is missing; the file is 0600. Raises OSError where it
    cannot be written, which no turn should fail for. A process killed in between leaves an empty
    file, and that means the default as well.
    """
    make_private(home)
    try:
        handle = os.open(home / NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(f"{default.strip()}\n")
    return True
