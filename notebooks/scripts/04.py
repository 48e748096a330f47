"""What the model says in 04_memory_and_recall.ipynb."""

from __future__ import annotations

from scripted import Seen, call

WARMEST = """\
import pandas as pd

log = pd.read_csv("data/greenhouse.csv", parse_dates=["time"])
fahrenheit = log["sensor"] == "bench-3"
log.loc[fahrenheit, "temperature"] = (log.loc[fahrenheit, "temperature"] - 32) / 1.8
top = log.loc[log.groupby("sensor")["temperature"].idxmax()]
print(top[["sensor", "temperature", "time"]].to_string(index=False, float_format="%.1f"))"""


def warmest(seen: Seen) -> str:
    lines = []
    for sensor in ("bench-2", "bench-3", "door-1"):
        degrees = seen.found(rf"{sensor} +([\d.]+)")
        when = seen.found(rf"{sensor} +[\d.]+ +([\d-]+ \d\d:\d\d)")
        lines.append(f"| {sensor} | {degrees} °C | {when} |")
    table = "\n".join(["| sensor | warmest | when |", "|---|---|---|", *lines])
    return f"{table}\n\n`bench-3` reports Fahrenheit, as you told me; I converted it."


def recalled(seen: Seen) -> str:
    seen.found(r"(bench-3 reports Fahrenheit)")
    return (
        "That `bench-3` in `data/greenhouse.csv` reports **Fahrenheit** and the others do not. You "
        "said so at the start of an earlier session, together with your wish for °C."
    )


STEPS = [
    [
        call(
            "memory",
            action="add",
            target="user",
            content="Wants temperatures in °C with one decimal.",
        ),
        call(
            "memory",
            action="add",
            content="In data/greenhouse.csv the sensor bench-3 reports Fahrenheit.",
        ),
    ],
    "Noted, both: °C with one decimal for you, and that `bench-3` has to be converted.",
    call("memory", action="add", target="user", content="Wants temperatures in °C, one decimal."),
    "I have that already, so nothing was added.",
    call("run_python", code=WARMEST),
    warmest,
    call("session_search", query="what the user said about the greenhouse sensors"),
    recalled,
]
