"""Run a notebook headless, replaying its model requests from a cassette, and compare its outputs.

```python
from hermes_nb.testing import run_notebook

run_notebook("analysis.ipynb", mode="record")  # once, with a model: writes outputs and cassette
run_notebook("analysis.ipynb")  # in CI, without one: raises NotebookDiffers
```

Requires nbclient and nbformat, which are dependencies of hermes_nb. Both are imported when a
notebook runs.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.files import write_atomic
from hermes_nb.core.messages import Json
from hermes_nb.models.canonical import Normaliser
from hermes_nb.models.cassette import SUFFIX, Mode, common_prefix, mode_named
from hermes_nb.models.volatile import RESULTS, Places, masked
from hermes_nb.notebook.shell import Foreign
from hermes_nb.safety.redact import redact

__all__ = ["Difference", "NotebookDiffers", "Run", "cassette_for", "normalise", "run_notebook"]

UNCOMPARED = frozenset({"hermes-ignore-output", "nbval-ignore-output"})
"""Tags of cells whose outputs are not compared."""
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class Difference:
    """A cell whose output differs from the one in the file."""

    cell: int
    """Number of the cell, from 1."""
    source: str
    """Source of the cell."""
    before: str
    """The output in the file, normalised for the comparison."""
    now: str
    """The new output, normalised for the comparison."""

    def __str__(self) -> str:
        """Return the cell's number and first line, and both outputs from the first difference."""
        head = next(iter(self.source.strip().splitlines()), "")[:80]
        at = common_prefix(self.before, self.now)
        start = max(0, at - 40)
        sides = (side[start : start + _SHOWN] or "(nothing)" for side in (self.before, self.now))
        return "cell {} ({}) shows another thing:\n  before: {}\n  now:    {}".format(
            self.cell, head, *(side.replace("\n", "\n          ") for side in sides)
        )


class NotebookDiffers(AssertionError):
    """The outputs of some cells differ from those in the notebook file."""

    def __init__(self, path: Path, differences: Sequence[Difference]) -> None:
        self.differences = tuple(differences)
        super().__init__("\n".join([f"{path.name}:", *map(str, differences)]))


@dataclass(frozen=True, slots=True)
class Run:
    """The result of a notebook run."""

    notebook: Foreign
    """The notebook with its new outputs, an nbformat `NotebookNode`."""
    cassette: Path
    """Path of the cassette."""
    differences: tuple[Difference, ...] = field(default=())
    """Currently always empty: a replay whose outputs differ raises `NotebookDiffers`."""


def cassette_for(notebook: str | Path) -> Path:
    """Return the default path of a notebook's cassette, next to the notebook."""
    path = Path(notebook).absolute()
    return path.with_name(path.stem + SUFFIX)


def normalise(function: Normaliser) -> None:
    """Register a function that removes volatile values from all texts of this kernel's cassette.

    Call it in the first cells of the notebook, both when recording and when replaying, because
    requests are matched by their normalised text. Raises `ConfigError` if hermes_nb is not loaded.
    """
    from IPython.core.getipython import get_ipython

    from hermes_nb.notebook.shell import hermes_magics

    shell: Foreign = get_ipython()
    magics = shell and hermes_magics(shell)
    if not magics:
        raise ConfigError("hermes_nb is not loaded here; run `%load_ext hermes_nb` first")
    magics.agent.deck.normalisers.append(function)


def run_notebook(
    path: str | Path,
    *,
    mode: Mode = "replay",
    cassette: str | Path | None = None,
    compare: bool = True,
    normalise: Iterable[Normaliser] = (),
    env: Mapping[str, str] | None = None,
    home: str | Path | None = None,
    timeout: float = 600.0,
) -> Run:
    """Run all cells in a new kernel and return the result.

    A replay compares the outputs with those in the file. Cells that were never run and cells tagged
    `hermes-ignore-output` or `nbval-ignore-output` are skipped. Other modes write the new outputs
    to the file.

    Args:
        path: Path of the notebook.
        mode: How to use the cassette.
        cassette: Path of the cassette (default: next to the notebook).
        compare: Whether a replay compares the outputs.
        normalise: Functions that remove volatile values from text, in addition to times, addresses
            and paths.
        env: Environment variables to add. Cells may choose their approval mode.
        home: Hermes directory (default: an empty one, so that the model to record is taken from the
            environment).
        timeout: Maximum time for each cell, in seconds.

    Raises:
        NotebookDiffers: Outputs differ.
        nbclient.exceptions.CellExecutionError: A cell failed, for example with a `CassetteMiss`.
    """
    import nbformat
    from nbclient import NotebookClient

    file = Path(path).absolute()
    wanted = mode_named(mode)
    tape = Path(cassette).absolute() if cassette is not None else cassette_for(file)
    before = nbformat.read(file, as_version=4)  # type: ignore[no-untyped-call]
    notebook = deepcopy(before)
    with tempfile.TemporaryDirectory(prefix="hermes-home-", ignore_cleanup_errors=True) as empty:
        home = str(empty if home is None else home)
        extra = {
            "HERMES_HOME": home,
            "HERMES_NB_CEILING": "all",
            "HERMES_NB_CASSETTE": wanted,
            "HERMES_NB_CASSETTE_FILE": str(tape),
        }
        client = NotebookClient(
            notebook,
            timeout=timeout,
            resources={"metadata": {"path": str(file.parent)}},
        )
        client.execute(env={**os.environ, **extra, **(env or {})})
        places = Places.of([("cwd", file.parent), ("hermes", home), ("home", Path.home())])
    if wanted != "replay":
        write_atomic(file, nbformat.writes(notebook).encode())  # type: ignore[no-untyped-call]
        return Run(notebook, tape)
    found = tuple(_differences(before, notebook, places, tuple(normalise))) if compare else ()
    if found:
        raise NotebookDiffers(file, found)
    return Run(notebook, tape)


def _differences(
    before: Foreign,
    now: Foreign,
    places: Places,
    normalisers: Sequence[Normaliser],
) -> Iterable[Difference]:
    for number, (old, new) in enumerate(zip(before.cells, now.cells, strict=True), 1):
        if old.cell_type != "code" or old.execution_count is None:
            continue
        if UNCOMPARED.intersection(old.metadata.get("tags", ())):
            continue
        sides = [_shown(cell.outputs, places, normalisers) for cell in (old, new)]
        if sides[0] != sides[1]:
            yield Difference(number, old.source, *sides)


def _shown(
    outputs: Sequence[Mapping[str, Json]], places: Places, normalisers: Sequence[Normaliser]
) -> str:
    text = redact(_ANSI.sub("", "\n".join(_texts(outputs))))
    text = masked(text, RESULTS, places).text
    for normalise in normalisers:
        text = normalise(text)
    return text.strip()


def _texts(outputs: Sequence[Mapping[str, Json]]) -> Iterable[str]:
    stream = ""
    for output in outputs:
        kind = output["output_type"]
        if kind == "stream":  # join adjacent streams, which are split at random
            stream += output["text"]
            continue
        if stream:
            yield stream
            stream = ""
        if kind == "error":
            yield f"{output['ename']}: {output['evalue']}"
            continue
        data = output.get("data", {})
        words = data.get("text/markdown") or data.get("text/plain") or ""
        yield "".join(words)
        yield from sorted(f"[{mime}]" for mime in data if mime.startswith("image/"))
    if stream:
        yield stream
