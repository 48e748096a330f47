"""The command-line definition of `jupyter hermes trajectories`."""

from __future__ import annotations

import argparse

from hermes_nb.cli.command import APPROVALS, Subcommand, count

FORMS = ("chat", "sharegpt")


def _arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "sessions", metavar="SESSION", nargs="*", help="IDs or titles of sessions (default: all)"
    )
    made.add_argument(
        "-o", "--output", metavar="FILE", required=True, help="JSON lines file to append to"
    )
    made.add_argument(
        "--form", choices=FORMS, default="chat", help="format: chat (TRL, the default) or sharegpt"
    )
    made.add_argument(
        "--tokens", type=count, metavar="N", help="shorten conversations to about N tokens"
    )
    made.add_argument(
        "--consent", action="store_true", help="confirm that everyone who wrote in them agrees"
    )
    made.add_argument("--retry", action="store_true", help="run again the ones that were left out")
    lead = made.add_argument_group("generate conversations")
    lead.add_argument(
        "--prompts", metavar="FILE", help="one prompt per line, or JSON lines with `prompt`"
    )
    lead.add_argument("--model", metavar="NAME", help="the model to use")
    lead.add_argument("--tools", metavar="NAMES", help="tools and toolsets, separated by commas")
    lead.add_argument(
        "--approve", choices=APPROVALS, default="edits", help="what may run without approval"
    )
    lead.add_argument(
        "--parallel",
        type=count,
        default=4,
        metavar="N",
        help="conversations at a time (default: 4)",
    )
    lead.add_argument(
        "--max-requests",
        type=count,
        default=30,
        metavar="N",
        help="model requests for each (default: 30)",
    )
    lead.add_argument(
        "--cwd", metavar="DIRECTORY", help="working directory (default: a new one for each)"
    )


TRAJECTORIES = Subcommand(
    about="export sessions as training data, or generate some",
    page="howto/trajectories.md",
    examples=("trajectories -o data.jsonl --consent", "trajectories -o data.jsonl --prompts p.txt"),
    arguments=_arguments,
    run="hermes_nb.extras.training.export:trajectories",
)
