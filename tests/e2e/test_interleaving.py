"""A user and an agent edit one notebook at the same time, in many random orders.

Nothing the user typed is lost, no cell is doubled, both orders are respected, the file is valid.
`HERMES_E2E_INTERLEAVINGS=200` tries more.
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

ROUNDS = int(os.environ.get("HERMES_E2E_INTERLEAVINGS", "40"))
STEPS = 6
CELLS = 3

AGENT = """
import asyncio, random
alone = True
async def agent_edit(seed, name):
    '''One edit by the agent, on what it saw before the user's last edit.'''
    dice = random.Random(seed)
    mine = [c for c in seen if c.id != 'driver']
    kinds = ['insert', 'replace', 'replace', 'replace', 'delete', 'move', 'outputs']
    kind = dice.choice(kinds if alone else kinds[:4] + kinds[-1:])
    target = dice.choice(mine)
    try:
        if kind == 'insert':
            await document.insert(f'# {name}', after=target.id)
        elif kind == 'replace':
            await document.replace(target.id, target.source + f'\\\\n# {name}', seen=target.hash)
        elif kind == 'delete' and len(mine) > 2 and '<' not in target.source:
            await document.delete(target.id, seen=target.hash)
        elif kind == 'move':
            other = dice.choice(mine)
            await document.move(target.id, after='driver' if other is target else other.id)
        elif kind == 'outputs' and target.type == 'code':
            text = {'output_type': 'stream', 'name': 'stdout', 'text': name}
            await document.set_outputs(target.id, [text])
    except ToolError as error:
        return type(error).__name__
    return kind
"""

USER = Path(__file__).with_name("user_edit.js").read_text(encoding="utf-8")


@pytest.mark.slow
def test_random_interleavings_lose_nothing(open_notebook):
    notebook = open_notebook(*(f"start = {number}" for number in range(CELLS)))
    notebook.bridge()
    notebook.kernel(AGENT)
    conflicts = sum(interleave(notebook, seed) for seed in range(ROUNDS))
    # Both have met in one cell now and then, or the test would say little.
    assert conflicts >= ROUNDS / 20


def interleave(notebook, seed, user=None):
    """Play one interleaving on a fresh set of cells; return how many edits met a conflict.

    `user` is the page in which a person edits, the notebook's own by default.
    """
    user = user or notebook
    reset(notebook)
    alike(notebook, user)
    dice = random.Random(seed)
    typed, steps = [], []
    for number in range(STEPS):
        text = f"<{seed}.{number}>"
        kind = dice.choice(["type", "type", "type", "type", "insert", "move"])
        steps.append({"kind": kind, "where": dice.randrange(1000), "text": text})
        if kind != "move":
            typed.append(text)
    # Everything is in flight at once: the user's edits run in the page while the agent's arrive.
    delays = [dice.randrange(0, 80) for _ in steps]
    user.evaluate(
        f"""void (async () => {{
          window.userDone = false;
          while (a.alone && m.cells[0].executionState !== 'running')
            await new Promise(resolve => setTimeout(resolve, 2));
          for (const [i, step] of a.steps.entries()) {{
            await new Promise(resolve => setTimeout(resolve, a.delays[i]));
            ({USER})(nb, m, step);
          }}
          window.userDone = true;
        }})()""",
        {"steps": steps, "delays": delays, "alone": user is notebook},
    )
    outcomes = notebook.value(
        "outcomes = []\n"
        f"for number in range({STEPS}):\n"
        "    seen = await document.cells()\n"
        f"    await asyncio.sleep(random.Random({seed} * 100 + number).random() / 15)\n"
        f"    outcomes.append(await agent_edit({seed} * 1000 + number, f'agent{{number}}'))\n"
        "outcomes"
    )
    user.page.wait_for_function("window.userDone")
    alike(notebook, user)
    notebook.command("docmanager:save")
    check(notebook, typed, seed)
    return outcomes.count("CellConflict")


def alike(notebook, other):
    """Wait until both pages have the same cells."""
    cells = "m.cells.map(c => [c.id, c.getSource()])"
    if other is not notebook:
        notebook.until(lambda: notebook.evaluate(cells)[1:] == other.evaluate(cells)[1:])


def check(notebook, typed, seed):
    cells = notebook.evaluate("m.cells.map(c => [c.id, c.getSource()])")
    ids = [each[0] for each in cells]
    assert len(set(ids)) == len(ids), f"seed {seed}: a cell was doubled: {ids}"
    everything = "\n".join(source for _, source in cells[1:])
    for text in typed:
        assert everything.count(text) == 1, f"seed {seed}: {text} is {everything.count(text)} times"
    agent = re.findall(r"agent\d", everything)
    assert len(agent) == len(set(agent)), f"seed {seed}: an edit was made twice: {agent}"
    assert cells[0][0] == "driver"
    shown = notebook.evaluate("nb.content.widgets.map(w => w.model.id)")
    assert shown == ids, f"seed {seed}: the page shows another order than its model"
    assert not notebook.evaluate("nb.context.model.dirty")
    saved = notebook.saved()
    assert [cell.id for cell in saved.cells] == ids, f"seed {seed}: the file has another order"
    assert [cell.source for cell in saved.cells][1:] == [source for _, source in cells][1:]


def reset(notebook):
    fresh = [{"cell_type": "code", "source": f"start = {n}"} for n in range(CELLS)]
    notebook.evaluate(
        "m.transact(() => { m.deleteCellRange(1, m.cells.length); m.insertCells(1, a) })", fresh
    )
