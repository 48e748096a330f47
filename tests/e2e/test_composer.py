"""The composer at the foot of the panel, used as its user does: by clicks and by keys."""

from __future__ import annotations

import threading

import pytest

from tests.e2e.harness import HELD
from tests.e2e.looking import THEMES, in_theme, untidy, violations
from tests.e2e.side import BOTH, STAGE
from tests.e2e.test_approval import ASK, prepare, python
from tests.e2e.test_panel_actions import store
from tests.loopback import Reply, chunk, event, stream, text_chunks, tool_chunks
from tests.skills.support import put, text

COMPOSER = ".hermes-composer"
ANSWERS = f"{COMPOSER} > * > details"
FORM = f"{COMPOSER} > .hermes-foot"
OTHERS = (
    "fallback_providers:\n"
    "  - {{model: other-model, base_url: '{url}'}}\n"
    "  - {{model: elsewhere, base_url: 'http://127.0.0.1:9/v1'}}\n"
)
LONG = "Plot the yield per week of @df, one line per plot, and compare it. " * 30


def answer(side, text):
    """The answer to the prompt of this text."""
    page = side.notebook.page
    return page.locator(ANSWERS).filter(has=page.locator("summary", has_text=text))


def write(side, prompt):
    """Type a prompt, or paste a long one: 2,000 keys take 10 s."""
    side.field("Ask Hermes").click()
    keyboard = side.notebook.page.keyboard
    (keyboard.type if len(prompt) < 200 else keyboard.insert_text)(prompt)


def ask(side, prompt):
    """Type a prompt and ask."""
    write(side, prompt)
    side.press("Ask")


def gated(gate):
    """Return a reply whose end comes when the gate is opened."""
    begin = event(chunk({"content": "Let me **see**. "}))
    return Reply([begin, lambda _: gate.wait(30), *stream(text_chunks("Seen.")).steps])


def prompts(side):
    """Return what the user said in all the requests, the last of each."""
    return [body["messages"][-1]["content"] for body in side.model.bodies]


@BOTH
def test_a_prompt_needs_no_cell_and_is_a_turn_like_others(side):
    notebook, page = side.notebook, side.notebook.page
    side.fresh()
    side.open()
    before = notebook.sources()
    notebook.evaluate("(nb.content.activeCellIndex = 1)")
    side.plays(stream(tool_chunks(("insert_cell", {"source": "z = 12"}))), "It is **twelve**.")
    write(side, "how many?")
    page.evaluate(
        """() => { document.querySelectorAll('.hermes-composer button').forEach(b => b.click());
        const keys = { key: 'Enter', ctrlKey: true, bubbles: true };
        const area = document.querySelector('.hermes-composer textarea');
        area.dispatchEvent(new KeyboardEvent('keydown', keys)); }"""
    )
    page.wait_for_timeout(500)
    assert not side.model.bodies  # no hand's
    assert notebook.sources() == before
    side.keys("Escape", "Control+Enter")
    page.locator(f"{ANSWERS} {ASK}").wait_for()  # the question is below its answer, only there
    assert page.locator(ASK).count() == 1
    side.press("Add")
    answer(side, "how many?").locator("strong", has_text="twelve").wait_for()
    assert "Cells above, the last one is selected:" in prompts(side)[0]
    assert notebook.sources() == [before[0], "z = 12", *before[1:]]
    assert side.field("Ask Hermes").input_value() == ""
    (session,) = store(side).sessions()
    assert [m.role for m in store(side).messages(session.id)] == [
        *("user", "assistant", "tool", "assistant")
    ]
    page.locator(f"{ANSWERS} summary > code[title]").click()  # its way back
    notebook.until(lambda: notebook.sources() == before)
    toast, foot = page.locator(".Toastify__toast"), page.locator(FORM)
    toast.wait_for()
    notebook.shot(f"composer-toast-{notebook.server.app}")
    told, form = toast.bounding_box(), foot.bounding_box()
    assert told["x"] + told["width"] < form["x"]  # what tells of it covers no button
    # As a cell, with a mode and a model: behind the active one.
    side.plays("Ten.")
    write(side, "as a cell, please")
    side.press("as a cell")
    notebook.until(lambda: "Ten." in str(notebook.outputs(2)))
    assert notebook.sources()[1] == "%%hermes\nas a cell, please"
    notebook.evaluate("m.deleteCell(2)")


@BOTH
def test_a_prompt_that_starts_with_a_skills_name_is_sent_with_the_skill(side):
    side.fresh()
    side.open()
    put(
        side.home / "skills", "moorings", text("moorings", "Checks moorings.", "Count the ropes.\n")
    )
    side.plays("Seven ropes.")
    ask(side, "/moorings of the pier")
    answer(side, "/moorings").get_by_text("Seven ropes.").wait_for()
    assert "Count the ropes." in str(prompts(side)[0])


