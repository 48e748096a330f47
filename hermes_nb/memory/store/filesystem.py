"""Whether a path lies on a network file system, where SQLite's WAL is not safe.

WAL needs memory shared by all who have the file open, which no network file system offers.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

MOUNTS = Path("/proc/self/mounts")
"""The mount table, as in fstab(5); only Linux has it."""
NETWORK = frozenset(
    "9p acfs afs beegfs ceph cifs coda davfs fuse gfs2 glusterfs gpfs lustre ncpfs nfs nfs3 nfs4 "
    "ocfs2 orangefs pvfs2 smb3 smbfs vboxsf vmhgfs wekafs".split()
)
LOCAL_FUSE = frozenset("fuse.ntfs fuse.ntfs-3g fuse.exfat fuse.fuse-overlayfs".split())


def on_network(path: Path) -> bool:
    """Say whether `path` lies on a network file system, as far as the system tells."""
    real = os.path.realpath(path)
    if real.startswith("\\\\"):  # a share by its name on Windows
        return True
    kind = mounted_as(real)
    return kind in NETWORK or (kind.startswith("fuse.") and kind not in LOCAL_FUSE)


def mounted_as(real: str) -> str:
    """Return the type of the file system that holds an absolute path without links, or ""."""
    try:
        table = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    best, found = "", ""
    for line in table.splitlines():
        fields = line.split(" ")
        if len(fields) < 3:  # noqa: PLR2004 - device, place and type
            continue
        place = _unescaped(fields[1])
        inside = real == place or real.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):  # of two mounts in one place the later one counts
            best, found = place, fields[2]
    return found


def _unescaped(text: str) -> str:
    """Return a field with its octal escapes undone; a blank is written as one."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)
