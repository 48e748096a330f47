"""Run the example notebooks against their models and keep what they show and what was said.

`make recordings`, or `python notebooks/record.py [03 06 …]`. Each notebook runs in a kernel and a
home of its own: 01 with the embedded model, the others with what `scripts/NN.py` tells a model to
say (see scripted.py). Outputs go into the notebook, replies into `NAME.hermes.jsonl` beside it.
Nothing is written unless a replay of the new recording then shows the very same.
"""

from __future__ import annotations

import argparse
import os
import re
import runpy
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from hermes_nb.core.files import write_atomic
from hermes_nb.core.text import head_tail
from hermes_nb.models.volatile import Places, masked
from hermes_nb.testing import cassette_for, run_notebook

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from scripted import Player, Price, Step  # noqa: E402 - lies beside this file

NO_MODEL = {
    **dict.fromkeys(("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENROUTER_API_KEY"), ""),
    "HERMES_NB_BASE_URL": "",
    "HERMES_NB_MODEL": "",
    "HERMES_NB_LOCAL_SERVERS": "false",
}
"""The environment in which a notebook finds no model but what it names itself."""
SAID_OF_A_FAILURE = 1_200
"""Characters; most of a traceback is the kernel's."""
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
WIDGET = "application/vnd.jupyter.widget-view+json"
KEPT_METADATA = ("tags",)
"""Of cells; the times of a run would make every recording another one."""


@contextmanager
def _workplace() -> Iterator[Path]:
    """Yield a directory that goes again; Markdown shows its path as it is (no `_` in it)."""
    folder = Path(tempfile.gettempdir(), f"hermes-record-{secrets.token_hex(6)}")
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def record(notebook: Path) -> str:
    """Record one notebook and return what to say about it.

    Raises RuntimeError when the story went another way than its script, and what a cell or the
    comparison with the replay raises.
    """
    started = time.monotonic()
    script = runpy.run_path(str(HERE / "scripts" / f"{notebook.stem[:2]}.py"))
    with _workplace() as folder:
        # A copy with all that lies beside it, so that a run which fails leaves nothing behind.
        work = folder / "notebooks"
        shutil.copytree(HERE, work, ignore=shutil.ignore_patterns("*.hermes.jsonl", ".*"))
        copy = work / notebook.name
        _run(copy, script.get("STEPS"), script.get("PRICE"))
        if script.get("SHOW") == "replay":
            nbformat.write(run_notebook(copy, env=NO_MODEL, compare=False).notebook, copy)
        run_notebook(copy, env=NO_MODEL)
        document = nbformat.read(copy, as_version=4)
        tape = cassette_for(copy).read_bytes()
    places = Places.of([("cwd", work)])
    write_atomic(notebook, nbformat.writes(_tidied(document, places)).encode())
    write_atomic(cassette_for(notebook), tape)
    replies = tape.count(b'"key":')
    return f"{notebook.name}: {replies} replies, {time.monotonic() - started:.0f} s"


def _run(notebook: Path, steps: Sequence[Step] | None, price: Price | None) -> None:
    """Run a notebook with the model that a script plays, or with the embedded one."""
    if steps is None:
        run_notebook(notebook, mode="record", env=NO_MODEL)
        return
    failure: Exception | None = None
    with Player(steps, price=price) as player:
        model = {"HERMES_NB_BASE_URL": player.url, "HERMES_NB_MODEL": "scripted"}
        try:
            run_notebook(notebook, mode="record", env=NO_MODEL | model)
        except Exception as error:  # noqa: BLE001 - raised below, with what the script says of it
            failure = error
    if player.problems:
        told = "; ".join(player.problems)
        raise RuntimeError(f"{told}; {failure}" if failure else told) from failure
    if failure is not None:
        raise failure


def _tidied(document: Any, places: Places) -> Any:
    """Return a notebook without what belongs to one run, or one machine, alone."""
    document.metadata.pop("widgets", None)
    document.metadata["language_info"] = {"name": "python"}
    for cell in document.cells:
        cell.metadata = {k: v for k, v in cell.metadata.items() if k in KEPT_METADATA}
        if cell.cell_type == "code":
            cell.outputs = [_placed(_without_widget(out), places) for out in cell.outputs]
    return document


def _without_widget(output: Any) -> Any:
    """Return an output that a page without the widget's kernel can show."""
    if WIDGET not in output.get("data", {}):
        return output
    told = {"text/plain": "(a widget: run the cell to see it)"}
    return nbformat.v4.new_output("display_data", data=told)


def _placed(value: Any, places: Places) -> Any:
    """Return an output with names for this machine's directories."""
    match value:
        case str():
            return masked(value, (), places).text
        case dict():
            return type(value)({key: _placed(item, places) for key, item in value.items()})
        case list():
            return [_placed(item, places) for item in value]
        case _:
            return value


def main() -> int:
    """Record the notebooks that were named, or all of them, two at a time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NN", help="how a notebook's name begins")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    wanted = [
        path
        for path in sorted(HERE.glob("[0-9][0-9]_*.ipynb"))
        if not options.names or path.name.startswith(tuple(options.names))
    ]
    failed = 0
    with ThreadPoolExecutor(options.jobs) as pool:
        running = {path: pool.submit(record, path) for path in wanted}
        for path, future in running.items():
            try:
                print(future.result())
            except Exception as error:  # noqa: BLE001 - told, and the others go on
                failed += 1
                why = head_tail(_ANSI.sub("", str(error)), SAID_OF_A_FAILURE)
                print(f"{path.name} was not recorded: {why}", file=sys.stderr)
    return 1 if failed or not wanted else 0


if __name__ == "__main__":
    sys.exit(main())
