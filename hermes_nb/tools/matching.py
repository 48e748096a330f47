"""Search files without ripgrep: the fallback of `search_files`, a script that can be killed.

It runs in a separate Python (`python -I -S matching.py OPTIONS FILES`), because matching a hostile
regular expression may never end, and Python cannot stop a thread. It imports only the standard
library and prints the part of the `rg --json` format that the caller reads.
"""

from __future__ import annotations

import codecs
import json
import re
import sys
from typing import Any

MATCHES_A_FILE = 1_000
"""Number of matches after which the rest of a file is skipped; ripgrep has the same limit."""


def main(arguments: list[str]) -> int:
    """Search the files after the options (one JSON object) and print the matches."""
    options = json.loads(arguments[0])
    flags = re.IGNORECASE if options["ignore_case"] else 0
    regex = re.compile(options["pattern"], flags)
    for path in arguments[1:]:
        search(path, regex, options["context"])
    return 0


def search(path: str, regex: re.Pattern[str], context: int) -> None:
    """Print the matches in a file; a binary or unreadable file has no matches."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - pathlib would double the start-up time
            lines = lines_of(file.read())
    except OSError:
        return
    if lines is None:
        return
    found = [(n, match) for n, line in enumerate(lines) if (match := regex.search(line))]
    found = found[:MATCHES_A_FILE]
    starts = {n: len(lines[n][: match.start()].encode()) for n, match in found}
    shown = {m for n in starts for m in range(max(0, n - context), n + context + 1)}
    for n in sorted(shown):
        if n < len(lines):
            _print(path, n + 1, lines[n], starts.get(n))
    _write_json("end", {"path": {"text": path}, "binary_offset": None})


def lines_of(data: bytes) -> list[str] | None:
    """Return a file's lines without line endings; None if it is binary."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text = data.decode("utf-16", "replace")
    elif b"\0" in data:
        return None
    else:
        text = data.decode("utf-8", "replace").removeprefix("\ufeff")
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix("\r") for line in lines]


def _print(path: str, number: int, line: str, start: int | None) -> None:
    data: dict[str, Any] = {"path": {"text": path}, "lines": {"text": line}, "line_number": number}
    if start is not None:
        data["submatches"] = [{"start": start}]
    _write_json("context" if start is None else "match", data)


def _write_json(kind: str, data: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"type": kind, "data": data}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
