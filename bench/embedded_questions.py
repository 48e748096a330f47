"""The questions of `bench/embedded.py`: tables, files, and questions without an answer.

`TUNED` is the set that the rules were developed with. `ASIDE` was written before that, and is
asked only to measure: its tables and files appear nowhere else. `NEWCOMERS` was written by somebody
who had not seen the rules, as people type: with typing errors, other words, and some of it German.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

PENGUINS = Path(__file__).parents[1] / "notebooks" / "data" / "penguins.csv"
Check = Callable[[str], bool]
ADMITS = re.compile(
    r"(?:could ?n[o']t|can ?n[o']t|can't|cannot|unable to) (?:find|tell|say|answer|look)"
    r"|don't (?:know|have)|there is no\b|no such"
    r"|nicht (?:finden|gefunden|beantworten)|weiß (?:ich|es) nicht|es gibt kein",
    re.IGNORECASE,
)
"""An answer that says that it could not be found out."""


def number(*values: float) -> Check:
    """Accept a text that gives every value: whole numbers exactly, others to about 0.6 %."""

    def check(text: str) -> bool:
        found = [float(n.replace(",", "")) for n in re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)]
        few = len(found) <= 3 * len(values) + 5  # not a listing that happens to hold it
        return few and all(any(_close(n, value) for n in found) for value in values)

    return check


def _close(found: float, value: float) -> bool:
    return abs(found - value) <= (0 if float(value).is_integer() else 0.006 * abs(value))


def words(*wanted: str, but: tuple[str, ...] = ()) -> Check:
    """Accept a text that names all that is wanted, and none of `but`."""
    return lambda text: (
        all(w.lower() in text.lower() for w in wanted)
        and not any(w.lower() in text.lower() for w in but)
    )


def one_of(right: str, names: pd.Series) -> Check:
    """Accept a text that names only one of a column's values."""
    return words(str(right), but=tuple(str(n) for n in set(names.dropna()) if n != right))


def admitted(text: str) -> bool:
    """Accept an answer that says that it could not be found out."""
    return ADMITS.search(text) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Questions that are asked in one kernel."""

    name: str
    """The part's name, and its kind before a dash."""
    questions: tuple[tuple[str, Check], ...]
    """Each prompt and what its answer must be."""
    variable: str = ""
    """The name of the table; "" for none."""
    table: pd.DataFrame | None = None
    """The table."""
    files: Mapping[str, str] | None = None
    """Files in the working directory."""


def penguins() -> Part:
    """Return questions about the Palmer penguins."""
    d = pd.read_csv(PENGUINS)
    asked = (
        ("Which species is the heaviest on average?", one_of("Gentoo", d.species)),
        ("How many rows have missing values?", number(int(d.isna().any(axis=1).sum()))),
        ("What is the mean flipper length?", number(d.flipper_length_mm.mean())),
        ("How many penguins are on each island?", number(*d.island.value_counts())),
        ("How many different species are there?", number(3)),
        (
            "What is the average body mass of male penguins?",
            number(d[d.sex == "male"].body_mass_g.mean()),
        ),
        ("What is the largest bill length?", number(d.bill_length_mm.max())),
        ("Which island has the most penguins?", one_of("Biscoe", d.island)),
        ("How many rows does the table have?", number(len(d))),
        (
            "What is the mean bill depth per species?",
            number(*d.groupby("species").bill_depth_mm.mean()),
        ),
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
    )
    return Part(name="tables-penguins", questions=asked, variable="df", table=d)


def orders() -> Part:
    """Return questions about a made-up shop."""
    rng = np.random.default_rng(4)
    n = 120
    s = pd.DataFrame(
        {
            "order_date": pd.date_range("2024-01-01", periods=n).astype(str),
            "branch": rng.choice(["Lyon", "Porto", "Ghent", "Turin"], n, p=[0.4, 0.3, 0.2, 0.1]),
            "product": rng.choice(["tea", "coffee", "cocoa"], n),
            "units": rng.integers(1, 40, n),
            "unit_price": rng.uniform(2, 9, n).round(2),
            "returned": rng.random(n) < 0.15,
        }
    )
    s.loc[s.index[::17], "unit_price"] = np.nan
    kinds = s.groupby("product")
    best, dearest = s.groupby("branch").units.sum().idxmax(), kinds.unit_price.mean().idxmax()
    asked = (
        ("Which branch sold the most units in total?", one_of(best, s.branch)),
        ("How many orders were returned?", number(int(s.returned.sum()))),
        (
            "What is the average unit price of coffee?",
            number(s[s["product"] == "coffee"].unit_price.mean()),
        ),
        ("How many orders are there per product?", number(*kinds.size())),
        ("How many rows have no unit price?", number(int(s.unit_price.isna().sum()))),
        ("What is the smallest number of units in an order?", number(int(s.units.min()))),
        ("Which product has the highest average unit price?", one_of(dearest, s["product"])),
        ("How many columns does it have?", number(6)),
        ("What are the names of the branches?", words("Lyon", "Porto", "Ghent", "Turin")),
        ("How many orders came from Porto?", number(int((s.branch == "Porto").sum()))),
        (
            "What is the total number of units sold in Ghent?",
            number(int(s[s.branch == "Ghent"].units.sum())),
        ),
        ("What is the average number of units per order?", number(s.units.mean())),
    )
    return Part(name="tables-orders", questions=asked, variable="orders", table=s)


