"""Threads of the user's that print while the agent's code runs in the same kernel."""

from __future__ import annotations

import pytest

from tests.faults.cells import Cells, served_kernel
from tests.loopback import calls, says

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

CALLS = 60
"""`python -m bench.stops --threads` makes 600."""

BESIDE = """
import sys, threading, time
sys.setswitchinterval(1e-5)
over = threading.Event()
def beside():
    last = 0
    while not over.is_set():
        print('', '', '', end='')  # several writes: the stream may go between two
        if time.monotonic() > last + 0.05:
            last = time.monotonic()
            print('from the thread')
running = threading.Thread(target=beside)
running.start()
"""


def beside_a_printing_thread(server, folder, count):
    """Make `count` calls, each of which gets its own output and nothing of the thread's."""
    code = [f"print('call {n}')" for n in range(count)]
    with served_kernel(server, folder) as kernel:
        cells = Cells(kernel, server, folder)
        cells.run(BESIDE)
        shown = cells.ask(
            calls(*(("run_python", {"code": each}) for each in code)),
            says("Done."),
            options="--approve all",
            timeout=max(90, count),
        )
        last = cells.printed("over.set(); running.join(); print('still here')")
    assert last.endswith("still here")
    assert len(cells.results) == count
    for number, result in enumerate(cells.results):
        assert f"call {number}" in result and "from the thread" not in result
    assert "from the thread" in shown.text and "call 1" not in shown.printed


def test_95_a_thread_prints_in_a_tight_loop_while_the_agents_code_runs(server, tmp_path):
    beside_a_printing_thread(server, tmp_path, CALLS)


def test_95_what_the_agents_own_threads_print_is_its_result(server, tmp_path):
    code = (
        "from concurrent.futures import ThreadPoolExecutor\nimport threading\n"
        "pool = globals().get('pool') or ThreadPoolExecutor(1)\n"
        "pool.submit(print, 'from the pool').result()\n"
        "def inner():\n"
        "    innermost = threading.Thread(target=print, args=['from the inner one'])\n"
        "    innermost.start()\n    innermost.join()\n"
        "one = threading.Thread(target=inner)\none.start()\none.join()"
    )
    with served_kernel(server, tmp_path) as kernel:
        cells = Cells(kernel, server, tmp_path)
        cells.run(BESIDE)
        cells.ask(
            calls(*[("run_python", {"code": code})] * 2),
            says("Done."),
            options="--approve all",
        )
        cells.run("over.set(); running.join()")
    for result in cells.results:
        for each in ("the pool", "the inner one"):
            assert f"from {each}" in result
        assert "from the thread" not in result
