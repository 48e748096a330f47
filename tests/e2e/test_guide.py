"""The pictures of the guide, taken from the real thing in both themes.

`make screenshots` (or HERMES_NB_GUIDE_IMAGES=1) takes them anew into docs/images: `NAME.png`, and
`NAME-dark.png` for a dark page. What models say in them is scripted; all else happens.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from io import BytesIO, StringIO
from pathlib import Path

import pexpect
import pytest
from hermes_nb.core.messages import Message
from hermes_nb.memory.curated import CuratedMemory
from hermes_nb.memory.history import WriteOrigin
from hermes_nb.skills.discovery import STATE
from hermes_nb.skills.history import UsageLog
from PIL import Image
from rich.console import Console
from rich.terminal_theme import DEFAULT_TERMINAL_THEME, SVG_EXPORT_THEME
from rich.text import Text

from tests.e2e.harness import REPOSITORY, Notebook, Server
from tests.e2e.looking import THEMES, cropped, in_theme
from tests.e2e.side import Side, skill
from tests.e2e.test_approval import ASK
from tests.e2e.test_panel_actions import store
from tests.e2e.test_reload import reload_in_a_turn
from tests.loopback import Loopback, Reply, event, failure, stall, stream, text_chunks, tool_chunks
from tests.patience import ended

IMAGES = REPOSITORY / "docs" / "images"
MOST = 60_000
"""Bytes of a picture."""
COLOURS = 256
"""Of a picture."""
ALONE = {"architecture.svg", "demo.gif"}
"""Images without a variant for dark pages."""
DEMO_COLOURS = 64
"""Number of colours of the animated image."""
DEMO_MOST = 2_000_000
"""Maximum size of the animated image, in bytes."""
MODEL = b"qwen3-coder"
DAY = 86_400.0
CLEAN = 'df = df.dropna(subset=["bill_length_mm"])\ndf["bill_length_mm"] *= 10'
CLEANED = 'df["bill_length_mm"] *= 10\ndf = df.dropna(subset=["bill_length_mm", "body_mass_g"])'
LOAD = f"import pandas as pd\ndf = pd.read_csv({str(REPOSITORY / 'notebooks/data/penguins.csv')!r})"
QUESTION = "Which species is heaviest, and how sure is that?"
PLOT = "Which species has the longest bill? Plot it."
LOAD_HERE = 'import pandas as pd\n\ndf = pd.read_csv("penguins.csv")\ndf.shape'
BARS = 'means = df.groupby("species")["bill_length_mm"].mean()\nmeans.plot.barh(figsize=(5, 2))'
MEANS = 'df.groupby("species").body_mass_g.mean()'
ANSWER = """**Gentoo** is the heaviest species; the gap to the others is larger than two standard \
deviations.

| species | n | mean g | sd |
|---|---:|---:|---:|
| Gentoo | 123 | 5,076 | 504 |
| Chinstrap | 68 | 3,733 | 384 |
| Adelie | 151 | 3,701 | 459 |

Two rows have no mass and are left out."""
BRIEF = """Gentoo: 5,076 g on average (sd 504, n = 123). Chinstrap and Adelie are at 3,733 g \
and 3,701 g, so the gap is larger than two standard deviations. Two rows have no mass."""
GAUGES = ((8_900, 0), (12_000, 8_800), (21_500, 11_900), (33_800, 21_400), (47_300, 33_700))
"""Tokens sent and, of them, cached, in each turn of the panel's picture."""
SVG = """<svg viewBox="0 0 {width} {height}" xmlns="http://www.w3.org/2000/svg">
<style>.{unique_id}-title{{font:bold 18px sans-serif}}
.{unique_id}-matrix{{font:{char_height}px monospace;line-height:{line_height}px}}
{styles}</style>
<defs><clipPath id="{unique_id}-clip-terminal"><rect width="{terminal_width}"
height="{terminal_height}"/></clipPath>{lines}</defs>{chrome}
<g transform="translate({terminal_x},{terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g></svg>
"""
"""Rich's own frame without its fonts, which it would load from elsewhere."""