def rides() -> Part:
    """Return questions about made-up bicycle rides."""
    rng = np.random.default_rng(11)
    n = 200
    r = pd.DataFrame(
        {
            "station": rng.choice(["Harbour", "Museum", "Park"], n, p=[0.5, 0.3, 0.2]),
            "rider": rng.choice(["member", "guest"], n),
            "minutes": rng.gamma(4, 5, n).round(1),
            "distance_km": rng.gamma(3, 1.5, n).round(2),
            "age": rng.integers(16, 80, n),
            "electric": rng.random(n) < 0.4,
        }
    )
    r.loc[r.index[::23], "distance_km"] = np.nan
    means = r.groupby("station").distance_km.mean()
    asked = (
        ("What is the longest ride in minutes?", number(r.minutes.max())),
        (
            "From which station did most rides start?",
            one_of(r.station.value_counts().idxmax(), r.station),
        ),
        ("How old is the youngest rider?", number(int(r.age.min()))),
        ("Show the mean distance by station.", number(*means)),
        ("How many rides took longer than 30 minutes?", number(int((r.minutes > 30).sum()))),
        ("How many electric rides are there?", number(int(r.electric.sum()))),
        (
            "Which station has the longest rides on average by distance?",
            one_of(means.idxmax(), r.station),
        ),
        ("What is the total distance of all rides?", number(r.distance_km.sum())),
        ("How many distances are missing?", number(int(r.distance_km.isna().sum()))),
        ("What is the average age of the riders?", number(r.age.mean())),
        ("How many rides were made by guests?", number(int((r.rider == "guest").sum()))),
        ("What is the standard deviation of minutes?", number(r.minutes.std())),
    )
    return Part(name="tables-rides", questions=asked, variable="rides", table=r)


NOTES = {
    "README.md": "# Tea shop\n\nA small analysis of orders.\n\n## Install\n\n"
    "Run `pip install -r requirements.txt`, then open `shop.ipynb`.\n\nLicence: MIT\n",
    "meeting.md": "# Meeting of 4 March\n\n- Present: Ana, Bo, Chandra\n"
    "- The deadline for the report is 21 March.\n- Bo orders the new scales.\n",
    "config.toml": '[server]\nhost = "localhost"\nport = 8642\n\n[cache]\nminutes = 15\n',
    "requirements.txt": "pandas>=2.0\nmatplotlib==3.9.1\nrequests\n",
    "stock.csv": "item,amount\nkettle,4\ncup,40\nfilter,300\n",
}


def notes() -> Part:
    """Return questions about a few files."""
    asked = (
        ("Which files are here?", words(*NOTES)),
        ("What port is set in config.toml?", number(8642)),
        ("When is the deadline according to meeting.md?", words("21 March")),
        ("Which file mentions matplotlib?", words("requirements.txt", but=("meeting", "config"))),
        ("Which columns does stock.csv have?", words("item", "amount")),
        ("Who orders the new scales, according to meeting.md?", words("Bo", but=("Chandra",))),
        ("What is the licence in the README?", words("MIT")),
        ("Which version of matplotlib is in requirements.txt?", words("3.9.1")),
    )
    return Part(name="files-notes", questions=asked, files=NOTES)


def unknown() -> Part:
    """Return questions that have no answer."""
    asked = (
        "What is the average colour of the penguins?",
        "Which island has the highest temperature?",
        "How many penguins are older than three years?",
        "What is the mean of column wingspan?",
        "What is the value of the variable threshold?",
        "What is the timeout in config.toml?",
        "What does budget.xlsx say about travel?",
        "Who wrote meeting.md?",
        "What will the temperature be tomorrow?",
        "Which penguin laid the most eggs?",
    )
    return Part(
        name="unknown-penguins",
        questions=tuple((text, admitted) for text in asked),
        variable="df",
        table=pd.read_csv(PENGUINS),
        files=NOTES,
    )


