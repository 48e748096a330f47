"""Makes a package of a page findable as if it were installed, without pip and without a network."""

from __future__ import annotations

import tomllib
from pathlib import Path


def install(folder: str | Path = ".") -> None:
    """Write the metadata that `pip install folder` would: the name and the entry points."""
    root = Path(folder)
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = root / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    lines = []
    for group, points in project.get("entry-points", {}).items():
        lines += [f"[{group}]", *(f"{name} = {value}" for name, value in points.items())]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
