"""Load the tools that other packages provide.

A package registers its tools under the entry point group `hermes_nb.tools`. An entry point names a
`Tool`, a `Toolset`, a list of tools, or a function without parameters that returns one of these. An
entry point that fails to load is reported and skipped, so it cannot break a turn.
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
    """Return the tools of all installed packages, sorted by entry point.

    A tool without a toolset gets the entry point's name, so that `%hermes tools NAME` finds it.
    """
    found: dict[str, Tool] = {}
    for point in plugins(GROUP):
        try:
            tools = _tools(point.load())
        except Exception as error:  # noqa: BLE001 - code of another package can raise anything
            why = one_line(redact(f"{type(error).__name__}: {error}"), 200)
            warn(f"the tools {point.name!r} are off: {why}")
            continue
        for tool in tools:
            if tool.name in found:
                warn(f"{point.name!r} brings another tool {tool.name!r}; the first one stays")
            found.setdefault(tool.name, replace(tool, toolset=tool.toolset or point.name))
    return Toolset(found.values())


def without_taken(tools: Toolset, taken: Toolset, warn: Callable[[str], None]) -> Toolset:
    """Return the tools whose names are not taken: a package cannot replace a tool of Hermes."""
    for tool in tools:
        if tool.name in taken:
            warn(f"the tool {tool.name!r} is off: Hermes has one of that name")
    return Toolset(tool for tool in tools if tool.name not in taken)


def left(tools: Toolset, policy: Policy) -> Toolset:
    """Return the tools that the policy allows; the guard checks it again at each call."""
    return Toolset(tool for tool in tools if not policy.why("tools", tool.name, tool.toolset))


def left_of_added(tools: Iterable[Tool], policy: Policy) -> Toolset:
    """Return the tools of packages or the user that the policy allows."""
    return Toolset(tool for tool in tools if not policy.why("tools", f"added:{tool.name}"))


_NAMED = ("clarify", "vision", "web")
TOOLSETS = "hermes_nb.toolsets"
"""Entry point group of toolsets that are available only by name; see `ToolsetSetup`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsetSetup:
    """The argument that an entry point gets to create a toolset for a session.

    An entry point of the group `hermes_nb.toolsets` is a function that takes this and returns a
    `Toolset`. Its name is the name of the toolset.
    """

    composed: Sequence[str]
    """Names of the models that the settings compose from other models."""
    model: Callable[[str], ChatModel]
    """Returns an installed model by its name, to send requests to within the conversation.

    Its requests are recorded on the conversation's cassette, and it is closed with the
    conversation. Raises `ConfigError` if the name is unknown."""


def named_toolsets() -> list[str]:
    """Return the names of the toolsets that are available only by name."""
    return sorted({*_NAMED, *(point.name for point in plugins(TOOLSETS))})


def installed_toolsets(setup: ToolsetSetup, policy: Policy) -> Toolset:
    """Return the tools of all `hermes_nb.toolsets` entry points; raise `ConfigError`."""
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
