"""The command-line definitions of `jupyter hermes skills`, `proxy` and `audit`."""

from __future__ import annotations

import argparse

from hermes_nb.cli.command import Subcommand


def _of_skills(made: argparse.ArgumentParser) -> None:
    made.add_argument("action", choices=("sign", "verify", "revoke", "restore"))
    made.add_argument(
        "words", metavar="[NAME] [DIRECTORY]", nargs="*",
        help="a skill to revoke or restore; the directory, else that of the policy",
    )  # fmt: skip
    made.add_argument("--key", metavar="FILE", help="the private key, Ed25519 in PEM")
    made.add_argument("--public", metavar="KEY", help="the public one, else that of the policy")
    made.add_argument("--why", default="revoked", metavar="TEXT", help="what users are told")
    made.add_argument("--yes", action="store_true", help="sign what is new without a question")


def _of_proxy(made: argparse.ArgumentParser) -> None:
    made.add_argument("--config", metavar="FILE", required=True, help="upstream, models, budgets")


def _of_audit(made: argparse.ArgumentParser) -> None:
    made.add_argument("files", metavar="FILE", nargs="+", help="in their order, the oldest first")


SKILLS = Subcommand(
    about="sign the skills that a hub shares",
    arguments=_of_skills,
    run="hermes_nb.extras.hub.releases:skills",
)
PROXY = Subcommand(
    about="hold a hub's key of a model, with a budget for each user",
    arguments=_of_proxy,
    run="hermes_nb.extras.hub.proxy:proxy",
)
AUDIT = Subcommand(
    about="look for gaps in files of the audit",
    arguments=_of_audit,
    run="hermes_nb.extras.hub.gaps:audit",
)
