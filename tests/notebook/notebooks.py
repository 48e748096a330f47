"""A notebook that two people edit while a session in a real kernel is asked about it."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hermes_nb.notebook.document.document import Cell, source_hash
from hermes_nb.notebook.document.outline import outline

from tests.faults.cells import environment
from tests.kernels import Kernel, kernel
from tests.loopback import Loopback, stream, text_chunks

PROMPT = "%%hermes\nAnd now?"
CONTEXT = "[Notebook context]\n"
SOURCES = (
    *("import pandas as pd", "df = pd.read_csv('sales.csv')\ndf.head()", "total = price * new"),
    *("# Sales\nThis year.", "## By month", "Some notes, and a list.", "for m in months:\n    m()"),
    *(
        "df.groupby('month').sum()",
        "plt.plot(df)\nplt.show()",
        "",
        "- not a variable",
        "x * edited",
    ),
)
TABLE = {"output_type": "display_data", "metadata": {}, "data": {"text/html": "<table></table>"}}
PLOT = {"output_type": "display_data", "metadata": {}, "data": {"image/png": "aGk="}}
TEXT = {"output_type": "stream", "name": "stdout", "text": "done\n"}
ERROR = {"output_type": "error", "ename": "E", "evalue": "no", "traceback": []}


class Notebook:
    """An .ipynb file, edited as pages do: whole, at once, without asking."""

    def __init__(self, path: Path, seed: int, cells: int) -> None:
        self.path = path
        self.dice = random.Random(seed)
        self.counter = 0
        self.edits = 0
        self.cells: list[dict[str, Any]] = []
        for n in range(cells):
            self.cells.append(self._made(SOURCES[n % len(SOURCES)]))
        self.save()

    def _made(self, source: str) -> dict[str, Any]:
        made = {"id": f"{self.dice.getrandbits(32):08x}", "metadata": {}, "source": source}
        if source.startswith(("#", "Some", "- ")):
            return made | {"cell_type": "markdown"}
        return made | {"cell_type": "code", "outputs": [], "execution_count": None}

    def save(self) -> None:
        """Write the file."""
        text = {"cells": self.cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
        self.path.write_text(json.dumps(text), encoding="utf-8")

    def rename(self) -> None:
        """Give the file another name."""
        self.path = self.path.rename(self.path.with_name(f"book{self.edits}.ipynb"))

    def added(self, source: str, at: int | None = None) -> dict[str, Any]:
        """Insert a cell and return it."""
        made = self._made(source)
        self.cells.insert(len(self.cells) if at is None else at, made)
        return made

    def ran(self, cell: dict[str, Any], *outputs: dict[str, Any]) -> None:
        """Give a code cell outputs and the next number."""
        if cell.get("cell_type") == "code":
            self.counter += 1
            cell |= {"execution_count": self.counter, "outputs": list(outputs)}

    def edit(self) -> None:
        """Make one edit at random."""
        self.edits += 1
        dice, cells = self.dice, self.cells
        if len(cells) < 3:
            self.added(dice.choice(SOURCES))
            return
        at, to = dice.randrange(len(cells)), dice.randrange(len(cells))
        match dice.randrange(11):
            case 0 | 1:
                self.added(dice.choice((*SOURCES, PROMPT)), at)
            case 2 | 3:
                cells[at]["source"] = f"{dice.choice(SOURCES)}\n# {dice.randrange(99)}"
            case 4:
                del cells[at]
            case 5:
                cells.insert(to, cells.pop(at))
            case 6:  # a section changes its place
                part = cells[at : at + 4]
                del cells[at : at + 4]
                cells[to:to] = part
            case 7:
                self.ran(cells[at], ERROR)
            case 8:
                for cell in cells:
                    if cell["cell_type"] == "code":
                        cell |= {"execution_count": None, "outputs": []}
                if dice.randrange(8):
                    self.ran(cells[at], TEXT)
            case _:
                self.ran(cells[at], dice.choice((TABLE, PLOT, TEXT)))

    def lines(self, count: int) -> list[str]:
        """Return the outline of the first cells, not indented."""
        cells = [
            Cell(
                index=n,
                id=each["id"],
                type=each["cell_type"],
                source=each["source"],
                hash=source_hash(each["source"]),
                execution_count=each.get("execution_count"),
                outputs=each.get("outputs", []),
            )
            for n, each in enumerate(self.cells[:count])
        ]
        if not cells:
            return []
        return [line.strip() for line in outline(cells, limit=10**9).splitlines()]


_TITLE = re.compile(r"Cells above this one \((?:(\d+) )?(\S+)\)(:|, changes:|: no changes)")
_OUTLINE = re.compile(r"(?m)^Cells above this one \(\S+\):$")
_LINE = re.compile(r" *(\d+) (\S+) .*")
_OMITTED = re.compile(r"\[\.\.\. \d+ lines left out; read_cells\(range='(\d+)-(\d+)'\) shows .*")
_MOVED = re.compile(r".* \* moved from (\d+)(?:, .*)?")
_DELETED = re.compile(r"(\d+) \S+")


class Picture:
    """What a reader of messages knows of the cells: a line of each, None if it was left out."""

    def __init__(self, contexts: Iterable[str]) -> None:
        self.name = ""
        self.lines: list[str | None] = []
        texts = list(contexts)  # those before the last outline may have gaps after a compression
        last = max((n for n, text in enumerate(texts) if _OUTLINE.search(text)), default=0)
        for n, text in enumerate(texts):
            self._read(text, cells=n >= last)

    def _read(self, text: str, *, cells: bool) -> None:
        lines = text.splitlines()
        self.name = next(
            (x.removeprefix("Notebook: ") for x in lines if "Notebook: " in x), self.name
        )
        at = next((n for n, each in enumerate(lines) if _TITLE.fullmatch(each)), None)
        if at is None or not cells:
            return
        title = _TITLE.fullmatch(lines[at])
        assert title is not None
        body = lines[at + 1 :]
        if title[3] == ":":
            self._whole(body)
        elif title[3] == ", changes:":
            self._change(body)
        else:
            assert not body
        if title[1] is None or int(title[1]) == len(self.lines):
            self.lines.append(f"{len(self.lines)} {title[2]}")

    def _whole(self, body: list[str]) -> None:
        self.lines = []
        for line in body:
            if gap := _OMITTED.fullmatch(line):
                self.lines += [None] * (int(gap[2]) - int(gap[1]) + 1)
            elif _LINE.fullmatch(line):
                self.lines.append(line.strip())

    def _change(self, body: list[str]) -> None:
        gone = set()
        if body[-1].startswith("deleted: "):
            gone = {int(number) for number in _DELETED.findall(body.pop())}
        gone |= {int(match[1]) for line in body if (match := _MOVED.fullmatch(line))}
        left = [line for n, line in enumerate(self.lines) if n not in gone]
        for line in body:
            index, _, mark = int(line.split()[0]), *line.rpartition(" * ")[::2]
            known = line.rpartition(" * ")[0]
            if mark == "new" or mark.startswith("moved from"):
                left.insert(index, known)
            else:
                left[index] = known
        self.lines = left

    def check(self, notebook: Notebook, above: int) -> None:
        """Compare with the notebook; `above` cells are above the running one."""
        assert self.name == notebook.path.name
        assert len(self.lines) >= above
        wanted = notebook.lines(len(self.lines))
        assert len(wanted) == len(self.lines)
        for at, (line, want) in enumerate(zip(self.lines, wanted, strict=True)):
            if line is None:
                continue
            rest = line.split(" ", 1)[1]  # the number is where it stood when it was sent
            whole = want.split(" ", 1)[1]
            if notebook.cells[at]["source"].startswith("%%hermes"):
                assert rest.split()[0] == whole.split()[0]
            else:
                assert rest in (whole, f"{whole} * new", f"{whole} * edited"), (line, want)


class Asked:
    """A kernel whose prompts run in cells of a notebook, and the server that it asks."""

    def __init__(self, running: Kernel, server: Loopback, notebook: Notebook) -> None:
        self.kernel, self.server, self.notebook = running, server, notebook
        self.open()

    def open(self) -> None:
        """Load the extension and name the notebook."""
        assert self.kernel.run("%load_ext hermes_nb").status == "ok"
        self.named()

    def named(self) -> None:
        """Tell the kernel the notebook's path, as its page does."""
        self.kernel.run(f"%hermes config notebook {self.notebook.path}")
        assert self.kernel.run("%hermes status").status == "ok"

    def restart(self) -> None:
        """Restart the kernel and resume the session."""
        self.kernel = self.kernel.killed_and_restarted()
        self.notebook.counter = 0
        self.open()
        assert self.kernel.run("%hermes resume").status == "ok"

    def something_else(self, dice: random.Random) -> None:
        """Do, at random, what changes the conversation or the place of the notebook."""
        number = dice.randrange(100)
        if number < 8:
            self.notebook.rename()
            self.named()
        elif number < 11:
            self.restart()
        elif number < 16:
            self.kernel.run("%hermes compress")
        elif number < 20:
            self.kernel.run("%hermes retry edit")
        elif number < 25:
            options = dice.choice(("--no-context", "--dry-run"))
            self.ask({"id": self.notebook.cells[-1]["id"], "source": f"%%hermes {options}\nx"})

    def ask(self, cell: dict[str, Any]) -> str:
        """Run a prompt cell and return what its message says of the notebook."""
        cell |= {"execution_count": None, "outputs": []}
        self.notebook.save()
        result = self.kernel.run(cell["source"], cell_id=cell["id"])
        assert result.status == "ok", result.error
        self.notebook.ran(cell, TEXT)
        said = _text(self.server.bodies[-1]["messages"][-1])
        return said.partition(CONTEXT)[2]

    @property
    def contexts(self) -> list[str]:
        """What the messages of the last request say of the notebook."""
        texts = [_text(message) for message in self.server.bodies[-1]["messages"][1:]]
        return [text.partition(CONTEXT)[2] for text in texts if CONTEXT in text]


