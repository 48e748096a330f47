"""Make `greenhouse.csv`: a week of an invented greenhouse, with the faults that real logs have.

Three sensors report every hour. `bench-3` reports Fahrenheit, `door-1` was stuck for some hours,
`bench-2` was silent for some, and one humidity is impossible. The same numbers every time.
"""

from __future__ import annotations

import csv
import math
import random
from datetime import datetime, timedelta
from pathlib import Path

START = datetime(2026, 5, 4)  # noqa: DTZ001 - local time, as such logs have it
HOURS = 7 * 24
STUCK = range(61, 70)
SILENT = range(100, 106)
IMPOSSIBLE = 131
SENSORS = {"bench-2": (0.0, 0.0), "bench-3": (0.8, -2.0), "door-1": (-3.1, 4.0)}
"""How much warmer (°C) and more humid (%) it is at each sensor."""


def rows() -> list[tuple[str, str, str, str]]:
    """Return time, sensor, temperature and humidity of every reading."""
    chance = random.Random(20260504)
    out = []
    stuck = ""
    for hour in range(HOURS):
        when = START + timedelta(hours=hour)
        day = math.sin((when.hour - 9) / 24 * 2 * math.pi)
        for sensor, (warmer, wetter) in SENSORS.items():
            celsius = 18.5 + 5.5 * day + 0.02 * hour + warmer + chance.gauss(0, 0.35)
            humidity = 68 - 12 * day + wetter + chance.gauss(0, 1.5)
            if sensor == "bench-2" and hour in SILENT:
                continue
            if sensor == "bench-2" and hour == IMPOSSIBLE:
                humidity = 255.0
            shown = f"{celsius * 9 / 5 + 32 if sensor == 'bench-3' else celsius:.1f}"
            if sensor == "door-1":
                stuck = stuck or shown if hour in STUCK else ""
                shown = stuck or shown
            out.append((f"{when:%Y-%m-%d %H:%M}", sensor, shown, f"{humidity:.0f}"))
    return out


def main() -> None:
    """Write the file beside this one."""
    with Path(__file__).with_name("greenhouse.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("time", "sensor", "temperature", "humidity"))
        writer.writerows(rows())


if __name__ == "__main__":
    main()
