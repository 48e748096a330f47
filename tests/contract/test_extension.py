"""The front end's half: a browser that keeps its files for a year still gets the new ones."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path

import hermes_nb

FOLDER = Path(hermes_nb.__file__).parent / "notebook" / "labextension"
FILES = sorted((FOLDER / "static").iterdir())
MODULES = [file for file in FILES if file.suffix == ".js"]
MOST, MOST_SENT = 110_000, 40_000
"""Bytes of all the files, as they stand and as they are sent; a page loads them once."""


def test_what_is_loaded_is_named_by_its_content():
    built = json.loads((FOLDER / "package.json").read_text("utf-8"))["jupyterlab"]["_build"]
    path, _, version = built["load"].partition("?v=")
    found = hashlib.sha256(b"".join(file.read_bytes() for file in FILES)).hexdigest()[:16]
    assert version == found, f'package.json: "load": "{path}?v={found}"'
    assert (FOLDER / path).is_file()


def test_every_module_is_loaded_at_an_address_that_changes_with_it():
    entry = (FOLDER / "static" / "remoteEntry.js").read_text("utf-8")
    assert {file.name for file in FILES} - {file.name for file in MODULES} == {"style.css"}
    assert "at('style.css')" in entry
    for file in MODULES:
        assert file.name == "remoteEntry.js" or f"'{file.stem}'" in entry
        assert not re.search(r"^import |^export .* from ", file.read_text("utf-8"), re.MULTILINE)
    assert sum(file.stat().st_size for file in FILES) <= MOST
    assert len(gzip.compress(b"".join(file.read_bytes() for file in FILES))) <= MOST_SENT