def _text(message: dict[str, Any]) -> str:
    content = message["content"]
    if not isinstance(content, list):
        return content or ""
    parts = [part.get("text", "") for part in content]
    return "\n".join(parts)


@contextmanager
def asked(folder: Path, *, seed: int = 1, cells: int = 12) -> Iterator[Asked]:
    """Start a kernel, a server that answers "Fine.", and a notebook."""
    notebook = Notebook(folder / "book.ipynb", seed, cells)
    with (
        Loopback(stream(text_chunks("Fine."))) as server,
        kernel(environment(server, folder), cwd=str(folder)) as running,
    ):
        story = Asked(running, server, notebook)
        try:
            yield story
        finally:
            if story.kernel is not running:
                story.kernel.client.stop_channels()


def replayed(folder: Path, *, seed: int, cells: int, edits: int) -> tuple[int, int]:
    """Make that many edits between turns, and check the picture after each.

    Returns the number of turns, and that of outlines that were sent.
    """
    turns = wholes = 0
    with asked(folder, seed=seed, cells=cells) as story:
        notebook, dice = story.notebook, random.Random(seed + 1)
        while notebook.edits < edits:
            for _ in range(dice.choice((0, 1, 1, 2, 3, 5, 12))):
                notebook.edit()
            story.something_else(dice)
            prompts = [c for c in notebook.cells if c["source"].startswith("%%hermes")]
            if prompts and not dice.randrange(3):
                cell = dice.choice(prompts)
                cell["source"] = f"{PROMPT} {dice.randrange(9)}"
            else:
                at = dice.choice((None, None, dice.randrange(len(notebook.cells) + 1)))
                cell = notebook.added(PROMPT, at)
            turns += 1
            wholes += bool(_OUTLINE.search(story.ask(cell)))
            Picture(story.contexts).check(notebook, notebook.cells.index(cell))
    return turns, wholes
