"""The panel at the side of a real page: seen, clicked, reloaded, and checked for accessibility."""

from __future__ import annotations

import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from tests.e2e.harness import write
from tests.e2e.test_approval import shown
from tests.e2e.test_reload import held, reload_shown
from tests.loopback import Reply, chunk, event, stream, text_chunks

BOTH = pytest.mark.parametrize("server", ["lab", "notebook7"], indirect=True)
SIDE = ".hermes-nb-panel"
PANELS = "[...window.jupyterapp.shell.widgets('right')].filter(w => w.id.startsWith('hermes-nb-p'))"
AXE = Path.home() / ".cache" / "hermes_nb-tests"
NOTES = (
    "Data lives in `data/`; raw files are never edited.",
    "bill_length_mm arrives in cm from the 2024 export <img src=x onerror='window.obeyed=1'>",
)


def prepare(notebook, provider, *, notes=NOTES):
    """Load hermes with a home of its own, some memory and a skill."""
    home = notebook.server.folder / f"home-{Path(notebook.name).stem}"
    skill = home / "skills" / "data" / "penguin-units"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text(
        "---\nname: penguin-units\ndescription: Fix the 2024 cm export\n---\n\nMultiply by 10.\n"
    )
    (home / "memories").mkdir()
    (home / "memories" / "MEMORY.md").write_text("\n§\n".join(notes), encoding="utf-8")
    notebook.kernel(
        f"import os; os.environ['HERMES_HOME'] = {str(home)!r}\n"
        f"os.environ['HERMES_NB_BASE_URL'] = {provider.url!r}\n%load_ext hermes_nb"
    )
    return home


def tab(notebook, title):
    notebook.page.click(f"{SIDE} .lm-TabBar-tab:has-text('{title}')")


def see(notebook, text, timeout=15_000):
    notebook.page.wait_for_selector(f"{SIDE} >> text={text}", timeout=timeout)


def press(notebook, label):
    notebook.page.click(f"{SIDE} button:text-is('{label}'):visible")


def violations(notebook):
    """Return what is wrong with the panel for people who cannot see it well, by axe if it is there.

    Without npm, only that every button has a name is checked.
    """
    script = axe()
    if script is None:
        return notebook.page.evaluate(
            "s => [...document.querySelectorAll(s + ' button')].filter(b => !b.textContent.trim())"
            ".map(b => b.outerHTML)",
            SIDE,
        )
    notebook.page.evaluate(script.read_text(encoding="utf-8"))
    return notebook.page.evaluate(
        "async s => (await axe.run(s, {runOnly: ['wcag2a', 'wcag2aa']})).violations"
        ".map(v => [v.id, ...v.nodes.map(n => n.html.slice(0, 200) + ' ' + n.failureSummary)])",
        SIDE,
    )


def axe():
    """Return the path of axe-core, fetched once into the user's cache; None where that fails."""
    script = AXE / "node_modules" / "axe-core" / "axe.min.js"
    npm = shutil.which("npm")
    if not script.exists() and npm:
        AXE.mkdir(parents=True, exist_ok=True)
        command = [npm, "install", "--prefix", str(AXE), "--no-audit", "--no-fund", "axe-core@4"]
        subprocess.run(command, check=False, capture_output=True, timeout=60)
    return script if script.exists() else None


@BOTH
def test_memory_and_skills_at_the_side(open_notebook, server, model):
    notebook = open_notebook("%hermes panel", size=(1280, 900))
    home = prepare(notebook, model)
    assert shown(notebook.run(1)) == ""
    see(notebook, "raw files are never edited")
    notebook.page.click(f"{SIDE} button:text-is('edit') >> nth=0")
    notebook.page.fill(f"{SIDE} textarea", "Data lives in `input/`.")
    press(notebook, "Save")
    see(notebook, "New sessions know it")
    memory = home / "memories" / "MEMORY.md"
    assert "input/" in memory.read_text(encoding="utf-8")
    notebook.page.click(f"{SIDE} button:text-is('undo') >> nth=0")
    notebook.until(lambda: "data/" in memory.read_text(encoding="utf-8"))
    see(notebook, "raw files are never edited")
    notebook.shot(f"panel-memory-{server.app}")
    tab(notebook, "Skills")
    see(notebook, "penguin-units")
    notebook.page.fill(f"{SIDE} input:visible", "centimetres export")
    notebook.page.wait_for_function(
        f"document.querySelectorAll('{SIDE} button.hermes-name').length < 5"
    )
    press(notebook, "penguin-units")
    see(notebook, "Multiply by 10.")
    notebook.shot(f"panel-skills-{server.app}")
    press(notebook, "Turn off")
    see(notebook, "is off")
    assert notebook.page.evaluate("window.obeyed ?? null") is None
    assert "widget-view" not in str(notebook.outputs(1))


def reported(text, prompt, cached):
    """Return a reply whose provider counted tokens."""
    counted = {"prompt_tokens": prompt, "completion_tokens": 20, "total_tokens": prompt + 20}
    counted["prompt_tokens_details"] = {"cached_tokens": cached}
    return stream([*text_chunks(text), {"choices": [], "usage": counted}], usage=False)


