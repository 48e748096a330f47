"""The tools that other packages bring, under the entry point group `hermes_nb.tools`.

An entry point names a `Tool`, a `Toolset`, a list of tools, or a function without parameters that
returns one of these. What cannot be loaded is said and left out: nobody's turn fails over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from hermes_nb.core.plugins import plugins
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.safety.redact import redact

GROUP = "hermes_nb.tools"


def installed_tools(warn: Callable[[str], None]) -> Toolset:
    """Return the tools of all installed packages, by entry point in the order of their names.

    A tool without a toolset gets the entry point's name, so that `%hermes tools NAME` finds it.
    """
    found: dict[str, Tool] = {}
    for point in plugins(GROUP):
        try:
            tools = _tools(point.load())
        except Exception as error:  # noqa: BLE001 - somebody else's code, run at their import
            why = one_line(redact(f"{type(error).__name__}: {error}"), 200)
            warn(f"the tools {point.name!r} are off: {why}")
            continue
        for tool in tools:
            if tool.name in found:
                warn(f"{point.name!r} brings another tool {tool.name!r}; the first one stays")
            found.setdefault(tool.name, replace(tool, toolset=tool.toolset or point.name))
    return Toolset(found.values())


def without_taken(tools: Toolset, taken: Toolset, warn: Callable[[str], None]) -> Toolset:
    """Return the tools whose names are free; a name of Hermes' own cannot be taken over."""
    for tool in tools:
        if tool.name in taken:
            warn(f"the tool {tool.name!r} is off: Hermes has one of that name")
    return Toolset(tool for tool in tools if tool.name not in taken)


def _tools(given: object) -> list[Tool]:
    if not isinstance(given, Tool | Toolset) and callable(given):
        given = given()
    if isinstance(given, Tool):
        return [given]
    tools = list(given) if isinstance(given, Iterable) else []
    if not tools or not all(isinstance(each, Tool) for each in tools):
        raise TypeError("it is neither a tool nor a list of tools")
    return tools
