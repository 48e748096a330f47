"""The command-line definition of `jupyter hermes acp`."""

from __future__ import annotations

import argparse

from hermes_nb.cli.command import APPROVALS, Subcommand


def _arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument("--model", metavar="NAME", help="the model to use")
    made.add_argument("--approve", choices=APPROVALS, help="the approval mode at the start")
    made.add_argument(
        "--kernel", metavar="ID", help="also use the notebook of this kernel, see `mcp --list`"
    )


ACP = Subcommand(
    about="an agent for editors that speak the Agent Client Protocol",
    arguments=_arguments,
    page="howto/acp.md",
    examples=("acp", "acp --approve edits", "acp --kernel 0f3c"),
    run="hermes_nb.extras.acp.serve:acp",
)
