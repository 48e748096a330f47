"""The command-line definition of `jupyter hermes chat`."""

from __future__ import annotations

import argparse

from hermes_nb.cli.command import APPROVALS, Subcommand


def _arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument("--session", metavar="NAME", help="go on with, or start, this session")
    made.add_argument("--model", metavar="NAME", help="the model to ask")
    made.add_argument("--approve", choices=APPROVALS, help="what may run without asking")


CHAT = Subcommand(
    about="talk to Hermes in this terminal",
    arguments=_arguments,
    run="hermes_nb.extras.chat.terminal:chat",
)
