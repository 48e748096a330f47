"""What the model says in 07_panels.ipynb."""

from __future__ import annotations

from scripted import Seen, call

COUNTS = 'print(df.groupby(["island", "species"]).size().unstack(fill_value=0).to_string())'
MASSES = '(df.groupby("island")["body_mass_g"].agg(["size", "mean"]) / [1, 1000]).round(2)'


def islands(seen: Seen) -> str:
    rows = {
        island: seen.found(rf"^{island} +(\d+ +\d+ +\d+)").split()
        for island in ("Biscoe", "Dream", "Torgersen")
    }
    most = max(sum(count != "0" for count in counts) for counts in rows.values())
    best = [name for name, counts in rows.items() if sum(c != "0" for c in counts) == most]
    lines = [f"| {name} | {' | '.join(counts)} |" for name, counts in rows.items()]
    table = "\n".join(["| | Adelie | Chinstrap | Gentoo |", "|---|---|---|---|", *lines])
    return (
        f"{table}\n\nOn none: no island has all three. {' and '.join(best)} have {most} species "
        "each. I noted that you write masses in kilograms."
    )


def masses(seen: Seen) -> str:
    lines = []
    for island in ("Biscoe", "Dream", "Torgersen"):
        count = float(seen.found(rf"^{island} +([\d.]+)"))
        mean = float(seen.found(rf"^{island} +[\d.]+ +([\d.]+)"))
        lines.append(f"| {island} | {count:.0f} | {mean:.2f} kg |")
    return "\n".join(["| island | birds | mean mass |", "|---|---|---|", *lines])


STEPS = [
    [
        call(
            "memory",
            action="add",
            target="user",
            content="Counts birds in the field; writes masses in kilograms.",
        ),
        call("run_python", code=COUNTS),
    ],
    islands,
    call("run_python", code=MASSES),
    masses,
]
