"""`python -m hermes_nb.extras.local.fetch`: download the embedded model's weights."""

from __future__ import annotations

import sys
import time

from hermes_nb.core.errors import HermesError
from hermes_nb.extras.local.download import STOPPED
from hermes_nb.extras.local.weights import MEGABYTE, fetch

_OFTEN = 0.1
"""Minimum seconds between updates of the bar."""


class _Bar:
    """Displays progress on a terminal; prints nothing elsewhere."""

    def __init__(self) -> None:
        self._drawn = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if not sys.stderr.isatty() or (now - self._drawn < _OFTEN and done < total):
            return
        self._drawn = now
        bar = "█" * (40 * done // total)
        numbers = f"{done // MEGABYTE:,} of {total // MEGABYTE:,} MB"
        print(f"\r{bar:░<40} {numbers}", end="\n" * (done == total), file=sys.stderr, flush=True)


def main() -> int:
    """Download the weights with a progress bar; return the exit code."""
    try:
        print(fetch(_Bar()))
    except HermesError as error:
        print(f"\n{error}" if sys.stderr.isatty() else error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{STOPPED}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