def flights() -> Part:
    """Return questions about made-up flights, which nothing was tuned with."""
    rng = np.random.default_rng(21)
    n = 260
    f = pd.DataFrame(
        {
            "carrier": rng.choice(["Alpine", "Borealis", "Coastal"], n, p=[0.5, 0.3, 0.2]),
            "origin": rng.choice(["OSL", "LIS", "VIE", "DUB"], n, p=[0.4, 0.3, 0.2, 0.1]),
            "passengers": rng.integers(40, 190, n),
            "delay_minutes": rng.gamma(2, 9, n).round(0),
            "ticket_price": rng.uniform(40, 420, n).round(2),
            "cancelled": rng.random(n) < 0.08,
        }
    )
    f.loc[f.index[::19], "delay_minutes"] = np.nan
    carriers, origins = f.groupby("carrier"), f.groupby("origin")
    asked = (
        ("How many flights are there?", number(len(f))),
        ("What's the average delay?", number(f.delay_minutes.mean())),
        (
            "Which carrier has the highest average ticket price?",
            one_of(carriers.ticket_price.mean().idxmax(), f.carrier),
        ),
        ("How many flights were cancelled?", number(int(f.cancelled.sum()))),
        ("How many passengers flew in total?", number(int(f.passengers.sum()))),
        ("What is the most expensive ticket?", number(f.ticket_price.max())),
        ("How many flights departed from Lisbon (LIS)?", number(int((f.origin == "LIS").sum()))),
        ("Give me the median delay per carrier.", number(*carriers.delay_minutes.median())),
        (
            "How many flights had a delay of more than 30 minutes?",
            number(int((f.delay_minutes > 30).sum())),
        ),
        (
            "Which origin has the fewest flights?",
            one_of(f.origin.value_counts().idxmin(), f.origin),
        ),
        (
            "What is the mean ticket price of Borealis flights?",
            number(f[f.carrier == "Borealis"].ticket_price.mean()),
        ),
        ("How many delays are missing?", number(int(f.delay_minutes.isna().sum()))),
        ("List the carriers.", words("Alpine", "Borealis", "Coastal")),
        (
            "Count the flights for each origin",
            number(*f.origin.value_counts()),
        ),
        (
            "What percentage of flights was cancelled?",
            number(100 * f.cancelled.mean()),
        ),
        (
            "How many flights carried fewer than 60 passengers?",
            number(int((f.passengers < 60).sum())),
        ),
        (
            "Which carrier transported the most passengers overall?",
            one_of(carriers.passengers.sum().idxmax(), f.carrier),
        ),
        (
            "What is the total number of passengers from OSL?",
            number(int(f[f.origin == "OSL"].passengers.sum())),
        ),
        ("What is the cheapest ticket price?", number(f.ticket_price.min())),
        (
            "Is there a correlation between ticket price and delay?",
            number(f.ticket_price.corr(f.delay_minutes)),
        ),
        (
            "Compare the average delay of the origins.",
            number(*origins.delay_minutes.mean()),
        ),
    )
    return Part(name="tables-flights", questions=asked, variable="flights", table=f)


