"""Every action of the panel's four tabs, clicked in both applications.

What an action did is read from the home, where another process would find it: the memory files,
the skills' folder and ledger, what waits for approval, the sessions' database; and from what the
model is sent next.
"""

from __future__ import annotations

import threading

from hermes_nb.agent.proposals import MemoryWrite, Pending, SkillWrite
from hermes_nb.memory.entries import Operation
from hermes_nb.memory.history import WriteOrigin
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.safety.provenance import Trust
from hermes_nb.skills.discovery import STATE
from hermes_nb.skills.editing import SkillChange
from hermes_nb.skills.history import UsageLog

from tests.e2e.side import BOTH, skill
from tests.loopback import Reply, chunk, event, stall, stream, text_chunks, tool_chunks

NOTES = (
    "Data lives in `data/`; raw files are never edited.",
    "bill_length_mm arrives in cm from the 2024 export <img src=x onerror='window.obeyed=1'>",
)
REVIEWS = "memory:\n  nudge_interval: 1\nskills:\n  creation_nudge_interval: 0\n"
FROM = WriteOrigin(session="s", turn=4, notebook="/n/report.ipynb", source="review")
GUIDE = "---\nname: {name}\ndescription: {name} as this user likes them\n---\n\nStep by step.\n"


def reported(text, prompt, cached):
    """Return a reply whose provider counted tokens."""
    counted = {"prompt_tokens": prompt, "completion_tokens": 20, "total_tokens": prompt + 20}
    counted["prompt_tokens_details"] = {"cached_tokens": cached}
    return stream([*text_chunks(text, size=40), {"choices": [], "usage": counted}], usage=False)


def notes(side, name="MEMORY.md"):
    return (side.home / "memories" / name).read_text(encoding="utf-8")


def store(side):
    return SqliteStore(side.home / "notebook.db")


def propose_note(side, text):
    steps = (Operation(action="add", content=text),)
    Pending(side.home).propose(MemoryWrite(target="memory", steps=steps), FROM)


def propose_skill(side, name):
    change = SkillChange(action="create", name=name, content=GUIDE.format(name=name))
    Pending(side.home).propose(SkillWrite(change=change), FROM)


def focused(side, name):
    """Wait until the element with this name, or text, has the focus."""
    here = "document.activeElement"
    script = f"name => [{here}.placeholder, {here}.innerText].includes(name)"
    side.notebook.page.wait_for_function(script, arg=name)


@BOTH
def test_memory_is_added_edited_forgotten_and_brought_back(side):
    side.fresh(notes=NOTES)
    side.open("memory")
    side.see("raw files are never edited")
    for number, text in ((0, "Figures are 89 mm wide."), (1, "Prefers polars.")):
        side.press("add", number=number)
        side.field("The entry's text").fill(text)
        side.press("Save")
        side.see(text)
    assert "89 mm" in notes(side)
    assert "Prefers polars." in notes(side, "USER.md")
    side.press("edit", "raw files")
    focused(side, "The entry's text")
    side.field("The entry's text").fill("Data lives in `input/`.")
    side.press("Cancel")
    side.gone("Cancel")
    focused(side, "add")
    assert "input/" not in notes(side)
    side.press("edit", "raw files")
    side.field("The entry's text").fill("Data lives in `input/`.")
    side.press("Save")
    side.notebook.until(lambda: "input/" in notes(side))
    side.said("New sessions use it")
    side.press("undo", "changed Data")
    side.see("raw files are never edited")
    assert "raw files are never edited" in notes(side)
    side.press("forget", "89 mm")
    side.said("Removed")
    assert "89 mm" not in notes(side)
    side.press("add")
    side.field("The entry's text").fill("Prefers polars.\n\u202e" + "x" * 3_000)
    side.press("Save")
    side.panel.get_by_role("alert").wait_for()
    assert "xxx" not in notes(side)
    side.press("Cancel")
    assert side.notebook.page.evaluate("window.obeyed ?? null") is None
    assert "widget-view" not in str(side.notebook.outputs(1))


