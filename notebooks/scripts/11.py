"""The model's answers in 11_an_analysis.ipynb."""

from __future__ import annotations

from scripted import Seen, call

SPECIES = ("Adelie", "Chinstrap", "Gentoo")
LENGTH, DEPTH = r"([\d.]+) x [\d.]+", r"[\d.]+ x ([\d.]+)"
CLEAN = """\
columns = ["bill_length_mm", "bill_depth_mm"]
missing = birds[columns].isna().any(axis=1)
bills = birds[~missing]
print("rows:", len(birds), "without a bill measurement:", missing.sum(), "left:", len(bills))
print(bills[columns].agg(["min", "max"]).to_string())"""
SPLIT = """\
import matplotlib.pyplot as plt

r = bills[columns].corr().iloc[0, 1]
print(f"all birds: r = {r:.2f}")
fig, axes = plt.subplots(figsize=(5, 3))
for name, group in bills.groupby("species"):
    r = group[columns].corr().iloc[0, 1]
    length, depth = group[columns].mean()
    print(f"{name}: r = {r:.2f}, {len(group)} birds, mean {length:.1f} x {depth:.1f} mm")
    axes.scatter(*group[columns].to_numpy().T, s=12, alpha=0.6, label=f"{name}: r = {r:.2f}")
axes.set(xlabel="bill_length_mm", ylabel="bill_depth_mm", title="By species")
axes.legend(fontsize=8)
fig.tight_layout()
plt.show()"""

found: dict[str, str] = {}


def cleaned(seen: Seen) -> str:
    found["rows"] = seen.found(r"rows: (\d+)")
    found["missing"] = seen.found(r"measurement: (\d+)")
    found["left"] = seen.found(r"left: (\d+)")
    lengths = [seen.found(rf"^{end} +([\d.]+)") for end in ("min", "max")]
    depths = [seen.found(rf"^{end} +[\d.]+ +([\d.]+)") for end in ("min", "max")]
    return (
        f"Only **{found['missing']} of {found['rows']} rows**: their bills were not measured. The "
        f"other {found['left']} are in `bills`.\n\n"
        f"The values are plausible: lengths from {lengths[0]} to {lengths[1]} mm, depths from "
        f"{depths[0]} to {depths[1]} mm."
    )


def doubted(seen: Seen) -> object:
    if seen.images != 1:
        message = f"the plot was not sent: {seen.images} images"
        raise ValueError(message)
    return [
        "The points form more than one cloud, so I compare the species. ",
        call("run_python", code=SPLIT),
    ]


def split(seen: Seen) -> str:
    if seen.images != 2:
        message = f"the second plot was not sent: {seen.images} images"
        raise ValueError(message)
    found["all"] = seen.found(r"^all birds: r = (-[\d.]+)")
    lines = []
    means = {}
    for name in SPECIES:
        found[name] = seen.found(rf"^{name}: r = (0\.\d+)")  # positive, as the answer says
        count = seen.found(rf"^{name}: .*, (\d+) birds")
        means[name] = [seen.found(rf"^{name}: .* mean {size} mm") for size in (LENGTH, DEPTH)]
        lines.append(f"| {name} | {count} | {found[name]} |")
    found["table"] = "\n".join(["| species | birds | r |", "|---|---|---|", *lines])
    (long, shallow), (short, deep) = means["Gentoo"], means["Adelie"]
    if not (float(long) > float(short) and float(shallow) < float(deep)):
        message = f"bills of Gentoo and Adelie penguins are not as the answer says: {means}"
        raise ValueError(message)
    return (
        f"No. Over all birds the correlation is negative (r = {found['all']}), but **within each "
        f"species it is positive**:\n\n{found['table']}\n\n"
        f"The falling line comes from mixing species: a Gentoo bill is long and shallow ({long} x "
        f"{shallow} mm on average), an Adelie bill short and deep ({short} x {deep} mm). This is "
        "Simpson's paradox."
    )


def report(_: Seen) -> object:
    text = (
        "# Do penguins with longer bills have deeper bills?\n\n"
        "**Yes, within each species.**\n\n"
        f"Of {found['rows']} birds, {found['missing']} were left out because their bills were not "
        f"measured.\n\n{found['table']}\n\n"
        f"Over all {found['left']} birds together, r is {found['all']}. That number only reflects "
        "that the species differ, so it says nothing about a single species.\n\n"
        "A correlation does not show that one measure causes the other.\n"
    )
    return call("write_file", path="report.md", content=text)


STEPS = [
    call("run_python", code=CLEAN),
    cleaned,
    doubted,
    split,
    report,
    "`report.md` has the question, the finding with its numbers, and a warning about the overall "
    "correlation.",
]
