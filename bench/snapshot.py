"""Undo of variables: cells of notebooks and examples of installed packages, undone one by one.

Each cell runs after a snapshot and is then undone. A description of all variables, made without the
snapshot's code, must be the same as before, or the snapshot must have named a variable that it
could not save. `--size` measures large tables and arrays. Every other session is set aside, for
`--held`.

    python bench/snapshot.py [--held] [--share 1.0] [--size]
"""

from __future__ import annotations

import argparse
import contextlib
import doctest
import hashlib
import importlib
import io
import json
import sys
import time
import types
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hermes_nb.notebook.execute.snapshot import Snapshot, reachable, variables
from hermes_nb.notebook.execute.variable_history import VariableHistory

ROOT = Path(__file__).parents[1]
PACKAGES = (
    *("collections", "statistics", "heapq", "random", "bisect", "fractions", "difflib", "copy"),
    *("numpy", "numpy.ma", "numpy.linalg", "numpy.lib", "pandas", "pandas.DataFrame"),
    *("pandas.Series", "pandas.Index", "pandas.api.typing", "polars.DataFrame", "polars.Series"),
    *("sklearn.linear_model", "sklearn.cluster", "sklearn.tree", "sklearn.preprocessing"),
    *("sklearn.ensemble", "sklearn.pipeline", "scipy.sparse", "matplotlib.pyplot"),
)
Session = tuple[str, list[str]]


def notebooks() -> Iterator[Session]:
    """Yield the plain Python cells of the repository's notebooks."""
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        sources = ["".join(c["source"]) for c in cells if c["cell_type"] == "code"]
        yield path.name, [text for text in sources if "%" not in text[:2] and "await" not in text]


def examples() -> Iterator[Session]:
    """Yield the examples in the docstrings of installed packages."""
    parser, seen = doctest.DocTestParser(), set[str]()
    for name in PACKAGES:
        module, _, attribute = name.rpartition(".")
        try:
            owner = importlib.import_module(name)
        except ImportError:
            try:
                owner = getattr(importlib.import_module(module), attribute)
            except (ImportError, AttributeError, ValueError):
                continue
        for member in sorted(dir(owner)):
            text = getattr(getattr(owner, member, None), "__doc__", None)
            if not isinstance(text, str) or ">>>" not in text or text in seen:
                continue
            seen.add(text)
            with contextlib.suppress(ValueError):
                yield f"{name}.{member}", [each.source for each in parser.get_examples(text)]


def described(value: Any, depth: int = 6) -> object:
    """Return a value's content, independently of the snapshot."""
    package = type(value).__module__.partition(".")[0]
    if isinstance(value, types.ModuleType | types.FunctionType | type) or depth == 0:
        return id(value)
    if package in LIBRARIES and hasattr(value, "shape"):
        return LIBRARIES[package](value, depth - 1)
    if isinstance(value, dict):
        items = value.items()
        return id(value), [(described(k, depth - 1), described(v, depth - 1)) for k, v in items]
    if isinstance(value, list | tuple):
        own = id(value) if isinstance(value, list) else 0
        return own, [described(item, depth - 1) for item in value]
    if isinstance(value, set | frozenset):
        return sorted(map(repr, value))
    if hasattr(value, "bit_generator"):
        return str(value.bit_generator.state)
    plain = package in ("builtins", "datetime", "decimal", "fractions", "pandas", "numpy")
    attributes = None if plain else getattr(value, "__dict__", None)
    if isinstance(attributes, dict):
        transient = ("cache", "stale", "_parents")
        shown = {k: v for k, v in attributes.items() if not any(part in k for part in transient)}
        return id(value), [(name, described(item, depth - 1)) for name, item in shown.items()]
    return repr(value) if plain else id(value)


def _pandas(value: Any, depth: int) -> object:
    if not hasattr(value, "iloc"):
        return id(value), repr(value)
    held = value.to_frame() if value.ndim == 1 else value
    columns = [[described(x, depth) for x in held.iloc[:, n]] for n in range(held.shape[1])]
    heads = str(held.columns), str(held.index), str(held.dtypes.tolist()), str(value.attrs)
    return id(value), heads, columns


def _polars(value: Any, _: int) -> object:
    return id(value), str(value.to_dict() if hasattr(value, "to_dict") else value.to_list())


