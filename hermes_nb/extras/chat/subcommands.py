"""The command-line definition of `jupyter hermes chat`."""

from __future__ import annotations

import argparse

from hermes_nb.cli.command import APPROVALS, Subcommand


def _arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument("--session", metavar="NAME", help="continue this session, or start it")
    made.add_argument("--model", metavar="NAME", help="the model to use")
    made.add_argument("--approve", choices=APPROVALS, help="what may run without approval")


CHAT = Subcommand(
    about="talk to Hermes in this terminal",
    arguments=_arguments,
    page="howto/chat.md",
    examples=("chat", "chat --session penguins --approve edits"),
    run="hermes_nb.extras.chat.terminal:chat",
)
