"""Every link within the repository leads somewhere: files, headings and pictures."""

from __future__ import annotations

import re
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

from tests.docs.blocks import ROOT, pages

ALL = [*pages(), ROOT / "CHANGELOG.md", ROOT / "notebooks" / "data" / "README.md"]


def tokens(page: Path):
    """Yield a page's tokens, inline ones as well."""
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8")):
        yield token
        yield from token.children or ()


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    parsed = MarkdownIt("commonmark").enable("table").parse(page.read_text(encoding="utf-8"))
    for opening, inline in pairwise(parsed):
        if opening.type == "heading_open":
            said = "".join(t.content for t in inline.children or () if t.content)
            kept = [c for c in said.lower() if c in " -_" or unicodedata.category(c)[0] in "LN"]
            found.add("".join(kept).replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    lost = []
    for token in tokens(page):
        target = str(token.attrs.get("href") or token.attrs.get("src") or "")
        if not target or re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            lost.append(target)
    assert lost == []


def test_no_picture_comes_from_elsewhere():
    remote = [
        (page.name, token.attrs["src"])
        for page in ALL
        for token in tokens(page)
        if token.type == "image" and "//" in str(token.attrs["src"])
    ]
    assert remote == []


def test_the_list_of_decisions_is_complete():
    listed = (ROOT / "docs" / "adr" / "README.md").read_text(encoding="utf-8")
    records = sorted((ROOT / "docs" / "adr").glob("0*.md"))
    assert [path.name for path in records] == re.findall(r"\((0\S+\.md)\)", listed)