def _numpy(value: Any, depth: int) -> object:
    if not value.shape:
        return repr(value)
    items = tuple(value.ravel().tolist()) if value.dtype.hasobject else ()
    content = described(items, depth) if items else value.tobytes()
    return id(value), value.shape, str(value.dtype), content


LIBRARIES = {"pandas": _pandas, "polars": _polars, "numpy": _numpy}


def state(names: dict[str, Any]) -> dict[str, str]:
    found = {}
    for name in variables(names):
        try:
            found[name] = hashlib.sha256(repr(described(names[name])).encode()).hexdigest()
        except Exception as error:  # noqa: BLE001 - a closed file, a frame that its own example breaks
            found[name] = type(error).__name__
    return found


def undone(cell: str, names: dict[str, Any]) -> tuple[str, float]:
    """Run a cell and undo it; return the verdict and the CPU seconds that saving took."""
    before = state(names)
    began = time.thread_time()
    lost = Snapshot(names, reachable(cell, names)).lost
    spent = time.thread_time() - began
    history = VariableHistory(names)
    with history.recording("s", 1, cell), contextlib.suppress(Exception, SystemExit):
        exec(compile(cell, "<cell>", "exec"), names)
    restored = history.undo("s", 1)
    after = state(names)
    differing = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    if not differing:
        verdict = "equal"
    else:
        verdict = "named" if lost or restored.conflicts else f"WRONG {differing}"
    with contextlib.suppress(Exception, SystemExit):  # go on as the session did
        exec(compile(cell, "<cell>", "exec"), names)
    return verdict, spent


def run(sessions: Callable[[], Iterator[Session]], share: float, *, held: bool) -> dict[str, Any]:
    counts: Counter[str] = Counter()
    spent: list[float] = []
    wrong: list[str] = []
    for name, cells in sessions():
        number = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16)
        if number % 2 != held or (number // 2) % 1000 >= share * 1000:
            continue
        module = types.ModuleType("__main__")
        names = vars(module)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            with contextlib.suppress(Exception):
                exec("import numpy as np, pandas as pd", names)
            for cell in cells:
                verdict, seconds = undone(cell, names)
                counts[verdict.partition(" ")[0]] += 1
                spent.append(seconds)
                if verdict.startswith("WRONG"):
                    wrong.append(f"{name}: {cell.strip()[:100]!r} {verdict}")
    spent.sort()
    middle, high = (round(spent[int(len(spent) * at)] * 1e3, 2) for at in (0.5, 0.95))
    return {"cells": len(spent), **counts, "ms, middle": middle, "ms, p95": high, "which": wrong}


def sizes() -> dict[str, list[float]]:
    """Return the CPU milliseconds for a table of 1 GB and for arrays of 300 MB."""
    import numpy as np
    import pandas as pd

    found: dict[str, list[float]] = {}
    large = {"df": pd.DataFrame(np.ones((12_500_000, 10)))}
    arrays = {"a": np.ones(18_750_000), "b": np.ones(18_750_000)}
    for title, names, code in (
        ("1 GB of tables", large, "df.shape"),
        ("1 GB of tables", large, "df.iloc[0, 0] = 5"),
        ("300 MB of arrays", arrays, "a.sum() + b.sum()"),
        ("300 MB of arrays", arrays, "a[0] = 2; b[0] = 2"),
        ("300 MB of arrays, not used", arrays, "1 + 1"),
    ):
        for turn in range(3):
            history = VariableHistory(names)
            began = time.thread_time()
            with history.recording("s", turn, code):
                kept = time.thread_time()
                exec(code, dict(names))
                ran = time.thread_time()
            compared = time.thread_time()
            history.undo("s", turn)
            ended = time.thread_time()
        key = f"{title}, {code}"
        parts = (kept - began, compared - ran, ended - compared)
        found[key] = [round(part * 1e3, 1) for part in parts]
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--held", action="store_true")
    parser.add_argument("--share", type=float, default=1.0)
    parser.add_argument("--size", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    sys.setrecursionlimit(5000)
    with contextlib.suppress(ImportError):
        importlib.import_module("matplotlib").use("agg")
    if given.size:
        print(json.dumps(sizes(), indent=1))
        return
    for sessions in (notebooks, examples):
        print(sessions.__name__, json.dumps(run(sessions, given.share, held=given.held), indent=1))


if __name__ == "__main__":
    main()
