"""How a command line ends: its exit codes, and the error of one that cannot be run as it stands."""

from __future__ import annotations

from hermes_nb.core.errors import HermesError

OK = 0
FAILED = 1
USAGE = 2
"""The same as for words that `argparse` refuses."""
MISSED = 3
"""A replay found no recording for what was asked."""
REFUSED = 3
"""Calls were refused, so less was done than was asked: as a miss, a run that cannot be trusted."""
STOPPED = 130
"""Ctrl-C, or a terminate signal: what shells say of a program that a SIGINT ended."""


class UsageProblem(HermesError):  # noqa: N818 - whose problem it is
    """The command line makes no sense as it stands; nothing was done."""
