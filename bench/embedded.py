"""How often the embedded model is right, and how long it takes: `python bench/embedded.py`.

`calls`: 20 one-step prompts over three tools, scored strictly: the tool and its argument, code by
what it prints; and small talk, which wants no call. `penguins`, `shop`, `rides`: whole questions
through the agent's loop with a real namespace; the answer's text is checked against pandas. `later`
asks some of those in a conversation that began before the table was there. The examples
in the prompt are made from the table's columns: one of them, on rows with a missing value, is close
to a question asked here, the others are not. Needs the weights, which
`python -m hermes_nb.models.weights` fetches.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import io
import os
import re
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hermes_nb.core.errors import ToolError
from hermes_nb.core.events import MessageAdded, TurnEnded, UsageReported
from hermes_nb.core.loop import Agent
from hermes_nb.core.messages import Message, Reply
from hermes_nb.core.protocols import Request, Variable
from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.extras.local.model import EmbeddedModel

PENGUINS = Path(__file__).parents[1] / "notebooks" / "data" / "penguins.csv"
Check = Callable[[str], bool]


# What an answer has to say.
def number(*values: float) -> Check:
    """Accept a text that gives every value; whole numbers exactly, others to about 0.6 %."""

    def check(text: str) -> bool:
        found = [float(n.replace(",", "")) for n in re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)]
        return all(any(_close(n, value) for n in found) for value in values)

    return check


def _close(found: float, value: float) -> bool:
    return abs(found - value) <= (0 if float(value).is_integer() else 0.006 * abs(value))


def words(*wanted: str, but: tuple[str, ...] = ()) -> Check:
    """Accept a text that names all that is wanted, and nothing else of the kind."""
    return lambda text: (
        all(w.lower() in text.lower() for w in wanted)
        and not any(w.lower() in text.lower() for w in but)
    )


# The tools, without a notebook around them.
def run_python(namespace: dict[str, Any], code: str) -> str:
    """Run code and return what it prints and its last value, as the notebook's tool does."""
    out = io.StringIO()
    try:
        tree = ast.parse(code)
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        with contextlib.redirect_stdout(out):
            exec(compile(tree, "cell", "exec"), namespace)
            if isinstance(last, ast.Expr):
                value = eval(compile(ast.Expression(last.value), "cell", "eval"), namespace)
                if value is not None:
                    print(repr(value))
    except Exception as error:
        raise ToolError(out.getvalue() + traceback.format_exc(limit=0)) from error
    return out.getvalue().strip() or "(no output)"


def tool(
    name: str, argument: str, kind: str, run: Callable[[Any], str], description: str = ""
) -> Tool:
    """Return a tool with one argument."""
    schema = {"type": "object", "properties": {argument: {"type": kind}}, "required": [argument]}
    return Tool(
        name=name,
        description=description or name,
        parameters=schema,
        run=lambda _, given: run(given[argument]),
    )


def no_file(path: str) -> str:
    """Refuse to read: there are no files here."""
    message = f"no file {path!r}"
    raise ToolError(message)


def toolset(namespace: dict[str, Any]) -> Toolset:
    """Return what the agent offers the model in a notebook, as far as this model uses it."""
    return Toolset(
        [
            tool("run_python", "code", "string", lambda code: run_python(dict(namespace), code)),
            tool("list_files", "path", "string", lambda _: "penguins.csv\nREADME.md"),
            tool("read_file", "path", "string", no_file),
        ]
    )


def variables(namespace: Mapping[str, Any]) -> list[Variable]:
    """Describe the tables of a namespace."""
    return [
        Variable(
            name=name,
            type="DataFrame",
            shape=f"{len(value)} x {len(value.columns)}",
            columns={str(c): str(t) for c, t in value.dtypes.items()},
        )
        for name, value in namespace.items()
        if isinstance(value, pd.DataFrame)
    ]