asked_for = pytest.mark.skipif(
    "HERMES_NB_GUIDE_IMAGES" not in os.environ, reason="nobody asked for pictures"
)


def reply(chunks, sent, cached=0, out=180):
    """Return a reply by a model with a name, which counted its tokens."""
    usage = {"prompt_tokens": sent, "completion_tokens": out, "total_tokens": sent + out}
    usage["prompt_tokens_details"] = {"cached_tokens": cached}
    played = stream([*chunks, {"choices": [], "usage": usage}], usage=False)
    return replace(played, steps=[step.replace(b"loopback", MODEL) for step in played.steps])


def calls(*wanted, sent, cached=0):
    return reply(tool_chunks(*wanted), sent, cached, out=60)


def before_the_answer():
    """Return the replies that call tools: how large the table is, and the means."""
    return (
        calls(("run_python", {"code": "df.shape"}), sent=3_900),
        calls(("run_python", {"code": MEANS}), sent=4_600, cached=3_900),
    )


def turn(answer):
    """Return the replies of a whole turn."""
    return (*before_the_answer(), reply(text_chunks(answer), 5_100, 4_600))


@pytest.fixture(scope="module")
def server():
    """A server in a folder whose name may be seen in pictures."""
    folder = Path(tempfile.gettempdir(), "penguins")
    folder.mkdir()
    server = Server("lab", folder)
    yield server
    server.close()
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def guide(server, browser):
    """A page about as wide as the guide's own, sharper than the tests need it."""
    cells = ("%hermes panel", "x", CLEAN, "%hermes diff", "%hermes undo", "x")
    name = "penguins.ipynb"
    notebook = Notebook.open(server, browser, name, cells, size=(800, 1000), scale=1.5)
    notebook.command("application:toggle-left-area")
    with Loopback() as model:
        side = Side(notebook, model)
        yield side
    notebook.close()


def taken(side, name, *parts, margin=0):
    """Take a picture of some parts of the page, in both themes."""
    for theme in THEMES:
        in_theme(side.notebook, theme)
        parts[0].scroll_into_view_if_needed()
        clip = cropped(side.notebook.page, *parts, margin=margin)
        shot = Image.open(BytesIO(side.notebook.page.screenshot(clip=clip))).convert("RGB")
        path = IMAGES / f"{name}{'-dark' if theme == 'dark' else ''}.png"
        shot.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    in_theme(side.notebook, "light")


def cell(side, index):
    """Return a cell; none is selected, so that no tools of the page's stand over it."""
    side.notebook.evaluate("void (nb.content.activeCellIndex = 0)")
    side.notebook.evaluate("nb.content.scrollToItem(a, 'start')", index)
    return side.notebook.page.locator(".jp-Notebook .jp-Cell").nth(index)


@asked_for
def test_turns(guide):
    side, notebook = guide, guide.notebook
    side.fresh()
    notebook.kernel(f"{LOAD}\nos.environ['HERMES_NB_MODEL'] = {MODEL.decode()!r}")
    half = [event(each) for each in text_chunks(ANSWER[:97])[:-1]]
    side.plays(*before_the_answer(), Reply([*half, stall]))
    side.stage(QUESTION, "--approve all")
    notebook.start(2)
    notebook.page.wait_for_selector("text=deviations")
    taken(side, "turn-running", cell(side, 2))
    notebook.command("notebook:interrupt-kernel")
    notebook.finish(2)
    taken(side, "turn-stopped", cell(side, 2))
    side.plays(*turn(ANSWER))
    notebook.run(2)
    taken(side, "turn-finished", cell(side, 2))
    notebook.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = 1; })")
    taken(side, "turn-unfolded", cell(side, 2))
    refused = {"error": {"message": f"The model `{MODEL.decode()}` does not exist", "code": 404}}
    side.plays(failure(404, refused))
    notebook.run(2)
    taken(side, "turn-failed", cell(side, 2))


