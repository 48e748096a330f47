"""`%hermes verify`: run this notebook in a fresh kernel and compare its outputs."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path

from hermes_nb.agent.undo.changes import called
from hermes_nb.core.errors import ConfigError, ToolError
from hermes_nb.core.files import make_private, write_atomic
from hermes_nb.core.messages import Json
from hermes_nb.models.cassette import SUFFIX
from hermes_nb.notebook.approval import allowed_mode, ask_user
from hermes_nb.notebook.display.tables import grid, moment
from hermes_nb.notebook.document.document import Cell, as_nbformat
from hermes_nb.notebook.execute.cell_runs import reason, runs_of
from hermes_nb.notebook.execute.verify import Verification, digest_of, effects
from hermes_nb.notebook.execute.verify import verify as run
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.notebook.shell import can_ask, working_directory
from hermes_nb.safety.markup import escape

FILE = "verified.json"
"""In the Hermes directory: the last result of each notebook."""
MOST = 500
"""Maximum number of notebooks in the file."""


async def verify(agent: KernelAgent, given: Namespace) -> str:
    """Run a copy of this notebook in a fresh kernel, and return the result as Markdown."""
    cells = await (await agent.document()).cells(outputs=True)
    codes = [cell.source for cell in cells if cell.type == "code"]
    if not codes:
        return "This notebook has no code cells."
    _ask(agent, codes, yes=given.yes)
    path = Path(agent.notebook) if agent.notebook else None
    cassette = path.with_name(path.stem + SUFFIX) if path else None
    found = await run(
        {
            "cells": [as_nbformat(cell) for cell in cells],
            "metadata": {},
            "nbformat": 4,
            "nbformat_minor": 5,
        },
        directory=path.parent if path else working_directory(),
        allowed=allowed_mode(agent.notebook),
        cassette=cassette if cassette and cassette.exists() else None,
    )
    if path:
        _store(agent.settings().home, path, cells, found)
    names = [called(cell.execution_count, cell.index + 1) for cell in cells]
    stale = runs_of(agent.shell).stale(cells)
    reasons = {each.cell + 1: reason(each, lambda at: names[at]) for each in stale.values()}
    return _shown(found, reasons)


def _ask(agent: KernelAgent, codes: Sequence[str], *, yes: bool) -> None:
    """Raise `ConfigError` unless the user agrees to run all the code."""
    done = effects(codes)
    question = f"This runs all {len(codes)} code cells again in a fresh kernel"
    question += f". They {done}." if done else "."
    if yes:
        return
    if not can_ask(agent.shell):
        raise ConfigError(f"not interactive: pass `--yes` to run the notebook. {question}")
    if (ask_user(f"{question} Run them? [y/N] ") or "").lower() not in ("y", "yes"):
        raise ConfigError("the notebook was not run")


def _shown(found: Verification, stale: Mapping[int, str]) -> str:
    """Return the result as Markdown; `stale` says why cells are stale, by position from 1."""
    rows = [
        (
            str(c.cell),
            c.verdict.value,
            " · ".join(filter(None, (escape(c.note), stale.get(c.cell)))),
        )
        for c in found.failing
    ]
    listed = f"\n\n{grid(('cell', 'result', 'details'), rows)}" if rows else ""
    return f"{'✓' if found.passed else '✗'} {escape(str(found))}{listed}"


def _store(home: Path, path: Path, cells: Sequence[Cell], found: Verification) -> None:
    """Store the result with a digest of all sources, so that an edit makes it lapse."""
    known = _stored(home)
    known.pop(str(path), None)
    known[str(path)] = {
        "sources": digest_of(cell.source for cell in cells),
        "when": time.time(),
        "result": str(found),
    }
    make_private(home)
    kept = dict(list(known.items())[-MOST:])
    write_atomic(home / FILE, json.dumps(kept, indent=1).encode())


def _stored(home: Path) -> dict[str, Json]:
    try:
        found = json.loads((home / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


async def last_result(agent: KernelAgent) -> str:
    """Return the last result for this notebook, or "" if there is none."""
    one = _stored(agent.settings().home).get(agent.notebook)
    if not isinstance(one, dict):
        return ""
    try:
        cells = await (await agent.document()).cells()
    except ToolError:
        return ""
    when = moment(float(one.get("when", 0)))
    if one.get("sources") != digest_of(cell.source for cell in cells):
        return f"not since the last edit (last verified {when})"
    return f"{one.get('result')}, {when}"
