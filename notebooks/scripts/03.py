"""What the model says in 03_project_context.ipynb."""

from __future__ import annotations

from scripted import Seen, call

YIELDS = """\
import pandas as pd

season = pd.read_csv("reports/2026.csv")
season.loc[season["note"] == "wet", "kg"] *= 0.96  # reports/AGENTS.md
season["per_tree"] = season["kg"] / season["trees"]
print(season[["plot", "variety", "trees", "per_tree"]].round(1).to_string(index=False))
plots = season[season["trees"] >= 20]  # AGENTS.md: the others are trials
print("mean of plots:", round(plots["kg"].sum() / plots["trees"].sum(), 1))"""


def rules(seen: Seen) -> str:
    system = seen.body["messages"][0]["content"]
    trees = seen.found(r"fewer than (\d+) trees", system)
    return (
        "Two things, by this project's rules:\n\n"
        "- Compare **kilograms per tree**, with one decimal place.\n"
        f"- A plot with fewer than **{trees} trees** is a trial: mention it, but keep it out of "
        "totals and means."
    )


def best(seen: Seen) -> str:
    lines = {
        plot: float(seen.found(rf"{plot} +\w+ +\d+ +([\d.]+)"))
        for plot in ("north", "south", "slope", "pond")
    }
    plot = max(lines, key=lines.__getitem__)
    trial = seen.number(r"nursery +\w+ +\d+ +([\d.]+)")
    return (
        f"Season 2026: **{plot}** did best with **{lines[plot]} kg** per tree; the mean of the "
        f"plots is **{seen.number('mean of plots: (.+)')} kg**. The wet weights of south and pond "
        f"count 4 % less, and the nursery ({trial} kg) is a trial and not in the mean."
    )


STEPS = [
    rules,
    call("read_file", path="reports/2026.csv"),
    call("run_python", code=YIELDS),
    best,
    "I cannot tell: this project's instructions were blocked before I saw them, because the file "
    "holds orders that may not be yours. Look at it before you trust it.",
    rules,
]