@asked_for
def test_a_question_and_an_undo(guide):
    side, notebook = guide, guide.notebook
    side.fresh()
    notebook.kernel(f"{LOAD}\nos.environ['HERMES_NB_MODEL'] = {MODEL.decode()!r}")
    edit = {"id": "cell3", "old": CLEAN, "new": CLEANED}
    looked = calls(("read_cells", {"ids": ["cell3"]}), sent=4_100)
    side.plays(
        looked,
        calls(("edit_cell", edit), sent=4_700, cached=4_100),
        reply(text_chunks("The lengths are scaled *before* rows are dropped."), 5_300, 4_700),
    )
    side.stage("Is the bill length cleaned in the right order? Fix it if not.")
    notebook.start(2)
    keep = notebook.page.locator(ASK).get_by_role("button", name="Keep", exact=True)
    keep.wait_for()
    taken(side, "approval", cell(side, 2))
    keep.click()
    notebook.finish(2)
    notebook.run(4)
    taken(side, "diff", cell(side, 4))
    notebook.run(5)
    taken(side, "undo", cell(side, 5))
    clean = calls(("terminal", {"command": "rm -r build && make report"}), sent=4_100)
    side.plays(clean, reply(text_chunks("Done."), 4_300, 4_100))
    question = "%%hermes\nMake the report again from nothing."
    notebook.evaluate("m.cells[6].setSource(a)", question)
    notebook.command("docmanager:save")
    notebook.start(6)
    notebook.page.locator(ASK).get_by_role("button", name="Deny").wait_for()
    reload_in_a_turn(notebook)
    deny = notebook.page.locator(ASK).get_by_role("button", name="Deny")
    deny.wait_for()
    taken(side, "approval-after-reload", cell(side, 6))
    deny.click()
    side.keys("Enter")
    notebook.ready()


def remembered(side):
    """Give a home some weeks of life."""
    now = time.time()
    moment = [now]
    memory = CuratedMemory(side.home, clock=lambda: moment[0])
    eda = WriteOrigin(session="a", turn=12, notebook="/n/eda.ipynb")
    review = replace(eda, source="review")
    for days, target, text, origin in (
        (21, "user", "Prefers polars over pandas for new code.", WriteOrigin(source="user")),
        (2, "memory", "Data lives in `data/`; raw files are never edited.", eda),
        (1, "memory", "Figures: seaborn, 89 mm wide, PDF in `figures/`.", eda),
        (0.1, "memory", "`bill_length_mm` arrives in cm from 2024 on.", review),
    ):
        moment[0] = now - days * DAY
        memory.apply(target, [{"action": "add", "content": text}], origin=origin)
    skill(side.home / "skills" / "data", "penguin-units", "Fix the 2024 cm export")
    skill(side.work / "skills", "deploy-report", "Build the report and put it online")
    ledger = UsageLog(side.home / "skills" / STATE)
    for name, times in (("exploratory-data-analysis", 12), ("penguin-units", 3)):
        for _ in range(times):
            ledger.note(name, "use")
    notebook = str(side.notebook.server.root / side.notebook.name)
    for days, title in ((9, "Clean the 2024 export"), (2, "Which features separate the species?")):
        sessions = store(side)
        made = sessions.start(title=title, notebook=notebook, started=now - days * DAY)
        for said in (Message.user(title), Message.assistant("Done.")):
            sessions.append(made, said)
        sessions.close()


@asked_for
def test_the_panel(guide):
    side, notebook = guide, guide.notebook
    side.fresh()
    remembered(side)
    notebook.kernel(f"{LOAD}\nos.environ['HERMES_NB_MODEL'] = {MODEL.decode()!r}")
    for number, (sent, cached) in enumerate(GAUGES):
        said = "Gentoo penguins are the heaviest of the three species. " * 200
        side.ask(f"Compare the species, step {number + 1}", reply(text_chunks(said), sent, cached))
    notebook.page.set_viewport_size({"width": 1040, "height": 770})
    side.open("memory")
    edge = side.panel.bounding_box()
    notebook.page.mouse.move(edge["x"] - 2, 300)
    notebook.page.mouse.down()
    notebook.page.mouse.move(edge["x"] - 102, 300, steps=5)
    notebook.page.mouse.up()
    side.see("raw files are never edited")
    taken(side, "panel-memory", side.panel)
    side.tab("Skills")
    side.press("penguin-units")
    side.see("Multiply by 10.")
    taken(side, "panel-skills", side.panel)
    side.tab("Context")
    side.see("compresses at")
    side.plays(reply(text_chunks("## Goal\nCompare the species."), 15_000))
    side.press("Compress now")
    side.said("Compressed")
    side.tab("Memory")
    side.tab("Context")
    side.see("Compressed at turn")
    taken(side, "panel-context", side.panel)
    side.tab("Session")
    side.see("Clean the 2024 export")
    taken(side, "panel-session", side.panel)


