"""How everything looks, in both themes: nothing empty or cut off, all of it readable."""

from __future__ import annotations

from hermes_nb.core.messages import Message

from tests.e2e.looking import THEMES, in_theme, inked, untidy, violations
from tests.e2e.side import BOTH, skill
from tests.e2e.test_approval import shown
from tests.e2e.test_panel_actions import propose_note, propose_skill, reported, store
from tests.loopback import Reply, chunk, event, failure, stall, stream, tool_chunks

WIDTHS = (240, 320)
"""Pixels that a side may be narrowed to."""
UNBROKEN = "a_name_without_any_place_to_break_it_" * 5
TO_THE_LEFT = "משקל הפינגווינים `body_mass_g` נמדד בגרמים، ووزن البطريق 5,076 غراما."
LONG = (
    "Data lives in `data/`; raw files are never edited.",
    UNBROKEN,
    "The export of 2024 has `bill_length_mm` in cm: multiply by ten before it is compared. " * 3,
    TO_THE_LEFT,
    *(f"Fact number {n} of many." for n in range(25)),
)
NAME = "a-skill-whose-name-is-as-long-as-a-name-may-be-and-then-ends"
FACT = "Gentoo penguins are the heaviest of the three species. "
ANSWER = """**Gentoo** is the heaviest species; the gap to the others is larger than $2\\sigma$.

| species | n | mean g | sd |
|---|---:|---:|---:|
| Gentoo | 123 | 5,076 | 504 |
| Chinstrap | 68 | 3,733 | 384 |
| Adelie | 151 | 3,701 | 459 |

Cell 5 scaled the bill length *after* dropping gaps; I swapped the two steps."""
VIEW = ".jp-Cell-outputArea:has-text('loopback ·')"
CODE = "sum(n for n in range(10))"

LONG_CODE = (
    "run_python",
    {
        "code": """import pandas as pd  # reads the export
@staticmethod
def kilograms(text: str, count=3, known=None) -> float:
    '''Return a weight.'''
    return float(text.replace(",", ".")) * len(text) + 0x1F
"""
        + "print('a line that nobody reads', 1)\n" * 120
        + "print('the last one')"
    },
)


def fill(side):
    """Put more into a home than fits, in long words and in both directions."""
    side.fresh(notes=LONG)
    for n in range(996):
        skill(side.home / "skills" / f"category-{n % 7}", f"skill-{n:04}", f"Number {n} of many")
    skill(side.home / "skills" / "a-first", NAME, UNBROKEN)
    skill(side.home / "skills" / "a-first", "to-the-left", TO_THE_LEFT)
    skill(side.home / "skills" / ("long-" * 12 + "category"), "in-a-long-category", FACT * 4)
    skill(side.work / "skills", "of-the-project", UNBROKEN)
    skill(side.home / "skills", "without-sense").write_text(f"{UNBROKEN}\n", encoding="utf-8")
    propose_note(side, LONG[0])
    propose_note(side, UNBROKEN + TO_THE_LEFT)
    propose_skill(side, NAME.replace("skill", "thing"))
    notebook = str(side.notebook.server.root / side.notebook.name)
    sessions = store(side)
    for n in range(25):
        title = (UNBROKEN, TO_THE_LEFT, f"session number {n}")[min(n % 9, 2)]
        made = sessions.start(title=title, notebook=notebook)
        sessions.append(made, Message.user(f"Which flipper? {UNBROKEN} {TO_THE_LEFT}"))
    sessions.close()


def fine(side, what):
    """The tab in sight fits into any side, shows something, and can be read, in both themes."""
    for theme in THEMES:
        in_theme(side.notebook, theme)
        side.notebook.shot(f"looks-{what}-{theme}-{side.notebook.server.app}")
        for width in WIDTHS:
            assert untidy(side.content, width) == [], f"{what} in {theme} at {width} px"
        assert inked(side.panel) > 0.03, f"{what} in {theme} is blank"
        assert violations(side.panel) == [], f"{what} in {theme}"


