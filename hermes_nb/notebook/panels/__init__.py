"""`%hermes panel`: memory, skills, context and sessions at the side of the page."""

from __future__ import annotations

from importlib.util import find_spec

from hermes_nb.core.errors import ConfigError
from hermes_nb.notebook.commands import knowledge as known
from hermes_nb.notebook.commands import sessions
from hermes_nb.notebook.display.view import has_kernel
from hermes_nb.notebook.kernel_agent import Resident

TEXTS = {
    "memory": known.memory,
    "skills": known.skills,
    "context": sessions.context,
    "session": sessions.listed_sessions,
}
"""The tabs, and what shows the same as text."""


async def open_panel(resident: Resident, words: str) -> str:
    """Open the panel, at the side where a page answers, else below; as text in a terminal."""
    tab = words.strip().lower()
    if tab and tab not in TEXTS:
        message = f"the panel has no tab {words!r}; its tabs are {', '.join(TEXTS)}"
        raise ConfigError(message)
    if not has_kernel(resident.shell) or find_spec("ipywidgets") is None:
        return _texts(resident, tab)
    from hermes_nb.notebook.panels.panel import Panel  # ipywidgets, not before somebody wants it

    there = [each for each in resident.happenings.watchers if isinstance(each, Panel)]
    for old in there:
        if not old.alive:
            old.close()
    shown = next((each for each in there if each.alive), None) or Panel(resident)
    shown.select(tab)
    shown.refresh()
    if await shown.show():
        return ""
    from IPython.display import display

    display(shown.widget)
    return ""


def _texts(resident: Resident, tab: str) -> str:
    blocks = []
    for name, command in TEXTS.items():
        if tab in ("", name):
            try:
                blocks.append(command(resident, ""))
            except ConfigError as error:  # such as: no turn yet
                blocks.append(f"{name}: {error}")
    return "\n\n".join(blocks)
