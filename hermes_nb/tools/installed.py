"""Load the tools that other packages provide, and their wrappers around all tools.

A package registers its tools under the entry point group `hermes_nb.tools`. An entry point names a
`Tool`, a `Toolset`, a list of tools, or a function without parameters that returns one of these. An
entry point that fails to load is reported and skipped, so it cannot break a turn.

Wrappers are registered under `hermes_nb.tool_wrappers`. They may be safety measures, so if one
cannot be loaded, no tool runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, cast

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.plugins import loaded, plugins, ships
from hermes_nb.core.protocols import ChatModel
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Arguments, Tool, ToolContext, Toolset
from hermes_nb.safety.administrator import Policy
from hermes_nb.safety.guard import Guard
from hermes_nb.safety.redact import redact
from hermes_nb.tools.hooks import Hooks, hooked

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "hermes_nb.tools"


def installed_tools(warn: Callable[[str], None]) -> Toolset:
    """Return the tools of all installed packages, sorted by entry point.

    A tool without a toolset gets the entry point's name, so that `%hermes tools NAME` finds it.
    """
    found: dict[str, Tool] = {}
    for point in plugins(GROUP):
        try:
            tools = _tools(point.load())
        except Exception as error:  # noqa: BLE001 - another package's code can raise anything
            why = one_line(redact(f"{type(error).__name__}: {error}"), 200)
            warn(f"the tools of {point.name!r} are not used: {why}")
            continue
        for tool in tools:
            if tool.name in found:
                warn(f"{point.name!r} has another tool {tool.name!r}; the first one is used")
            found.setdefault(tool.name, replace(tool, toolset=tool.toolset or point.name))
    return Toolset(found.values())


def without_taken(tools: Toolset, taken: Toolset, warn: Callable[[str], None]) -> Toolset:
    """Return the tools whose names are not taken: a package cannot replace a Hermes tool."""
    for tool in tools:
        if tool.name in taken:
            warn(f"the tool {tool.name!r} is not used: Hermes has a tool of the same name")
    return Toolset(tool for tool in tools if tool.name not in taken)


def left(tools: Toolset, policy: Policy) -> Toolset:
    """Return the tools that the policy allows. The guard rechecks the policy on each call."""
    return Toolset(tool for tool in tools if not policy.why("tools", tool.name, tool.toolset))


def left_of_added(tools: Iterable[Tool], policy: Policy) -> Toolset:
    """Return the tools from packages or the user that the policy allows."""
    return Toolset(tool for tool in tools if not policy.why("tools", f"added:{tool.name}"))


_NAMED = ("clarify", "vision", "web")
TOOLSETS = "hermes_nb.toolsets"
"""Entry point group for toolsets that are available only by name; see `ToolsetSetup`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsetSetup:
    """The argument of an entry point that creates a toolset for a session.

    An entry point in the group `hermes_nb.toolsets` is a function that takes this and returns a
    `Toolset`. Its name is the toolset's name.
    """

    composed: Sequence[str]
    """Names of the models that the settings compose from other models."""
    model: Callable[[str], ChatModel]
    """Returns an installed model by name, for requests that are part of the conversation.

    Its requests are recorded on the conversation's cassette, and it is closed with the
    conversation. Raises `ConfigError` if the name is unknown."""


def named_toolsets() -> list[str]:
    """Return the names of the toolsets that are available only by name."""
    return sorted({*_NAMED, *(point.name for point in plugins(TOOLSETS))})


def installed_toolsets(setup: ToolsetSetup, policy: Policy) -> Toolset:
    """Return the tools from all `hermes_nb.toolsets` entry points; raise `ConfigError`."""
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


WRAPPERS = "hermes_nb.tool_wrappers"
AUDIT = "audit"
"""Policy key that makes auditing mandatory, and the name of the wrapper that has to do it."""


class Wrapper(Protocol):
    """The function that a `hermes_nb.tool_wrappers` entry point refers to."""

    def __call__(
        self, tools: Toolset, *, source: str, guard: Guard, tell: Callable[[str], None]
    ) -> Toolset:
        """Return the tools, each wrapped.

        `source` says who uses the tools, as in `Identity`. `guard` decides on their calls. `tell`
        shows the user a line of text.
        """
        ...


def wrapped(
    tools: Toolset,
    *,
    source: str,
    guard: Guard,
    tell: Callable[[str], None] = lambda _: None,
    hooks: Sequence[Sequence[Hooks]] = (),
) -> Toolset:
    """Wrap the tools with the wrappers of all packages and hooks, the auditor outermost.

    Raises `ConfigError` if a wrapper cannot be used, or if the policy requires an auditor that is
    not installed. A call can also raise it, because the policy may change at any time.
    """
    for point in plugins(WRAPPERS):
        if point.name != AUDIT and not guard.policy.why("tools", f"added:{point.name}"):
            tools = _in_wrapper(point, tools, source=source, guard=guard, tell=tell)
    tools = hooked(tools, hooks, tell=tell)
    _auditor(guard.policy)

    def audited(tool: Tool) -> Tool:
        async def run(context: ToolContext, arguments: Arguments) -> object:
            if (point := _auditor(guard.policy)) is None:
                return await tool.run(context, arguments)
            only = Toolset([tool])
            (recorded,) = _in_wrapper(point, only, source=source, guard=guard, tell=tell)
            return await recorded.run(context, arguments)

        return replace(tool, run=run)

    return tools.map(audited)


def _auditor(policy: Policy) -> EntryPoint | None:
    """Return the wrapper that records calls, or None if the policy doesn't require auditing."""
    if not policy.values.get(AUDIT):
        return None
    if points := plugins(WRAPPERS, AUDIT):
        return max(points, key=ships)
    raise ConfigError(
        f"nothing runs: {policy.file} requires an audit, but no installed package provides one "
        f"(entry point {AUDIT!r} of {WRAPPERS})"
    )


def _in_wrapper(
    point: EntryPoint,
    tools: Toolset,
    *,
    source: str,
    guard: Guard,
    tell: Callable[[str], None],
) -> Toolset:
    try:
        wrap = cast("Wrapper", loaded(point))
        return wrap(tools, source=source, guard=guard, tell=tell)
    except ConfigError:
        raise
    except Exception as error:
        message = f"the tool wrapper {point.name!r} cannot be used: {type(error).__name__}: {error}"
        raise ConfigError(message) from error
