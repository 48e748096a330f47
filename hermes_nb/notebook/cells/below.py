"""The last resort where a notebook is out of reach: the cells that ran, and one cell offered below.

There is no bridge to the front end and no file, so nothing can be changed. The front end takes one
new cell when the running one ends, and only the last one it is given: several become one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from hermes_nb.core.errors import ToolError
from hermes_nb.notebook.cells.document import Cell, CellType, source_hash
from hermes_nb.notebook.cells.finding import find
from hermes_nb.notebook.values.kinds import Foreign

OFFERED = "below"
"""The id of the cell that is offered; it is no cell yet, so nothing else takes that id."""
_WAY_OUT = (
    "the cells of this notebook cannot be reached; ask the user to open it in JupyterLab or "
    "Notebook 7 with the hermes_nb extension, or to save it as a file"
)


class Below:
    """What a shell knows of its notebook."""

    def __init__(self, shell: Foreign) -> None:
        self._shell = shell
        self._offered: list[str] = []
        self._running: object = None

    @property
    def way(self) -> str:
        """How it is reached."""
        return "the input history (the notebook is out of reach; a new cell is offered below)"

    async def cells(self, *, outputs: bool = False) -> list[Cell]:
        """Return the code that ran, as cells `in-1`, `in-2`, …; outputs are not known."""
        history = getattr(self._shell.history_manager, "input_hist_raw", [""])
        ran = [(count, source) for count, source in enumerate(history) if count and source]
        return [
            Cell(
                index=index,
                id=f"in-{count}",
                type="code",
                source=source,
                hash=source_hash(source),
                execution_count=count,
                outputs=() if outputs else None,
            )
            for index, (count, source) in enumerate(ran)
        ]

    async def get(self, cell_id: str) -> Cell:
        """Return a cell that ran."""
        return find(await self.cells(outputs=True), cell_id)

    async def insert(
        self,
        source: str,
        *,
        after: str | None = None,  # noqa: ARG002 - there is one place only
        index: int | None = None,  # noqa: ARG002
        type: CellType = "code",  # noqa: A002 - nbformat's own word
        metadata: Mapping[str, Any] | None = None,
    ) -> Cell:
        """Offer a cell below the running one; it joins what was offered there before.

        Text becomes a code cell with `%%markdown`, the only kind that can be offered; behind code
        it becomes comments.
        """
        running = self._shell.execution_count
        if running != self._running:
            self._running, self._offered = running, []
        self._offered.append(_as_code(source, type, first=not self._offered))
        if len(self._offered) > 1 and self._offered[0].startswith("%%markdown\n"):
            self._offered[0] = _commented(self._offered[0].removeprefix("%%markdown\n"))
        joined = "\n\n".join(self._offered)
        self._shell.set_next_input(joined, replace=False)
        return Cell(
            index=len(await self.cells()),
            id=OFFERED,
            type="code",
            source=joined,
            hash=source_hash(joined),
            metadata=metadata or {},
        )

    async def replace(self, cell_id: str, source: str, *, seen: str) -> Cell:  # noqa: ARG002
        """Refuse."""
        _refuse()

    async def delete(self, cell_id: str, *, seen: str) -> None:  # noqa: ARG002
        """Refuse."""
        _refuse()

    async def move(self, cell_id: str, *, after: str | None) -> Cell:  # noqa: ARG002
        """Refuse."""
        _refuse()

    async def set_outputs(
        self,
        cell_id: str,  # noqa: ARG002
        outputs: Sequence[Mapping[str, Any]],  # noqa: ARG002
        *,
        execution_count: int | None = None,  # noqa: ARG002
    ) -> Cell:
        """Refuse."""
        _refuse()

    async def save(self) -> None:
        """Refuse."""
        _refuse()


def _refuse() -> NoReturn:
    raise ToolError(_WAY_OUT)


def _as_code(source: str, kind: CellType, *, first: bool) -> str:
    if kind == "code":
        return source
    return f"%%markdown\n{source}" if first else _commented(source)


def _commented(text: str) -> str:
    return "\n".join(f"# {line}".rstrip() for line in text.split("\n"))
