"""The command-line definition of `jupyter hermes gateway`."""

from __future__ import annotations

import argparse

from hermes_nb.cli.command import Subcommand


def _arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "adapters", metavar="ADAPTER", nargs="*",
        help="such as telegram (default: all in `gateway:` of config.yaml, or the web page)",
    )  # fmt: skip
    made.add_argument("--cwd", default="", metavar="DIRECTORY", help="working directory")


GATEWAY = Subcommand(
    about="answer messages in chat apps, by mail or on a web page",
    arguments=_arguments,
    page="howto/gateway.md",
    examples=("gateway", "gateway telegram --cwd ~/project"),
    run="hermes_nb.extras.gateway.serve:gateway",
)
