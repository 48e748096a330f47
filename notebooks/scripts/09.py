"""What the model says in 09_your_own.ipynb."""

from __future__ import annotations

import json

from scripted import Seen, call

RINGED = """\
import pandas as pd

birds = pd.read_csv("data/penguins.csv").query("island == 'Dream' and year == 2009")
print(birds["species"].value_counts().to_string())"""


def bills(seen: Seen) -> str:
    results = [each["content"] for each in seen.body["messages"] if each["role"] == "tool"]
    gentoo, chinstrap = (seen.found(r"([\d.]+), from", text) for text in results[-2:])
    longer = "Gentoo's" if float(gentoo) > float(chinstrap) else "Chinstrap's"
    return (
        f"**{longer}**: a Gentoo's bill is {gentoo} times as long as it is deep, a Chinstrap's "
        f"{chinstrap} times."
    )


def colony(seen: Seen) -> str:
    notes = json.dumps(seen.body["messages"], ensure_ascii=False)
    where = seen.found(r"moved (\d+ m north)", notes)
    before = seen.found(r"batteries before (\w+)", notes)
    return (
        f"Two things from your notes: the colony moved **{where}** of the old beach, so keep to "
        f"the ridge, and two loggers there need **new batteries** before {before}."
    )


def ringed(seen: Seen) -> str:
    notes = json.dumps(seen.body["messages"], ensure_ascii=False)
    count = seen.found(r"^Chinstrap +(\d+)")
    side = seen.found(r"ring only on the (\w+) side", notes)
    return (
        f"The table has **{count} Chinstrap** birds from Dream in 2009. "
        f"Your notes say to ring on the {side} side only."
    )


STEPS = [
    call("bill_shape", species="Gentoo penguin"),
    [call("bill_shape", species="Gentoo"), call("bill_shape", species="Chinstrap")],
    bills,
    colony,
    call("run_python", code=RINGED),
    ringed,
]
