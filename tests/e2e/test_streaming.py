"""A turn while it runs: the answer grows, what runs is seen, a stop is at hand, nothing jumps."""

from __future__ import annotations

import itertools
import threading
import time

import pytest

from tests.e2e.looking import THEMES, in_theme, violations
from tests.e2e.test_approval import prepare, python, results, shown, terminal
from tests.loopback import DONE, Reply, chunk, event, pause, stall, tool_chunks
from tests.patience import STOPS_WITHIN

BOTH = pytest.mark.parametrize("server", ["lab", "notebook7"], indirect=True)
STOP = ".hermes-stop button"
COVERED = f"""() => {{
  const box = document.querySelector('{STOP}').parentNode.getBoundingClientRect();
  const text = document.createRange();
  text.selectNodeContents([...document.querySelectorAll('.jp-RenderedMarkdown sub')].at(-1));
  return [...text.getClientRects()].filter(each =>
    each.right > box.left && each.bottom > box.top && each.top < box.bottom).length;
}}"""
"""How many pieces of the status line are behind the buttons."""
LIVE = ".jp-RenderedMarkdown blockquote > pre"
VIEW = ".jp-Cell-outputArea:has-text('loopback ·')"


def test_partial_text_shows_while_it_streams_and_stays_after_a_stop(open_notebook, model):
    notebook = open_notebook("%%hermes\ntell me a long story")
    pieces = [event(chunk({"content": text})) for text in ("Once upon ", "a **time** ")]
    model.replies[:] = [Reply([*pieces, stall])]
    notebook.kernel(
        f"import os; os.environ['HERMES_NB_BASE_URL'] = {model.url!r}\n%load_ext hermes_nb"
    )
    notebook.start(1)
    notebook.page.wait_for_selector(".jp-RenderedMarkdown strong:has-text('time')")
    notebook.page.wait_for_selector(".jp-RenderedMarkdown >> text=running")
    notebook.shot("streaming")
    began = time.monotonic()
    notebook.command("notebook:interrupt-kernel")
    outputs = notebook.finish(1)
    assert time.monotonic() - began < STOPS_WITHIN
    assert "Once upon a **time**" in outputs[0]["data"]["text/markdown"]
    assert "Stopped" in outputs[0]["data"]["text/markdown"]


EPOCHS = """\
import time
for epoch in range(8):
    print(f"epoch {epoch}\\tloss {1 / (epoch + 1):.3f}", flush=True)
    time.sleep(0.5)
print("token = 'sk-" + "a1" * 20 + "'", "wide " * 60)
for share in range(40):
    print(f"\\r\\x1b[32m{share} % of the rows\\x1b[0m", end="", flush=True)
    time.sleep(0.1)
"""


def covers_nothing_in_a_narrow_page(page):
    """Assert that the buttons are beside the status line."""
    page.set_viewport_size({"width": 800, "height": 900})
    page.wait_for_function("document.querySelector('.jp-Notebook').offsetWidth <= 800")
    assert page.evaluate(COVERED) == 0
    page.set_viewport_size({"width": 1200, "height": 900})


@BOTH
def test_the_last_lines_of_what_runs_are_seen_and_a_button_stops_it(open_notebook, server, model):
    notebook = open_notebook("%%hermes --approve all\nrun it", "'below'")
    page = notebook.page
    prepare(
        notebook,
        model,
        python(EPOCHS),
        terminal("for i in $(seq 900); do echo step $i; sleep .1; done"),
    )
    notebook.start(1)
    page.wait_for_selector(f"{LIVE}:has-text('epoch 6')")
    text = page.inner_text(LIVE)
    assert 3 <= len(text.splitlines()) <= 5 and "epoch 1" not in text
    notebook.shot(f"live-{server.app}")
    covers_nothing_in_a_narrow_page(page)
    page.wait_for_selector(f"{LIVE}:has-text('% of the rows')")
    text = page.inner_text(LIVE)
    assert "[redacted]" in text and "a1a1" not in text and "\x1b" not in text
    assert text.count("of the rows") == 1 and max(map(len, text.splitlines())) <= 102
    page.wait_for_selector(f"{LIVE}:has-text('step 12')")
    assert "rows" not in page.inner_text(LIVE)
    for theme in THEMES:
        in_theme(notebook, theme)
        notebook.shot(f"live-{server.app}-{theme}")
        assert violations(page.locator(VIEW)) == []
    in_theme(notebook, "light")
    # What some output's script might do is no stop.
    page.evaluate(f"document.querySelector('{STOP}').click()")
    page.wait_for_timeout(300)
    assert not results(model)[1:]
    page.focus(STOP)
    began = time.monotonic()
    page.keyboard.press("Enter")
    outputs = notebook.finish(1)
    assert time.monotonic() - began < STOPS_WITHIN
    assert "Stopped. The work so far is kept" in shown(outputs)
    assert [output["output_type"] for output in outputs] == ["display_data"]
    page.wait_for_selector(STOP, state="detached")
    assert not page.query_selector(LIVE)
    assert page.evaluate("document.activeElement.closest('.jp-Notebook') !== null")
    assert notebook.sources()[1] == "'below'"
    assert "stop" not in str(notebook.evaluate("m.toJSON()")).lower().replace("stopped", "")


