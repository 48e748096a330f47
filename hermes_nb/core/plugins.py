"""What other packages bring: entry points of the groups that the package has.

Looking through all that is installed takes 5 ms of CPU. It is done once, and anew when the folders
of `sys.path` are others, or have changed, as they do when something is installed.
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
    """Return the entry points of a group, or those of a name in it, in the order of their names."""
    found = _group(tuple((folder, _changed(folder)) for folder in sys.path), group)
    return [point for point in found if name in (None, point.name)]


def loaded(point: EntryPoint) -> object:
    """Return what an entry point names; raise `ConfigError` that says what to install for it.

    An entry says so itself, by the `pip` extra behind it: `name = "module:object [extra]"`.
    """
    try:
        return point.load()
    except ImportError as error:
        extra = ",".join(point.extras)
        what = f"`pip install 'hermes_nb[{extra}]'`" if extra else point.module
        raise ConfigError(f"{point.name} needs {what} ({error})") from error


def ships(point: EntryPoint) -> bool:
    """Say whether an entry point names code of this package."""
    return point.module.startswith("hermes_nb.")


_Folders = tuple[tuple[str, int], ...]


@lru_cache(maxsize=32)  # more than there are groups
def _group(folders: _Folders, group: str) -> list[EntryPoint]:
    found = (point for point in _read(folders) if point.group == group)
    return sorted(found, key=lambda point: point.name)


@lru_cache(maxsize=1)
def _read(folders: _Folders) -> list[EntryPoint]:  # noqa: ARG001 - what voids it
    from importlib.metadata import distributions  # 1.4 MB, which %load_ext does without

    found: dict[str, EntryPoints] = {}  # of two versions the one that is imported comes first
    for each in distributions():
        if "hermes_nb." in (each.read_text("entry_points.txt") or ""):
            found.setdefault(each.name, each.entry_points)
    return [point for points in found.values() for point in points]


def _changed(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns  # noqa: PTH116 - some are no paths
    except OSError:
        return 0
