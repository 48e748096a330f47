"""The command-line definition of `jupyter hermes store`."""

from __future__ import annotations

import argparse

from hermes_nb.cli.command import Subcommand, add


def _arguments(made: argparse.ArgumentParser) -> None:
    parsers = made.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, command in {"init": _INIT, "check": _CHECK, "move": _MOVE}.items():
        add(parsers, name, command)


def _of_init(made: argparse.ArgumentParser) -> None:
    made.add_argument("--sql", action="store_true", help="print the SQL instead of running it")
    _url(made)


def _url(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "url",
        metavar="URL",
        nargs="?",
        help="postgresql://USER@HOST/DATABASE (default: session_store)",
    )


def _of_move(made: argparse.ArgumentParser) -> None:
    for name, metavar in (("source", "FROM"), ("target", "TO")):
        made.add_argument(name, metavar=metavar, help="Hermes directory, FILE.db or postgresql://…")


_INIT = Subcommand(
    about="create the tables on a server, as their owner",
    page="howto/postgres.md",
    examples=("store init postgresql://owner@db/hermes",),
    arguments=_of_init,
    run="hermes_nb.extras.postgres.administer:init",
)
_CHECK = Subcommand(
    about="check whether the server can be used",
    page="howto/postgres.md",
    examples=("store check",),
    arguments=_url,
    run="hermes_nb.extras.postgres.administer:check",
)
_MOVE = Subcommand(
    about="copy sessions between stores; nothing is deleted",
    page="howto/postgres.md",
    examples=("store move ~/.hermes postgresql://me@db/hermes",),
    arguments=_of_move,
    run="hermes_nb.extras.postgres.administer:move_command",
)
STORE = Subcommand(
    about="store sessions on a PostgreSQL server",
    page="howto/postgres.md",
    examples=("store init", "store move ~/.hermes postgresql://me@db/hermes"),
    arguments=_arguments,
    run="hermes_nb.extras.postgres.administer:check",
)