FRAMES = """() => {
  const widgets = window.jupyterapp.shell.currentWidget.content.widgets;
  const [cell, below] = [widgets[1].node, widgets[2].node];
  window.frames_ = [];
  const look = () => {
    const area = cell.querySelector('.jp-OutputArea');
    const top = cell.getBoundingClientRect().top;
    const at = node => Math.round(node.getBoundingClientRect().top - top);
    const blocks = [...(area?.querySelectorAll('.jp-RenderedMarkdown > *') ?? [])];
    window.frames_.push({
      running: Boolean(cell.querySelector('.hermes-stop')),
      height: area?.offsetHeight ?? 0,
      below: at(below),
      blocks: blocks.map(block => [block.textContent, at(block)])
    });
    requestAnimationFrame(look);
  };
  look();
}"""
STORY = "\n\n".join(
    f"{n}. paragraph: " + " ".join(f"word{n}x{word}" for word in range(25)) for n in range(8)
)


def streamed(text, *ending):
    """Return a reply of about 200 tokens a second."""
    steps = []
    for at in range(0, len(text), 4):
        steps += [event(chunk({"content": text[at : at + 4]})), pause(0.005)]
    return Reply([*steps, *ending])


@BOTH
def test_nothing_jumps_while_a_turn_streams(open_notebook, server, model):
    notebook = open_notebook(
        "%%hermes --approve all\nrun it", "'below'", size=(1000, 1600), own=True
    )
    slow = "import asyncio\nfor n in range(9): print('line', n); await asyncio.sleep(0.3)"
    calls = [event(each) for each in tool_chunks(python(slow))]
    thinking = [event(chunk({"reasoning_content": f"I think, {n}. "})) for n in range(40)]
    first = streamed(STORY[:400])
    prepare(notebook, model)
    model.replies[:] = [
        Reply([*thinking, pause(0.5), *first.steps, *calls, DONE]),
        streamed(STORY, event(chunk(finish="stop")), DONE),
    ]
    notebook.page.evaluate(FRAMES)
    notebook.run(1)
    frames = [f for f in notebook.page.evaluate("window.frames_") if f["running"]]
    assert len(frames) > 50
    heights = [frame["height"] for frame in frames]
    assert heights == sorted(heights), "the view shrank"
    assert heights[-1] > 500
    pairs = list(itertools.pairwise(frames))
    still = [abs(b["below"] - a["below"]) for a, b in pairs if a["height"] == b["height"]]
    assert max(still) <= 1
    grown = [b["below"] - a["below"] - (b["height"] - a["height"]) for a, b in pairs]
    assert max(map(abs, grown)) <= 1
    for a, b in pairs:
        where = dict(b["blocks"])
        moved = [text[:40] for text, at in a["blocks"][:-2] if abs(where.get(text, at) - at) > 1]
        assert not moved, f"{moved} moved"
    assert not notebook.evaluate("nb.content.widgets[1].outputArea.node.style.minHeight")


def test_the_page_follows_the_answer_while_the_reader_is_at_its_end(open_notebook, model):
    """It stays where the reader has scrolled to."""
    notebook = open_notebook("%%hermes\ntell me a long story")
    page = notebook.page
    prepare(notebook, model)
    go = [threading.Event(), threading.Event()]
    lines = [event(chunk({"content": f"Line {n} of it.\n\n"})) for n in range(90)]
    waits = [lambda _, each=each: each.wait(60) for each in go]
    model.replies[:] = [Reply([*lines[:40], waits[0], *lines[40:80], waits[1], *lines[80:], DONE])]
    notebook.start(1)
    page.get_by_text("Line 39 of it.").wait_for()
    view = page.locator(".jp-Notebook").first.bounding_box()
    bottom = view["y"] + view["height"]

    def seen():
        return (page.locator(STOP).first.bounding_box() or {"y": bottom})["y"] < bottom

    notebook.until(seen)
    page.get_by_text("Line 1 of it.", exact=True).scroll_into_view_if_needed()
    assert not seen()
    go[0].set()
    page.get_by_text("Line 79 of it.").wait_for(state="attached")
    page.wait_for_timeout(500)
    assert not seen()
    page.locator(STOP).first.scroll_into_view_if_needed()
    go[1].set()
    notebook.finish(1)
