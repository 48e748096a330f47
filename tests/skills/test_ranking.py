from __future__ import annotations

import pytest
from hermes_nb.skills.ranking import likeness, same_name, scores, stems, text_of
from hypothesis import given
from hypothesis import strategies as st

TEXTS = {
    "plot-csv": text_of("plot-csv", "Plots tables from CSV files.", ("charts",)),
    "write-mail": text_of("write-mail", "Writes letters; attaches files."),
    "日本語": text_of("nihongo", "表計算のグラフを描く"),
}


@pytest.mark.parametrize("word", ["plots", "plotting", "plotted", "Plot", "plot"])
def test_forms_of_a_word_are_one(word):
    assert stems(word) == ["plot"]


def test_what_fits_best_comes_first():
    found = scores(TEXTS, "plotting some files")
    assert max(found, key=found.__getitem__) == "plot-csv"
    assert set(found) == {"plot-csv", "write-mail"}


def test_beginnings_and_wide_scripts_are_found():
    assert list(scores(TEXTS, "attach")) == ["write-mail"]
    assert list(scores(TEXTS, "グラフ")) == ["日本語"]
    assert scores(TEXTS, "the and of") == {}
    assert scores({}, "plot") == {}


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
