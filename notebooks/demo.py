"""Run `01_first_turn.ipynb` headless on the embedded model and check its answer against pandas.

Called by `make demo`. Prints the question, the tool calls and the answer; exits with 1 if the agent
did not get there. The notebook in the repository is not changed.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
import pandas as pd
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

HERE = Path(__file__).resolve().parent
NOTEBOOK = HERE / "01_first_turn.ipynb"
TOOL_LINE = re.compile(r"^  ([✓✗⊘■–]) (\w+).*$", re.MULTILINE)
SECONDS = 540


def run() -> nbformat.NotebookNode:
    """Return the notebook as a fresh kernel ran it, with a home directory of its own."""
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    with tempfile.TemporaryDirectory() as home:
        os.environ["HERMES_HOME"] = home
        os.environ["HERMES_NB_MODEL"] = "embedded"
        os.environ["HERMES_NB_CEILING"] = "all"  # no one can approve here; a cell allows all
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            extra_arguments=["--IPKernelApp.log_level=40"],  # errors; not its warning about TCP
            resources={"metadata": {"path": HERE}},
        )
        client.execute()
    return notebook


def turns(notebook: nbformat.NotebookNode) -> list[tuple[str, str]]:
    """Return the question and the plain text of the answer of every turn."""
    found = []
    for cell in notebook.cells:
        if cell.cell_type == "code" and cell.source.startswith("%%hermes"):
            shown = [output.get("data", {}).get("text/plain", "") for output in cell.outputs]
            found.append((cell.source.partition("\n")[2].strip(), "\n".join(shown).strip()))
    return found


def expected() -> list[str | float]:
    """Return the answers of the notebook's questions, in order, as pandas gives them."""
    penguins = pd.read_csv(HERE / "data" / "penguins.csv")
    means = penguins.groupby("species")["body_mass_g"].mean()
    return [means.idxmax(), means["Gentoo"]]


def problems(answer: str, right: str | float) -> list[str]:
    """Return what is wrong with an answer: no tool was used, or it does not say what is right."""
    used = [name for mark, name in TOOL_LINE.findall(answer) if mark == "✓"]
    said = answer[: match.start()] if (match := TOOL_LINE.search(answer)) else answer
    wrong = [] if used else ["no tool call succeeded"]
    if isinstance(right, str):
        found = right in said
    else:
        numbers = [n.replace(",", "") for n in re.findall(r"\d[\d,]*(?:\.\d+)?", said)]
        found = any(abs(float(number) - right) < 1 for number in numbers)
    return wrong if found else [*wrong, f"pandas says {right}, and the answer does not"]


def main() -> int:
    """Run, print, check."""
    try:
        notebook = run()
    except CellExecutionError as error:
        print(error)
        return 1
    wrong = 0
    for (question, answer), right in zip(turns(notebook), expected(), strict=True):
        print(f"question: {question}")
        for line in TOOL_LINE.finditer(answer):
            print(f"tool call: {line[0].strip()}")
        print(f"answer:\n{answer}\n")
        for problem in problems(answer, right):
            print(f"WRONG: {problem}")
            wrong += 1
    print("demo failed" if wrong else "demo passed: the answers agree with pandas")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
