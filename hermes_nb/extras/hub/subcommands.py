"""The command-line definitions of `jupyter hermes skills`, `proxy` and `audit`."""

from __future__ import annotations

import argparse

from hermes_nb.cli.command import Subcommand


def _of_skills(made: argparse.ArgumentParser) -> None:
    made.add_argument("action", choices=("sign", "verify", "revoke", "restore"), help="what to do")
    made.add_argument(
        "words", metavar="[NAME] [DIRECTORY]", nargs="*",
        help="a skill to revoke or restore; the directory of skills (default: that of the policy)",
    )  # fmt: skip
    made.add_argument("--key", metavar="FILE", help="private key (Ed25519, PEM)")
    made.add_argument("--public", metavar="KEY", help="public key (default: that of the policy)")
    made.add_argument(
        "--why", default="revoked", metavar="TEXT", help="reason that users see for a revoked skill"
    )
    made.add_argument("--yes", action="store_true", help="sign new skills without asking")


def _of_proxy(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--config", metavar="FILE", required=True, help="configuration: provider, models, budgets"
    )


def _of_audit(made: argparse.ArgumentParser) -> None:
    made.add_argument("files", metavar="FILE", nargs="+", help="audit files, oldest first")


SKILLS = Subcommand(
    about="sign the skills that a hub shares",
    arguments=_of_skills,
    page="administrators.md",
    examples=("skills sign --key hub.pem skills/", "skills verify"),
    run="hermes_nb.extras.hub.releases:skills",
)
PROXY = Subcommand(
    about="let a hub's users share an API key, each with a budget",
    arguments=_of_proxy,
    page="howto/jupyterhub.md",
    examples=("proxy --config proxy.yaml",),
    run="hermes_nb.extras.hub.proxy:proxy",
)
AUDIT = Subcommand(
    about="check audit files for missing entries",
    arguments=_of_audit,
    page="howto/jupyterhub.md",
    examples=("audit audit-1.jsonl audit-2.jsonl",),
    run="hermes_nb.extras.hub.gaps:audit",
)
