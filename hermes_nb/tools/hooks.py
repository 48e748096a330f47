"""Hooks: functions of the user or a package that run before and after tool calls and turns.

They are for house rules: refuse pushes on a Friday, log what ran, send a message when a turn ends.
`use_hooks` sets those of a kernel. A package registers a `Hooks` object under the entry point group
`hermes_nb.hooks`. `before_tool` runs before the guard, and no call runs if it fails.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from hermes_nb.core.calls import as_output
from hermes_nb.core.errors import ConfigError, ToolDenied
from hermes_nb.core.events import Event, TurnEnded, TurnStarted
from hermes_nb.core.plugins import loaded, plugins
from hermes_nb.core.protocols import EventSink
from hermes_nb.core.text import one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Arguments, Tool, ToolContext, Toolset
from hermes_nb.safety.redact import redact

GROUP = "hermes_nb.hooks"
SECONDS = 5.0
"""Seconds that a hook may take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """Functions to call before and after tool calls and turns, all optional.

    The functions for tools may be coroutine functions; plain functions run in a thread.
    """

    before_tool: Callable[[ToolContext], str | Awaitable[str | None] | None] | None = None
    """Called before each tool call, before any approval. Returns a reason to refuse the call, or
    None to continue. The call is also refused if the function raises or takes 5 seconds."""
    after_tool: Callable[[ToolContext, str], object] | None = None
    """Called after each tool call that returned, with the text of its result. Errors are
    reported."""
    turn_started: Callable[[str], object] | None = None
    """Called when a turn starts, with the session's id; the turn waits for it."""
    turn_ended: Callable[[str, TurnEnded], object] | None = None
    """Called when a turn has ended, with the session's id and the result."""
    name: str = "use_hooks"
    """Name for messages: a package's entry point."""


def installed_hooks() -> list[Hooks]:
    """Return the hooks of all packages; raise `ConfigError` if one of them cannot be loaded."""
    found = []
    for point in plugins(GROUP):
        try:
            hooks = loaded(point)
        except Exception as error:
            why = one_line(redact(f"{type(error).__name__}: {error}"), 200)
            raise ConfigError(f"the hooks {point.name!r} cannot be loaded: {why}") from error
        if not isinstance(hooks, Hooks):
            raise ConfigError(f"the entry point {point.name!r} of {GROUP} is not a Hooks object")
        found.append(replace(hooks, name=point.name))
    return found


def hooked(
    tools: Toolset, groups: Sequence[Sequence[Hooks]], *, tell: Callable[[str], None]
) -> Toolset:
    """Call the hooks around each call of the tools; `tell` reports failures of `after_tool`.

    The groups are read at each call, so that hooks may be added between turns.
    """

    def wrap(tool: Tool) -> Tool:
        async def run(context: ToolContext, arguments: Arguments) -> object:
            hooks = [*chain.from_iterable(groups)]
            for each in hooks:
                await _may_run(context, each)
            result = await tool.run(context, arguments)
            for each in hooks:
                if each.after_tool is not None:
                    try:
                        await _call_with_limit(each.after_tool, context, as_output(result).text)
                    except Exception as error:  # noqa: BLE001 - other people's code
                        tell(f"after_tool of {each.name!r} failed: {_failure(error)}")
            return result

        return replace(tool, run=run)

    return tools.map(wrap)


async def _may_run(context: ToolContext, hooks: Hooks) -> None:
    """Raise `ToolDenied` if `before_tool` refuses the call or fails."""
    if hooks.before_tool is None:
        return
    refused = f"{context.call.name} was not run: the hook {hooks.name!r} refused it"
    try:
        reason = await _call_with_limit(hooks.before_tool, context)
    except Exception as error:
        raise ToolDenied(f"{refused}: {_failure(error)}") from error
    if reason is not None:
        raise ToolDenied(f"{refused}: {one_line(str(reason), 500) or 'it gave no reason'}")


async def _call_with_limit(hook: Callable[..., object], *arguments: object) -> object:
    """Call a hook with a time limit. A thread that exceeds it continues, but is ignored."""
    if inspect.iscoroutinefunction(hook):
        return await asyncio.wait_for(hook(*arguments), SECONDS)
    return await asyncio.wait_for(in_thread(hook, *arguments), SECONDS)


def _failure(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"it took longer than {SECONDS:g} s"
    return redact(f"it raised {type(error).__name__}: {error}")


def turn_sink(
    groups: Sequence[Sequence[Hooks]], session: str, tell: Callable[[str], None]
) -> EventSink:
    """Return an event sink that calls the hooks for turns, and reports their errors to `tell`."""

    def hear(event: Event) -> None:
        for each in chain.from_iterable(groups):
            try:
                if isinstance(event, TurnStarted) and each.turn_started:
                    each.turn_started(session)
                elif isinstance(event, TurnEnded) and each.turn_ended:
                    each.turn_ended(session, event)
            except Exception as error:  # noqa: BLE001 - other people's code
                tell(f"a turn hook of {each.name!r} failed: {_failure(error)}")

    return hear
