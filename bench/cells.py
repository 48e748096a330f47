"""What an open notebook adds to the bill of a chat, and whether its cells are sent correctly.

Run with `make bench-cells`. A user takes thirty turns in a real kernel. Before each, a code cell is
added and run, and the prompt is a new cell below it. What the server received is billed as in
`bill.py`, with automatic caching and in prices of an uncached token. The embedded model's tokenizer
counts the tokens, if its weights are on this machine.

With `edits`, people edit notebooks 2,000 times between turns: they insert, edit, move, delete and
run cells and rename the notebook, while the kernel restarts and the conversation is compressed.
After each turn, what the messages say of the cells is compared with the notebook. With `docs`, the
bills replace the table in docs/howto/costs.md.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.notebook.notebooks import PROMPT, TEXT, Asked, asked, replayed

from bill import Block, billed, blocks_of
from figures import figure
from prompt import _tokenizer as tokenizer

TURNS = 30
MOST = {0: 17_000, 10: 22_000, 30: 23_500, 100: 25_000}
"""Billed tokens by the number of cells at the start; 0 is a chat without a notebook."""
CHATS = 4
"""Chats of a day in the documentation."""
MARK = "<!-- generated: python bench/cells.py docs -->\n"
HEAD = (
    "cells at the start | tokens sent | billed with a cache | a day of four chats",
    "--- | ---: | ---: | ---:",
)
EDITS = ((11, 12), (12, 60), (13, 130), (14, 4))
"""Seeds and numbers of cells of the notebooks that are edited 500 times each."""
STEPS = (
    *("orders = pd.read_csv('orders.csv')", "orders.groupby('region').sum()", "plot(orders)"),
    *("model = fit(train, target='price')", "# Prices by region", "residuals.describe()"),
)


def chat(story: Asked, cells: int) -> list[list[Block]]:
    """Take the turns and return what was sent."""
    notebook = story.notebook
    for cell in notebook.cells:
        notebook.ran(cell)
    for turn in range(TURNS):
        if cells:
            notebook.ran(notebook.added(STEPS[turn % len(STEPS)]), TEXT)
        story.ask(notebook.added(PROMPT))
    return [blocks_of(body) for body in story.server.bodies]


async def counted(requests: Sequence[Sequence[Block]]) -> list[list[Block]]:
    """Return the blocks with the tokens of their texts, and four for each message."""
    count = await tokenizer()
    known: dict[str, int] = {}
    for text in {block.text for blocks in requests for block in blocks}:
        message = json.loads(text) if text.startswith('{"role"') else None
        known[text] = await count(message["content"] if message else text) + 4 * bool(message)
    await count.close()
    return [[replace(each, tokens=known[each.text]) for each in blocks] for blocks in requests]


def bills() -> list[str]:
    """Print the bill of each chat, and return the rows of the table in the documentation."""
    rows = []
    for cells, most in MOST.items():
        with tempfile.TemporaryDirectory() as name, asked(Path(name), cells=cells) as story:
            if not cells:
                story.kernel.run("%hermes config notebook ''")
            requests = asyncio.run(counted(chat(story, cells)))
        paid, _ = billed(requests, marks=False)
        sent = sum(block.tokens for blocks in requests for block in blocks)
        what = f"{cells} cells" if cells else "no notebook"
        figure(f"billed for {TURNS} turns, {what}", paid, "tokens", most=most)
        rows.append(f"{what} | {sent:,.0f} | {paid:,.0f} | {paid * CHATS:,.0f}")
    return rows


def write(rows: Sequence[str]) -> None:
    """Replace the table in the documentation."""
    page = Path(__file__).parent.parent / "docs/howto/costs.md"
    before, mark, rest = page.read_text(encoding="utf-8").partition(MARK)
    after = rest[rest.index("<!-- /generated -->") :]
    table = "".join(f"| {row} |\n" for row in (*HEAD, *rows))
    page.write_text(f"{before}{mark}{table}\n{after}", encoding="utf-8")


def main() -> None:
    if sys.argv[1:2] == ["edits"]:
        for seed, cells in EDITS:
            with tempfile.TemporaryDirectory() as name:
                turns, wholes = replayed(Path(name), seed=seed, cells=cells, edits=500)
            print(f"{cells:4} cells, 500 edits, {turns} turns, {wholes} of them with an outline")
        return
    rows = bills()
    if sys.argv[1:2] == ["docs"]:
        write(rows)


if __name__ == "__main__":
    main()
