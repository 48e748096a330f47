"""What the bridge into an open notebook costs, in JupyterLab in a headless Chromium.

Run with `python bench/bridge.py`. The limits: 250 ms for a call (median), 1 s to list 500 cells.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from playwright.sync_api import sync_playwright
from tests.e2e.harness import CHROMIUM_ARGUMENTS, Notebook, Server, chromium

CELLS = 500
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


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = Server("lab", Path(folder))
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=list(CHROMIUM_ARGUMENTS)
        )
        try:
            cells = [f"x{n} = {n}\nprint(x{n})" for n in range(CELLS)]
            notebook = Notebook.open(server, browser, "bench.ipynb", cells)
            notebook.bridge()
            costs = json.loads(notebook.kernel(PROBE, timeout=120))
        finally:
            browser.close()
            server.close()
    for name, (median, most) in costs.items():
        print(f"{name:20} median {median * 1e3:6.0f} ms, at most {most * 1e3:6.0f} ms")


if __name__ == "__main__":
    main()