def patients() -> Part:
    """Return questions about made-up patients, which nothing was tuned with."""
    rng = np.random.default_rng(33)
    n = 150
    p = pd.DataFrame(
        {
            "patient_id": np.arange(1000, 1000 + n),
            "clinic": rng.choice(["North", "South", "West"], n, p=[0.45, 0.35, 0.2]),
            "treatment": rng.choice(["drug", "placebo"], n),
            "age": rng.integers(18, 90, n),
            "weight_kg": rng.normal(74, 12, n).round(1),
            "blood_pressure": rng.normal(128, 15, n).round(0),
            "smoker": rng.choice(["yes", "no"], n, p=[0.3, 0.7]),
        }
    )
    p.loc[p.index[::13], "blood_pressure"] = np.nan
    clinics, arms = p.groupby("clinic"), p.groupby("treatment")
    asked = (
        ("How many patients got the placebo?", number(int((p.treatment == "placebo").sum()))),
        ("What is the average age?", number(p.age.mean())),
        ("How old is the oldest patient?", number(int(p.age.max()))),
        (
            "Which clinic treated the most patients?",
            one_of(p.clinic.value_counts().idxmax(), p.clinic),
        ),
        ("Average blood pressure by treatment?", number(*arms.blood_pressure.mean())),
        ("How many patients are older than 65?", number(int((p.age > 65).sum()))),
        ("What columns are there?", words("clinic", "treatment", "blood_pressure", "smoker")),
        (
            "How many patients have no blood pressure?",
            number(int(p.blood_pressure.isna().sum())),
        ),
        (
            "What is the mean weight of patients at the North clinic?",
            number(p[p.clinic == "North"].weight_kg.mean()),
        ),
        ("How many clinics are there?", number(3)),
        ("What is the lightest weight?", number(p.weight_kg.min())),
        (
            "How many patients under 30 are there?",
            number(int((p.age < 30).sum())),
        ),
        (
            "Which clinic has the highest mean blood pressure?",
            one_of(clinics.blood_pressure.mean().idxmax(), p.clinic),
        ),
        ("How much does the heaviest patient weigh?", number(p.weight_kg.max())),
        ("How many rows and columns does the table have?", number(n, 7)),
        (
            "How many patients in the South clinic received the drug?",
            number(int(((p.clinic == "South") & (p.treatment == "drug")).sum())),
        ),
        ("What is the standard deviation of the weight?", number(p.weight_kg.std())),
        (
            "How is age correlated with blood pressure?",
            number(p.age.corr(p.blood_pressure)),
        ),
        ("What are the possible treatments?", words("drug", "placebo")),
        ("How many patients smoke?", number(int((p.smoker == "yes").sum()))),
        (
            "Show the number of patients per clinic and treatment.",
            number(*p.groupby(["clinic", "treatment"]).size()),
        ),
    )
    return Part(name="tables-patients", questions=asked, variable="patients", table=p)


PROJECT = {
    "README.md": "# river-levels\n\nWarns by mail when a river is high.\n\n## Usage\n\n"
    "    python watch.py --station 17\n\nMaintainer: Leila Farsi\n\n"
    "## Licence\n\nBSD-3-Clause\n",
    "settings.yaml": "station: 17\nthreshold_cm: 420\ninterval_minutes: 10\n"
    "mail:\n  server: mail.example.org\n  sender: river@example.org\n",
    "watch.py": '"""Watch a river\'s level and send a mail when it is high."""\n\n'
    "import json\n\nTIMEOUT = 25\n\n\ndef read_level(station):\n"
    '    """Return the newest level of a station in centimetres."""\n'
    "    return json.loads(_get(station))[-1]\n\n\ndef warn(level):\n"
    '    """Send the warning mail."""\n    raise NotImplementedError\n',
    "levels.csv": "day,station,level_cm\n2024-05-01,17,310\n2024-05-02,17,355\n"
    "2024-05-03,17,431\n2024-05-04,17,398\n",
    "docs/history.txt": "2019 first version\n2021 moved to Python\n2023 alarm by mail added\n",
    "todo.txt": "[x] mail server\n[ ] retry after a lost connection\n[ ] plot of the last week\n",
    "run.log": "08:00 started\n08:10 level 431, warning sent\n08:20 ERROR connection lost\n"
    "08:30 level 398\n",
}


def project() -> Part:
    """Return questions about the files of a small project, which nothing was tuned with."""
    asked = (
        ("What files are in this folder?", words("README.md", "watch.py", "levels.csv")),
        ("What is the threshold in settings.yaml?", number(420)),
        ("Who is the maintainer according to the README?", words("Leila Farsi")),
        ("What is the timeout in watch.py?", number(25)),
        ("Which columns are in levels.csv?", words("day", "station", "level_cm")),
        ("How many lines does run.log have?", number(4)),
        ("Which file defines read_level?", words("watch.py", but=("settings", "todo"))),
        ("What does the function read_level in watch.py return?", words("newest level")),
        ("What happened in 2021 according to docs/history.txt?", words("moved to Python")),
        ("Which licence does the project have, according to README.md?", words("BSD-3-Clause")),
        ("What error is in run.log?", words("connection lost")),
        ("What is in the docs folder?", words("history.txt")),
        ("Which mail server is configured in settings.yaml?", words("mail.example.org")),
        ("When was the alarm by mail added, according to history.txt?", words("2023")),
        ("Which files mention mail?", words("README.md", "settings.yaml", "watch.py")),
        ("How do I run watch.py according to the README?", words("python watch.py --station 17")),
        ("What is README.md about?", words("river")),
        ("How many data rows are in levels.csv?", number(4)),
        ("At what interval does it measure, according to settings.yaml?", number(10)),
        ("What is still open in todo.txt?", words("retry", "plot", but=("[x]",))),
    )
    return Part(name="files-project", questions=asked, files=PROJECT)


