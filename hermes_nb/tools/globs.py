"""Which file names a glob means: git's patterns, with `{a,b}` and a leading `!` on top."""

from __future__ import annotations

import re
from collections.abc import Callable

from hermes_nb.core.errors import ToolError
from hermes_nb.safety.visible import visible
from hermes_nb.tools.ignore import is_hostile, spec_of

_ALTERNATIVES = 64
_GROUP = re.compile(r"\{([^{}]*,[^{}]*)\}")


def name_filter(glob: str) -> Callable[[str], bool]:
    """Return a test for paths relative to the searched directory; raise ToolError on no glob.

    A glob without `/` is about names at any depth, one with `/` about paths from the directory.
    """
    excluded = glob.startswith("!")
    patterns = _alternatives(glob[1:] if excluded else glob)
    spec = None if any(map(is_hostile, patterns)) else spec_of(patterns)
    if spec is None:
        message = f"{visible(glob)!r} is not a usable glob; give one like '*.py' or 'src/**/*.md'"
        raise ToolError(message)
    return lambda path: bool(spec.check_file(path).include) != excluded


def _alternatives(glob: str) -> list[str]:
    """Return what `{a,b}` stands for, innermost groups first."""
    pending = [glob]
    done: list[str] = []
    while pending and len(pending) + len(done) <= _ALTERNATIVES:
        pattern = pending.pop()
        group = _GROUP.search(pattern)
        if group is None:
            done.append(pattern)
            continue
        head, tail = pattern[: group.start()], pattern[group.end() :]
        pending += [head + one + tail for one in group[1].split(",")[:_ALTERNATIVES]]
    return done
