"""The model's answers in 14_fix_and_edit.ipynb."""

from __future__ import annotations

from scripted import Seen, call

CELL = "fix-5"
PLOT = "mass.plot.barh(figsize=(5, 2));"
SORTED = """\
ax = mass.sort_values().plot.barh(figsize=(5, 2))
ax.set_xlabel("mean body mass (kg)");"""

COLUMN = {"name": ""}


def looked(seen: Seen) -> object:
    COLUMN["name"] = seen.found(r"^  (body_mass_\w+) ")
    return call("read_cells", ids=[CELL], outputs=False)


def fix(_: Seen) -> object:
    new = f'["{COLUMN["name"]}"].mean() / 1000'
    return call("edit_cell", id=CELL, old='["body_mass_kg"].mean()', new=new)


def fixed(seen: Seen) -> str:
    seen.found(r"(image/png)")
    return (
        f"The table has no column `body_mass_kg`. It has **`{COLUMN['name']}`**, in grams, so I "
        "used that and divided by 1000."
    )


def changed(seen: Seen) -> str:
    seen.found(r"(image/png)")
    return "The bars are sorted, and the axis says what it shows: the mean body mass in kg."


STEPS = [
    call("inspect_variable", name="df"),
    looked,
    fix,
    call("run_cell", id=CELL),
    fixed,
    call("edit_cell", id=CELL, old=PLOT, new=SORTED),
    call("run_cell", id=CELL),
    changed,
]