@BOTH
def test_prompts_queue_and_a_stop_gives_back_what_was_not_asked(side):
    side.fresh()
    side.open()
    gate = threading.Event()
    side.plays(gated(gate), "A table.")
    ask(side, "one form")
    answer(side, "one form").locator("strong").wait_for()
    write(side, "then a table")
    side.press("After this")
    waiting = answer(side, "then a table")
    waiting.get_by_text("waiting for").wait_for(state="attached")
    mark = "e => getComputedStyle(e, '::before').content"
    assert waiting.locator("summary").evaluate(mark) == '"queued: "'
    assert len(prompts(side)) == 1
    assert side.notebook.kernel("print(6 * 7)") == "42\n"  # cells run meanwhile
    gate.set()
    waiting.get_by_text("A table.").wait_for()
    assert answer(side, "one form").get_by_text("Seen.").is_visible()
    gate.clear()
    side.plays(gated(gate))
    ask(side, "again")
    answer(side, "again").locator("strong").wait_for()
    write(side, "and then?")
    side.press("After this")
    answer(side, "and then?").get_by_text("waiting for").wait_for(state="attached")
    write(side, "half a thought")
    side.press("■ Stop")
    answer(side, "again").get_by_text("Stopped").wait_for()
    gate.set()
    written = side.field("Ask Hermes")
    side.notebook.until(lambda: written.input_value() == "half a thought\n\nand then?")
    assert not answer(side, "and then?").count()
    assert len(prompts(side)) == 1


@BOTH
def test_mode_and_model_are_those_of_the_kernel_until_others_are_chosen(side):
    notebook = side.notebook
    side.fresh(config=OTHERS.format(url=side.model.url))
    side.open()
    mode, model = (side.panel.get_by_label(name, exact=True) for name in ("approve", "model"))
    notebook.until(lambda: model.locator("option").count() == 2)
    assert mode.locator("option").all_text_contents() == [
        *("approve: ask", "ask", "edits", "all", "never")
    ]
    notebook.kernel("%hermes approve never")
    notebook.until(lambda: "approve: never" in mode.locator("option").all_text_contents())
    notebook.kernel("%hermes approve ask\nimport hermes_nb.notebook.approval as approval")
    notebook.kernel("ceiling, approval.CEILING = approval.CEILING, None")
    run = stream(tool_chunks(("run_python", {"code": "y = 6 * 7"})))
    side.plays(run, "Done.", "Sure.")
    mode.select_option("all")
    model.select_option("other-model")
    write(side, "compute")
    side.press("Ask")
    # A mode is not raised by the page: the notebook is asked about once, as by a cell.
    side.see("wants to let Hermes run and change anything without asking")
    side.press("Allow for this notebook")
    notebook.kernel("approval.CEILING = ceiling")
    answer(side, "compute").get_by_text("Done.").wait_for()
    assert side.model.bodies[-1]["model"] == "other-model"
    notebook.until(lambda: "model: other-model" in model.locator("option").all_text_contents())
    assert model.input_value() == ""
    assert mode.input_value() == "all"
    assert notebook.value("y") == 42


@BOTH
def test_ask_about_a_cell_opens_the_panel_and_names_it_by_keys_alone(open_notebook, server, model):
    notebook = open_notebook("x = 41", {"cell_type": "markdown", "source": "# Data", "id": "head"})
    page = notebook.page
    prepare(notebook, model)
    notebook.run(1)
    number = notebook.evaluate("m.cells[1].execution_count")
    notebook.evaluate("(nb.content.activeCellIndex = 1)")
    notebook.command("hermes-nb:about")  # no hand's
    page.wait_for_timeout(500)
    assert not page.locator(COMPOSER).count()
    notebook.evaluate("nb.content.activate()")
    page.keyboard.press("Control+Alt+Enter", delay=HELD)
    written = page.get_by_label("Ask Hermes")
    notebook.until(lambda: written.count() and written.input_value() == f"@cell:{number} ")
    assert written.evaluate("e => e === document.activeElement")
    page.keyboard.type("what is it?")
    page.keyboard.press("Control+Enter")
    page.locator(ANSWERS).get_by_text("Done.").wait_for()
    assert "x = 41" in str(model.bodies[-1]["messages"][-1]["content"])
    page.locator(".jp-MarkdownCell").click(button="right")
    page.get_by_role("menuitem", name="Ask about this cell…").click()
    notebook.until(lambda: written.input_value() == "@cell:head ")
    notebook.shot(f"composer-about-{server.app}")
    for label in ("approve", "model", "as a cell", "After this", "■ Stop", "Ask"):
        page.keyboard.press("Tab")
        shown = "document.activeElement.title || document.activeElement.textContent"
        assert page.evaluate(shown) == label


