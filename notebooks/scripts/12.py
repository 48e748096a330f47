"""The model's answers in 12_time_travel.ipynb."""

from __future__ import annotations

from scripted import Seen, call

RUINED = """\
birds["body_mass_g"] /= 1000
del birds["sex"], birds["year"]
fit.update(slope=0.0, intercept=round(float(birds.body_mass_g.mean()), 2))
print(len(birds.columns), "columns left")"""
WAYS = {
    "the mean of all birds": "birds.body_mass_g.mean()",
    "the median of all birds": "birds.body_mass_g.median()",
    "the mean of the species": 'birds.groupby("species").body_mass_g.transform("mean")',
}
TRIED = """\
known = birds.dropna(subset=["body_mass_g"])
hidden = known.sample(60, random_state=1).index
truth = birds.body_mass_g[hidden].copy()
birds.loc[hidden, "body_mass_g"] = float("nan")
birds["body_mass_g"] = birds.body_mass_g.fillna({way})
print(f"off by {{(birds.body_mass_g[hidden] - truth).abs().mean():.0f}} g")"""

errors: dict[str, str] = {}


def tried(seen: Seen, way: str) -> None:
    errors[way] = seen.found(r"^off by (\d+) g")


def attempt(way: str, before: str = "") -> object:
    def step(seen: Seen) -> object:
        if before:
            tried(seen, before)
        return call("try_python", code=TRIED.format(way=WAYS[way]))

    return step


def compared(seen: Seen) -> str:
    tried(seen, list(WAYS)[-1])
    best = min(errors, key=lambda way: int(errors[way]))
    if best != "the mean of the species":
        message = f"another way is best: {errors}"
        raise ValueError(message)
    rows = [f"| {way} | {error} g |" for way, error in errors.items()]
    table = "\n".join(["| filled with | off by |", "|---|---|", *rows])
    return (
        "I hid 60 known masses, filled the gaps in three ways, and compared:\n\n"
        f"{table}\n\n**The mean of the species** is best. All three ran on copies: `birds` is as "
        "it was."
    )


def rerun(seen: Seen) -> object:
    seen.found(r"(stale cells: 2 rp-3)")
    return call("run_cells", ids=["rp-2", "rp-3"])


def ruined(seen: Seen) -> str:
    left = seen.found(r"^(\d+) columns left")
    return f"The masses are in kilograms, {left} columns are left, and the line is fitted again."


WORD = list(WAYS)
STEPS = [
    call("run_python", code=RUINED),
    ruined,
    attempt(WORD[0]),
    attempt(WORD[1], WORD[0]),
    attempt(WORD[2], WORD[1]),
    compared,
    call(
        "run_python",
        code=f'birds["body_mass_g"] = birds.body_mass_g.fillna({WAYS[WORD[2]]})',
    ),
    "The gaps in `birds` are filled with the mean of the species.",
    call("read_cells", outputs=False),
    call("run_cells", ids=["rp-1", "rp-2", "rp-3"]),
    "All three cells ran.",
    call("edit_cell", id="rp-2", old="/ 1000", new="/ 1000 * 2.2046"),
    rerun,
    "The report is in pounds. I ran the cell below again too, because it read the old masses.",
]
