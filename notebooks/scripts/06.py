"""What the model says in 06_long_session.ipynb."""

from __future__ import annotations

import json
import re

from scripted import Seen, call


def table(column: str) -> object:
    code = f"""\
groups = df.dropna(subset=["sex"]).groupby(["species", "sex", "year"])["{column}"]
print(groups.agg(["count", "mean", "std", "min", "max"]).round(1).to_string())
print()
print(df.groupby(["species", "sex"])["{column}"].mean().unstack().round(1).to_string())"""
    return call("run_python", code=code)


def told(what: str, unit: str) -> object:
    def answer(seen: Seen) -> str:
        rows = []
        for species in ("Adelie", "Chinstrap", "Gentoo"):
            pair = rf"^{species} +([\d.]+) +([\d.]+)$"
            female = float(seen.found(pair))
            male = float(seen.found(pair.replace("([", "[", 1).replace("+)", "+", 1)))
            rows.append((species, female, male))
        lines = [
            f"| {species} | {female:,.0f} | {male:,.0f} | {100 * (male / female - 1):.0f} % |"
            for species, female, male in rows
        ]
        most = max(rows, key=lambda row: row[2] / row[1])[0]
        head = f"| {what} ({unit}) | females | males | males more by |\n|---|---|---|---|\n"
        return (
            head
            + "\n".join(lines)
            + f"\n\nWithin a species, the year matters little; sex does, most in {most}."
        )

    return answer


def summary(seen: Seen) -> str:
    """Return what the answers so far say, in few words."""
    said = [
        message["content"]
        for message in seen.body["messages"]
        if message["role"] == "assistant" and message.get("content")
    ]
    values = []
    for text in said:
        if what := re.search(r"^\| (.+?) \(", text):
            shares = re.findall(r"^\| (\w+) \|.*\| (\d+ %) \|$", text, re.MULTILINE)
            values.append(f"- {what[1]}: " + ", ".join(" ".join(pair) for pair in shares))
    return (
        "## Goal\nMeasurements by sex, for a field guide.\n## Critical values\n"
        "Males more than females by:\n" + "\n".join(values)
    )


def guide(seen: Seen) -> str:
    conversation = json.dumps(seen.body["messages"], ensure_ascii=False)
    rows = re.findall(r"(Adelie|Chinstrap|Gentoo) \| (\d,\d+) \| (\d,\d+) \| (\d+) %", conversation)
    species, female, male, share = max(rows, key=lambda row: int(row[3]))
    return (
        f"In **{species}**: females weigh {female} g on average and males {male} g, {share} % more."
    )


def expanded(seen: Seen) -> object:
    return call("context_expand", id=seen.found(r"^(s\d+) tool: .*Gentoo"))


def remembered(seen: Seen) -> str:
    row = r"Gentoo +female +2007[^\n]*\n +2008[^\n]*\n +2009 +"
    count = float(seen.found(row + r"([\d.]+)"))
    mean = float(seen.found(row + r"[\d.]+ +([\d.]+)"))
    return f"**{count:.0f}** Gentoo females were weighed in 2009; their mean was **{mean:,.1f} g**."


NOTHING = "Nothing to save."
QUESTIONS = [
    table("body_mass_g"),
    told("body mass", "g"),
    table("flipper_length_mm"),
    told("flipper length", "mm"),
    table("bill_length_mm"),
    told("bill length", "mm"),
    table("bill_depth_mm"),
    told("bill depth", "mm"),
]
STEPS = [
    *QUESTIONS,
    NOTHING,
    summary,
    guide,
    *QUESTIONS,
    call("context_search", query="Gentoo female 2009 body mass"),
    expanded,
    remembered,
]
