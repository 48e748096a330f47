"""The first page of the Skills tab before the library has been read."""

from __future__ import annotations

import time

import pytest
from hermes_nb.notebook.panels.parts import PAGE
from hermes_nb.notebook.panels.skills_glance import drawn, glimpses
from hermes_nb.skills.discovery import Root
from hermes_nb.skills.library import Library
from hypothesis import given
from hypothesis import strategies as st

from tests.notebook.panels.test_panels import HOSTILE, KEY, desk, played

__all__ = ["desk"]
SKILL = "---\nname: {name}\ndescription: {about}\n---\n\nDo it.\n"


def skill(root, folder, name="", about="What it is good for"):
    """Write a skill and return its folder."""
    place = root / folder
    place.mkdir(parents=True)
    text = SKILL.format(name=name or place.name, about=about)
    (place / "SKILL.md").write_text(text, encoding="utf-8")
    return place


def test_it_is_what_the_library_lists_first(tmp_path):
    home, site = tmp_path / "home", tmp_path / "site"
    for n in range(30):
        skill(home, f"group-{n % 7}/skill-{n:02}")
        skill(site, f"group-{n % 5}/site-{n:02}")
    skill(home, "alone")
    skill(site, "group-0/skill-00", about="comes second")
    roots = [Root(home, "home"), Root(site, "external")]
    first = glimpses(roots, PAGE)
    listed = Library(roots).list(all_of_them=True)[:PAGE]
    assert [(g.category, g.name, g.root.source) for g in first] == [
        (s.category, s.name, s.source) for s in listed
    ]
    assert "comes second" not in drawn(first)


def test_what_cannot_be_shown_is_left_to_the_library(tmp_path):
    skill(tmp_path, "data/good")
    skill(tmp_path, "data/empty", about="")
    (skill(tmp_path, "data/binary") / "SKILL.md").write_bytes(b"\0\0")
    (tmp_path / "data" / "pipe").mkdir()
    (tmp_path / "data" / "linked").symlink_to(tmp_path / "data" / "good")
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "a-file").write_text("x", encoding="utf-8")
    project = Root(tmp_path, "workdir")
    assert [each.name for each in glimpses([Root(tmp_path, "home")], 9)] == ["good"]
    assert glimpses([project, Root(tmp_path / "absent", "home")], 9) == []


@given(st.text(max_size=200), st.text(max_size=60))
def test_nothing_of_it_is_obeyed(description, category):
    made = glimpse_of(description, category)
    assert "<img" not in made and "onerror=alert" not in made.replace("onerror=alert(1)&", "")
    assert made.count("<div") == made.count("</div>")


def glimpse_of(description, category):
    from hermes_nb.notebook.panels.skills_glance import Glimpse

    root = Root("/", "home")
    each = Glimpse(name="x", category=category, description=f"{HOSTILE}{description}", root=root)
    return drawn([each])


def test_a_secret_in_it_is_not_shown():
    assert KEY not in glimpse_of(f" the key is {KEY}", "")


@played
async def test_a_first_page_stands_while_the_library_is_read(desk):
    for n in range(PAGE + 5):
        desk.skill(f"skill-{n:02}", about=f"Number {n}", category=f"group-{n % 3}")
    await desk.open("memory")
    tab = desk.panel.tabs[1]
    seen = []
    tab._first.observe(lambda change: seen.append(change["new"]), names="value")
    desk.panel.select("skills")
    await desk.panel.settled()
    assert "skill-00" in seen[0] and "Number 0" in seen[0] and "being read" in seen[0]
    assert seen[-1] == ""
    assert len(desk.buttons("skill-00")) == 1
    desk.panel.refresh()
    await desk.panel.settled()
    assert len(seen) == 2, "once the library was read, it is not done again"


@played
async def test_a_page_of_skills_has_no_first_look_of_its_own(desk):
    desk.skill("penguin-units")
    await desk.open("skills")
    assert desk.panel.tab._first.value == ""
    assert desk.buttons("penguin-units")


@pytest.mark.slow
def test_a_thousand_skills_cost_little_more_than_a_page_of_them(tmp_path):
    """CPU of the thread that reads: all of them take some 700 ms."""
    for n in range(1_000):
        skill(tmp_path, f"group-{n % 20:02}/skill-{n:04}")
    roots = [Root(tmp_path, "home")]
    glimpses(roots, 1)  # which imports and compiles what reading one takes
    began = time.thread_time()
    first = drawn(glimpses(roots, PAGE))
    took = time.thread_time() - began
    print(f"\nthe first rows of a thousand take {took * 1000:.0f} ms of CPU")
    assert first.count("hermes-row") == PAGE
    assert took < 0.1