# The questions.
def penguin_questions(d: pd.DataFrame) -> list[tuple[str, Check]]:
    """Return questions about the Palmer penguins."""
    species = d.groupby("species")
    others = ("Adelie", "Chinstrap")
    return [
        ("Which species is the heaviest on average?", words("Gentoo", but=others)),
        ("How many rows have missing values?", number(int(d.isna().any(axis=1).sum()))),
        ("What is the mean flipper length?", number(d.flipper_length_mm.mean())),
        ("How many penguins are on each island?", number(*d.island.value_counts())),
        ("How many different species are there?", number(3)),
        (
            "What is the average body mass of male penguins?",
            number(d[d.sex == "male"].body_mass_g.mean()),
        ),
        ("What is the largest bill length?", number(d.bill_length_mm.max())),
        ("Which island has the most penguins?", words("Biscoe", but=("Dream", "Torgersen"))),
        ("How many rows does the table have?", number(len(d))),
        ("What is the mean bill depth per species?", number(*species.bill_depth_mm.mean())),
        ("How many Gentoo penguins are there?", number(int((d.species == "Gentoo").sum()))),
        ("How many missing values are in the sex column?", number(int(d.sex.isna().sum()))),
        (
            "What is the correlation between flipper length and body mass?",
            number(d.flipper_length_mm.corr(d.body_mass_g)),
        ),
        ("How many penguins weigh more than 5000 g?", number(int((d.body_mass_g > 5000).sum()))),
        ("What years are in the data?", words("2007", "2008", "2009")),
        (
            "What is the median body mass of Adelie penguins?",
            number(d[d.species == "Adelie"].body_mass_g.median()),
        ),
    ]


def shop_table() -> pd.DataFrame:
    """Return a made-up table that no prompt has seen."""
    rng = np.random.default_rng(4)
    n = 120
    table = pd.DataFrame(
        {
            "order_date": pd.date_range("2024-01-01", periods=n).astype(str),
            "branch": rng.choice(["Lyon", "Porto", "Ghent", "Turin"], n, p=[0.4, 0.3, 0.2, 0.1]),
            "product": rng.choice(["tea", "coffee", "cocoa"], n),
            "units": rng.integers(1, 40, n),
            "unit_price": rng.uniform(2, 9, n).round(2),
            "returned": rng.random(n) < 0.15,
        }
    )
    table.loc[table.index[::17], "unit_price"] = np.nan
    return table


def shop_questions(s: pd.DataFrame) -> list[tuple[str, Check]]:
    """Return questions about the made-up table."""
    kinds = s.groupby("product")
    best = s.groupby("branch").units.sum().idxmax()
    dearest = kinds.unit_price.mean().idxmax()
    branches = ("Lyon", "Porto", "Ghent", "Turin")
    return [
        (
            "Which branch sold the most units in total?",
            words(best, but=tuple(b for b in branches if b != best)),
        ),
        ("How many orders were returned?", number(int(s.returned.sum()))),
        (
            "What is the average unit price of coffee?",
            number(s[s["product"] == "coffee"].unit_price.mean()),
        ),
        ("How many orders are there per product?", number(*kinds.size())),
        ("How many rows have no unit price?", number(int(s.unit_price.isna().sum()))),
        ("What is the smallest number of units in an order?", number(int(s.units.min()))),
        ("Which product has the highest average unit price?", words(dearest)),
        ("How many columns does it have?", number(6)),
        ("What are the names of the branches?", words(*branches)),
        ("How many orders came from Porto?", number(int((s.branch == "Porto").sum()))),
        (
            "What is the total number of units sold in Ghent?",
            number(int(s[s.branch == "Ghent"].units.sum())),
        ),
        ("What is the average number of units per order?", number(s.units.mean())),
    ]


def rides_table() -> pd.DataFrame:
    """Return another made-up table; prompt and examples were not tuned with its questions."""
    rng = np.random.default_rng(11)
    n = 200
    table = pd.DataFrame(
        {
            "station": rng.choice(["Harbour", "Museum", "Park"], n, p=[0.5, 0.3, 0.2]),
            "rider": rng.choice(["member", "guest"], n),
            "minutes": rng.gamma(4, 5, n).round(1),
            "distance_km": rng.gamma(3, 1.5, n).round(2),
            "age": rng.integers(16, 80, n),
            "electric": rng.random(n) < 0.4,
        }
    )
    table.loc[table.index[::23], "distance_km"] = np.nan
    return table


