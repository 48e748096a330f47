"""A session's undo index: which files and cells each turn changed.

An index holds the digests of each file's and cell's content before and after the turn; the contents
are stored as blobs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Literal

from hermes_nb.core.records import restored

VERSION = 1
"""Version of the index format."""

FileKind = Literal["absent", "file", "large", "odd"]
"""The kinds of `FileState`."""
TurnState = Literal["", "undone", "partly"]
"""Whether a turn was undone: not at all, completely or partly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """The state of a file at one point in time."""

    kind: FileKind
    """`large` files are not read; `odd` is not a regular file or cannot be read."""
    digest: str = ""
    """SHA-256 of the content; of a `large` file, its size and modification time."""
    mode: int = 0
    """Permission bits."""
    size: int = 0
    """Size in bytes."""
    why: str = ""
    """Why the content was not saved, or "" if it was."""
    saved: bool = False
    """Whether the content is stored as a blob."""

    def same(self, other: FileState) -> bool:
        """Return whether both have the same content, ignoring the mode."""
        return (self.kind, self.digest) == (other.kind, other.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileItem:
    """A file that a turn changed."""

    before: FileState
    """The file before the turn."""
    after: FileState | None = None
    """The file after the turn, or None if unknown."""
    folders: tuple[str, ...] = ()
    """Directories that did not exist before, outermost first."""
    undone: bool = False
    """Whether the change was undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellsItem:
    """The cells in a notebook that a turn changed."""

    before: str
    """Digest of the blob with the cells before the turn, as a JSON list."""
    after: str
    """Digest of the blob with the cells after the turn."""
    outputs: tuple[str, ...] = ()
    """Digests of larger outputs; the cells refer to them."""
    undone: bool = False
    """Whether the changes were undone."""


@dataclass(slots=True, kw_only=True)
class TurnRecord:
    """The changes made by one turn."""

    number: int
    """Unique within the session."""
    turn: int
    """The turn's number, as the user sees it."""
    when: float
    """When the record started, in seconds since the epoch."""
    state: TurnState = ""
    """Whether it was undone."""
    files: dict[str, FileItem] = field(default_factory=dict)
    """Changed files by absolute path."""
    cells: dict[str, CellsItem] = field(default_factory=dict)
    """Changed notebooks by key."""
    notes: list[str] = field(default_factory=list)
    """Messages about effects that cannot be undone."""

    def digests(self) -> Iterator[str]:
        for item in self.files.values():
            for state in (item.before, item.after):
                if state is not None and state.saved:
                    yield state.digest
        for cells in self.cells.values():
            yield from (cells.before, cells.after, *cells.outputs)


@dataclass(slots=True, kw_only=True)
class SessionIndex:
    """The turns of a session."""

    next: int = 1
    """Number of the next record."""
    turns: list[TurnRecord] = field(default_factory=list)
    """Oldest first."""
    renamed: dict[str, str] = field(default_factory=dict)
    """Current ids of cells that an undo reinserted, by their old ids."""

    def record(self, number: int) -> TurnRecord | None:
        """Return the record with that number, or None."""
        return next((each for each in reversed(self.turns) if each.number == number), None)

    def add(self, turn: int, when: float) -> TurnRecord:
        """Start a record."""
        record = TurnRecord(number=self.next, turn=turn, when=when)
        self.next += 1
        self.turns.append(record)
        return record

    def renamed_to(self, cell_id: str) -> str:
        """Return a cell's current id."""
        for _ in range(len(self.renamed)):
            cell_id = self.renamed.get(cell_id, cell_id)
        return cell_id


def dumps(index: SessionIndex) -> bytes:
    """Return an index as JSON."""
    document = {"version": VERSION, **asdict(index)}
    return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode(
        "utf-8", "surrogatepass"
    )


def loads(data: bytes) -> SessionIndex:
    """Parse the output of `dumps`; return an empty index for anything else.

    If an index is damaged or from a later version, only the undo data is lost.
    """
    try:
        document = json.loads(data.decode("utf-8", "surrogatepass"))
        if document.pop("version") != VERSION:
            return SessionIndex()
        return restored(SessionIndex, document)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return SessionIndex()
