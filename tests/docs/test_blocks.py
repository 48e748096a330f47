"""What the pages show works as it stands there."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, blocks, pages

EXEMPT = {
    "docs/howto/acp.md": 1,
    "docs/howto/chat.md": 1,
    "docs/howto/choose-a-model.md": 1,
    "docs/howto/gateway.md": 1,
    "docs/howto/gateway-matrix.md": 1,
    "docs/howto/mcp.md": 1,
    "docs/howto/mcp-server.md": 2,
    "docs/howto/postgres.md": 6,
    "docs/howto/schedule.md": 2,
    "docs/howto/test-notebooks.md": 4,
    "docs/replay.md": 1,
}
"""How many blocks of a page are not run. Each says why, in a comment before it."""

SLOW = {"README.md", "docs/howto/teaching.md", "docs/howto/test-notebooks.md"}
"""Pages whose blocks start kernels."""


def _named(page: Path) -> pytest.param:
    name = str(page.relative_to(ROOT))
    return pytest.param(page, id=name, marks=[pytest.mark.slow] if name in SLOW else [])


@pytest.mark.parametrize("page", [_named(page) for page in pages() if blocks(page)])
def test_a_page_can_be_followed(page, reader):
    for block in blocks(page):
        reader.follow(block)


def test_what_is_not_run_is_known_and_says_why():
    left_out = [b for page in pages() for b in blocks(page) if "not run" in b.directives]
    for block in left_out:
        print(f"{block.where}: {block.directives['not run']}")
    assert all(len(block.directives["not run"]) > 10 for block in left_out)
    assert Counter(str(b.page.relative_to(ROOT)) for b in left_out) == EXEMPT


def test_every_block_names_its_language():
    unnamed = [b.where for page in pages() for b in blocks(page) if not b.language]
    assert unnamed == []
