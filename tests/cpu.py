"""What work costs: CPU time of the thread that does it, the least of a few runs.

A clock on the wall counts what else the machine does; the process's CPU time counts other threads,
and the garbage collection of whatever the tests before have left.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest

RUNS = 3


def cpu(call: Callable[..., object], *args: Any, times: int = RUNS, **options: Any) -> float:
    """Return the least CPU seconds of several calls."""
    return min(_once(time.thread_time, call, *args, **options)[1] for _ in range(times))


def within(
    seconds: float, call: Callable[..., Any], *args: Any, threads: bool = False, **options: Any
) -> Any:
    """Call until it takes less CPU seconds, three times at most; return what it returned then.

    With `threads`, what other threads of the process do meanwhile counts, too. For honest limits:
    five times what it takes on a quiet machine, or more.
    """
    clock = time.process_time if threads else time.thread_time
    spent: list[float] = []
    while len(spent) < RUNS:
        value, took = _once(clock, call, *args, **options)
        spent.append(took)
        if took < seconds:
            return value
    pytest.fail(f"took {min(spent):.3f} s of CPU, not less than {seconds} s")


def growth(
    call: Callable[[Any], object], small: object, large: object, *, least: float = 0.02
) -> float:
    """Return how many times the CPU seconds of a small input, or `least`, a large one takes."""
    return cpu(call, large) / max(cpu(call, small), least)


def _once(
    clock: Callable[[], float], call: Callable[..., Any], *args: Any, **options: Any
) -> tuple[Any, float]:
    collecting = gc.isenabled()
    gc.disable()
    try:
        started = clock()
        return call(*args, **options), clock() - started
    finally:
        if collecting:
            gc.enable()
