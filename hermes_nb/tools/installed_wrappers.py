"""Wrap tools in the wrappers that other packages register under `hermes_nb.tool_wrappers`.

A wrapper may be a safety measure. If one cannot be loaded, no tool runs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, cast

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.plugins import loaded, plugins, ships
from hermes_nb.core.tools import Arguments, Tool, ToolContext, Toolset
from hermes_nb.safety.administrator import Policy
from hermes_nb.safety.guard import Guard

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

WRAPPERS = "hermes_nb.tool_wrappers"
AUDIT = "audit"
"""Key of the policy that demands an audit, and name of the wrapper that it uses then."""


class Wrapper(Protocol):
    """The function that an entry point of `hermes_nb.tool_wrappers` names."""

    def __call__(
        self, tools: Toolset, *, source: str, guard: Guard, tell: Callable[[str], None]
    ) -> Toolset:
        """Return the tools, each wrapped.

        `source` is who uses the tools, as in `Identity`. `guard` decides on their calls. `tell`
        shows a line to the user.
        """
        ...


def wrapped(
    tools: Toolset,
    *,
    source: str,
    guard: Guard,
    tell: Callable[[str], None] = lambda _: None,
) -> Toolset:
    """Return the tools in the wrappers of all packages, with the audit as the outermost.

    Raises `ConfigError` if a wrapper cannot be used, or if the policy demands an audit that is not
    installed. A call can raise it too, because the policy may change at any time.
    """
    for point in plugins(WRAPPERS):
        if point.name != AUDIT and not guard.policy.why("tools", f"added:{point.name}"):
            tools = _in_wrapper(point, tools, source=source, guard=guard, tell=tell)
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
    """Return the wrapper that records calls; None if the policy demands no audit."""
    if not policy.values.get(AUDIT):
        return None
    if points := plugins(WRAPPERS, AUDIT):
        return max(points, key=ships)
    raise ConfigError(
        f"nothing runs: {policy.file} demands an audit, and no installed package has one "
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
