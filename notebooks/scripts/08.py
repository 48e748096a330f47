"""What the model says in 08_replaying.ipynb; what is shown is its replay."""

from __future__ import annotations

from scripted import Seen, call

SHOW = "replay"

COUNT = """\
import pandas as pd

print(pd.read_csv("data/greenhouse.csv")["sensor"].value_counts().to_string())"""


def counted(seen: Seen) -> str:
    counts = {name: seen.found(rf"^{name} +(\d+)") for name in ("bench-2", "bench-3", "door-1")}
    fewest = min(counts, key=lambda name: int(counts[name]))
    told = ", ".join(f"`{name}` {count}" for name, count in counts.items())
    return f"{told}. One reading an hour, so `{fewest}` was silent for some hours."


STEPS = [call("run_python", code=COUNT), counted]
