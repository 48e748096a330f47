"""The panel at the side of a page, used as its user does: by clicks and by keys.

One page for each application is kept for all the tests that need no page of their own. `fresh`
gives it a home, a working directory and a conversation of its own, in the same kernel.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator

from tests.e2e.harness import Notebook, Server
from tests.loopback import Loopback, stream, text_chunks

BOTH = pytest.mark.parametrize("server", ["lab", "notebook7"], indirect=True)
PANEL = ".hermes-nb-panel"
TABS = ("Chat", "Memory", "Skills", "Context", "Session")
PANELS = f"[...document.querySelectorAll('{PANEL}')]"
"""The notebooks' parts of the panel; the current one's is in sight."""
OPENER, STAGE = 1, 2
"""The cells behind the driver: one opens the panel, one is for the test."""
PATIENCE = 60_000
_homes = itertools.count()
_FRESH = """
import os
manager = get_ipython().extension_manager
if "hermes_nb" in manager.loaded: manager.unload_extension("hermes_nb")
os.environ.update({environment!r})
os.chdir({work!r})
manager.load_extension("hermes_nb")
import hermes_nb.notebook.frontend as frontend
frontend.QUICK = {patience}
"""


def skill(folder: Path, name: str, about: str = "", body: str = "Multiply by 10.") -> Path:
    """Write a skill into a category's or a root's folder and return its file."""
    file = folder / name / "SKILL.md"
    file.parent.mkdir(parents=True)
    head = f"name: {name}\ndescription: {json.dumps(about or 'Does something useful')}"
    file.write_text(f"---\n{head}\n---\n\n{body}\n", encoding="utf-8")
    return file


@dataclass
class Side:
    """The panel of a notebook, whose model is `model` and whose home is `home`.

    `where` is the element that it is in: the application's side, or an output.
    """

    notebook: Notebook
    model: Loopback
    home: Path = Path()
    work: Path = Path()
    where: str = PANEL

    @classmethod
    def beside(cls, server: Server, browser: Browser) -> Side:
        """Open a page with a model of its own."""
        cells = ("%hermes panel", "%%hermes\nhello")
        notebook = Notebook.open(server, browser, "penguins.ipynb", cells, size=(1280, 900))
        return cls(notebook, Loopback(stream(text_chunks("ok"))).__enter__())

    def close(self) -> None:
        """Close the page, and end its kernel and its model."""
        self.notebook.close()
        self.model.__exit__()

    def fresh(self, *, notes: tuple[str, ...] = (), config: str = "") -> None:
        """Begin anew in an empty home, with a few notes and a configuration."""
        folder = self.notebook.server.folder / f"side{next(_homes)}"
        self.home, self.work = folder / "home", folder / "work"
        self.work.mkdir(parents=True)
        (self.home / "memories").mkdir(parents=True)
        if config:
            (self.home / "config.yaml").write_text(config, encoding="utf-8")
        self.note(*notes)
        self.plays("ok")
        environment = {"HERMES_HOME": str(self.home), "HERMES_NB_BASE_URL": self.model.url}
        # A page that has much else to do is to be waited for, where there is one to wait for.
        patience = 10 if self.where == PANEL else 1.5
        code = _FRESH.format(environment=environment, work=str(self.work), patience=patience)
        self.notebook.kernel(code)
        # What was asked at the panel's foot stays there, whichever kernel or home answered it.
        self.notebook.page.evaluate(
            """() => { const foot = '.hermes-composer';
            document.querySelectorAll(`${foot} details`).forEach(each => each.remove());
            document.querySelectorAll(`${foot} textarea`).forEach(e => { e.value = ''; }); }"""
        )

    def note(self, *notes: str) -> None:
        """Write MEMORY.md as a user does, in an editor."""
        path = self.home / "memories" / "MEMORY.md"
        path.write_text("\n§\n".join(notes), encoding="utf-8")

    def plays(self, *replies: object) -> None:
        """Set what the model answers from now on; a text is a whole answer."""
        self.model.exchanges.clear()
        self.model.replies[:] = [
            stream(text_chunks(reply)) if isinstance(reply, str) else reply for reply in replies
        ]

    def ask(self, prompt: str, *replies: object) -> None:
        """Have a turn, to its end."""
        if replies:
            self.plays(*replies)
        self.stage(prompt)
        self.notebook.run(STAGE)

    def stage(self, prompt: str, options: str = "") -> None:
        """Put a prompt into the cell that is for the test."""
        source = f"%%hermes {options}".rstrip() + f"\n{prompt}"
        self.notebook.evaluate("m.cells[a[0]].setSource(a[1])", [STAGE, source])

    def open(self, tab: str = "chat") -> None:
        """Open the panel as its user does."""
        source = f"%hermes panel {tab}"
        self.notebook.evaluate("m.cells[a[0]].setSource(a[1])", [OPENER, source])
        self.notebook.run(OPENER)
        title = tab.capitalize()
        self.tabs.locator(".lm-mod-current", has_text=title).wait_for(timeout=PATIENCE)

    @property
    def panel(self) -> Locator:
        """The panel."""
        return self.notebook.page.locator(self.where)

    @property
    def content(self) -> Locator:
        """What is in it, whose width can be set."""
        return self.panel.locator(".hermes-panel")

    @property
    def tabs(self) -> Locator:
        """Its bar of tabs."""
        return self.panel.locator(".lm-TabBar")

    def tab(self, title: str) -> None:
        """Turn to a tab."""
        self.tabs.locator(".lm-TabBar-tab", has_text=title).click()

    def see(self, text: str) -> None:
        """Wait until a text is in sight."""
        self.panel.get_by_text(text).locator("visible=true").first.wait_for(timeout=PATIENCE)

    def gone(self, text: str) -> None:
        """Wait until nothing in sight has this text."""
        found = self.panel.get_by_text(text).locator("visible=true")
        self.notebook.until(lambda: not found.count())

    def said(self, text: str) -> None:
        """Wait until the line above the tabs says how a click went."""
        line = self.panel.locator(".hermes-said", has_text=text)
        line.wait_for(timeout=PATIENCE)

    def row(self, text: str) -> Locator:
        """The line of a list that has this text."""
        return self.panel.locator(".hermes-row", has_text=text).locator("visible=true").first

    def button(self, label: str, row: str = "", number: int = 0) -> Locator:
        """A button by its name, in a line of a list if `row` is a text of one."""
        place = self.row(row) if row else self.panel
        return place.get_by_role("button", name=label, exact=True).nth(number)

    def press(self, label: str, row: str = "", number: int = 0) -> None:
        """Click a button."""
        self.button(label, row, number).click(timeout=PATIENCE)

    def keys(self, *keys: str) -> None:
        """Press keys one after the other, wherever the focus is."""
        for key in keys:
            self.notebook.page.keyboard.press(key)

    def turn(self) -> None:
        """Turn to the next tab by the keyboard."""
        self.tabs.locator(".lm-mod-current").focus()
        self.keys("ArrowRight", "Enter")

    def reach(self, control: Locator) -> None:
        """Go to a control by the Tab key; fail where that does not lead there."""
        control.wait_for(timeout=PATIENCE)
        for _ in range(60):
            if control.evaluate("e => e === document.activeElement"):
                return
            self.keys("Tab")
        pytest.fail(f"no key leads to {control}")

    def field(self, hint: str) -> Locator:
        """A field by the words that stand in it while it is empty."""
        return self.panel.get_by_placeholder(hint).locator("visible=true")
