"""Who the agent is: `SOUL.md` of the home directory, the user's own file.

It is never looked for anywhere else. A link is followed wherever it leads, since many people keep
such files in a repository of their own.
"""

from __future__ import annotations

import os
from pathlib import Path

from hermes_nb.core.atomic import make_private
from hermes_nb.prompt.inside import Refused
from hermes_nb.prompt.instructions import Accepts, ContextFile, Reader, Skipped, never

NAME = "SOUL.md"


def read_identity(home: Path, *, accepts: Accepts = never) -> ContextFile | Skipped | None:
    """Return SOUL.md, scanned and cut like a context file; None when absent or empty."""
    path = home / NAME
    root = Path(Path(os.path.realpath(path)).anchor)
    try:
        return Reader(root=root, accepts=accepts).load(path, NAME)
    except FileNotFoundError:
        return None
    except Refused as refusal:
        return Skipped(name=NAME, path=path, reason=str(refusal))


def identity_text(found: ContextFile | Skipped | None, default: str) -> str:
    """Return the prompt's first layer: the file's text, or else `default`.

    A blocked file leaves the default in place and says behind it that it was blocked.
    """
    if not isinstance(found, ContextFile):
        return default
    return f"{default}\n\n{found.text_loaded}" if found.verdict == "blocked" else found.text_loaded


def ensure_identity(home: Path, default: str) -> bool:
    """Write `default` to SOUL.md if nothing is there yet; say whether it was written.

    Makes the home directory (0700) where it is missing; the file is 0600. Raises OSError where it
    cannot be written, which no turn should fail for. A process killed in between leaves an empty
    file, and that means the default as well.
    """
    make_private(home)
    try:
        handle = os.open(home / NAME, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return False
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(f"{default.strip()}\n")
    return True
