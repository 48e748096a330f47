"""The inputs of a map: files by pattern, or texts by name.

An input is read when its task starts.
"""

from __future__ import annotations

import glob
import json
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hermes_nb.core.errors import ConfigError, ToolError
from hermes_nb.core.messages import Json
from hermes_nb.core.text import head_tail
from hermes_nb.core.threads import in_thread
from hermes_nb.tools.encodings import decode, kind_of
from hermes_nb.tools.workspace import open_regular

MOST = 10_000
"""Maximum number of inputs for a map."""
BYTES = 8_000_000
"""Maximum bytes read from a file; its text is shortened to `CHARACTERS` afterwards."""
CHARACTERS = 100_000
"""Maximum number of an input's characters to send, about 29,000 tokens."""

Reader = Callable[[Path], Awaitable[str]]
"""Returns a file as text; raises ToolError or OSError."""


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a map."""

    name: str
    """Unique within the map."""
    read: Callable[[], Awaitable[str]]
    """Returns the text, shortened to `CHARACTERS`."""


def inputs_of(
    given: Iterable[str | Path] | Mapping[str, str],
    *,
    root: Path,
    readers: Mapping[str, Reader] | None = None,
) -> list[Input]:
    """Return the inputs: files by paths and patterns relative to `root`, or texts by name.

    `readers` are additional readers by suffix, such as `.ipynb`.

    Raises:
        ConfigError: a path or pattern matches no file, or there are no or too many inputs
    """
    if isinstance(given, Mapping):
        found = [Input(str(name), _giving(text)) for name, text in given.items()]
    else:
        known = {**READERS, **(readers or {})}
        paths = _expanded([given] if isinstance(given, str | Path) else list(given), root)
        found = [
            Input(name, _reading(path, known.get(path.suffix.lower(), read_text)))
            for name, path in paths.items()
        ]
    if not found:
        raise ConfigError("no inputs; pass files, or patterns such as 'notes/*.md'")
    if len(found) > MOST:
        raise ConfigError(f"{len(found):,} inputs are too many for one map; pass at most {MOST:,}")
    return found


async def read_text(path: Path) -> str:
    """Return a text file, or its first `BYTES` bytes; raise ToolError for a binary file."""

    def read() -> str:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size  # read() allocates as much as it is asked for
            data = file.read(min(size, BYTES) or BYTES)
        text = decode(data)
        if text is None:
            raise ToolError(f"it is not a text file ({kind_of(path, data[:64])})")
        return text[0]

    return str(await in_thread(read))


async def read_notebook_text(path: Path) -> str:
    """Return a notebook's cells and outputs as text; raise ToolError."""
    text = await read_text(path)
    try:
        cells = json.loads(text)["cells"]
        return "\n\n".join(_cell(number, cell) for number, cell in enumerate(cells))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ToolError(f"it cannot be read as a notebook ({type(error).__name__})") from error


READERS: Mapping[str, Reader] = {".ipynb": read_notebook_text}


def _cell(number: int, cell: Mapping[str, Json]) -> str:
    shown = [_joined(output.get("text") or _data(output)) for output in cell.get("outputs", ())]
    head = f"--- cell {number} {cell['cell_type']} ---"
    return "\n".join(filter(str.strip, (head, _joined(cell["source"]), *shown)))


def _data(output: Mapping[str, Json]) -> object:
    if output.get("output_type") == "error":
        return f"{output.get('ename')}: {output.get('evalue')}"
    return output.get("data", {}).get("text/plain", "")


def _joined(text: object) -> str:
    return "".join(map(str, text)) if isinstance(text, list) else str(text)


def _giving(text: str) -> Callable[[], Awaitable[str]]:
    async def read() -> str:
        return head_tail(text, CHARACTERS)

    return read


def _reading(path: Path, reader: Reader) -> Callable[[], Awaitable[str]]:
    async def read() -> str:
        return head_tail(await reader(path), CHARACTERS)

    return read


def _expanded(given: Sequence[str | Path], root: Path) -> dict[str, Path]:
    """Return the files by display name, without duplicates, in natural order for each pattern."""
    found: dict[str, Path] = {}
    for each in given:
        text = str(each)
        literal = root / text
        paths = [literal] if literal.is_file() else _matching(text, root)
        if not paths:
            raise ConfigError(f"there is no file {text!r} in {root}")
        for path in paths:
            name = str(path.relative_to(root)) if path.is_relative_to(root) else str(path)
            found.setdefault(name, path)
    return found


def _matching(pattern: str, root: Path) -> list[Path]:
    matches = (root / name for name in glob.iglob(pattern, root_dir=root, recursive=True))  # noqa: PTH207 - supports `root_dir` and skips hidden files
    return sorted((path for path in matches if path.is_file()), key=_natural)


def _natural(path: Path) -> list[tuple[int, int, str]]:
    """Return a sort key that puts `b2` before `b10`."""
    pieces = re.split(r"(\d+)", str(path).lower())
    return [(0, int(p[:18]), p) if p.isdecimal() and p.isascii() else (1, 0, p) for p in pieces]