def rides_questions(r: pd.DataFrame) -> list[tuple[str, Check]]:
    """Return questions that were written after the examples were settled, and asked once."""
    stations = r.groupby("station")
    busiest = r.station.value_counts().idxmax()
    farthest = stations.distance_km.mean().idxmax()
    names = ("Harbour", "Museum", "Park")
    return [
        ("What is the longest ride in minutes?", number(r.minutes.max())),
        (
            "From which station did most rides start?",
            words(busiest, but=tuple(n for n in names if n != busiest)),
        ),
        ("How old is the youngest rider?", number(int(r.age.min()))),
        ("Show the mean distance by station.", number(*stations.distance_km.mean())),
        ("How many rides took longer than 30 minutes?", number(int((r.minutes > 30).sum()))),
        ("How many electric rides are there?", number(int(r.electric.sum()))),
        (
            "Which station has the longest rides on average by distance?",
            words(farthest, but=tuple(n for n in names if n != farthest)),
        ),
        ("What is the total distance of all rides?", number(r.distance_km.sum())),
        ("How many distances are missing?", number(int(r.distance_km.isna().sum()))),
        ("What is the average age of the riders?", number(r.age.mean())),
        ("How many rides were made by guests?", number(int((r.rider == "guest").sum()))),
        ("What is the standard deviation of minutes?", number(r.minutes.std())),
    ]


async def ask(agent: Agent, prompt: Message) -> tuple[str, list[str], int]:
    """Take a turn; return the answer, what the tools did, and the tokens of the last prompt."""
    done, tokens = [], 0
    async with aclosing(agent.run(prompt)) as events:
        async for event in events:
            if isinstance(event, UsageReported):
                tokens = event.usage.input
            if isinstance(event, MessageAdded) and event.message.role == "assistant":
                done += [
                    f"{c.name}({next(iter(c.arguments.values()), '')})" for c in event.message.calls
                ]
            if isinstance(event, MessageAdded) and event.message.role == "tool":
                done[-1] += " -> " + " | ".join(event.message.text.split("\n"))[:90]
            if isinstance(event, TurnEnded) and event.reason != "answered":
                done.append(f"{event.reason}: {event.error}")
    return agent.messages[-1].text, done, tokens


async def questions(
    title: str, namespace: dict[str, Any], asked: list[tuple[str, Check]], *, later: bool = False
) -> None:
    """Ask each question in a conversation of its own; `later`: the table came after the start."""
    known = variables(namespace)
    there: list[Variable] = []
    model = EmbeddedModel(lambda: there)
    right, seconds = 0, 0.0
    try:
        for text, check in asked:
            agent = Agent(model, toolset(namespace), system="The agent's own long prompt.")
            prompt = Message.user(text)
            there[:] = [] if later else known
            if later:
                await ask(agent, Message.user("Hello!"))
                there[:] = known
                lines = ["[Notebook context]", "Variables:", *map(_line, known)]
                prompt = Message.user(text + "\n" + "\n".join(lines))
            started = time.perf_counter()
            answer, done, tokens = await ask(agent, prompt)
            took = time.perf_counter() - started
            seconds += took
            good = check(answer)
            right += good
            print(
                "ok   " if good else "WRONG",
                f"{took:5.1f} s {tokens:4d} t",
                text,
                done,
                repr(answer[:160]),
                flush=True,
            )
    finally:
        await model.aclose()
    print(f"== {title}: {right} of {len(asked)} right, {seconds / len(asked):.1f} s a turn\n")


def _line(variable: Variable) -> str:
    columns = ", ".join(f"{n} {t}" for n, t in (variable.columns or {}).items())
    return f"- {variable.name}: {variable.type} {variable.shape} ({columns})"


# One-step calls.
def path_is(*good: str) -> tuple[str, Callable[[Any], bool]]:
    """Expect list_files with one of these paths."""
    return "list_files", lambda value: str(value).strip().rstrip("/").removeprefix("./") in good


