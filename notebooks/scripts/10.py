"""What the models say in 10_systems.ipynb."""

from __future__ import annotations

from scripted import Seen, call

SENSORS = ("bench-2", "bench-3", "door-1")
STUCK = {
    "bold": "Yes. Air is never that still: three equal readings mean a stuck sensor.",
    "timid": (
        "Not by itself. With a resolution of 0.1 K and one reading an hour, equal neighbours are "
        "common at night; ask for six or more, and look at the other sensors."
    ),
}


def corrections(seen: Seen) -> str:
    results = [each["content"] for each in seen.body["messages"] if each["role"] == "tool"]
    found = dict(zip(SENSORS, results[-3:], strict=True))
    low = seen.found(r"([\d.]+) K too low", found["door-1"])
    below = seen.found(r"below (\d+ °C)", found["door-1"])
    unit = seen.found(r"degrees (\w+)", found["bench-3"])
    fine = seen.found(r"above ([\d.]+ K)", found["bench-2"])
    return (
        f"Two of three, by their certificates:\n\n"
        f"- **bench-3** reports {unit}: convert it with `(x - 32) / 1.8`.\n"
        f"- **door-1** is {low} K too low below {below}: add {low} there.\n\n"
        f"`bench-2` is within {fine} and stays as it is."
    )


def advice(seen: Seen) -> str:
    """Return what one of them says; the references are asked side by side, in any order."""
    asked = seen.body["model"]
    if asked in STUCK:
        return STUCK[asked]
    count = seen.found(r"ask for (\w+) or more", seen.prompt)
    return (
        f"Not with three. The two answers differ, and the cautious one gives the reason: at a "
        f"resolution of 0.1 K, nights have equal neighbours. Take **{count} in a row**, and only "
        f"while the other sensors move."
    )


STEPS = [
    [call("mcp__calibration__certificate", sensor=name) for name in SENSORS],
    corrections,
    advice,
    advice,
    advice,
]