def test_the_context_follows_the_turns_and_is_compressed_and_restored(open_notebook, model):
    notebook = open_notebook(
        "%hermes panel context", *(f"%%hermes\nquestion {n}" for n in range(4)), size=(1400, 900)
    )
    prepare(notebook, model)
    model.replies[:] = [
        reported(f"Answer {n}. " + "word " * 2_000, 9_000 * (n + 1), 9_000 * n) for n in range(4)
    ]
    notebook.run(1)
    see(notebook, "There has been no turn in this session yet.")
    for n in range(4):
        notebook.run(2 + n)
        notebook.page.wait_for_function(
            f"document.querySelectorAll('{SIDE} .hermes-chart g').length === {n + 1}"
        )
    see(notebook, "compresses at")
    notebook.command("apputils:change-theme", theme="JupyterLab Dark")
    notebook.page.wait_for_timeout(500)
    notebook.page.fill(f"{SIDE} input:visible", "the answers")
    model.replies[:] = [stream(text_chunks("## Goal\nFour questions were answered."))]
    press(notebook, "Compress now")
    see(notebook, "Compressed at turn 4")
    press(notebook, "summary")
    see(notebook, "Four questions were answered.")
    notebook.shot("panel-context-dark")
    assert violations(notebook) == []
    press(notebook, "undo")
    see(notebook, "Restored at turn 4")


def test_sessions_are_resumed_and_the_panel_comes_back_after_a_reload(open_notebook, model):
    notebook = open_notebook("%hermes panel session", "%%hermes\nwhat is a penguin?")
    prepare(notebook, model)
    notebook.run(2)
    notebook.run(1)
    see(notebook, "what is a penguin?")
    press(notebook, "New session")
    see(notebook, "The next turn starts a new session.")
    press(notebook, "resume")
    see(notebook, "Resumed with 2 messages")
    notebook.command("docmanager:save")
    notebook.page.reload()
    reload_shown(notebook)
    see(notebook, "what is a penguin?")
    press(notebook, "New session")
    see(notebook, "The next turn starts a new session.")
    assert len(notebook.page.query_selector_all(SIDE)) == 1
    notebook.command("application:toggle-right-area")
    notebook.page.reload()
    reload_shown(notebook)
    notebook.page.wait_for_function(f"{PANELS}.length === 1")  # hidden, as it was
    assert not notebook.page.is_visible(SIDE)
    notebook.page.evaluate(f"{PANELS}[0].close()")
    notebook.page.wait_for_timeout(300)
    notebook.page.reload()
    reload_shown(notebook)
    notebook.page.wait_for_timeout(1500)  # what the user closed stays closed
    assert not notebook.page.query_selector(SIDE)


def test_each_notebook_has_a_panel_of_its_own_which_ends_with_its_kernel(open_notebook, model):
    notebook = open_notebook("%hermes panel")
    prepare(notebook, model)
    notebook.run(1)
    see(notebook, "raw files are never edited")
    write(notebook.server.root / "another.ipynb", ["%hermes panel"])
    notebook.command("docmanager:open", path="another.ipynb")
    notebook.name = "another.ipynb"
    notebook.ready()
    prepare(notebook, model, notes=("Only in the other one.",))
    notebook.run(1)
    see(notebook, "Only in the other one.")
    labels = notebook.page.evaluate(f"{PANELS}.map(w => w.title.label)")
    assert sorted(labels)[0] == "Hermes · another"
    assert len(labels) == 2
    notebook.evaluate("nb.sessionContext.restartKernel()")
    notebook.page.wait_for_function(f"{PANELS}.length === 1")


def test_the_panel_is_usable_by_keyboard_and_readable_in_a_light_theme(open_notebook, model):
    notebook = open_notebook("%hermes panel", "%%hermes\nhello", size=(1280, 900))
    prepare(notebook, model)
    notebook.run(2)
    notebook.run(1)
    see(notebook, "raw files are never edited")
    notebook.command("apputils:change-theme", theme="JupyterLab Light")
    notebook.page.wait_for_timeout(500)
    for title in ("Memory", "Skills", "Context", "Session"):
        tab(notebook, title)
        notebook.page.wait_for_timeout(700)
        notebook.shot(f"panel-light-{title.lower()}")
        assert violations(notebook) == [], title
    notebook.page.focus(f"{SIDE} .lm-TabBar-tab.lm-mod-current")
    for key in ("ArrowLeft", "ArrowLeft", "ArrowLeft", "Enter"):
        notebook.page.keyboard.press(key)
    see(notebook, "raw files are never edited")
    gate = threading.Event()
    begin = event(chunk({"content": "Once upon a **time** "}))
    model.replies[:] = [Reply([begin, held(gate), *stream(text_chunks("the end.")).steps])]
    notebook.start(2)
    notebook.page.wait_for_selector(".jp-RenderedMarkdown strong:has-text('time')")
    notebook.page.focus(f"{SIDE} button:text-is('forget') >> nth=0")
    notebook.page.keyboard.press("Enter")
    see(notebook, "Removed")  # while the turn runs
    tab(notebook, "Context")
    button = f"{SIDE} button:text-is('Compress now')"
    notebook.page.wait_for_selector(f"{button}:disabled")
    assert "a turn is running" in notebook.page.get_attribute(button, "title")
    gate.set()
    notebook.finish(2)
    notebook.page.wait_for_selector(f"{button}:enabled")