def cell_is(index: int) -> tuple[str, Callable[[Any], bool]]:
    """Expect read_cell with this index."""
    return "read_cell", lambda value: value == index


def prints(*good: str) -> tuple[str, Callable[[Any], bool]]:
    """Expect code that prints, or ends with, one of these."""

    def check(value: Any) -> bool:
        try:
            shown = run_python({}, str(value))
        except ToolError:
            return False
        return any(text in shown for text in good)

    return "run_python", check


CALLS = [
    ("List the files in the current directory.", path_is(".", "")),
    ("What files are in the data folder?", path_is("data")),
    ("Show me everything inside notebooks/", path_is("notebooks")),
    ("ls src", path_is("src")),
    ("Which files do I have here?", path_is(".", "")),
    ("List the files in tests.", path_is("tests")),
    ("What is in the directory reports/2024?", path_is("reports/2024")),
    ("Read cell 3.", cell_is(3)),
    ("What does cell number 7 contain?", cell_is(7)),
    ("Show me the first cell (index 0).", cell_is(0)),
    ("Open notebook cell 12.", cell_is(12)),
    ("Look at cell 5 and tell me what it does.", cell_is(5)),
    ("Please display the code of cell 21.", cell_is(21)),
    ("Can you check cell 9 for errors?", cell_is(9)),
    ("Calculate 17 * 23 with Python.", prints("391")),
    ("Use Python to compute the sum of the numbers 1 to 100.", prints("5050")),
    ("What is 2 to the power of 20? Run it.", prints("1048576")),
    (
        "Run code that prints hello world.",
        prints("hello world", "Hello World", "Hello, World", "Hello, world"),
    ),
    ('Reverse the string "hermes" using Python.', prints("semreh")),
    ("Compute the length of the list [4, 8, 15, 16, 23, 42] in Python.", prints("6")),
]
TALK = ["Hello!", "Thank you, that was great.", "Who are you?", "Good morning, how are you?"]


async def calls() -> None:
    """Score one-step calls, and small talk, which wants none."""
    tools = Toolset(
        [
            tool("run_python", "code", "string", str),
            tool("list_files", "path", "string", str),
            tool("read_cell", "index", "integer", str, "Read one notebook cell by its index."),
        ]
    )
    model = EmbeddedModel()
    system = Message.system("The agent's own long prompt.")
    right = 0
    started = time.perf_counter()
    try:
        for text, (name, check) in [*CALLS, *((text, ("", bool)) for text in TALK)]:
            request = Request(messages=(system, Message.user(text)), tools=tools)
            async with aclosing(model.stream(request)) as items:
                (reply,) = [item.message async for item in items if isinstance(item, Reply)]
            made = [(c.name, next(iter(c.arguments.values()), None)) for c in reply.calls]
            good = (
                made == [] if not name else bool(made) and made[0][0] == name and check(made[0][1])
            )
            right += good
            print("ok   " if good else "WRONG", text, made or repr(reply.text[:80]), flush=True)
    finally:
        await model.aclose()
    n = len(CALLS) + len(TALK)
    print(f"== calls: {right} of {n} right, {(time.perf_counter() - started) / n:.1f} s each\n")


async def main(chosen: list[str]) -> None:
    """Run the chosen parts."""
    penguins, shop = pd.read_csv(PENGUINS), shop_table()
    for part in chosen:
        print(f"-- {part}, load {os.getloadavg()[0]:.1f}")
        match part:
            case "calls":
                await calls()
            case "penguins":
                await questions(part, {"pd": pd, "df": penguins}, penguin_questions(penguins))
            case "shop":
                await questions(part, {"pd": pd, "orders": shop}, shop_questions(shop))
            case "rides":
                rides = rides_table()
                await questions(part, {"pd": pd, "rides": rides}, rides_questions(rides))
            case "later":
                namespace = {"pd": pd, "df": penguins}
                await questions(part, namespace, penguin_questions(penguins)[:8], later=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parts = ["calls", "penguins", "shop", "rides", "later"]
    parser.add_argument("parts", nargs="*", choices=[*parts, []], default=parts)
    asyncio.run(main(parser.parse_args().parts))
