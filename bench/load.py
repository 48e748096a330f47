"""What `%load_ext hermes_nb` costs: CPU and memory on top of a bare IPython shell.

Run with `make bench-load`. Prints the median of several fresh processes; the limits are 150 ms of
CPU and 5 MB.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys

from figures import figure

RUNS = 7
PROBE = """
import json, os, resource, sys, time
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("1 + 1", store_history=False)
def rss():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
before, memory = time.process_time(), rss()
modules = set(sys.modules)
shell.run_line_magic("load_ext", "hermes_nb")
cpu, grown = time.process_time() - before, rss() - memory
for _ in range(10):
    shell.run_line_magic("reload_ext", "hermes_nb")
every = shell.input_transformers_cleanup + shell.input_transformers_post
hooks = [h.__name__ for h in every if h.__module__.startswith("hermes_nb")]
new = set(sys.modules) - modules
heavy = [m for m in ("openai", "ipywidgets", "httpx", "pandas", "yaml") if m in new]
print(json.dumps({"cpu_ms": cpu * 1e3, "mb": grown / 2**20, "hooks": hooks, "heavy": heavy}))
"""


def main() -> None:
    runs = []
    for _ in range(RUNS):
        out = subprocess.run(
            [sys.executable, "-c", PROBE], capture_output=True, text=True, check=True
        )
        runs.append(json.loads(out.stdout.splitlines()[-1]))
    cpu = statistics.median(run["cpu_ms"] for run in runs)
    memory = statistics.median(run["mb"] for run in runs)
    figure("CPU of %load_ext hermes_nb", cpu, "ms", most=150)
    figure("memory of %load_ext hermes_nb", memory, "MB", most=5)
    heavy = ", ".join(runs[-1]["heavy"]) or "none"
    print(f"hooks after ten reloads: {', '.join(runs[-1]['hooks'])}; heavy modules: {heavy}")


if __name__ == "__main__":
    main()
