"""What whoever started this process lets agents in it do, which no code in it can change.

`HERMES_NB_CEILING` is the highest approval mode here: cells may choose modes up to it unasked, and
none above it. Without it a cell's choice is for the user, or for `HERMES_NB_APPROVE` as it was when
the process was started. Linux keeps that environment; elsewhere it is read when this is imported.
"""

from __future__ import annotations

import os
from pathlib import Path

from hermes_nb.safety.guard import Mode

MODES: tuple[Mode, ...] = ("never", "ask", "edits", "all")
"""From the least that runs without a question to the most."""


def _started_with() -> dict[str, str]:
    try:
        pairs = Path("/proc/self/environ").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return dict(os.environ)
    return dict(pair.partition("=")[::2] for pair in pairs if "=" in pair)


_ENVIRONMENT = _started_with()
STARTED = _ENVIRONMENT.get("HERMES_NB_APPROVE", "")
"""The mode that the process was started with, "" without one."""
CEILING: Mode | None = next((m for m in MODES if m == _ENVIRONMENT.get("HERMES_NB_CEILING")), None)

REDACTED = _ENVIRONMENT.get("HERMES_NB_REDACT_REQUESTS", "").lower() in ("1", "true", "on", "yes")
"""Whether the process was started with requests redacted: no setting takes that back."""


def within(mode: Mode, bound: Mode | None = None) -> Mode:
    """Return a mode, or the bound (by default this process's own) if that is lower."""
    return min(mode, bound or CEILING or "all", key=MODES.index)
