"""What the model says in 02_live_notebook.ipynb."""

from __future__ import annotations

from scripted import Seen, call

COUNT = """\
measured = df.drop(columns="sex")
print("rows without measurements:", measured.isna().any(axis=1).sum())
print("rows without sex:", df["sex"].isna().sum())
print(df["sex"].isna().groupby(df["species"]).agg(["sum", "size", "mean"]).round(3))"""
BILLS = """\
bills = df.dropna(subset=["bill_length_mm", "bill_depth_mm"])
shapes = bills.groupby("species")[["bill_length_mm", "bill_depth_mm"]]
shapes.agg(["mean", "std", "size"]).round(1)"""

found: dict[str, str] = {}


def complete(seen: Seen) -> str:
    found["measured"] = seen.found(r"without measurements: (\d+)")
    found["sex"] = seen.found(r"without sex: (\d+)")
    lines = []
    for species in ("Adelie", "Chinstrap", "Gentoo"):
        count = seen.found(rf"^{species} +(\d+)")
        of = seen.found(rf"^{species} +\d+ +(\d+)")
        lines.append(f"| {species} | {count} of {of} | {100 * int(count) / int(of):.1f} % |")
    found["table"] = "\n".join(["| species | sex unknown | |", "|---|---|---|", *lines])
    return (
        f"Nearly complete. **{found['measured']} birds** have no measurements at all, and "
        f"**{found['sex']}** lack the sex, those {found['measured']} among them.\n\n"
        f"{found['table']}\n\n"
        "It is not quite random: no Chinstrap is affected. With so few birds it hardly matters for "
        "a mean, but counts by sex should name the unknown ones."
    )


def explained(seen: Seen) -> str:
    column = seen.found(r"(bill_length\w+)")
    return (
        f"There is no column `bill_length`: the table calls it **`{column}`**, with the unit in "
        f'its name. `df.groupby("species")["{column}"].mean()` is what you meant.'
    )


def note(_: Seen) -> object:
    text = (
        "# penguins.csv: missing values\n\n"
        f"- {found['measured']} birds have no measurements at all.\n"
        f"- {found['sex']} birds lack the sex:\n\n{found['table']}\n"
    )
    return call("write_file", path="penguins-notes.md", content=text)


STEPS = [
    [call("list_variables"), call("inspect_variable", name="df")],
    call("run_python", code=COUNT),
    complete,
    call("insert_cell", source=BILLS),
    "The cell is below. It leaves out the birds without measurements and names the group sizes, "
    "so that nobody reads too much into a small group.",
    call("inspect_variable", name="df"),
    explained,
    note,
    "Written to `penguins-notes.md`: what is missing, of which birds, and how many.",
]
