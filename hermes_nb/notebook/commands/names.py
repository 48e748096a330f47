"""Names that an agent in use knows, for completion: quick, from what is open already.

Whatever cannot be had at once is left out: completing a word must never wait, open or raise.
"""

from __future__ import annotations

from collections.abc import Callable

from hermes_nb.app.filling import shares
from hermes_nb.app.models import EMBEDDED
from hermes_nb.core.errors import HermesError
from hermes_nb.notebook.resident import Resident
from hermes_nb.safety.visible import visible

LISTED = 50
"""Sessions that are offered, the latest."""


def sessions(resident: Resident) -> list[str]:
    """Return titles of sessions, then their ids, the latest first."""
    found = resident.store.sessions(limit=LISTED)
    titles = [visible(each.title).replace("\n", " ").strip() for each in found]
    return [*dict.fromkeys(filter(None, titles)), *(each.id for each in found)]


def models(resident: Resident) -> list[str]:
    """Return the models that are set up, and those that sessions were held with."""
    settings = resident.settings()
    ends = [settings.endpoint, *settings.fallbacks, *filter(None, [settings.auxiliary])]
    used = [each.model for each in resident.store.sessions(limit=LISTED)]
    return list(dict.fromkeys(filter(None, [*(end.model for end in ends), EMBEDDED, *used])))


def skills(resident: Resident) -> list[str]:
    """Return the names of skills, of a library that has been read."""
    if not resident.equipped:
        return []
    return [skill.name for skill in resident.knowledge.library.list(all_of_them=True)]


def tools(resident: Resident) -> list[str]:
    """Return toolsets and tools that were built."""
    if not resident.equipped:
        return []
    known = resident.tools()
    return [*dict.fromkeys(tool.toolset for tool in known), *(tool.name for tool in known)]


def layers(resident: Resident) -> list[str]:
    """Return the layers of the running prompt."""
    if resident.session is None:
        return []
    return [part.name for part in shares(resident.session) if part.text]


def settings(resident: Resident) -> list[str]:
    """Return the names of all settings."""
    return sorted(resident.settings().values)


def _safe(names: Callable[[Resident], list[str]]) -> Callable[[Resident], list[str]]:
    def found(resident: Resident) -> list[str]:
        try:
            return names(resident)
        except (HermesError, OSError):
            return []

    return found


NAMES = {kind.__name__: _safe(kind) for kind in (sessions, models, skills, tools, layers, settings)}
"""By kind."""
