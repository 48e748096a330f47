"""The reference of the magics, generated from their option and command tables.

`python -m hermes_nb.notebook.reference FILE` updates the marked blocks of a Markdown page; a test
checks that they are current.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from hermes_nb.core.files import write_atomic
from hermes_nb.notebook.commands.table import commands_table
from hermes_nb.notebook.display.tables import grid
from hermes_nb.safety.markup import code_span

BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- /generated -->)", re.DOTALL)


def options_table() -> str:
    """Return the options of `%%hermes` as a Markdown table."""
    rows = ((code_span(usage), about) for usage, about in options())
    return grid(("option", "what it does"), rows)


def reference() -> str:
    """Return all options and commands as Markdown with headings."""
    return f"## Options\n\n{options_table()}\n\n## Commands\n\n{commands_table()}\n"


def options() -> Iterator[tuple[str, str]]:
    """Yield the usage and help text of each option."""
    from hermes_nb.notebook.magics import HermesMagics

    for action in HermesMagics.hermes.parser._actions:  # noqa: SLF001 - argparse lists them so
        if not action.option_strings or action.help == argparse.SUPPRESS:
            continue
        value = ""
        if action.choices:
            value = f"{{{','.join(map(str, action.choices))}}}"
        elif action.nargs != 0:
            value = action.metavar or action.dest.upper()
        yield f"{action.option_strings[-1]} {value}".strip(), action.help or ""


def updated(page: str) -> str:
    """Return a page with its marked blocks regenerated."""
    tables: dict[str, Callable[[], str]] = {"options": options_table, "commands": commands_table}
    return BLOCK.sub(lambda match: f"{match[1]}{tables[match[2]]()}\n{match[3]}", page)


def main(path: str) -> None:
    """Update a page on disk."""
    file = Path(path)
    page = updated(file.read_text(encoding="utf-8"))
    write_atomic(file, page.encode("utf-8"))


if __name__ == "__main__":
    main(sys.argv[1])
