"""The pytest fixture `hermes_cassette`: each test has a cassette of its own, named after it.

```python
def test_the_story(hermes_cassette):
    with Hermes() as hermes:
        assert "344" in hermes.ask("How many penguins are there?").text
```

Loading this costs an import of pytest, which is there, and nothing else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hermes_nb.core.protocols import ChatModel
    from hermes_nb.models.canonical import Normaliser
    from hermes_nb.models.cassette import Cassette
    from hermes_nb.models.modes import Mode

FOLDER = "cassettes"
"""Beside the test's file; below it a folder for the file, in it a file for each test."""
_LONGEST = 120


@dataclass(frozen=True, slots=True)
class TestCassette:
    """A test's cassette: its file, and what is done with it."""

    __test__ = False  # for pytest, which takes the name for a test's

    path: Path
    mode: Mode

    def model(
        self, model: ChatModel | None = None, *, normalise: Sequence[Normaliser] = ()
    ) -> Cassette:
        """Return a model on this cassette, around another one or, for a replay, around none."""
        from hermes_nb.models.cassette import Cassette

        return Cassette(model, self.path, self.mode, normalise=normalise)


@pytest.fixture
def hermes_cassette(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> TestCassette:
    """Put everything that Hermes asks of models in this test on a cassette.

    The mode is that of `HERMES_NB_CASSETTE`, `replay` by default: a test asks no model unless
    somebody says so. Agents and kernels that the test starts find both in their environment.
    """
    from hermes_nb.models.modes import mode_named

    mode = mode_named(os.environ.get("HERMES_NB_CASSETTE") or "replay")
    path = _path(request.path, request.node.nodeid.partition("::")[2])
    monkeypatch.setenv("HERMES_NB_CASSETTE", mode)
    monkeypatch.setenv("HERMES_NB_CASSETTE_FILE", str(path))
    return TestCassette(path, mode)


def _path(file: Path, test: str) -> Path:
    """Return the path for a test by its name, its class and its parameters."""
    name = re.sub(r"[^\w.-]+", "-", test.replace("::", ".")).strip("-.")
    return file.parent / FOLDER / file.stem / f"{name[:_LONGEST]}.jsonl"
