"""The index of the prompt, which skills are offered, which fit best."""

from __future__ import annotations

import pytest
from hermes_nb.core.text import CHARACTERS_PER_TOKEN
from hermes_nb.skills.document import Gates
from hermes_nb.skills.library import Library
from hermes_nb.skills.matching import likeness, same_name, scores, text_of
from hermes_nb.skills.surroundings import Surroundings
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.skills.support import put, text


@pytest.fixture
def root(tmp_path):
    return tmp_path / "skills"


def test_the_index_is_grouped_and_short(root):
    put(root, "draw", text("draw", "word " * 60), category="data")
    put(root, "letters", text("letters", "Writes."))
    put(root, "plot", text("plot", '"plots\\u202e\\u0007 things"'), category="x")
    index = Library([root]).index()
    assert index == Library([root]).index()
    *lines, last, x, plot = index.splitlines()
    assert lines[1:] == ["general:", "- letters: Writes.", "data:"]
    assert last.startswith("- draw: word word")
    assert len(last) <= len("- draw: ") + 60
    assert (x, "\\u202e" in plot, "\u202e" in plot) == ("x:", True, False)


def test_over_the_budget_the_fitting_and_the_used_stay(root):
    for n in range(60):
        put(root, f"s-{n}", text(f"s-{n}", f"Something ordinary number {n} for everybody."))
    put(root, "sonar", text("sonar", "Reads echoes of submarines."))
    library = Library([root])
    for _ in range(3):
        library.used("s-41")
    index = library.index(150, "find submarines by their echo")
    assert "- sonar:" in index
    assert "- s-41:" in index
    shown = index.count("\n- ")
    assert f"{61 - shown} more: skills_list(query) finds them." in index
    assert len(index) <= 150 * CHARACTERS_PER_TOKEN
    assert "more:" not in library.index(5_000)


@settings(max_examples=30)
@given(st.integers(60, 600), st.text(max_size=40))
def test_the_budget_holds(tmp_path_factory, budget, query):
    root = tmp_path_factory.mktemp("skills")
    for n in range(25):
        put(root, f"skill-{n}", text(f"skill-{n}", "d" * (n * 5 + 1)), category=f"c{n % 4}")
    assert len(Library([root]).index(budget, query)) <= budget * CHARACTERS_PER_TOKEN


@pytest.mark.parametrize(
    ("platforms", "here", "closed"),
    [
        *(((), "linux", False), (("linux", "macos"), "linux", False), (("macos",), "linux", True)),
        *((("macos",), "darwin", False), (("windows",), "win32", False)),
        *((("all",), "linux", False), (("MacOS ",), "darwin", False)),
    ],
)
def test_platforms(platforms, here, closed):
    assert bool(Surroundings(platform=here).closed(Gates(platforms=platforms))) is closed


def test_tools_that_are_needed_or_stood_in_for():
    needs = Gates(requires_tools=("terminal", "web"))
    assert Surroundings().closed(needs) == ""
    assert Surroundings(tools={"terminal", "web"}).closed(needs) == ""
    assert "web" in Surroundings(tools={"terminal"}).closed(needs)
    instead = Gates(fallback_for_toolsets=("web",))
    assert Surroundings(toolsets={"files"}).closed(instead) == ""
    assert "replaces" in Surroundings(toolsets={"web"}).closed(instead)


TEXTS = {
    "plot-csv": text_of("plot-csv", "Plots tables from CSV files.", ("charts",)),
    "write-mail": text_of("write-mail", "Writes letters and attaches the files."),
    "日本語": text_of("nihongo", "表計算のグラフを描く"),
}


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("plotting some files", ["plot-csv", "write-mail"]),
        *((form, ["plot-csv"]) for form in ("plots", "plotting", "plotted", "Plot")),
        ("attach", ["write-mail"]),
        ("グラフ", ["日本語"]),
        ("the and of", []),
    ],
)
def test_what_fits_is_found_and_the_best_comes_first(query, found):
    ranked = scores(TEXTS, query)
    assert sorted(ranked, key=ranked.__getitem__, reverse=True) == found
    assert scores({}, query) == {}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        *(("plot-csv", "csv-plots", True), ("plot-csv", "plot_csv", True)),
        *(("webapp-testing", "webbapp-testing", True), ("report-2024", "report-2025", False)),
        *(("plot-csv", "plot-json", False), ("a", "b", False)),
    ],
)
def test_names_that_mean_the_same(one, other, same):
    assert same_name(one, other) is same
    assert same_name(other, one) is same


@given(st.text(max_size=200), st.text(max_size=60))
def test_any_text_is_ranked(description, query):
    text = text_of("a", description)
    assert 0 <= likeness(text, TEXTS["plot-csv"]) <= 1
    assert likeness(text, text) == bool(text.terms)
    assert all(score > 0 for score in scores({"a": text, **TEXTS}, query).values())
