"""The site builds without a warning, loads nothing from elsewhere, and answers what people ask."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT
from tests.e2e.harness import launched

pytestmark = pytest.mark.slow
LOADING = {
    "audio": "src", "embed": "src", "form": "action", "iframe": "src", "img": "src",
    "input": "src", "link": "href", "object": "data", "script": "src", "source": "src",
    "track": "src", "video": "src",
}  # fmt: skip
"""Attributes that a browser follows by itself, by element."""
INERT = {"canonical", "next", "prev", "index", "search", "author", "license"}
"""Relations of `link` that load nothing."""
REMOTE = re.compile(r"(?:https?:)?//")
STYLE = re.compile(r"""(?:url\(\s*["']?|@import\s+["'])((?:https?:)?//[^)"']+)""")

ANSWERS = {
    "undo": "howto/undo", "restore": "howto/undo", "stop": "howto/stop", "cost": "howto/costs",
    "budget": "howto/costs", "API key": "howto/choose-a-model", "Ollama": "howto/choose-a-model",
    "good enough": "howto/choose-a-model", "share": "howto/share-a-notebook",
    "memory off": "memory", "privacy": "privacy", "install": "install", "uninstall": "install",
    "Windows": "install", "VS Code": "howto/vscode-colab", "CI": "howto/test-notebooks",
    "MCP": "howto/mcp", "tool": "howto/own-tool", "schedule": "howto/schedule",
    "JupyterHub": "howto/jupyterhub", "compress": "long-sessions", "approve": "howto/edit-safely",
}  # fmt: skip
"""What people search for, and the page in docs/ that answers it."""
HITS = "[...document.querySelectorAll('#search-results li > a')].map(a => a.pathname)"
FINISHED = "document.querySelector('#search-results')?.innerText.includes('Search finished')"
LINK = re.compile(r"\]\(([^)#]+\.md)")


class Quiet(SimpleHTTPRequestHandler):
    """Serves a folder without a log."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class Loads(HTMLParser):
    """Collects what a page loads from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "link" and set(given.get("rel", "").split()) <= INERT:
            return
        address = given.get(LOADING.get(tag, ""), "")
        style = STYLE.findall(given.get("style", ""))
        self.found += [each for each in (address, *style) if REMOTE.match(each)]
        self.found += [part for part in given.get("srcset", "").split() if REMOTE.match(part)]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site and return its folder."""
    folder = tmp_path_factory.mktemp("site")
    told = "-q -W --keep-going -n -T -c docs".split()
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", *told, "-d", folder / "doctrees", ".", folder / "html"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "html"


def test_no_page_loads_anything_from_elsewhere(site):
    remote = {}
    for page in site.rglob("*.html"):
        loads = Loads()
        loads.feed(page.read_text(encoding="utf-8"))
        remote |= {str(page.relative_to(site)): loads.found} if loads.found else {}
    for sheet in site.rglob("*.css"):
        found = STYLE.findall(sheet.read_text(encoding="utf-8"))
        remote |= {sheet.name: found} if found else {}
    assert remote == {}


def test_every_page_and_notebook_is_there_and_can_be_searched(site):
    index = (site / "searchindex.js").read_text(encoding="utf-8")
    for source in [*(ROOT / "docs").rglob("*.md"), *(ROOT / "notebooks").glob("*.ipynb")]:
        name = source.relative_to(ROOT).with_suffix("").as_posix()
        assert (site / f"{name}.html").exists(), name
        assert f'"{name}"' in index, name


def test_the_first_or_second_hit_of_a_search_is_the_page_that_answers(site):
    missed = {}
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with launched() as browser:
        page = browser.contexts[0].new_page()
        for words, answer in ANSWERS.items():
            page.goto(f"http://127.0.0.1:{server.server_port}/search.html?q={words}")
            page.wait_for_function(FINISHED)
            hits = page.evaluate(HITS)[:2]
            missed |= {} if f"/docs/{answer}.html" in hits else {words: hits}
    server.shutdown()
    server.server_close()
    assert missed == {}


def linked(page: Path) -> set[Path]:
    """Return the pages that a page links."""
    found = LINK.findall(page.read_text(encoding="utf-8"))
    return {(page.parent / each).resolve() for each in found if "://" not in each}


@pytest.mark.parametrize("start", ["README.md", "docs/index.md"])
def test_the_page_that_answers_is_two_clicks_away(start):
    first = linked(ROOT / start)
    near = first.union(*map(linked, first))
    far = {page for page in ANSWERS.values() if ROOT / "docs" / f"{page}.md" not in near}
    assert far == set()
