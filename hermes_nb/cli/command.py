"""The interface for `jupyter hermes` subcommands, including those from other packages.

A package registers each `Subcommand` under the entry point group `hermes_nb.cli`. All of them are
loaded for `--help`, so the module that defines a subcommand must import as little as possible. The
implementation is in another module, which `run` refers to.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.plugins import plugins
from hermes_nb.core.text import capitalised

GROUP = "hermes_nb.cli"
"""Entry point group for subcommands."""
OK = 0
FAILED = 1
USAGE = 2
"""Exit code for wrong usage, the same as in `argparse`."""
MISSED = 3
"""Exit code if a replay found no recording for a request."""
REFUSED = 3
"""Exit code if calls were refused, so that the result may be incomplete."""
STOPPED = 130
"""Exit code after Ctrl-C or a termination signal, as shells report for SIGINT."""
CODES = (
    "exit codes: 0 done, 1 failed, 2 wrong usage, 130 stopped,\n"
    "            3 a recording was missing or a tool call was refused"
)
APPROVALS = ("ask", "edits", "all", "never")
"""Values of `--approve`."""

Run = Callable[[argparse.Namespace], int]
"""Runs a subcommand and returns the exit code."""


class UsageProblem(HermesError):
    """The command line is invalid; nothing was executed."""


def _no_arguments(_: argparse.ArgumentParser) -> None:
    """Add no arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subcommand:
    """A subcommand of `jupyter hermes`."""

    about: str
    """A short description, without a full stop."""
    page: str = ""
    """Its documentation page, under `docs/`."""
    examples: tuple[str, ...] = ()
    """Example command lines, without `jupyter hermes`."""
    run: str | Run
    """A function that takes the arguments and returns the exit code, or its name as
    `module:function`."""
    arguments: Callable[[argparse.ArgumentParser], None] = _no_arguments
    """Adds arguments to the subcommand's parser; it may add subcommands with `add`."""


def add(
    parsers: argparse._SubParsersAction[argparse.ArgumentParser], name: str, command: Subcommand
) -> argparse.ArgumentParser:
    """Add a subcommand to a parser and return its own parser."""
    lines = ["examples:", *(f"  jupyter hermes {line}" for line in command.examples), ""]
    page = [f"documentation: docs/{command.page}"] if command.page else []
    made = parsers.add_parser(
        name,
        help=command.about.replace("%", "%%"),
        description=f"{capitalised(command.about)}.",
        epilog="\n".join([*(lines if command.examples else []), *page, CODES]),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.set_defaults(run=command.run)
    command.arguments(made)
    return made


def perform(run: str | Run, arguments: argparse.Namespace) -> int:
    """Run a subcommand and return the exit code."""
    if isinstance(run, str):
        module, _, function = run.partition(":")
        found: Run = getattr(import_module(module), function)
        return found(arguments)
    return run(arguments)


def installed(known: frozenset[str], wanted: str = "") -> dict[str, Subcommand]:
    """Return the subcommands from other packages, or only the `wanted` one.

    Names in `known` cannot be replaced. If a subcommand fails to load, calling it reports the
    error.
    """
    return {
        point.name: _loaded(point.name, point.load)
        for point in plugins(GROUP, wanted or None)
        if point.name not in known
    }


def _loaded(name: str, load: Callable[[], object]) -> Subcommand:
    try:
        found = load()
        if isinstance(found, Subcommand):
            return found
        why = "it is not a Subcommand"
    except Exception as error:  # noqa: BLE001 - whatever a package raises; the others still work
        why = f"{type(error).__name__}: {error}"
    text = f"the subcommand {name!r} of another package cannot be loaded: {why}"

    def refuse(_: argparse.Namespace) -> int:
        raise ConfigError(text)

    return Subcommand(about="(cannot be loaded)", run=refuse)


def count(text: str) -> int:
    """Parse an argument that must be an integer greater than 0."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def seconds(text: str) -> float:
    """Parse an argument that must be a number of seconds greater than 0."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError
    return number


count.__name__, seconds.__name__ = "number above 0", "number of seconds above 0"