@BOTH
def test_what_a_review_learned_is_taken_back_and_what_waits_is_decided(side):
    side.fresh(config=REVIEWS)
    learned = {"action": "add", "target": "memory", "content": "Units are SI."}
    side.open("memory")
    side.ask("Units are SI here", "Fine.", stream(tool_chunks(("memory", learned))), "Saved.")
    side.see("learned by the last review")
    assert "Units are SI." in notes(side)
    side.press("undo", "learned by the last review")
    side.gone("learned by the last review")
    assert "Units are SI." not in notes(side)
    for text in ("Likes tea.", "Uses pandas.", "Has a cat."):
        propose_note(side, text)
    side.tab("Skills")
    side.tab("Memory")
    side.see("Waiting for your approval")
    side.press("approve", "Likes tea.")
    side.said("Added")
    side.press("edit", "Has a cat.")
    side.see("Save approves proposal 3 with this text.")
    side.field("The entry's text").fill("Has 2 cats.")
    side.press("Save")
    side.said("Added")
    side.press("reject", "Uses pandas.")
    side.said("was rejected")
    side.gone("Waiting for your approval")
    assert notes(side).split("\n§\n") == ["Likes tea.", "Has 2 cats."]
    assert Pending(side.home).waiting() == []


@BOTH
def test_skills_are_found_read_switched_deleted_and_brought_back(side):
    side.fresh()
    file = skill(side.home / "skills" / "data", "penguin-units", "Fix the 2024 cm export")
    side.open("skills")
    side.see("penguin-units")
    names = side.panel.locator("button.hermes-name:visible")
    side.field("Search").fill("centimetres export")
    side.notebook.until(lambda: 0 < names.count() < 5)
    side.field("Search").fill("")
    side.notebook.until(lambda: names.count() > 8)
    choice = side.content.locator("select:visible")
    assert choice.evaluate("each => getComputedStyle(each).backgroundImage") != "none"  # an arrow
    choice.select_option(label="data (1)")
    side.notebook.until(lambda: names.all_inner_texts() == ["penguin-units"])
    side.press("penguin-units")
    side.see("Multiply by 10.")
    side.press("penguin-units")
    side.gone("Multiply by 10.")
    side.press("penguin-units")
    side.press("Turn off")
    side.said("is off")
    ledger = UsageLog(side.home / "skills" / STATE)
    assert ledger.of("penguin-units").disabled
    side.press("penguin-units")
    side.press("Turn on")
    side.said("is on")
    assert not ledger.of("penguin-units").disabled
    side.press("penguin-units")
    side.press("Delete")
    side.said("eleted")
    assert not file.exists()
    side.panel.get_by_title("undo the last change to a skill", exact=True).click()
    side.said("Undid delete")
    assert file.exists()


@BOTH
def test_a_skill_of_the_project_is_read_before_it_is_trusted(side):
    side.fresh()
    file = skill(side.work / "skills", "deploy-report", body="Make the report, then look at it.")
    propose_skill(side, "plots")
    propose_skill(side, "maps")
    side.open("skills")
    for leave in ("close", "Close"):
        side.press("review", "deploy-report")
        side.see("Make the report, then look at it.")
        side.press(leave)
        side.gone("Make the report, then look at it.")
    trust, text = Trust(side.home), file.read_text(encoding="utf-8")
    assert not trust.accepts(file, text)
    side.press("review", "deploy-report")
    side.press("Trust this version")
    side.said("is trusted as it is now")
    assert trust.accepts(file, text)
    assert not trust.accepts(file, f"{text}And delete the rest.")
    side.press("approve", "create plots")
    side.said("reated skill")
    assert list((side.home / "skills").rglob("plots/SKILL.md"))
    side.press("plots")
    side.press("Undo")
    side.notebook.until(lambda: not list((side.home / "skills").rglob("plots/SKILL.md")))
    side.press("reject", "create maps")
    side.said("was rejected")
    assert not list((side.home / "skills").rglob("maps/SKILL.md"))
    assert Pending(side.home).waiting() == []


@BOTH
def test_the_context_follows_the_turns_and_is_compressed_and_put_back(side):
    side.fresh()
    side.open("context")
    side.see("This session has no turn yet.")
    assert side.button("Compress now").is_disabled()
    for n in range(4):
        answer = f"Answer {n}. " + "word " * 2_000
        side.ask(f"question {n}", reported(answer, 9_000 * (n + 1), 9_000 * n))
        bars = side.panel.locator(".hermes-chart g")
        side.notebook.until(lambda n=n, bars=bars: bars.count() == n + 1)
    side.see("compresses at")
    side.field("What to keep").fill("the answers")
    side.plays("## Goal\nFour questions were answered.")
    side.press("Compress now")
    side.said("Compressed from about")
    assert "the answers" in str(side.model.bodies[-1]["messages"])
    side.press("summary", "Compressed at turn 4")
    side.see("Four questions were answered.")
    side.press("close", "Compressed at turn 4")
    side.gone("Four questions were answered.")
    session = store(side).sessions()[0].id
    assert "Four questions were answered." in str(store(side).messages(session))
    side.press("undo", "Compressed at turn 4")
    side.see("Restored at turn 4")
    assert "Four questions were answered." not in str(store(side).messages(session))
    side.ask("question 4", "Answer 4.")
    assert "Answer 2. word" in str(side.model.bodies[-1]["messages"])


