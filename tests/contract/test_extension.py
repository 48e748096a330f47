"""The front end's half: a browser that keeps its files for a year still gets the new ones."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import hermes_nb

FOLDER = Path(hermes_nb.__file__).parent / "notebook" / "labextension"


def test_what_is_loaded_is_named_by_its_content():
    built = json.loads((FOLDER / "package.json").read_text("utf-8"))["jupyterlab"]["_build"]
    path, _, version = built["load"].partition("?v=")
    found = hashlib.sha256((FOLDER / path).read_bytes()).hexdigest()[:16]
    assert version == found, f'package.json: "load": "{path}?v={found}"'
    assert [file.name for file in (FOLDER / "static").iterdir()] == [Path(path).name]
