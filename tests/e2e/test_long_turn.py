"""A turn of 500 steps in a page that stays responsive, and that saves little."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.e2e.test_approval import prepare

STEPS = 500
MODEL = f"""
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.notebook.magics import use_model
code = '# ' + 'some words of a comment ' * 80 + '\\n'
codes = [f'{{code}}print("line of a result " * 120, {{n}})' for n in range({STEPS})]
steps = iter([*(call('run_python', code=code) for code in codes), '**Done** with all of them.'])
def play(request):  # what is asked around a compression or in a review is no step of the turn
    step = 'run_python' in request.tools and request.tool_choice == 'auto'
    return next(steps, 'Nothing.') if step else 'All of them were to be done.'
use_model(ScriptedModel([play] * {2 * STEPS}))
"""
PROBE = Path(__file__).with_name("frames.js").read_text(encoding="utf-8")
MOST = 1_500
"""Milliseconds that the page may stand still, on a machine that does other things as well."""


@pytest.mark.slow
def test_a_page_stays_responsive_and_saves_little(open_notebook, model):
    prompt = f"%%hermes --approve all --max-requests {STEPS + 1}\nall of them"
    notebook = open_notebook(prompt, own=True)
    prepare(notebook, model)
    notebook.kernel(MODEL)
    notebook.page.evaluate(PROBE)
    outputs = notebook.run(1, timeout=240)
    longest = notebook.page.evaluate("window.longest")
    print(f"the page stood still for {longest:.0f} ms at most")
    assert longest < MOST
    assert "**Done** with all of them." in outputs[0]["data"]["text/markdown"]
    told = re.findall(r"<summary>(\d+) tool calls", outputs[0]["data"]["text/markdown"])
    assert told == [str(STEPS)]
    notebook.command("docmanager:save")
    notebook.until(lambda: notebook.saved().cells[1].outputs)
    assert len(json.dumps(notebook.saved().cells[1].outputs, ensure_ascii=False).encode()) < 200_000
    notebook.page.click("summary")
    notebook.page.click("details[open] summary >> nth=1")
    notebook.page.wait_for_selector("details[open] details[open] pre")
    notebook.shot("long-turn")
