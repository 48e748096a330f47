"""Twenty minutes with a table, counted in questions and clicks; each question gets one click.

A scripted model behaves like a good one: it looks by code, puts what is to stay into cells, runs
them, and checks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import nbformat
from hermes_nb.models.scripted import Step, call
from hermes_nb.notebook.approval import CellApprover

from tests.safety.seat import Seat, seated

ROWS = [
    f"2024-{1 + n % 12:02},{'abc'[n % 3]},{n % 9 + 1},{n % 7 + 2},{n * 3},x" for n in range(612)
]
TABLE = "\n".join(["month,product,amount,price,revenue,note", *ROWS, "2024-01,a,,3,,x"]) + "\n"
LOAD = (
    "from pathlib import Path\nlines = Path('sales.csv').read_text().split('\\n')[1:]\n"
    "rows = [line.split(',') for line in lines if line]"
)
LOOK = f"{LOAD}\nprint(len(rows), rows[:2])"
CLEAN = f"{LOAD}\nclean = [row for row in rows if all(row)]\nlen(clean)"
PLOT = (
    "by = {}\nfor row in clean:\n    key = row[0], row[1]\n"
    "    by[key] = by.get(key, 0) + float(row[4])\nby"
)
FIT = "prices = [float(row[3]) for row in clean]\nprint(sum(prices) / len(prices))"
CELLS = ("revnue = 1", "amount = 1", "print(amount)", "amount + 1")


@dataclass
class Clicker:
    """Answers each question with one click or key, and counts both."""

    asked: list[str] = field(default_factory=list)
    clicks: int = 0

    async def read(self, question: str) -> str:
        """Allow the call once, with the run of its cell where that is offered."""
        self.asked.append(question)
        self.clicks += 1
        return "r" if "[r]un" in question else "y"


def turns() -> list[tuple[str, tuple[Step, ...]]]:
    """Return the session's prompts, each with what the model does."""

    def rename(cell: str, old: str, new: str) -> Step:
        return call("edit_cell", id=cell, old=old, new=new)

    def run_new(request) -> Step:
        """Run the cell that was just inserted, as models do that do not trust what they read."""
        done = [message.text for message in request.messages if message.role == "tool"]
        return call("run_cell", id=done[-1].split("inserted cell ")[1].split(" ")[0])

    edits = [rename("use0", "amount", "units"), rename("use1", "amount", "units")]
    return [
        ("Load sales.csv and tell me what is in it.", (call("run_python", code=LOOK),)),
        (
            "Clean it in a new cell, and run it.",
            (
                call("insert_cell", source=CLEAN),
                run_new,
                call("run_python", code="print(len(rows), len(clean))"),
            ),
        ),
        ("Plot revenue by month and product.", (call("insert_cell", source=PLOT), run_new)),
        ("Is price linked to revenue? Fit it.", (call("run_python", code=FIT),)),
        (
            "Mend the cell that failed.",
            (
                call("read_cells"),
                rename("typo", "revnue", "revenue"),
                call("run_cell", id="typo"),
            ),
        ),
        ("Rename amount to units everywhere.", ([*edits, rename("use2", "amount", "units")],)),
        (
            "Write a short report to report.md.",
            (call("write_file", path="report.md", content="# Sales\n"),),
        ),
    ]


def lay_out(seat: Seat) -> None:
    """Put the table and the user's cells into place."""
    (seat.work / "sales.csv").write_text(TABLE, encoding="utf-8")
    names = ("typo", "use0", "use1", "use2")
    made = [
        nbformat.v4.new_code_cell(source, id=name)
        for name, source in zip(names, CELLS, strict=True)
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=made), seat.notebook)


def played(shell, folder: Path) -> tuple[Clicker, Seat]:
    """Play the session in mode `ask`; return who was asked, and the seat as it was left."""
    with seated(shell, folder) as seat:
        lay_out(seat)
        person = Clicker()
        seat.agent.approver = CellApprover(shell, seat.agent.access.frontend, read=person.read)
        for prompt, steps in turns():
            person.clicks += prompt.startswith("Mend")  # on *Fix with Hermes*
            seat.turn(prompt, *steps)
    return person, seat