def page_on(side, last, count):
    """Turn a page of a list, to the one that ends with the `last` of `count`, and back again."""
    side.see(f"1–20 of {count}")
    side.press("more ›")
    side.see(f"21–{last} of {count}")
    side.press("‹ back")
    side.see(f"1–20 of {count}")


@BOTH
def test_tabs_with_much_in_them_fit_and_can_be_read_in_both_themes(side):
    fill(side)
    side.open("memory")
    side.press("approve", "raw files")
    side.panel.get_by_role("alert").wait_for()
    side.see("It could not be saved")
    page_on(side, 29, "29")
    side.press("edit", "before it is compared")
    fine(side, "memory")
    side.tab("Skills")
    page_on(side, 40, "1,0")
    side.press("review", "of-the-project")
    side.see("Trust this version")
    fine(side, "skills")
    side.tab("Context")
    for n in range(4):
        side.ask(f"{UNBROKEN} {n}", reported(f"{n}. " + FACT * 200, 9_000 * (n + 1), 9_000 * n))
    side.see("compresses at")
    side.plays(f"## Goal\nFour questions were answered. {UNBROKEN} {TO_THE_LEFT}")
    side.press("Compress now")
    side.press("summary", "Compressed at turn")
    side.see("Four questions were answered.")
    fine(side, "context")
    side.tab("Session")
    page_on(side, 25, "25")
    fine(side, "session")
    side.field("Search all sessions").fill("flipper")
    side.see("Found")
    fine(side, "found")
    in_theme(side.notebook, "light")


def test_a_turn_from_its_beginning_to_every_end(side):
    calls = [("run_python", {"code": CODE}), ("run_python", {"code": "1 / 0"})]
    called = [stream(tool_chunks(call)) for call in calls]
    notebook = side.notebook
    side.fresh()
    side.plays(*called, Reply([event(chunk({"content": ANSWER[:80]})), stall]))
    side.stage("Which species is the heaviest?", "--approve all")
    notebook.start(2)
    notebook.page.wait_for_selector(".jp-RenderedMarkdown strong:has-text('Gentoo')")
    notebook.page.wait_for_selector("text=running")
    for theme in THEMES:
        in_theme(notebook, theme)
        notebook.shot(f"looks-running-{theme}")
        assert violations(notebook.page.locator(VIEW)) == []
    notebook.command("notebook:interrupt-kernel")
    assert "Stopped" in shown(notebook.finish(2))
    notebook.shot("looks-stopped")
    side.plays(*called, ANSWER)
    notebook.run(2)
    for theme in THEMES:
        in_theme(notebook, theme)
        notebook.shot(f"looks-finished-{theme}")
        notebook.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = 1; })")
        notebook.shot(f"looks-unfolded-{theme}")
        assert violations(notebook.page.locator(VIEW)) == []
        notebook.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = 0; })")
    in_theme(notebook, "light")
    side.plays(failure(404, {"error": {"message": "no such model"}}))
    assert [o for o in notebook.run(2) if o["output_type"] == "error"]
    notebook.shot("looks-failed")


def test_a_question_can_be_read_in_both_themes(side):
    side.fresh()
    change = {"path": "notes.md", "content": "# Penguins\n\nGentoo.\n"}
    side.plays(*(stream(tool_chunks(c)) for c in (("write_file", change), LONG_CODE)), "Done.")
    side.stage("write it down")
    side.notebook.start(2)
    box = side.notebook.page.locator(".hermes-ask")
    for first in ("Apply", "Run once"):
        box.get_by_role("button", name=first).wait_for()
        for theme in THEMES:
            in_theme(side.notebook, theme)
            side.notebook.shot(f"looks-approval-{first.split()[-1].lower()}-{theme}")
            assert violations(box) == []
        box.get_by_role("button", name="Deny").click()
        side.keys("Enter")
    in_theme(side.notebook, "light")
    side.notebook.finish(2)
    assert not (side.work / "notes.md").exists()
