"""The command-line definition of `jupyter hermes gateway`."""

from __future__ import annotations

import argparse

from hermes_nb.cli.command import Subcommand


def _arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "adapters", metavar="ADAPTER", nargs="*",
        help="such as telegram; else all that `gateway:` in config.yaml sets up, or the web page",
    )  # fmt: skip
    made.add_argument("--cwd", default="", metavar="DIRECTORY", help="working directory")


GATEWAY = Subcommand(
    about="answer in chat apps",
    arguments=_arguments,
    run="hermes_nb.extras.gateway.serve:gateway",
)
