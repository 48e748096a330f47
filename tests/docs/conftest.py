"""A reader with a shell, a model that plays, and the example data."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.docs.blocks import ROOT
from tests.docs.playing import Playing
from tests.docs.running import Reader
from tests.notebook.conftest import shell

__all__ = ["reader", "shell"]


@pytest.fixture(autouse=True)
def surroundings():
    """Take back what a page sets in the environment, in this process."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def reader(shell, tmp_path, home, monkeypatch):
    """Yield somebody in an empty folder with the example data, whose model is a script."""
    folder = tmp_path / "work"
    folder.mkdir()
    shutil.copytree(ROOT / "notebooks" / "data", folder / "data")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    with Playing() as model:
        monkeypatch.setenv("OPENAI_BASE_URL", model.url)
        monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key")
        monkeypatch.setenv("HERMES_NB_MODEL", "playing")
        monkeypatch.setenv("HERMES_NB_VISION", "on")
        yield Reader(shell, folder, model)
        shell.run_cell("%unload_ext hermes_nb", silent=True)
