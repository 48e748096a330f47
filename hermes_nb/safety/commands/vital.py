"""Which paths a machine or a person cannot lose: system directories, homes, disks, key files.

Paths are text as the shell would use it, normalised here; nothing is looked up. `HOME` and the
names of home directories count alike, because a command may run as anybody.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from posixpath import join, normpath

from hermes_nb.safety.commands.shell_words import HOME, UNKNOWN

_TOP = frozenset(
    {
        *("bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "media", "mnt"),
        *("opt", "proc", "root", "run", "sbin", "srv", "sys", "usr", "var", "snap", "nix"),
        *("System", "Library", "Applications", "Users", "Volumes", "private", "cores"),
    }
)
_DEEP = frozenset({"bin", "boot", "dev", "lib", "lib64", "proc", "sbin", "sys", "usr", "etc"})
"""Below these, a whole directory one level down is a part of the system as well."""
_SECOND = frozenset({"var/lib", "var/db", "System/Library", "private/etc", "private/var"})
_HOMES = re.compile(r"/(home|Users)/[^/]+|/root|" + re.escape(HOME))
_FILES = frozenset(
    {
        *("passwd", "shadow", "group", "gshadow", "sudoers", "fstab", "hosts.allow", "crypttab"),
        *("ld.so.preload", "ld.so.cache", "master.passwd"),
    }
)
_DISK = re.compile(
    r"/dev/(r?disk\d|[shv]d[a-z]|xvd[a-z]|nvme\d|mmcblk\d|md\d|dm-\d|mapper/|vg|k?mem$|port$)"
)
_GLOBBED = re.compile(r"[*?\[]")
_LONGEST = 500
"""Characters of a pattern that is looked at closely; a longer one may take anything."""


def absolute(path: str, directory: str | None) -> str | None:
    """Return a path normalised from the root, None where the working directory is not known."""
    if not path.startswith("/"):
        if directory is None:
            return None
        path = join(directory, path)
    return "/" + normpath(path).lstrip("/")


def vital_tree(path: str, directory: str | None = None) -> str:
    """Return what would be lost if everything below `path` were; "" if it is nothing vital.

    A pattern such as `/*` or `~/.*` stands for the directory that it empties.
    """
    full = absolute(path, directory)
    if full is None:
        return ""
    parent, _, name = full.rpartition("/")
    if name and _GLOBBED.search(name):
        return vital_tree(parent or "/") if _sweeping(name) else _matched(parent, name)
    if full == "/":
        return "the whole file system"
    if _HOMES.fullmatch(full):
        return "a home directory"
    parts = full.strip("/").split("/")
    if parts[0] in _TOP and (len(parts) == 1 or "/".join(parts) in _SECOND):
        return f"the system directory {full}"
    if parts[0] in _DEEP and len(parts) == 2 and UNKNOWN not in full:  # noqa: PLR2004
        return f"the system directory {full}"
    return ""


def vital_file(path: str, directory: str | None = None) -> str:
    """Return what would be lost with this one file; "" if it is nothing vital."""
    full = absolute(path, directory)
    if full is None:
        return ""
    if is_disk(full):
        return f"the disk {full}"
    parent, _, name = full.rpartition("/")
    if parent in ("/etc", "/private/etc") and name in _FILES:
        return f"the system file {full}"
    if parent == "/proc" and name == "sysrq-trigger":
        return "the kernel's emergency switch"
    if _GLOBBED.search(name):
        return vital_tree(full)
    return f"the system file {full}" if parent == "/boot" else ""


def is_disk(path: str) -> bool:
    """Say whether a path is a disk, a partition or the memory of the machine."""
    return bool(_DISK.match(path))


def _sweeping(pattern: str) -> bool:
    """Say whether a pattern takes (nearly) everything in its directory."""
    if len(pattern) > _LONGEST:
        return True
    sets, end, rest = pattern.rpartition("]")
    return not re.sub(r"[*?.!]|\[.*?\]", "", sets + end) + re.sub("[*?.!]", "", rest)


def _matched(parent: str, pattern: str) -> str:
    """Return what a pattern takes with it by name: `/b*` takes `/bin`."""
    if parent in ("/home", "/Users"):
        return "a home directory"
    if parent:
        return ""
    hit = next((name for name in sorted(_TOP) if fnmatchcase(name, pattern)), None)
    return f"the system directory /{hit}" if hit else ""
