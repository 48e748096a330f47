"""What other packages bring: entry points of the groups that the package has.

Reading the metadata of all that is installed takes some 40 ms of CPU, and looking through it for a
group 1 ms. Both are done once, and anew when the folders of `sys.path` are others, or have changed,
as they do when something is installed.
"""

from __future__ import annotations

import os
import sys
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint, EntryPoints


def plugins(group: str, name: str | None = None) -> list[EntryPoint]:
    """Return the entry points of a group, or those of a name in it, in the order of their names."""
    found = _group(tuple((folder, _changed(folder)) for folder in sys.path), group)
    return [point for point in found if name in (None, point.name)]


_Folders = tuple[tuple[str, int], ...]


@lru_cache(maxsize=16)  # there are nine groups
def _group(folders: _Folders, group: str) -> list[EntryPoint]:
    return sorted(_read(folders).select(group=group), key=lambda point: point.name)


@lru_cache(maxsize=1)
def _read(folders: _Folders) -> EntryPoints:  # noqa: ARG001 - what voids it
    from importlib.metadata import entry_points  # 1.4 MB, which %load_ext does without

    return entry_points()  # type: ignore[return-value,unused-ignore]  # up to Python 3.11


def _changed(folder: str) -> int:
    try:
        return os.stat(folder or ".").st_mtime_ns  # noqa: PTH116 - some are no paths
    except OSError:
        return 0
