"""The site builds without a warning, and a page of it loads nothing from elsewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from html.parser import HTMLParser

import pytest

from tests.docs.blocks import ROOT

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
