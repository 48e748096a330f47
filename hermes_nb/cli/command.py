"""What subcommands of `jupyter hermes` are made of, and how other packages bring theirs.

A package names its own under the entry point group `hermes_nb.cli`, each a `Subcommand`. All of
them are loaded for `--help`, so the module that holds one imports little; what it does is in
another, which `run` names.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.plugins import plugins

GROUP = "hermes_nb.cli"
OK = 0
FAILED = 1
USAGE = 2
"""The same as for words that `argparse` refuses."""
MISSED = 3
"""A replay found no recording for what was asked."""
REFUSED = 3
"""Calls were refused, so less was done than was asked: as a miss, a run that cannot be trusted."""
STOPPED = 130
"""Ctrl-C, or a terminate signal: what shells say of a program that a SIGINT ended."""
CODES = (
    "exit codes: 0 done, 1 failed, 2 wrong usage, 3 nothing to replay, or calls were refused, "
    "130 stopped"
)
APPROVALS = ("ask", "edits", "all", "never")
"""What `--approve` takes."""

Run = Callable[[argparse.Namespace], int]


class UsageProblem(HermesError):
    """The command line makes no sense as it stands; nothing was done."""


def _no_arguments(_: argparse.ArgumentParser) -> None:
    """Add none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subcommand:
    """A subcommand: what help says of it, what it takes, and what it does."""

    about: str
    """What it is for, in a few words without a full stop."""
    run: str | Run
    """A function, or `module:function`, of the arguments; it returns the exit code."""
    arguments: Callable[[argparse.ArgumentParser], None] = _no_arguments
    """Adds the arguments to the subcommand's own parser; it may add subcommands with `add`."""


def add(
    parsers: argparse._SubParsersAction[argparse.ArgumentParser], name: str, command: Subcommand
) -> argparse.ArgumentParser:
    """Add a subcommand to those of a parser and return its own."""
    shown = command.about.replace("%", "%%")
    made = parsers.add_parser(
        name, help=shown, description=f"{shown[0].upper()}{shown[1:]}.", epilog=CODES
    )
    made.set_defaults(run=command.run)
    command.arguments(made)
    return made


def perform(run: str | Run, arguments: argparse.Namespace) -> int:
    """Do what a subcommand does and return the exit code."""
    if isinstance(run, str):
        module, _, function = run.partition(":")
        found: Run = getattr(import_module(module), function)
        return found(arguments)
    return run(arguments)


def installed(known: frozenset[str], wanted: str = "") -> dict[str, Subcommand]:
    """Return the subcommands that packages bring, or only that of a name; the `known` stay ours.

    One that cannot be loaded says so when it is called.
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
        why = "it is no Subcommand"
    except Exception as error:  # noqa: BLE001 - whatever a package raises; the others still work
        why = f"{type(error).__name__}: {error}"
    told = f"the subcommand {name!r} of another package cannot be loaded: {why}"

    def refuse(_: argparse.Namespace) -> int:
        raise ConfigError(told)

    return Subcommand(about="(cannot be loaded)", run=refuse)


def count(text: str) -> int:
    """Return an argument that is a number above 0."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def seconds(text: str) -> float:
    """Return an argument that is a number of seconds above 0."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError
    return number


count.__name__, seconds.__name__ = "number above 0", "number of seconds above 0"