def unanswerable() -> Part:
    """Return questions without an answer, which nothing was tuned with."""
    asked = (
        "What is the average salary of the patients?",
        "Which clinic has the longest waiting time?",
        "How many patients have red hair?",
        "What is the mean cholesterol per treatment?",
        "Which doctor treated the most patients?",
        "What is the maximum of column glucose?",
        "How many patients live in Berlin?",
        "What is the average height of smokers?",
        "In which month did most patients come?",
        "What is the median income by clinic?",
        "What's the value of learning_rate?",
        "How long is the list called names?",
        "How many rows does the table sales have?",
        "What is the password in settings.yaml?",
        "What does deploy.sh do?",
        "Who is the author of watch.py?",
        "Which file mentions kubernetes?",
        "What is the phone number of the maintainer in the README?",
        "How high will the river be next week?",
        "What is the share price of Siemens today?",
    )
    return Part(
        name="unknown-patients",
        questions=tuple((text, admitted) for text in asked),
        variable="patients",
        table=patients().table,
        files=PROJECT,
    )


def talk() -> Part:
    """Return small talk."""
    asked = (
        ("Hello!", words("hello")),
        ("Who are you?", words("Hermes", but=("OpenAI", "ChatGPT", "Anthropic"))),
        ("Who made you?", words("Hermes", but=("OpenAI", "ChatGPT", "Anthropic"))),
        ("Thank you, that was great.", bool),
        ("What can you do?", words("table", "file")),
    )
    return Part(name="talk", questions=asked)


def songs_table() -> pd.DataFrame:
    """Return made-up songs."""
    rng = np.random.default_rng(47)
    n = 120
    nouns = ["River", "Engine", "Window", "Lantern", "Harbour", "Feather", "Signal", "Orchard"]
    moods = ["Blue", "Broken", "Early", "Golden", "Hollow", "Late", "Paper", "Quiet", "Red"]
    moods += ["Second", "Silver", "Slow", "Strange", "Wild", "Winter"]
    table = pd.DataFrame(
        {
            "title": rng.permutation([f"{mood} {noun}" for mood in moods for noun in nouns]),
            "artist": rng.choice(["Mira Holt", "The Ferns", "DJ Oko", "Lumen", "Sal Ortega"], n),
            "genre": rng.choice(["rock", "pop", "jazz", "electronic"], n, p=[0.4, 0.3, 0.1, 0.2]),
            "year": rng.integers(1978, 2024, n),
            "plays": rng.integers(200, 900_000, n),
            "length_sec": rng.normal(215, 40, n).round(0),
            "explicit": rng.random(n) < 0.15,
        }
    )
    table.loc[table.index[::17], "length_sec"] = np.nan
    return table


def songs() -> Part:
    """Return questions about songs, as newcomers type them."""
    s = songs_table()
    asked = (
        ("how many songs r in there", number(len(s))),
        ("whats the longest song?", words(s.title[s.length_sec.idxmax()])),
        ("avrage length of the songs", number(s.length_sec.mean())),
        (
            "which artist got the most plays",
            one_of(s.groupby("artist").plays.sum().idxmax(), s.artist),
        ),
        ("how many songs from before 2000?", number(int((s.year < 2000).sum()))),
        ("show me the top 3 songs by plays", words(*s.nlargest(3, "plays").title)),
        ("wie viele Lieder sind explicit?", number(int(s.explicit.sum()))),
        ("is there any missing data?", number(int(s.isna().sum().sum()))),
        ("how many diffrent genres", number(4)),
        ("what percent of the songs is rock", number(100 * (s.genre == "rock").mean())),
    )
    return Part(name="tables-songs", questions=asked, variable="df", table=s)


