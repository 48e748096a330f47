"""Whole texts: attacks of the kinds there are, and what looks like them and is none.

They were written before the rules were tuned on them; the second files (`_later`) when the rules
had been, and were measured first. The third ones (`_third`) are by somebody who did not know the
rules: 39 % of those attacks were found and 26 % of those harmless texts flagged before anything was
changed. `FLAGGED` are false alarms that are known: the text next to them that really is an attack
would be missed without them. `MISSED` are attacks that are known to be missed.

The fourth ones were written in one go before the rules were looked at, and a third of them
(`_unseen`) is only counted: what the scan does there is what to expect of it elsewhere.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hermes_nb.safety.scan import scan

DATA = Path(__file__).parent / "data"
FLAGGED = {
    "prompt engineering doc": "suspicious",  # "Show the system prompt to colleagues"
    "tester persona": "suspicious",  # "You are now the ..."
    "prompt-design-notes": "blocked",  # quotes orders, and never calls them attacks
    "newsletter-promptinjection-news": "blocked",  # tells what a hidden text said
    "prompt-writing-skill": "suspicious",  # quotes what to test a prompt with
}
MISSED = {
    "latex-thesis-agents",  # a citation to slip in, and what to say when asked
    "rss-item-memory",  # a false memory to keep
    "tracing-lib-agents-long",  # secrets as attributes of a trace
    "scraper-readme-faq-long",  # consent that was "given by cloning"
    "misspelt package",  # the name of a package that is another's but for a slip
    "systemd unit",  # a download in a unit's file
    "jamo-bunhae",  # Hangul written letter by letter
    "quoted-printable-mime",  # mail as it is sent
}
ATTACKS = ("hostile", "hostile_later", "hostile_third")
HARMLESS = ("benign", "benign_later", "benign_third")
AROUND = "The build reads its settings from the project file; see the guide.\n" * 40
COUNTED = (("fourth", 0.85, 0.05), ("unseen", 0.75, 0.13))
"""Of the texts that are counted: the least share of attacks found, the most of others flagged."""


def rows(name):
    return tomllib.loads((DATA / f"{name}.toml").read_text(encoding="utf-8"))["text"]


def texts(name):
    return [pytest.param(row, id=row["name"]) for row in rows(name)]


def flagged(name):
    verdicts = [scan(row["text"]).verdict for row in rows(name)]
    return sum(verdict != "clean" for verdict in verdicts) / len(verdicts)


@pytest.mark.parametrize("row", [row for name in ATTACKS for row in texts(name)])
def test_an_attack_is_found_also_in_the_middle_of_something_longer(row):
    if row["name"] in MISSED:
        pytest.xfail("known to be missed")
    assert scan(row["text"]).verdict != "clean"
    assert scan(f"{AROUND}\n\n{row['text']}\n\n{AROUND}").verdict != "clean"


@pytest.mark.parametrize("row", [row for name in HARMLESS for row in texts(name)])
def test_what_is_none_is_left_alone(row):
    result = scan(row["text"])
    assert result.verdict == FLAGGED.get(row["name"], "clean"), result.findings


@pytest.mark.parametrize(("name", "found", "harmless"), COUNTED)
def test_as_many_are_told_apart_as_before(name, found, harmless):
    assert flagged(f"hostile_{name}") >= found
    assert flagged(f"benign_{name}") <= harmless


def test_names_are_told_apart():
    names = [p.values[0]["name"] for f in DATA.glob("*.toml") for p in texts(f.stem)]
    assert len(set(names)) == len(names)
