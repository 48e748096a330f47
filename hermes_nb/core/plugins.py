"""Plugins: entry points that installed packages define in hermes_nb's groups.

Scanning all installed packages takes 5 ms of CPU, so the result is cached until `sys.path` or the
modification time of one of its folders changes, as it does when a package is installed.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

from hermes_nb.core.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints


def plugins(group: str, name: str | None = None) -> list[EntryPoint]:
    """Return a group's entry points, sorted by name; with `name`, only those so named."""
    found = _group(tuple((folder, _changed(folder)) for folder in sys.path), group)
    return [point for point in found if name in (None, point.name)]


def loaded(point: EntryPoint) -> object:
    """Load an entry point and return the object.

    An entry point declares the extra that it needs: `name = "module:object [extra]"`.

    Raises:
        ConfigError: The import failed; the message says which package to install.
    """
    try:
        return point.load()
    except ImportError as error:
        extra = ",".join(point.extras)
        what = f"`pip install 'hermes_nb[{extra}]'`" if extra else point.module
        raise ConfigError(f"{point.name} needs {what} ({error})") from error


def ships(point: EntryPoint) -> bool:
    """Return whether an entry point belongs to this package."""
    return point.module.startswith("hermes_nb.")


_Folders = tuple[tuple[str, int], ...]


@lru_cache(maxsize=32)  # more than the number of groups
def _group(folders: _Folders, group: str) -> list[EntryPoint]:
    found = (point for point in _read(folders) if point.group == group)
    return sorted(found, key=lambda point: point.name)


@lru_cache(maxsize=1)
def _read(folders: _Folders) -> list[EntryPoint]:  # noqa: ARG001 - part of the cache key
    from importlib.metadata import distributions  # 1.4 MB that %load_ext doesn't need

    found: dict[str, EntryPoints] = {}  # of two versions, the importable one comes first
    for each in distributions():
        if "hermes_nb." in (each.read_text("entry_points.txt") or ""):
            found.setdefault(each.name, each.entry_points)
    return [point for points in found.values() for point in points]


def _changed(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns  # noqa: PTH116 - sys.path may hold other things
    except OSError:
        return 0
