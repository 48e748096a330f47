"""Pytest plugin: a cassette for each test, and for each notebook under nbval.

```python
def test_the_story(hermes_cassette):
    with Hermes() as hermes:
        assert "344" in hermes.ask("How many penguins are there?").text
```

`pytest --nbval --hermes-replay` replays each notebook from the cassette next to it and compares the
outputs, ignoring times, ids and similar details. `SANITIZE` lists the ignored patterns, in a file
for nbval's `--nbval-sanitize-with`; `python -m hermes_nb.pytest_plugin` prints its path.

Loading the plugin imports only pytest, which is already imported.
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
    from nbformat import NotebookNode

    from hermes_nb.core.protocols import ChatModel
    from hermes_nb.models.canonical import Normaliser
    from hermes_nb.models.cassette import Cassette, Mode

FOLDER = "cassettes"
"""Folder for cassettes, next to the test file. It contains a folder per test file, with a file per
test."""
SANITIZE = Path(__file__).with_name("nbval.cfg")
"""Patterns that nbval ignores in the outputs of Hermes cells."""
MODE, FILE = "HERMES_NB_CASSETTE", "HERMES_NB_CASSETTE_FILE"
_LONGEST = 120


@dataclass(frozen=True, slots=True)
class TestCassette:
    """A test's cassette."""

    __test__ = False  # pytest would collect the class because of its name

    path: Path
    """Path of the file."""
    mode: Mode
    """How it is used, such as `replay` or `record`."""

    def model(
        self, model: ChatModel | None = None, *, normalise: Sequence[Normaliser] = ()
    ) -> Cassette:
        """Return a model that uses this cassette.

        Args:
            model: The model to record; None is enough for a replay.
            normalise: Functions that remove volatile values from text.
        """
        from hermes_nb.models.cassette import Cassette

        return Cassette(model, self.path, self.mode, normalise=normalise)


@pytest.fixture
def hermes_cassette(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> TestCassette:
    """Use a cassette for all model requests of this test.

    The environment variable `HERMES_NB_CASSETTE` sets the mode (default: `replay`, which does not
    use a model). Agents and kernels started by the test inherit the mode and the path as
    environment variables.
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
        help="use replies that were edited in the cassettes",
    )
    parser.getgroup("hermes").addoption(
        "--hermes-replay",
        action="store_true",
        help=(
            "with --nbval: replay each notebook from its cassette, without a model, and ignore "
            "times, session ids and the like in its outputs"
        ),
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """Pass the cassette of a notebook to nbval's kernel, which starts before the first cell."""
    patterns = getattr(item.parent, "sanitize_patterns", None)
    if patterns is None:  # not an nbval cell
        yield
        return
    replay = item.config.getoption("--hermes-replay")
    with pytest.MonkeyPatch.context() as patch:
        if replay:
            patch.setenv(MODE, "replay")
            patch.setenv("HERMES_NB_CEILING", "all")  # allow the recorded approval modes
        cassette = item.path.with_name(f"{item.path.stem}.hermes.jsonl")
        _accept(item.config, cassette)
        known = bool(os.environ.get(FILE)) and not replay
        if os.environ.get(MODE) and not known and cassette.exists():
            patch.setenv(FILE, str(cassette))
        yield
    if replay:
        _leave_out_load_line(getattr(item, "cell"))  # noqa: B009 - nbval's, which has no types
        from nbval.plugin import get_sanitize_patterns

        for pattern, instead in get_sanitize_patterns(SANITIZE.read_text(encoding="utf-8")):
            patterns.setdefault(pattern, instead)


def _leave_out_load_line(cell: NotebookNode) -> None:
    """Remove what `%load_ext` prints only where a user works, so that nbval doesn't expect it."""
    from hermes_nb.notebook.shell import LOADED

    for output in cell.get("outputs", []):
        if output.output_type == "stream":
            output.text = output.text.replace(LOADED, "")
    cell.outputs = [each for each in cell.get("outputs", []) if each.get("text") != ""]


def _accept(config: pytest.Config, cassette: Path) -> None:
    if config.getoption("--hermes-accept"):
        from hermes_nb.models.cassette_file import Tape

        Tape(cassette).accept()


def _path(file: Path, test: str) -> Path:
    """Return a test's cassette path, based on its class, name and parameters."""
    name = re.sub(r"[^\w.-]+", "-", test.replace("::", ".")).strip("-.")
    return file.parent / FOLDER / file.stem / f"{name[:_LONGEST]}.jsonl"


if __name__ == "__main__":
    print(SANITIZE)  # noqa: T201 - the purpose of running it
