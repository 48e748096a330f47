"""What turns changed, as an index of their session: which files and cells, before and after.

An index says which file or cell had which content before the turn, and which one the turn left;
contents are in the store's blobs.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Literal

from hermes_nb.core.records import restored

VERSION = 1

FileKind = Literal["absent", "file", "large", "odd"]
TurnState = Literal["", "undone", "partly"]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """A file at one moment.

    `digest` is the content's SHA-256; of a `large` file, which is not read, it is made of size and
    time of change. An `odd` path is no regular file, or could not be read; `why` says so. `saved`
    tells whether the content is among the blobs.
    """

    kind: FileKind
    digest: str = ""
    mode: int = 0
    size: int = 0
    why: str = ""
    saved: bool = False

    def same(self, other: FileState) -> bool:
        """Say whether both have the same content; the mode does not count."""
        return (self.kind, self.digest) == (other.kind, other.digest)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileItem:
    """A file that a turn touched: as it was, and as the turn left it (None: not known).

    `folders` are the directories that did not exist before, outermost first.
    """

    before: FileState
    after: FileState | None = None
    folders: tuple[str, ...] = ()
    undone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CellsItem:
    """A notebook's cells as they were, and as the turn left them.

    Each is one blob, a JSON list of cells; larger outputs are blobs of their own, listed in
    `outputs`, with a reference in their place.
    """

    before: str
    after: str
    outputs: tuple[str, ...] = ()
    undone: bool = False


@dataclass(slots=True, kw_only=True)
class TurnRecord:
    """One turn. `number` is unique within the session, `turn` is what the user counts."""

    number: int
    turn: int
    when: float
    state: TurnState = ""
    files: dict[str, FileItem] = field(default_factory=dict)
    cells: dict[str, CellsItem] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def digests(self) -> Iterator[str]:
        for item in self.files.values():
            for state in (item.before, item.after):
                if state is not None and state.saved:
                    yield state.digest
        for cells in self.cells.values():
            yield from (cells.before, cells.after, *cells.outputs)


@dataclass(slots=True, kw_only=True)
class SessionIndex:
    """The turns of a session, oldest first.

    `renamed` leads from the ids of cells that an undo inserted again to the ids they then got.
    """

    next: int = 1
    turns: list[TurnRecord] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)

    def record(self, number: int) -> TurnRecord | None:
        """Return the record of that number, or None."""
        return next((each for each in reversed(self.turns) if each.number == number), None)

    def add(self, turn: int, when: float) -> TurnRecord:
        """Begin a turn."""
        record = TurnRecord(number=self.next, turn=turn, when=when)
        self.next += 1
        self.turns.append(record)
        return record

    def renamed_to(self, cell_id: str) -> str:
        """Return the id that a cell has now."""
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
    """Return the index that `dumps` wrote; an empty one for anything else.

    An index that is damaged, or of a version to come, costs the undo and nothing more.
    """
    try:
        document = json.loads(data.decode("utf-8", "surrogatepass"))
        if document.pop("version") != VERSION:
            return SessionIndex()
        return restored(SessionIndex, document)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return SessionIndex()
