"""`jupyter hermes audit`: where the lines of an audit's files do not follow one another."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path

from hermes_nb.cli.command import FAILED, OK
from hermes_nb.core.errors import ConfigError
from hermes_nb.extras.hub.audit import digest_of, parsed


def audit(arguments: argparse.Namespace) -> int:
    """Say where the lines of an audit do not follow one another."""

    def lines() -> Iterator[bytes]:
        for name in arguments.files:
            try:
                with Path(name).open("rb") as file:
                    yield from file
            except OSError as error:
                raise ConfigError(f"{name}: {error.strerror}") from error

    found = list(gaps(lines()))
    print("\n".join(found) or "each line follows the one before it")
    return FAILED if found else OK


def gaps(lines: Iterable[bytes]) -> Iterator[str]:
    """Say what is wrong with the lines of a file, or of several in their order, one text a place.

    Where they begin is told if it is not at the beginning.
    """
    number, last = 0, ""
    for at, line in enumerate(lines, 1):
        bare = line.rstrip(b"\n")
        entry = parsed(bare)
        seq = entry.get("seq")
        if not entry:
            yield f"line {at}: it cannot be read"
        elif at > 1 and not entry.get("prev"):
            yield f"line {at}: a new chain begins, by {entry.get('user')!r}"
        elif at == 1 and entry.get("prev"):
            yield f"line 1: it is number {seq}; what comes before it is not here"
        elif at > 1 and (entry.get("prev") != last or seq != number + 1):
            yield f"line {at}: number {seq} does not follow number {number}"
        number, last = int(seq or number), digest_of(bare)
