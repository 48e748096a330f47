"""The command-line definition of `jupyter hermes store`."""

from __future__ import annotations

import argparse

from hermes_nb.cli.command import Subcommand, add


def _arguments(made: argparse.ArgumentParser) -> None:
    parsers = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in {"init": _INIT, "check": _CHECK, "move": _MOVE}.items():
        add(parsers, name, command)


def _of_init(made: argparse.ArgumentParser) -> None:
    made.add_argument("--sql", action="store_true", help="print what would be run instead")
    _url(made)


def _url(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "url", metavar="URL", nargs="?", help="postgresql://USER@HOST/DATABASE, else as set"
    )


def _of_move(made: argparse.ArgumentParser) -> None:
    for name, metavar in (("source", "FROM"), ("target", "TO")):
        made.add_argument(name, metavar=metavar, help="home, FILE.db or postgresql://…")


_INIT = Subcommand(
    about="make the tables on a server, as their owner",
    arguments=_of_init,
    run="hermes_nb.extras.postgres.administer:init",
)
_CHECK = Subcommand(
    about="see whether the server can be used",
    arguments=_url,
    run="hermes_nb.extras.postgres.administer:check",
)
_MOVE = Subcommand(
    about="copy sessions between stores; nothing is deleted",
    arguments=_of_move,
    run="hermes_nb.extras.postgres.administer:move_command",
)
STORE = Subcommand(
    about="sessions on a PostgreSQL server",
    arguments=_arguments,
    run="hermes_nb.extras.postgres.administer:check",
)
