"""Children and maps in the page: seen in the cell, listed in the panel, stopped by a click."""

from __future__ import annotations

from tests.e2e.side import STAGE
from tests.loopback import Reply, stall, stream, text_chunks, tool_chunks

SLEEP = stream(tool_chunks(("terminal", {"command": "sleep 60"})))
TASKS = ["count the flamingos", "count the ibises"]


def begets(*tasks):
    return stream(tool_chunks(("delegate_task", {"tasks": list(tasks)})))


def shown(side):
    """Return what the test's cell shows, as its reader sees it."""
    return side.notebook.page.locator(".jp-Notebook .jp-OutputArea-output").last.inner_text()


def test_children_are_seen_and_one_is_stopped_by_its_button(side):
    side.fresh()
    side.open("session")
    side.plays(begets(*TASKS), SLEEP, SLEEP, "Both were stopped.")
    side.stage("count the birds", "--approve all")
    side.notebook.start(STAGE)
    for task in TASKS:
        side.notebook.until(lambda task=task: f"↳ ◌ {task}" in shown(side))
        side.row(task).wait_for()
    side.notebook.until(lambda: shown(side).count("terminal sleep 60") == 2)
    side.notebook.shot("children-running")
    side.press("stop", TASKS[0])
    side.gone(TASKS[0])
    assert "↳ ■ count the flamingos · stopped" in shown(side)
    assert "↳ ◌ count the ibises" in shown(side)
    side.see(TASKS[1])
    side.press("stop", TASKS[1])
    outputs = side.notebook.finish(STAGE)
    markdown = outputs[0]["data"]["text/markdown"]
    assert markdown.startswith("Both were stopped.")
    assert markdown.count("↳ ■") == 2
    side.gone("Running")
    reports = side.model.bodies[-1]["messages"][-1]["content"]
    assert reports.count('"status": "stopped"') == 2
    side.notebook.shot("children-over")


def test_a_map_has_a_bar_and_a_job_in_the_panel(side):
    side.fresh()
    side.open("session")
    for number in range(8):
        (side.work / f"n{number}.md").write_text(f"note {number}", encoding="utf-8")
    yes = stream(text_chunks("yes"))
    side.plays(*[yes] * 5, Reply([b": begun\n\n", stall]))
    source = '%hermes map --parallel 2 "What is it?" *.md'
    side.notebook.evaluate("m.cells[a[0]].setSource(a[1])", [STAGE, source])
    side.notebook.start(STAGE)
    side.notebook.until(lambda: "▰▱" in shown(side) and "5 of 8" in shown(side))
    side.see("5 of 8")
    side.notebook.shot("map-running")
    side.press("stop", "What is it?")
    side.gone("What is it?")
    outputs = side.notebook.finish(STAGE)
    assert "5 done, 3 stopped" in outputs[0]["data"]["text/markdown"]
    side.plays("yes")
    outputs = side.notebook.run(STAGE)
    assert "✓ 8 done · 5 from an earlier run" in outputs[0]["data"]["text/markdown"]
