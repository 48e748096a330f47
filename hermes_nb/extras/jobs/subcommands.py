"""The command-line definition of `jupyter hermes jobs`."""

from __future__ import annotations

import argparse

from hermes_nb.cli.command import APPROVALS, Subcommand, seconds


def _arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "words", metavar="WORD", nargs="*",
        help="CRON PROMPT|NOTEBOOK, list, show, pause, resume, run, remove or history [ID], "
        "install, uninstall; `run` alone runs what is due",
    )  # fmt: skip
    made.add_argument(
        "--approve", choices=APPROVALS, default="ask", help="what may run without asking"
    )
    made.add_argument("--model", default="", metavar="NAME", help="the model to ask")
    made.add_argument(
        "--timeout", type=seconds, default=3_600.0, metavar="S",
        help="seconds a run may take (default 3600)",
    )  # fmt: skip
    made.add_argument("--zone", default="", metavar="NAME", help="time zone (default: here)")
    made.add_argument("--cwd", default="", metavar="DIRECTORY", help="working directory")
    made.add_argument(
        "--to", default="", metavar="ADAPTER:CHAT", help="send what it says by the gateway"
    )
    made.add_argument("--yes", action="store_true", help="agree to what would be asked")


JOBS = Subcommand(
    about="run what is due, or see to what is scheduled",
    arguments=_arguments,
    run="hermes_nb.extras.jobs.run:jobs",
)
