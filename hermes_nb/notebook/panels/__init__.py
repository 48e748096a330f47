"""`%hermes panel`: the conversation, memory, skills, context and sessions in a panel."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from importlib.util import find_spec

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.plugins import plugins
from hermes_nb.notebook.commands.table import COMMANDS, perform
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.notebook.shell import has_kernel

GROUP = "hermes_nb.panels"
"""Entry point group for tabs from other packages."""
TEXTS = {
    "chat": "history",
    "memory": "memory",
    "skills": "skills",
    "context": "context",
    "session": "sessions",
}
"""The tabs, and the commands that show the same as text."""


async def open_panel(agent: KernelAgent, given: Namespace) -> str:
    """Open the panel in the page's sidebar, or below the cell; in a terminal show it as text."""
    tab = given.action or given.tab.lower()
    if tab and tab not in TEXTS and not plugins(GROUP):
        raise _no_tab(tab, TEXTS)
    if not has_kernel(agent.shell) or find_spec("ipywidgets") is None:
        return await _texts(agent, tab)
    from hermes_nb.notebook.panels.panel import Panel  # imported lazily: needs ipywidgets

    there = [each for each in agent.hub.listeners if isinstance(each, Panel)]
    for old in there:
        if not old.alive:
            old.close()
    shown = next((each for each in there if each.alive), None) or Panel(agent)
    titles = [each.title.lower() for each in shown.tabs]
    if tab and tab not in titles:
        raise _no_tab(tab, titles)
    shown.select(tab)
    shown.refresh()
    if await shown.show():
        return ""
    from IPython.display import display

    display(shown.widget)
    return ""


def _no_tab(tab: str, known: Iterable[str]) -> ConfigError:
    return ConfigError(f"the panel has no tab {tab!r}; its tabs are {', '.join(known)}")


async def _texts(agent: KernelAgent, tab: str) -> str:
    if tab and tab not in TEXTS:
        message = f"a terminal shows only the tabs {', '.join(TEXTS)}, not {tab!r}"
        raise ConfigError(message)
    blocks = []
    for name, command in TEXTS.items():
        if tab in ("", name):
            try:
                blocks.append(await perform(COMMANDS[command], agent, ""))
            except ConfigError as error:  # for example, no turn yet
                blocks.append(f"{name}: {error}")
    return "\n\n".join(blocks)
