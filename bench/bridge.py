"""What the bridge into an open notebook costs, in JupyterLab in a headless Chromium.

Run with `make bench-bridge`. The limits: 250 ms for a call (median), 1 s to list 500 cells.
`python bench/bridge.py offers` measures the kernel's part alone of the first TAB in a prompt, as a
page asks for it: the CPU of its process, the median of some kernels, and the least time.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.e2e.harness import Notebook, Server, launched
from tests.kernels import Kernel, kernel

from figures import figure

CELLS = 500
KERNELS = 5
TYPED = "%%hermes\ncompare @ti"
PROBE = """
import statistics, json, time
async def cost(call, times=20):
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        await call()
        taken.append(time.perf_counter() - began)
    return [statistics.median(taken), max(taken)]
async def edit():
    cell = await document.get('cell1')
    await document.replace('cell1', cell.source + '#', seen=cell.hash)
print(json.dumps({
    'info': await cost(lambda: frontend.call('info')),
    'probe': await cost(frontend.probe),
    'get and replace': await cost(edit),
    'insert': await cost(lambda: document.insert('x = 1', after='cell1')),
    'list of 500 cells': await cost(document.cells, 5),
    'sketch': await cost(document.sketch, 5),
    'list with outputs': await cost(lambda: document.cells(outputs=True), 5),
    'save': await cost(document.save, 3),
}))
"""


def offered(running: Kernel, channel: str) -> tuple[float, float]:
    """Return the milliseconds of CPU and of time that one offer takes on a channel."""
    client = running.client
    if channel == "control":  # labextension/static/prompts.js
        message = client.session.msg("comm_info_request", {"complete": TYPED})
    else:
        message = client.session.msg("complete_request", {"code": TYPED, "cursor_pos": len(TYPED)})
    asked = getattr(client, f"{channel}_channel")
    process = psutil.Process(running.manager.provisioner.process.pid)
    cpu, began = sum(process.cpu_times()[:2]), time.perf_counter()
    asked.send(message)
    while (reply := asked.get_msg(timeout=30))["parent_header"]["msg_id"] != message["msg_id"]:
        pass
    took = time.perf_counter() - began
    assert "@tide_table" in reply["content"]["matches"]
    return (sum(process.cpu_times()[:2]) - cpu) * 1e3, took * 1e3


def first_offers() -> None:
    """Print what the first offer of new kernels costs, while they are idle and while a cell runs.

    An idle one is asked as JupyterLab asks it: by us, and as any kernel.
    """
    taken: dict[str, list[tuple[float, float]]] = {"idle": [], "busy": []}
    with tempfile.TemporaryDirectory() as folder:
        env = {**os.environ, "HERMES_HOME": folder, "PYTHONPATH": str(Path(__file__).parents[1])}
        for state in list(taken) * KERNELS:
            with kernel(env, cwd=folder) as running:
                running.run("tide_table = [1]\n%load_ext hermes_nb")
                if state == "busy":
                    running.client.execute("import time; time.sleep(9)")
                each = [offered(running, "control")]
                each += [offered(running, "shell")] if state == "idle" else []
                taken[state].append((sum(e[0] for e in each), sum(e[1] for e in each)))
    for state, most in (("idle", 300), ("busy", 1_500)):
        cpu, took = zip(*taken[state], strict=True)
        figure(f"CPU of a kernel's first offer, {state}", statistics.median(cpu), "ms", most=150)
        figure(f"its first offer, {state}", min(took), "ms", most=most)


def main() -> None:
    first_offers()
    if "offers" in sys.argv[1:]:
        return
    with tempfile.TemporaryDirectory() as folder, launched() as browser:
        server = Server("lab", Path(folder))
        try:
            cells = [f"x{n} = {n}\nprint(x{n})" for n in range(CELLS)]
            notebook = Notebook.open(server, browser, "bench.ipynb", cells)
            notebook.bridge()
            costs = json.loads(notebook.kernel(PROBE, timeout=120))
        finally:
            server.close()
    for name, (median, most) in costs.items():
        print(f"{name:20} median {median * 1e3:6.0f} ms, at most {most * 1e3:6.0f} ms")


if __name__ == "__main__":
    main()
