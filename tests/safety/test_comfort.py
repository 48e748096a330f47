"""Honest work asks no more than at the commit that is recorded, and what matters is learnt unasked.

`make bench-comfort` plays all stories.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.notebook.conftest import shell
from tests.safety.stories import OWN, WISHES, asked, saved

__all__ = ["shell"]
BEFORE = json.loads((Path(__file__).parents[2] / "bench/comfort_before.json").read_text())["asked"]
QUICK = (
    "clean a table",
    "fix a script",
    "find one's way",
    "write a report",
    "cells",
    "a wish",
    "a corrected skill",
    "data by an address",
    "a database on this machine",
    "a cluster on this machine",
)
STORIES = [story for story in OWN if story.name in QUICK]


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_a_story_asks_no_more_than_before(shell, tmp_path, story):
    ask, edits = BEFORE[story.name]
    assert asked(shell, tmp_path / "ask", story, "ask") <= ask
    assert asked(shell, tmp_path / "edits", story, "edits") <= edits


def test_what_should_be_learnt_is_saved_without_a_question(shell, tmp_path):
    kept = [
        saved(shell, tmp_path / str(number), wish, review=number % 2 == 0)
        for number, wish in enumerate(WISHES)
    ]
    assert sum(kept) >= 0.8 * len(WISHES)