@asked_for
def test_the_composer(guide):
    side = guide
    side.open()
    side.plays(reply(text_chunks(BRIEF), 5_100, 4_600))
    side.field("Ask Hermes").fill(QUESTION)
    side.press("Ask")
    side.see("✓")
    side.field("Ask Hermes").fill("Plot body_mass_g of @df, a box for each species")
    taken(side, "panel-composer", side.panel.locator(".hermes-composer"))


@asked_for
def test_the_panel_below_its_cell(server, browser):
    name = "below.ipynb"
    without = "**/extensions/hermes-nb/**"
    notebook = Notebook.open(
        server, browser, name, ("%hermes panel", "x"), size=(800, 1000), scale=1.5, without=without
    )
    notebook.command("application:toggle-left-area")
    with Loopback() as model:
        side = Side(notebook, model, where=".jp-OutputArea-output")
        side.fresh()
        remembered(side)
        side.open("memory")
        side.see("raw files are never edited")
        taken(side, "panel-below", cell(side, 1))
    notebook.close()


class Film:
    """An animated image of a page: frames with the milliseconds for which each is visible."""

    def __init__(self, notebook):
        self.page = notebook.page
        self.frames = []

    def take(self, milliseconds):
        shot = Image.open(BytesIO(self.page.screenshot())).convert("RGB")
        colours = shot.quantize(DEMO_COLOURS, dither=Image.Dither.NONE)
        self.frames.append((colours, milliseconds))

    def save(self, path):
        first, *rest = [frame for frame, _ in self.frames]
        durations = [milliseconds for _, milliseconds in self.frames]
        first.save(path, save_all=True, append_images=rest, duration=durations, loop=0)


@asked_for
def test_the_demo(server, browser):
    cells = ("x", f"%%hermes\n{PLOT}", "longest = bills.max()\nprint(longest)", "%hermes undo")
    notebook = Notebook.open(server, browser, "demo.ipynb", cells, size=(900, 640))
    notebook.command("application:toggle-left-area")
    with Loopback() as model:
        side = Side(notebook, model)
        side.fresh()
        shutil.copy(REPOSITORY / "notebooks" / "data" / "penguins.csv", side.work)
        notebook.kernel(f"import os\nos.environ['HERMES_NB_MODEL'] = {MODEL.decode()!r}")
        notebook.kernel("%reload_ext hermes_nb")
        notebook.evaluate("m.cells[0].setSource('%load_ext hermes_nb')")
        notebook.evaluate("m.cells[1].setSource(a)", LOAD_HERE)
        film = Film(notebook)
        asked_for_a_plot(side, film)
        fixed_and_undone(side, film)
    film.save(IMAGES / "demo.gif")
    notebook.close()


def asked_for_a_plot(side, film):
    """Take a question about data, the approval of its code, and the answer with a plot."""
    notebook = side.notebook
    notebook.run(1)
    film.take(2000)
    side.plays(
        calls(("run_python", {"code": BARS}), sent=3_900),
        reply(text_chunks("**Chinstrap**, with 48.8 mm on average."), 4_600, 3_900),
    )
    notebook.start(2)
    run = notebook.page.locator(ASK).get_by_role("button", name="Run once")
    run.wait_for()
    film.take(3500)
    run.click()
    notebook.finish(2)
    cell(side, 2)
    film.take(4000)


