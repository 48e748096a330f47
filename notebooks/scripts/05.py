"""What the model says in 05_skills.ipynb."""

from __future__ import annotations

from scripted import Seen, call

NAME = "sensor-log-check"
CHECK = '''\
def faults(log, stuck):
    """Print silence, sticking and impossible values of each sensor."""
    log = log.sort_values("time")
    for sensor, part in log.groupby("sensor"):
        gaps = part["time"].diff()
        for at in gaps[gaps > gaps.median()].index:
            print(sensor, "silent for", gaps[at], "before", part.loc[at, "time"])
        for column in ("temperature", "humidity"):
            values = part[column]
            runs = values.groupby((values != values.shift()).cumsum()).agg(["size", "first"])
            for size, value in runs[runs["size"] >= stuck].itertuples(index=False):
                print(sensor, column, "stuck at", value, "for", size, "readings")
        for row in part[~part["humidity"].between(0, 100)].itertuples():
            print(sensor, "humidity", row.humidity, "at", row.time)'''
NAME_OF_PROFILE = "load the log, then profile it with the script of the skill"
LOAD = 'import pandas as pd\n\nlog = pd.read_csv("data/greenhouse.csv", parse_dates=["time"])\n'
SKILL = f"""\
---
name: {NAME}
description: Check a log of sensor readings for silence, sticking and impossible values. Use when a table has a time, a sensor and what it measured.
metadata:
  hermes:
    category: data-analysis
---

# Check a sensor log

Run this with `run_python`, then call `faults(log, stuck=N)`. The log needs the columns `time` (as dates), `sensor`, `temperature` and `humidity`.

```python
{CHECK}
```

- Stuck: 3 equal readings in a row.
- Compare the sensors' ranges as well: one that reads three times as much as the others has another unit.
- Report what was found, sensor by sensor, with its time. Change nothing in the data.
"""  # noqa: E501 - a skill's lines are not wrapped


def profiled(seen: Seen) -> object:
    folder = seen.found(r"folder ([^\]]+)\]")
    run = f'%run "{folder}/scripts/profile_table.py"'
    code = f"# {NAME_OF_PROFILE}\n{LOAD}{run}\nprint(profile(log))"
    return call("run_python", code=code)


def findings(seen: Seen) -> str:
    ranges = {
        sensor: [seen.number(rf"{sensor} +([\d.]+) "), seen.number(rf"{sensor} +[\d.]+ +([\d.]+)")]
        for sensor in ("bench-2", "bench-3", "door-1")
    }
    silent = seen.found(r"bench-2 silent for \d days (\d\d:\d\d)")
    stuck = seen.found(r"door-1 temperature stuck at ([\d.]+)")
    size = seen.found(r"door-1 temperature stuck at [\d.]+ for (\d+)")
    humidity = seen.found(r"humidity (\d+) at")
    low, high = ranges["bench-3"]
    return (
        "One row is one reading of one sensor; three sensors, every hour, for a week. "
        "Not to be trusted as it stands:\n\n"
        f"1. **`bench-3` has another unit**: {low} to {high}, where the others stay between "
        f"{ranges['door-1'][0]} and {ranges['bench-2'][1]}. That fits Fahrenheit.\n"
        f"2. **`door-1` was stuck** at {stuck} for {size} readings.\n"
        f"3. **`bench-2` was silent**: the next reading came after {silent} h.\n"
        f"4. **`bench-2` says {humidity} % humidity** once, which cannot be.\n\n"
        "I changed nothing. Is `bench-3` known to report Fahrenheit?"
    )


def checked(seen: Seen) -> object:
    stuck = seen.found(r"Stuck: (\d+) equal")
    return call("run_python", code=f"{CHECK}\n\n{LOAD}faults(log, stuck={stuck})")


def reported(seen: Seen) -> str:
    lines = [
        line
        for line in seen.result.splitlines()
        if line.startswith(("bench", "door")) and (" stuck " in line or "silent" in line)
    ]
    stuck = [line for line in lines if " stuck " in line]
    humid = [line for line in stuck if "humidity" in line]
    if humid:
        told = (
            f"**stuck {len(stuck)} times**, {len(humid)} of them humidity, which looks more like "
            "rounding than like faults"
        )
    else:
        said = []
        for line in stuck:
            value = seen.found(r"stuck at ([\d.]+)", line)
            size = seen.found(r"for (\d+) readings", line)
            said.append(f"`{line.split()[0]}` at {value} for {size} readings")
        told = "**stuck**: " + ", ".join(said)
    silent = seen.found(r"silent for \d days (\d\d:\d\d)")
    humidity = seen.found(r"humidity (\d+) at")
    return (
        f"By the skill `{NAME}`: {told}. Besides, `bench-2` was silent (the next reading came "
        f"after {silent} h) and once says {humidity} % humidity."
    )


RANGES = (
    'print(log.groupby("sensor")["temperature"].agg(["min", "max"]).to_string())\n\n'
    f"{CHECK}\n\nfaults(log, stuck=6)"
)

STEPS = [
    call("skill_view", name="exploratory-data-analysis"),
    profiled,
    call("run_python", code=RANGES),
    findings,
    call("skill_manage", action="create", name=NAME, content=SKILL),
    f"Written down as `{NAME}`, with the code and the rule of three equal readings.",
    call("skill_view", name=NAME),
    checked,
    reported,
    call(
        "skill_manage",
        action="patch",
        name=NAME,
        old_string="Stuck: 3 equal readings in a row.",
        new_string="Stuck: 6 equal readings in a row (rounded columns repeat themselves).",
    ),
    "Corrected in the skill itself: six equal readings in a row, and why.",
    call("skill_view", name=NAME),
    checked,
    reported,
]
