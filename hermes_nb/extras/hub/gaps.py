"""`jupyter hermes audit`: find gaps in audit files."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

from hermes_nb.cli.command import FAILED, OK
from hermes_nb.core.errors import ConfigError
from hermes_nb.extras.hub.audit import digest_of, parsed


def audit(arguments: argparse.Namespace) -> int:
    """Print the gaps in audit files."""

    def lines() -> Iterator[bytes]:
        for name in arguments.files:
            try:
                with Path(name).open("rb") as file:
                    yield from file
            except OSError as error:
                raise ConfigError(f"{name}: {error.strerror}") from error

    found = list(gaps(lines()))
    print("\n".join(found) or "no gaps found")
    return FAILED if found else OK


def gaps(lines: Iterable[bytes]) -> Iterator[str]:
    """Yield a message for each problem in the lines of one file, or of several in order.

    A chain that does not start at its first line is also reported.
    """
    number, last = 0, ""
    for at, line in enumerate(lines, 1):
        bare = line.rstrip(b"\n")
        entry = parsed(bare)
        seq = entry.get("seq")
        if not entry:
            yield f"line {at}: it cannot be parsed"
        elif at > 1 and not entry.get("prev"):
            yield f"line {at}: a new chain begins, by {entry.get('user')!r}"
        elif at == 1 and entry.get("prev"):
            yield f"line 1: its number is {seq}; the lines before it are missing"
        elif at > 1 and (entry.get("prev") != last or seq != number + 1):
            yield f"line {at}: number {seq} does not follow number {number}"
        number, last = int(seq or number), digest_of(bare)
