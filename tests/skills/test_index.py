from __future__ import annotations

import pytest
from hermes_nb.core.text import CHARACTERS_PER_TOKEN
from hermes_nb.skills.library import Library
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.skills.support import put, text


@pytest.fixture
def root(tmp_path):
    return tmp_path / "skills"


def test_the_index_is_grouped_and_short(root):
    put(root, "draw", text("draw", "word " * 60), category="data")
    put(root, "letters", text("letters", "Writes."))
    lines = Library([root]).index().splitlines()
    assert lines[1:] == ["general:", "- letters: Writes.", "data:", lines[-1]]
    assert lines[-1].startswith("- draw: word word")
    assert len(lines[-1]) <= len("- draw: ") + 60


def test_nothing_hidden_reaches_the_prompt(root):
    put(root, "draw", text("draw", '"plots\\u202e\\u0007 things"'))
    index = Library([root]).index()
    assert "\\u202e" in index
    assert "\u202e" not in index


def test_equal_skills_give_equal_bytes(root):
    for name in ("b", "a", "c"):
        put(root, name, category="x" if name == "a" else "")
    assert Library([root]).index() == Library([root]).index()


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
