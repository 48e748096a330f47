"""What the tests look at in this system's processes: who still runs, what is still open."""

from __future__ import annotations

import uuid
from pathlib import Path


def unique() -> str:
    """Return a word for a command line that no other has; `sleep` takes it for a number."""
    return f"0.{uuid.uuid4().int % 10**12:012}"


def running(mark: str) -> list[int]:
    """Return the living processes with `mark` in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes()
            dead = b") Z " in (entry / "stat").read_bytes()
        except OSError:
            continue
        if mark.encode() in words and not dead:
            found.append(int(entry.name))
    return found


def descriptors() -> int:
    """Return how many descriptors this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))
