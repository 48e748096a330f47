"""The reference of the magics, made of the very tables that they work from.

`python -m hermes_nb.notebook.reference FILE` brings the marked blocks of a Markdown page up to
date; a test keeps them so.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.files import write_atomic
from hermes_nb.notebook.commands.table import COMMANDS, Command, command_named, every_command
from hermes_nb.notebook.display.tables import grid
from hermes_nb.safety.markup import code_span

if TYPE_CHECKING:
    from hermes_nb.notebook.kernel_agent import KernelAgent

BLOCK = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- /generated -->)", re.DOTALL)
HEAD = "`%%hermes` sends the cell as a prompt, `%hermes PROMPT` a line."


def options_table() -> str:
    """Return the options of `%%hermes` as a Markdown table."""
    rows = ((code_span(usage), about) for usage, about in options())
    return grid(("option", "what it does"), rows)


def commands_table(commands: Mapping[str, Command] = COMMANDS) -> str:
    """Return the commands of `%hermes` as a Markdown table."""
    rows = (
        (code_span(f"%hermes {name} {command.usage}".strip()), command.about)
        for name, command in commands.items()
    )
    return grid(("command", "what it does"), rows)


def reference() -> str:
    """Return all options and commands as Markdown with headings."""
    return f"## Options\n\n{options_table()}\n\n## Commands\n\n{commands_table()}\n"


def options() -> Iterator[tuple[str, str]]:
    """Yield each option as it is written, and what it does."""
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


def help_(_agent: KernelAgent, words: str) -> str:
    """List the commands, or say what one of them takes."""
    name = words.strip().removeprefix("%hermes").strip()
    if not name:
        table = commands_table(every_command())
        return f"{HEAD}\n\n{table}\n\n`%%hermes?` shows the options of a turn."
    command = command_named(name)
    if command is None:
        raise ConfigError(f"there is no command {name!r}; `%hermes help` lists them")
    usage = code_span(f"%hermes {name} {command.usage}".strip())
    return f"{usage}: {command.about}."


def updated(page: str) -> str:
    """Return a page with its marked blocks made anew."""
    tables: dict[str, Callable[[], str]] = {"options": options_table, "commands": commands_table}
    return BLOCK.sub(lambda match: f"{match[1]}{tables[match[2]]()}\n{match[3]}", page)


def main(path: str) -> None:
    """Bring a page up to date."""
    file = Path(path)
    page = updated(file.read_text(encoding="utf-8"))
    write_atomic(file, page.encode("utf-8"))


if __name__ == "__main__":
    main(sys.argv[1])
