"""The command-line definition of `jupyter hermes jobs`."""

from __future__ import annotations

import argparse

from hermes_nb.cli.command import APPROVALS, Subcommand, seconds


def _arguments(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "words", metavar="WORD", nargs="*",
        help="CRON PROMPT|NOTEBOOK; list, show, pause, resume, run, remove or history [ID]; "
        "install, uninstall. `run` alone runs all due jobs",
    )  # fmt: skip
    made.add_argument(
        "--approve", choices=APPROVALS, default="ask", help="what may run without approval"
    )
    made.add_argument("--model", default="", metavar="NAME", help="the model to use")
    made.add_argument(
        "--timeout", type=seconds, default=3_600.0, metavar="S",
        help="maximum seconds of a run (default: 3600)",
    )  # fmt: skip
    made.add_argument(
        "--zone", default="", metavar="NAME", help="time zone (default: that of this computer)"
    )
    made.add_argument("--cwd", default="", metavar="DIRECTORY", help="working directory")
    made.add_argument(
        "--to", default="", metavar="ADAPTER:CHAT", help="send the answer to a chat of the gateway"
    )
    made.add_argument("--yes", action="store_true", help="answer yes to all questions")


JOBS = Subcommand(
    about="run due jobs, or list, add and change scheduled jobs",
    arguments=_arguments,
    page="howto/schedule.md",
    examples=("jobs list", 'jobs "0 7 * * 1-5" "What is new in data/?"'),
    run="hermes_nb.extras.jobs.run:jobs",
)