def harvest() -> Part:
    """Return questions about a table with German columns, in two languages."""
    rng = np.random.default_rng(48)
    n = 90
    e = pd.DataFrame(
        {
            "Hof": rng.choice(["Sonnenhof", "Lindenhof", "Talmühle"], n, p=[0.5, 0.3, 0.2]),
            "Obst": rng.choice(["Apfel", "Birne", "Kirsche", "Pflaume"], n),
            "Jahr": rng.choice([2021, 2022, 2023], n),
            "Kilo": rng.integers(80, 2400, n),
            "Preis_pro_kg": rng.uniform(0.8, 4.5, n).round(2),
            "Bio": rng.random(n) < 0.4,
        }
    )
    e.loc[e.index[::11], "Preis_pro_kg"] = np.nan
    fruits, apples = e.groupby("Obst"), e[(e.Obst == "Apfel") & (e.Jahr == 2023)]
    asked = (
        ("Wie viele Zeilen hat die Tabelle?", number(n)),
        (
            "Welcher Hof hat am meisten geerntet?",
            one_of(e.groupby("Hof").Kilo.sum().idxmax(), e.Hof),
        ),
        ("Durchschnittspreis pro Obst", number(*fruits.Preis_pro_kg.mean())),
        ("was war die größte Ernte", number(int(e.Kilo.max()))),
        ("wieviel kilo Äpfel wurden 2023 geerntet?", number(int(apples.Kilo.sum()))),
        (
            "how much did Sonnenhof harvest in total?",
            number(int(e[e.Hof == "Sonnenhof"].Kilo.sum())),
        ),
        (
            "which fruit is the most expensive one on average?",
            one_of(fruits.Preis_pro_kg.mean().idxmax(), e.Obst),
        ),
        ("Gibt es fehlende Werte?", number(int(e.isna().sum().sum()))),
        ("how many kg were organic", number(int(e[e.Bio].Kilo.sum()))),
        ("what was the average price in 2022", number(e[e.Jahr == 2022].Preis_pro_kg.mean())),
    )
    return Part(name="tables-harvest", questions=asked, variable="ernte", table=e)


THESIS = {
    "notes.md": "# Thesis\n\nTopic: how readers rate short stories.\n\n"
    "- hand in on 30 September\n- supervisor is Dr. Amari\n- ask the library for volume 3\n",
    "params.json": '{\n  "learning_rate": 0.003,\n  "epochs": 12,\n  "seed": 7\n}\n',
    "analysis.py": "import csv\n\n\ndef clean_text(text):\n    return text.strip().lower()\n\n\n"
    'def load():\n    with open("data/stories.csv") as file:\n'
    "        return list(csv.DictReader(file))\n",
    "results.csv": "run,accuracy\n1,0.84\n2,0.91\n3,0.88\n",
    "einkauf.txt": "Milch\n6 Eier\nHafer\nBirnen\n",
    "rezept.md": "# Pfannkuchen\n\n- 400 g Mehl\n- 3 Eier\n- 0,5 l Milch\n\n"
    "Alles verrühren, 20 Minuten ruhen lassen.\n",
    "data/stories.csv": "id,words,rating\n1,1200,4\n2,950,3\n",
}


def thesis() -> Part:
    """Return questions about a student's files, as newcomers type them."""
    asked = (
        ("what files do i have here", words("notes.md", "analysis.py", "rezept.md")),
        ("Was steht in einkauf.txt?", words("Milch", "Eier", "Hafer", "Birnen")),
        ("which learning rate is used in params.json", number(0.003)),
        ("wie viel Mehl brauche ich laut rezept.md", number(400)),
        ("when do i have to hand in the thesis? its in notes.md", words("30 September")),
        ("how many lines of code is analysis.py", lambda text: number(10)(text) or number(6)(text)),
        ("whats in the data folder", words("stories.csv")),
        ("where is the function clean_text defined", words("analysis.py")),
        ("summarise notes.md pls", words("stories", "30 September")),
        ("What's the best accuracy in results.csv?", number(0.91)),
    )
    return Part(name="files-thesis", questions=asked, files=THESIS)


def newcomers_unknown() -> Part:
    """Return questions without an answer, as newcomers type them."""
    asked = (
        "which song is the saddest",
        "who produced the song with the most plays",
        "avg tempo by genre",
        "Welches Lied gefällt den Kindern am besten?",
        "how many songs are in spanish?",
        "wie hoch ist die Miete laut notes.md?",
        "what batch size is used in params.json",
        "what does train.py do",
        "what's the weather like in Berlin rn",
        "what's in the variable result",
    )
    return Part(
        name="unknown-newcomers",
        questions=tuple((text, admitted) for text in asked),
        variable="df",
        table=songs_table(),
        files=THESIS,
    )


TUNED = (penguins, orders, rides, notes, unknown, talk)
ASIDE = (flights, patients, project, unanswerable)
NEWCOMERS = (songs, harvest, thesis, newcomers_unknown)
SETS = {"tuned": TUNED, "aside": ASIDE, "newcomers": NEWCOMERS}
