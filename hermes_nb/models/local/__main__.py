"""`python -m hermes_nb.models.weights` fetches the embedded model's weights."""

from __future__ import annotations

import sys
import time

from hermes_nb.core.errors import HermesError
from hermes_nb.models.local.download import STOPPED, Progress
from hermes_nb.models.local.weights import MEGABYTE, fetch


def main() -> int:
    """Fetch the weights with a progress bar; return the exit code."""
    try:
        path = fetch(_bar())
    except HermesError as error:
        print(f"\n{error}" if sys.stderr.isatty() else error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\n{STOPPED}", file=sys.stderr)
        return 130
    print(path)
    return 0


def _bar() -> Progress:
    """Return a progress callback that draws on a terminal and is silent elsewhere."""
    shown = 0.0

    def draw(done: int, total: int) -> None:
        nonlocal shown
        now = time.monotonic()
        if not sys.stderr.isatty() or (now - shown < 0.1 and done < total):  # noqa: PLR2004
            return
        shown = now
        filled = 40 * done // total
        bar = "█" * filled + "░" * (40 - filled)
        numbers = f"{done // MEGABYTE:,} of {total // MEGABYTE:,} MB"
        print(f"\r{bar} {numbers}", end="\n" if done == total else "", file=sys.stderr, flush=True)

    return draw


if __name__ == "__main__":
    sys.exit(main())