def fixed_and_undone(side, film):
    """Take a cell that failed, its fix as a diff in the cell, and what an undo does."""
    notebook, page = side.notebook, side.notebook.page
    notebook.run(3)
    page.get_by_text("Fix with Hermes").wait_for()
    cell(side, 3)
    film.take(3000)
    edit = {"id": "cell3", "old": "bills.max()", "new": 'df["bill_length_mm"].max()'}
    side.plays(
        calls(("edit_cell", edit), sent=5_100, cached=4_600),
        reply(text_chunks("There is no `bills`; the lengths are in `df`."), 5_400, 5_100),
    )
    page.get_by_text("Fix with Hermes").click()
    keep = page.locator(".hermes-cap button", has_text="Keep and run")
    keep.wait_for()
    cell(side, 3)
    film.take(4000)
    keep.click()
    page.locator("text=the lengths are in").first.wait_for()
    notebook.until(lambda: "59.6" in str(notebook.outputs(3)), timeout=30)
    cell(side, 3)
    film.take(3500)
    last = len(notebook.sources())
    notebook.run(last)
    cell(side, last)
    film.take(3500)


@asked_for
def test_the_terminal(tmp_path):
    with Loopback(*turn(BRIEF)) as model:
        said = in_a_terminal(tmp_path, model.url)
    for theme, name in ((DEFAULT_TERMINAL_THEME, "terminal"), (SVG_EXPORT_THEME, "terminal-dark")):
        console = Console(record=True, width=100, file=StringIO(), force_terminal=True)
        console.print(Text.from_ansi(said))
        drawn = console.export_svg(title="IPython", theme=theme, code_format=SVG, unique_id="t")
        framed = drawn.replace("rgba(255,255,255,0.35)", "#8888")  # which no light page shows
        (IMAGES / f"{name}.svg").write_text(framed, encoding="utf-8")


def in_a_terminal(folder, url):
    """Return what IPython showed of a turn in a terminal, with its colours."""
    own = {"HERMES_HOME": str(folder / "home"), "IPYTHONDIR": str(folder / "ipython")}
    own |= {"HERMES_NB_BASE_URL": url, "HERMES_NB_MODEL": MODEL.decode(), "TERM": "xterm-256color"}
    shell = pexpect.spawn(
        sys.executable,
        ["-m", "IPython", "--simple-prompt", "--no-banner", "--colors=nocolor"],
        env={**os.environ, **own},
        cwd=str(folder),
        encoding="utf-8",
        timeout=60,
        dimensions=(40, 100),
    )
    for line in ("%load_ext hermes_nb", *LOAD.split("\n")):
        shell.expect(r"In \[\d+\]: ")
        shell.sendline(line)
    shell.expect(r"In \[\d+\]: ")
    shell.sendline(f"%hermes --approve all {QUESTION}")
    shell.expect(r"In \[\d+\]: ")
    said = settled(shell.before)
    ended(shell)
    return f"In [4]: {said.strip()}\n"


def settled(said):
    """Return what is left of a terminal's output once all that was drawn anew has been."""
    lines, row = [""], 0
    for piece in re.split(r"(\x1b\[2K|\x1b\[1A|\x1b\[\?\d+[hl]|\n|\r)", said):
        if piece == "\n":
            row += 1
            lines += [""] * (row == len(lines))
        elif piece == "\x1b[1A":
            row = max(row - 1, 0)
        elif piece == "\x1b[2K":
            lines[row] = ""
        elif piece != "\r" and not piece.startswith("\x1b[?"):
            lines[row] += piece
    return "\n".join(lines)


def test_each_picture_is_small_used_and_there_for_both_themes():
    pages = "\n".join(
        page.read_text(encoding="utf-8")
        for page in [REPOSITORY / "README.md", *(REPOSITORY / "docs").rglob("*.md")]
    )
    found = [path for path in IMAGES.iterdir() if path.name not in ALONE]
    assert (IMAGES / "demo.gif").stat().st_size <= DEMO_MOST
    light = [path for path in found if not path.stem.endswith("-dark")]
    assert {path.name for path in found if path.stat().st_size > MOST} == set()
    assert {p.name for p in found} == {
        name for p in light for name in (p.name, f"{p.stem}-dark{p.suffix}")
    }
    assert {path.name for path in light if f"images/{path.name})" not in pages} == set()