@pytest.mark.parametrize("server", ["lab"], indirect=True)
def test_the_composer_can_be_read_in_both_themes_and_in_a_narrow_side(side):
    side.fresh(config=OTHERS.format(url=side.model.url))
    side.open()
    side.plays("| plot | kg |\n|---|---:|\n| south | 12 |\n\n" + "It grows. " * 200)
    ask(side, LONG)
    answer(side, "Plot the yield").get_by_text("It grows.").first.wait_for()
    gate = threading.Event()
    side.plays(gated(gate))
    ask(side, "Which week?")
    answer(side, "Which week?").locator("strong").wait_for()
    write(side, "and then the next one")
    side.press("After this")
    write(side, LONG)
    page = side.notebook.page
    for theme in THEMES:
        in_theme(side.notebook, theme)
        side.notebook.shot(f"looks-composer-{theme}")
        assert violations(page.locator(COMPOSER)) == []
        for width in (240, 300):
            assert untidy(page.locator(FORM), width) == []
    in_theme(side.notebook, "light")
    gate.set()
    answer(side, "and then the next one").get_by_text("Seen.").wait_for()
    whole, foot = side.panel.bounding_box(), page.locator(FORM).bounding_box()
    assert foot["height"] < 0.8 * whole["height"]


OUT_OF_REACH = """box => [...box.querySelectorAll('button')].filter(each => {
  const { left, right, top, bottom } = each.getBoundingClientRect();
  return document.elementFromPoint((left + right) / 2, (top + bottom) / 2) !== each
    && !each.matches('.hermes-link');
}).map(each => each.innerText)"""


@pytest.mark.parametrize("height", [900, 480])
def test_the_buttons_of_a_long_question_are_in_sight(side, height):
    page = side.notebook.page
    side.fresh()
    side.open()
    page.set_viewport_size({"width": 1280, "height": height})
    side.panel.get_by_label("approve", exact=True).select_option(
        "ask"
    )  # another test has chosen "all"
    side.field("Ask Hermes").fill("")
    box = side.panel.locator(ASK)
    for lines in (5, 14, 60):
        code = "\n".join(f"value_{n} = sum(range({n}))" for n in range(lines))
        side.plays(stream(tool_chunks(python(code))), "Done.")
        ask(side, f"run {lines} lines in {height}")
        box.locator("button", has_text="Deny").wait_for()
        side.notebook.until(lambda: box.evaluate(OUT_OF_REACH) == [], timeout=10)
        if lines > 14:
            last = box.locator(".hermes-code > :last-child")
            last.scroll_into_view_if_needed()
            assert last.inner_text() == code.splitlines()[-1]
            assert box.evaluate(OUT_OF_REACH) == []
            for theme in ("dark", "light"):
                in_theme(side.notebook, theme)
                side.notebook.shot(f"question-in-panel-{height}-{theme}")
        box.locator("button", has_text="Run once").click()
        box.wait_for(state="detached")
        answer(side, f"run {lines} lines in {height}").get_by_text("Done.").wait_for()
    page.set_viewport_size({"width": 1280, "height": 900})


@BOTH
def test_a_message_steers_the_running_turn(side):
    page = side.notebook.page
    side.fresh()
    side.open()
    gate = threading.Event()
    side.plays(gated(gate), "With **tea**.")
    ask(side, "look here")
    answer(side, "look here").locator("strong", has_text="see").wait_for()
    ask(side, "and with tea")
    page.get_by_text("Hermes reads this before its next request.").first.wait_for()
    assert side.field("Ask Hermes").input_value() == ""
    gate.set()
    answer(side, "look here").locator("strong", has_text="tea").wait_for()
    assert prompts(side)[-1].endswith("and with tea")
    assert len(prompts(side)) == 2


@BOTH
def test_the_cell_of_a_turn_can_be_released_and_the_turn_stopped(side):
    notebook, page = side.notebook, side.notebook.page
    side.fresh()
    gate = threading.Event()
    side.plays(gated(gate), "Never.")
    side.stage("tell me")
    notebook.start(STAGE)
    page.locator(".jp-Cell strong", has_text="see").wait_for()
    page.get_by_role("button", name="Continue in background").click()
    notebook.finish(STAGE)
    assert notebook.kernel("print(6 * 7)") == "42\n"
    notebook.until(lambda: page.locator(".hermes-stop button").count() == 1)
    page.locator(".hermes-stop button", has_text="Stop").click()
    page.locator(".jp-Cell").get_by_text("Stopped.").wait_for()
    gate.set()
    notebook.until(lambda: not page.locator(".hermes-stop").count())
