"""What pytest gets from hermes_nb: a cassette for each test, and for each notebook under nbval.

```python
def test_the_story(hermes_cassette):
    with Hermes() as hermes:
        assert "344" in hermes.ask("How many penguins are there?").text
```

`pytest --nbval --hermes-replay` replays notebooks, each from the cassette beside it, and compares
what they show without times, ids and the like: `SANITIZE` is the list, a file for nbval's
`--nbval-sanitize-with` (`python -m hermes_nb.pytest_plugin` prints where it is).

Loading this costs an import of pytest, which is there, and nothing else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from hermes_nb.core.protocols import ChatModel
    from hermes_nb.models.canonical import Normaliser
    from hermes_nb.models.cassette import Cassette, Mode

FOLDER = "cassettes"
"""Beside the test's file; below it a folder for the file, in it a file for each test."""
SANITIZE = Path(__file__).with_name("nbval.cfg")
"""What nbval is to overlook in the outputs of Hermes' cells."""
MODE, FILE = "HERMES_NB_CASSETTE", "HERMES_NB_CASSETTE_FILE"
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
    from hermes_nb.models.cassette import mode_named

    mode = mode_named(os.environ.get(MODE) or "replay")
    path = _path(request.path, request.node.nodeid.partition("::")[2])
    _accept(request.config, path)
    monkeypatch.setenv(MODE, mode)
    monkeypatch.setenv(FILE, str(path))
    return TestCassette(path, mode)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--hermes-replay` and `--hermes-accept`."""
    parser.getgroup("hermes").addoption(
        "--hermes-accept",
        action="store_true",
        help="let answers count that were edited in the cassettes of what runs",
    )
    parser.getgroup("hermes").addoption(
        "--hermes-replay",
        action="store_true",
        help="with --nbval: replay each notebook from its cassette, asking no model, and overlook "
        "times, session ids and the like in its outputs",
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Tell nbval's kernel, which starts before its notebook's first cell, whose cassette it is."""
    patterns = getattr(item.parent, "sanitize_patterns", None)
    if patterns is None:  # none of nbval's
        yield
        return
    replay = item.config.getoption("--hermes-replay")
    with pytest.MonkeyPatch.context() as patch:
        if replay:
            patch.setenv(MODE, "replay")
            patch.setenv("HERMES_NB_CEILING", "all")  # what cells choose was recorded with them
        cassette = item.path.with_name(f"{item.path.stem}.hermes.jsonl")
        _accept(item.config, cassette)
        known = bool(os.environ.get(FILE)) and not replay
        if os.environ.get(MODE) and not known and cassette.exists():
            patch.setenv(FILE, str(cassette))
        yield
    if replay:
        from nbval.plugin import get_sanitize_patterns

        for pattern, instead in get_sanitize_patterns(SANITIZE.read_text(encoding="utf-8")):
            patterns.setdefault(pattern, instead)


def _accept(config: pytest.Config, cassette: Path) -> None:
    if config.getoption("--hermes-accept"):
        from hermes_nb.models.cassette_file import Tape

        Tape(cassette).accept()


def _path(file: Path, test: str) -> Path:
    """Return the path for a test by its name, its class and its parameters."""
    name = re.sub(r"[^\w.-]+", "-", test.replace("::", ".")).strip("-.")
    return file.parent / FOLDER / file.stem / f"{name[:_LONGEST]}.jsonl"


if __name__ == "__main__":
    print(SANITIZE)  # noqa: T201 - what it is run for
