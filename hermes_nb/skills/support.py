"""A skill's support files: which paths may name one, which there are, what is in them.

Only `references/`, `templates/`, `scripts/` and `assets/` belong to a skill, and only regular files
that really lie below its folder.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from hermes_nb.core.errors import ToolError
from hermes_nb.skills.document import SkillError

FOLDERS = ("references", "templates", "scripts", "assets")
LISTED = 200
"""Support files that are listed, and looked at when a skill is examined."""
_DEPTH = 5
_PART = re.compile(r"[\w()\[\]+@,=~-][\w .()\[\]+@,=~-]*")
_CODE = frozenset(
    ".py .sh .bash .zsh .js .mjs .cjs .ts .rb .pl .php .ps1 .bat .cmd .r .lua .go .rs .c".split()
)


def checked_path(path: str) -> str:
    """Return a support file's relative path in its plain form; raise SkillError for any other."""
    plain = PurePosixPath(path.removeprefix("./"))
    parts = plain.parts
    good = (
        2 <= len(parts) <= _DEPTH  # noqa: PLR2004 - a folder and a file
        and parts[0] in FOLDERS
        and all(_PART.fullmatch(part) and len(part.encode()) <= 255 for part in parts)  # noqa: PLR2004
        and not parts[-1].endswith((" ", "."))
    )
    if not good:
        message = f"{path[:120]!r} is no file of a skill; give a path below {', '.join(FOLDERS)}"
        raise SkillError(message)
    return plain.as_posix()


def real_path(directory: Path, path: str) -> Path:
    """Return where a support file lies; raise SkillError when a link leads out of the skill."""
    relative = checked_path(path)
    real, base = os.path.realpath(directory / relative), os.path.realpath(directory)
    if not real.startswith(base + os.sep):
        message = f"{relative!r} is a link that leads out of the skill; it is not followed"
        raise SkillError(message)
    return Path(real)


def listed(directory: Path) -> tuple[str, ...]:
    """Return the support files of a skill by relative path, at most `LISTED`, in order."""
    found: list[str] = []
    for folder in FOLDERS:
        if (directory / folder).is_symlink():
            continue
        for path in _walk(directory / folder, _DEPTH - 1):
            found.append(path.relative_to(directory).as_posix())
            if len(found) >= LISTED:
                return tuple(found)
    return tuple(found)


def missing(directory: Path, path: str) -> ToolError:
    """Return the error for a support file that is not there, with the nearest that are."""
    there = listed(directory)
    names = {PurePosixPath(each).name: each for each in there}
    near = difflib.get_close_matches(path, there, n=3, cutoff=0.5)
    near += [names[n] for n in difflib.get_close_matches(PurePosixPath(path).name, names, n=2)]
    choice = ", ".join(dict.fromkeys(near)) or ", ".join(there[:10])
    hint = f"there is {choice}" if choice else "it has no support files"
    return SkillError(f"no file {path!r} in this skill; {hint}")


def is_code(path: str) -> bool:
    """Say whether a support file is code, by its folder or its ending."""
    plain = PurePosixPath(path)
    return plain.parts[0] == "scripts" or plain.suffix.lower() in _CODE


def _walk(directory: Path, depth: int) -> Iterator[Path]:
    """Yield the files below a folder in order, links not followed."""
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
