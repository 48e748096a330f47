"""The page on the magics says what the code says; `python -m tests.extras.test_reference`."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from hermes_nb.notebook.commands.table import commands_table
from hermes_nb.notebook.display.tables import grid
from hermes_nb.notebook.magics import HermesMagics

PAGE = Path(__file__).parents[2] / "docs" / "magics.md"
BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- /generated -->)", re.DOTALL)


def options():
    """Yield each option of the magic as it is written, and what it does."""
    for action in HermesMagics.hermes.parser._actions:
        if not action.option_strings or action.help == argparse.SUPPRESS:
            continue
        value = ""
        if action.choices:
            value = f"{{{','.join(map(str, action.choices))}}}"
        elif action.nargs != 0:
            value = action.metavar or action.dest.upper()
        assert action.help, action
        yield f"{action.option_strings[-1]} {value}".strip(), action.help


def updated(page):
    """Return the page with its marked blocks made anew."""
    told = [(f"`{usage}`", about) for usage, about in options()]
    tables = {"options": grid(("option", "what it does"), told), "commands": commands_table()}
    return BLOCK.sub(lambda match: f"{match[1]}{tables[match[2]]}\n{match[3]}", page)


def test_the_page_is_up_to_date():
    page = PAGE.read_text(encoding="utf-8")
    assert len(BLOCK.findall(page)) == 2
    assert updated(page) == page, "run python -m tests.extras.test_reference"


if __name__ == "__main__":
    PAGE.write_text(updated(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
