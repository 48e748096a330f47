"""How long a test waits for what ought to happen at once, on a machine that is busy with more."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

import pexpect

SOON = 20.0
"""Seconds. What a test would be held up by (a sleep that nobody ends, a reply that never comes)
takes 30 or more, so that a slow machine and a defect are told apart."""

STOPS_WITHIN = 5.0
"""Seconds from the stop button to the end of the cell, on a machine that does other things too;
without our handler it is the rest of a wait of 20 s or more."""


def until(condition: Callable[[], object], seconds: float = SOON) -> bool:
    """Wait until `condition` holds; say whether it did in that time."""
    end = time.monotonic() + seconds
    while not (held := bool(condition())) and time.monotonic() < end:
        time.sleep(0.01)
    return held


def ended(child: pexpect.spawn) -> None:
    """Kill a program on a terminal and wait for its end; pexpect gives it a tenth of a second."""
    child.kill(signal.SIGKILL)
    child.wait()
    child.close()
