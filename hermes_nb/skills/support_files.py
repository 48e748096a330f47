"""Find and check a skill's support files, and recognise those that are code."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from hermes_nb.skills.document import SkillError

SUPPORT = ("references", "templates", "scripts", "assets")
"""The folders in a skill that contain its support files."""
LISTED = 200
"""Maximum number of support files that are listed and scanned."""
_SUPPORT_DEPTH = 5
_LONGEST = 255
_PART = re.compile(r"[\w()\[\]+@,=~-][\w .()\[\]+@,=~-]*")
_CODE = frozenset(
    ".py .sh .bash .zsh .js .mjs .cjs .ts .rb .pl .php .ps1 .bat .cmd .r .lua .go .rs .c".split()
)


def checked_path(path: str) -> str:
    """Return a support file's normalised relative path; raise SkillError if it is invalid."""
    plain = PurePosixPath(path.removeprefix("./"))
    parts = plain.parts
    good = (
        1 < len(parts) <= _SUPPORT_DEPTH
        and parts[0] in SUPPORT
        and all(_PART.fullmatch(part) and len(part.encode()) <= _LONGEST for part in parts)
        and not parts[-1].endswith((" ", "."))
    )
    if not good:
        message = f"{path[:120]!r} is not a file of a skill; give a path under {', '.join(SUPPORT)}"
        raise SkillError(message)
    return plain.as_posix()


def real_path(directory: Path, path: str) -> Path:
    """Return a support file's path; raise SkillError if a link points outside the skill."""
    relative = checked_path(path)
    real, base = os.path.realpath(directory / relative), os.path.realpath(directory)
    if not real.startswith(base + os.sep):
        raise SkillError(
            f"{relative!r} is a link that points outside the skill; it is not followed"
        )
    return Path(real)


def support_files(directory: Path) -> tuple[str, ...]:
    """Return a skill's support files by relative path, sorted, at most `LISTED` of them."""
    found: list[str] = []
    for folder in SUPPORT:
        if not (directory / folder).is_symlink():
            for path in _walk(directory / folder, _SUPPORT_DEPTH - 1):
                found.append(path.relative_to(directory).as_posix())
                if len(found) >= LISTED:
                    return tuple(found)
    return tuple(found)


def missing(directory: Path, path: str) -> SkillError:
    """Return the error for a missing support file, listing the closest existing names."""
    there = support_files(directory)
    names = {PurePosixPath(each).name: each for each in there}
    near = difflib.get_close_matches(path, there, n=3, cutoff=0.5)
    near += [names[n] for n in difflib.get_close_matches(PurePosixPath(path).name, names, n=2)]
    choice = ", ".join(dict.fromkeys(near)) or ", ".join(there[:10])
    hint = f"available: {choice}" if choice else "it has no support files"
    return SkillError(f"no file {path!r} in this skill; {hint}")


def is_code(path: str) -> bool:
    """Return whether a support file is code, by its folder or extension."""
    plain = PurePosixPath(path)
    return plain.parts[0] == "scripts" or plain.suffix.lower() in _CODE


def _walk(directory: Path, depth: int) -> Iterator[Path]:
    try:
        with os.scandir(directory) as entries:
            ordered = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return
    for entry in ordered:
        if entry.is_symlink() or entry.name[0] == "." or entry.name == "__pycache__":
            continue
        if entry.is_file(follow_symlinks=False):
            yield directory / entry.name
        elif depth > 1 and entry.is_dir(follow_symlinks=False):
            yield from _walk(directory / entry.name, depth - 1)
