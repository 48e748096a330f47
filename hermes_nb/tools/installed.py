"""Which tools there are besides our own.

Other packages bring theirs under the entry point group `hermes_nb.tools`. An entry point names a
`Tool`, a `Toolset`, a list of tools, or a function without parameters that returns one of these.
What cannot be loaded is said and left out: nobody's turn fails over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from hermes_nb.core.plugins import loaded, plugins
from hermes_nb.core.protocols import ChatModel
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.safety.administrator import Policy
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


def left(tools: Toolset, policy: Policy) -> Toolset:
    """Return the tools that the administrator leaves; the guard asks again at each call."""
    return Toolset(tool for tool in tools if not policy.why("tools", tool.name, tool.toolset))


def left_of_added(tools: Iterable[Tool], policy: Policy) -> Toolset:
    """Return those that are left of what packages bring, or the user."""
    return Toolset(tool for tool in tools if not policy.why("tools", f"added:{tool.name}"))


_NAMED = ("clarify", "vision", "web")
TOOLSETS = "hermes_nb.toolsets"
"""Entry points of toolsets that are there where they are named; see `ToolsetSetup`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsetSetup:
    """What a toolset is made for that a session has where it is named.

    An entry of the group `hermes_nb.toolsets` is a function from this to a `Toolset`; its name is
    the toolset's.
    """

    composed: Sequence[str]
    """Names of the models that the settings make of others."""
    model: Callable[[str], ChatModel]
    """Returns an installed model by its name, for the conversation's own to ask.

    It is on the conversation's cassette and is closed with it. Raises `ConfigError` where there is
    none of that name."""


def named_toolsets() -> list[str]:
    """Return the names of toolsets that are there where they are named."""
    return sorted({*_NAMED, *(point.name for point in plugins(TOOLSETS))})


def installed_toolsets(setup: ToolsetSetup, policy: Policy) -> Toolset:
    """Return the tools of all that is in `hermes_nb.toolsets`; raise `ConfigError`."""
    found = Toolset()
    for point in plugins(TOOLSETS):
        made = cast("Callable[[ToolsetSetup], Toolset]", loaded(point))(setup)
        found += made if point.module.startswith("hermes_nb.") else left_of_added(made, policy)
    return found


def _tools(given: object) -> list[Tool]:
    if not isinstance(given, Tool | Toolset) and callable(given):
        given = given()
    if isinstance(given, Tool):
        return [given]
    tools = list(given) if isinstance(given, Iterable) else []
    if not tools or not all(isinstance(each, Tool) for each in tools):
        raise TypeError("it is neither a tool nor a list of tools")
    return tools
