"""The command-line definition of `jupyter hermes trajectories`."""

from __future__ import annotations

import argparse

from hermes_nb.cli.command import APPROVALS, Subcommand, count

FORMS = ("chat", "sharegpt")


def _arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "sessions", metavar="SESSION", nargs="*", help="an id, its beginning, or a title; else all"
    )
    made.add_argument("-o", "--output", metavar="FILE", required=True, help="JSON lines, added to")
    made.add_argument("--form", choices=FORMS, default="chat", help="chat (TRL) or sharegpt")
    made.add_argument("--tokens", type=count, metavar="N", help="shorten longer ones to about N")
    made.add_argument(
        "--consent", action="store_true", help="all whose words are in the sessions agree"
    )
    made.add_argument("--retry", action="store_true", help="do again what was left out")
    lead = made.add_argument_group("lead conversations")
    lead.add_argument("--prompts", metavar="FILE", help="a prompt a line, or JSON with `prompt`")
    lead.add_argument("--model", metavar="NAME", help="the model to ask")
    lead.add_argument("--tools", metavar="NAMES", help="tools and toolsets, with commas")
    lead.add_argument("--approve", choices=APPROVALS, default="edits", help="what may run")
    lead.add_argument("--parallel", type=count, default=4, metavar="N", help="at a time (4)")
    lead.add_argument("--max-requests", type=count, default=30, metavar="N", help="each (30)")
    lead.add_argument("--cwd", metavar="DIRECTORY", help="for all; else an empty one for each")


TRAJECTORIES = Subcommand(
    about="write sessions as training data, or lead some for it",
    arguments=_arguments,
    run="hermes_nb.extras.training.export:trajectories",
)