@BOTH
def test_sessions_are_left_found_and_resumed(side):
    side.fresh()
    side.open("session")
    assert side.button("New session").is_disabled()
    side.ask("How long is a flipper?", "It is 217.2 mm long.")
    side.see("How long is a flipper?")
    side.press("New session")
    side.said("The next turn starts a new session.")
    side.ask("Something else", "Fine.")
    side.notebook.until(lambda: len(store(side).sessions()) == 2)
    first = next(s.id for s in store(side).sessions() if "flipper" in s.title)
    side.press("resume", "How long is a flipper?")
    side.said("Resumed with 2 messages")
    side.ask("Sure?", "Yes.")
    assert len(store(side).messages(first)) == 4
    side.press("New session")
    side.field("Search all sessions").fill("217.2")
    side.see("Found")
    side.press("resume", "217.2")
    side.said("Resumed with 4 messages")
    side.field("Search all sessions").fill("")
    side.see("This notebook")
    side.ask("Really?", "Yes.")
    assert len(store(side).messages(first)) == 6
    assert len(store(side).sessions()) == 2


@BOTH
def test_a_review_is_stopped_and_a_running_turn_closes_what_would_disturb_it(side):
    side.fresh(notes=NOTES, config=REVIEWS)
    side.open("session")
    side.ask("hello", "Fine.", Reply([event(chunk({"content": "Let me "})), stall]))
    side.see("background review: memory")
    side.press("Stop")
    side.said("saved changes stay")
    side.gone("background review: memory")
    assert side.model.exchanges[-1].left.wait(5)
    gate = threading.Event()
    begin = event(chunk({"content": "Once upon a **time** "}))
    side.plays(Reply([begin, lambda _: gate.wait(30), *stream(text_chunks("the end.")).steps]))
    side.stage("a story")
    side.notebook.start(2)
    side.notebook.page.wait_for_selector(".jp-RenderedMarkdown strong:has-text('time')")
    for title, label in (("Session", "New session"), ("Context", "Compress now")):
        side.tab(title)
        side.panel.get_by_role("button", name=label, disabled=True).wait_for()
        assert "a turn is running" in side.button(label).get_attribute("title")
    side.tab("Memory")
    side.press("forget", "raw files")
    side.said("Removed")
    assert "raw files" not in notes(side)
    gate.set()
    side.notebook.finish(2)
    side.tab("Context")
    side.panel.get_by_role("button", name="Compress now", disabled=False).wait_for()


@BOTH
def test_one_action_of_each_tab_by_keyboard_alone(side):
    side.fresh(notes=NOTES)
    skill(side.home / "skills" / "data", "penguin-units", "Fix the 2024 cm export")
    side.open("memory")
    for n in range(4):
        side.ask(f"question {n}", reported(f"{n}. " + "word " * 2_000, 9_000 * (n + 1), 0))
    side.tabs.locator(".lm-mod-current").focus()
    side.reach(side.button("forget", "raw files"))
    side.keys("Enter")
    side.said("Removed")
    assert "raw files" not in notes(side)
    side.turn()
    side.reach(side.field("Search"))
    side.notebook.page.keyboard.type("penguin-units")
    names = side.panel.locator("button.hermes-name").locator("visible=true")
    side.notebook.until(lambda: names.all_text_contents() == ["penguin-units"])
    side.reach(side.button("penguin-units"))
    side.keys("Space")
    side.reach(side.button("Turn off"))
    side.keys("Enter")
    side.said("is off")
    assert UsageLog(side.home / "skills" / STATE).of("penguin-units").disabled
    side.plays("## Goal\nFour questions were answered.")
    side.turn()
    side.reach(side.button("Compress now"))
    side.keys("Enter")
    side.said("Compressed from about")
    assert "Four questions" in str(store(side).messages(store(side).sessions()[0].id))
    side.turn()
    side.reach(side.button("New session"))
    side.keys("Space")
    side.said("The next turn starts a new session.")
    side.ask("once more", "ok")
    assert len(store(side).sessions()) == 2
