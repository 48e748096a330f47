"""Where a piece of code spends its time and memory, as a short text."""

from __future__ import annotations

import cProfile
import io
import linecache
import pstats
import time
import tracemalloc
from collections.abc import Mapping
from typing import Any

SHOWN = 12


def profile_code(source: str, namespace: Mapping[str, Any], *, memory: bool = False) -> str:
    """Run `source` with copies of the names in `namespace`, and return what it took.

    New names stay in the copy; objects are shared, so code that changes them in place does.
    With `memory` it is run a second time, since watching memory makes everything slow.
    """
    name = "<profiled cell>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    code = compile(source, name, "exec")
    scope = dict(namespace)
    profiler = cProfile.Profile()
    wall, cpu = time.perf_counter(), time.process_time()
    profiler.enable()
    try:
        exec(code, scope)
    finally:
        profiler.disable()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    text = io.StringIO()
    stats = pstats.Stats(profiler, stream=text)
    stats.sort_stats("cumulative").print_stats(SHOWN)
    table = [line.rstrip() for line in text.getvalue().splitlines() if line.strip()]
    start = next((n for n, line in enumerate(table) if "ncalls" in line), 0)
    peak = _peak_memory(code, dict(namespace)) if memory else None
    calls = stats.total_calls
    head = f"{wall:.3f} s, of it {cpu:.3f} s computing, {calls:,} function calls"
    if peak is not None:
        head += f"; peak of new memory {peak / 1e6:.1f} MB"
    return "\n".join([head, *table[start:]])


def _peak_memory(code: Any, scope: dict[str, Any]) -> int:
    tracemalloc.start()
    try:
        exec(code, scope)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
