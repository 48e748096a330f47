"""The environment in which skills are offered: the platform, and the enabled tools."""

from __future__ import annotations

import sys
from collections.abc import Collection
from dataclasses import dataclass

from hermes_nb.skills.document import Gates

_PLATFORMS = {
    "macos": "darwin",
    "mac": "darwin",
    "osx": "darwin",
    "win": "windows",
    "win32": "windows",
    "cygwin": "windows",
    "linux2": "linux",
    "wsl": "linux",
}
_ANYWHERE = frozenset({"all", "any", "*"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """The environment in which skills are offered.

    A skill whose conditions are not met is not listed in the prompt, but can still be loaded by
    name.
    """

    platform: str = sys.platform
    """The platform, as in `sys.platform`."""
    tools: Collection[str] | None = None
    """Names of the tools that are on; None if unknown, which satisfies every condition."""
    toolsets: Collection[str] | None = None
    """Names of the toolsets that are on; None if unknown, which satisfies every condition."""

    def closed(self, gates: Gates) -> str:
        """Return the reason a skill with these conditions is not offered here, or "" if it is."""
        here = _platform(self.platform)
        wanted = {_platform(name) for name in gates.platforms}
        if wanted and here not in wanted and not wanted & _ANYWHERE:
            return f"it is for {', '.join(gates.platforms)}"
        for needed, instead, there, kind in (
            (gates.requires_tools, gates.fallback_for_tools, self.tools, "tool"),
            (gates.requires_toolsets, gates.fallback_for_toolsets, self.toolsets, "toolset"),
        ):
            if there is None:
                continue
            if missing := [name for name in needed if name not in there]:
                return f"it needs the {kind} {missing[0]}"
            if present := [name for name in instead if name in there]:
                return f"it replaces the {kind} {present[0]}, which is available"
        return ""


def _platform(name: str) -> str:
    lower = name.strip().lower()
    return _PLATFORMS.get(lower, lower)
