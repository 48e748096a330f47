"""The model's answers in 15_costs.ipynb, and what they cost."""

from __future__ import annotations

from scripted import Price, Seen, call

PRICE = Price(input=1.0, cached=0.1, output=4.0)
COLUMNS = ("bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g")
BY_SEX = """\
by_sex = df.drop(columns="year").groupby(["species", "sex"]).describe()
print(by_sex.T.round(1).to_string())"""
BY_YEAR = """\
by_year = df.groupby(["island", "year"]).describe()
print(by_year.T.round(1).to_string())"""
SPREAD = 'print(df.groupby("species")["body_mass_g"].std().round(0).to_string())'
NUMBER = r"([\d.]+)"

sizes: dict[str, str] = {}


def row(seen: Seen, column: str, count: int) -> list[float]:
    """Return the means of a column, the second row of its block in a table."""
    skipped = rf"^{column} +count[^\n]*\n +mean"
    before = r" +[\d.]+"
    return [float(seen.found(rf"{skipped}{before * n} +{NUMBER}")) for n in range(count)]


def sexes(seen: Seen) -> str:
    shares: dict[str, list[float]] = {}
    for column in COLUMNS:
        means = row(seen, column, 6)
        shares[column] = [100 * (m / f - 1) for f, m in zip(means[::2], means[1::2], strict=True)]
    most = max(COLUMNS, key=lambda column: max(shares[column]))
    told = zip(("Adelie", "Chinstrap", "Gentoo"), shares[most], strict=True)
    return (
        f"In **`{most}`**. Its mean is higher in males by "
        + ", ".join(f"{share:.0f} % ({species})" for species, share in told)
        + "."
    )


def years(seen: Seen) -> str:
    means = row(seen, "body_mass_g", 9)
    ranges = {
        island: max(means[at : at + 3]) / min(means[at : at + 3]) - 1
        for at, island in zip((0, 3, 6), ("Biscoe", "Dream", "Torgersen"), strict=True)
    }
    told = ", ".join(f"{100 * share:.0f} % on {island}" for island, share in ranges.items())
    most = max(ranges, key=ranges.__getitem__)
    return (
        f"Most on {most}. Between the lightest and the heaviest year, the mean differs by {told}."
    )


def outliers(column: str) -> object:
    code = (
        f'values = df["{column}"].dropna()\n'
        "far = (values - values.mean()).abs().max() / values.std()\n"
        f'print(f"{column}: at most {{far:.1f}} standard deviations from the mean")'
    )
    return call("run_python", code=code)


def so_far(seen: Seen) -> str:
    lines = []
    results = "\n".join(m["content"] for m in seen.body["messages"] if m["role"] == "tool")
    for column in COLUMNS:
        if f"{column}: at most" in results:
            sizes[column] = seen.found(rf"{column}: at most {NUMBER} ", results)
            lines.append(f"- `{column}`: at most {sizes[column]} standard deviations from the mean")
    left = len(COLUMNS) - len(lines)
    if not all(float(size) < 3 for size in sizes.values()):
        message = f"there are outliers, other than the answer says: {sizes}"
        raise ValueError(message)
    head = f"No outliers in {len(lines)} of {len(COLUMNS)} columns"
    return f"{head}; {left} left:\n\n" + "\n".join(lines) if left else last()


def last() -> str:
    farthest = max(sizes, key=lambda column: float(sizes[column]))
    return (
        f"No outliers in any of the {len(COLUMNS)} columns. The farthest value is in "
        f"`{farthest}`, {sizes[farthest]} standard deviations from the mean."
    )


def spread(seen: Seen) -> str:
    deviations = {
        name: float(seen.found(rf"^{name} +{NUMBER}")) for name in ("Adelie", "Chinstrap", "Gentoo")
    }
    most = max(deviations, key=deviations.__getitem__)
    return f"In **{most}**, with a standard deviation of {deviations[most]:.0f} g."


STEPS = [
    call("run_python", code=BY_SEX),
    sexes,
    call("run_python", code=BY_YEAR),
    years,
    outliers(COLUMNS[0]),
    outliers(COLUMNS[1]),
    so_far,
    outliers(COLUMNS[2]),
    so_far,
    outliers(COLUMNS[3]),
    so_far,
    call("run_python", code=SPREAD),
    spread,
]
