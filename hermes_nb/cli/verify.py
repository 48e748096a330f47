"""`jupyter hermes verify`: run a notebook in a fresh kernel and compare its outputs."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from hermes_nb.cli.command import FAILED, OK, STOPPED, UsageProblem
from hermes_nb.cli.run import read
from hermes_nb.core.escapes import visible
from hermes_nb.models.cassette import SUFFIX
from hermes_nb.notebook.approval import allowed_mode
from hermes_nb.notebook.execute.verify import Verification, effects, verify


def run(arguments: argparse.Namespace) -> int:
    """Verify a notebook, print the result, and return 1 if it does not pass."""
    file = Path(arguments.file)
    notebook = read(file)
    codes = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    done = effects(codes)
    question = f"This runs the {len(codes)} code cells of {file.name} in a fresh kernel"
    question += f". They {done}." if done else "."
    if not arguments.yes:
        if not sys.stdin.isatty():
            raise UsageProblem(f"not a terminal: pass --yes to run the notebook. {question}")
        if input(f"{visible(question)} Run them? [y/N] ").strip().lower() not in ("y", "yes"):
            return STOPPED
    cassette = file.with_name(file.stem + SUFFIX)
    found = asyncio.run(
        verify(
            notebook,
            directory=file.absolute().parent,
            allowed=allowed_mode(str(file.absolute())),
            cassette=cassette.absolute() if cassette.exists() else None,
            timeout=arguments.timeout,
        )
    )
    return _print(found, file.name)


def _print(found: Verification, name: str) -> int:
    for check in found.checks:
        if check in found.failing:
            print(visible(str(check)))
    print(f"{name}: {found}")
    return OK if found.passed else FAILED
