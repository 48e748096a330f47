"""`jupyter hermes run`: which of the two it is, a notebook or a prompt."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path

from hermes_nb.cli.ending import UsageProblem

_FOR_NOTEBOOKS = {
    "output": "--output",
    "timeout": "--timeout",
    "parameters": "-p",
    "accept": "--accept",
}
_FOR_PROMPTS = {"session": "--session", "json": "--json"}


def run(arguments: argparse.Namespace) -> int:
    """Run what is named and return the exit code; raise `UsageProblem` for what makes no sense."""
    what: str = arguments.what
    if what.endswith(".ipynb") and "\n" not in what:
        _refuse(arguments, _FOR_PROMPTS, "a notebook")
        from hermes_nb.cli import notebooks

        return notebooks.run(Path(what), arguments)
    _refuse(arguments, _FOR_NOTEBOOKS, "a prompt")
    from hermes_nb.cli import prompts

    return prompts.run(sys.stdin.read() if what == "-" else what, arguments)


def _refuse(arguments: argparse.Namespace, options: Mapping[str, str], what: str) -> None:
    for name, option in options.items():
        if getattr(arguments, name):
            message = f"{option} has no meaning for {what}"
            raise UsageProblem(message)
