"""Hints behind tool results, as a function from toolset to toolset.

Put it outside of the output cap: a hint has bounds of its own, and cut off it would be lost, since
each is given once.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Protocol

from hermes_nb.core.calls import NO_OUTPUT, as_output, in_thread
from hermes_nb.core.errors import ToolDenied, ToolError
from hermes_nb.core.messages import ToolCall
from hermes_nb.core.tools import Arguments, Run, Tool, ToolContext, Toolset

Hint = Callable[[ToolContext, Arguments], str]


class Hinting(Protocol):
    """What has something to say about calls: the running session's `HintTracker`."""

    def after(
        self, tool_name: str, arguments: Arguments, *, earlier: Sequence[Arguments] = ()
    ) -> str:
        """Return the hint that a call leads to, "" for none."""
        ...


def with_hints(toolset: Toolset, tracker: Hinting) -> Toolset:
    """Append to each result, error results too, what the tracker has to say about the call.

    Of calls that run side by side the first in call order gets a hint that several lead to,
    whichever ends first. What was denied or stopped gets none.
    """

    def hint(context: ToolContext, arguments: Arguments) -> str:
        return tracker.after(context.call.name, arguments, earlier=_earlier(context, toolset))

    return toolset.map(lambda tool: replace(tool, run=_followed(tool, hint)))


def _earlier(context: ToolContext, toolset: Toolset) -> list[Arguments]:
    """Return the arguments of the calls beside this one that come first and will have a result."""
    found: list[Arguments] = []
    for call in context.beside:
        if call is context.call:
            return found
        if _runs(call, toolset.get(call.name)):
            found.append(call.arguments)
    return []


def _runs(call: ToolCall, tool: Tool | None) -> bool:
    return tool is not None and not call.problem and not tool.check(call.arguments)


def _followed(tool: Tool, hint: Hint) -> Run:
    async def awaited(
        context: ToolContext, arguments: Arguments, result: Awaitable[object]
    ) -> object:
        # Off the loop: the file system may be slow.
        try:
            value = await result
        except ToolDenied:
            raise
        except ToolError as error:
            raise _told(error, await in_thread(lambda: hint(context, arguments))) from error
        return _output(value, await in_thread(lambda: hint(context, arguments)))

    async def run_async(context: ToolContext, arguments: Arguments) -> object:
        return await awaited(context, arguments, tool.run(context, arguments))

    def run_plain(context: ToolContext, arguments: Arguments) -> object:
        try:
            result = tool.run(context, arguments)
        except ToolDenied:
            raise
        except ToolError as error:
            raise _told(error, hint(context, arguments)) from error
        if inspect.isawaitable(result):
            return awaited(context, arguments, result)
        return _output(result, hint(context, arguments))

    return run_async if inspect.iscoroutinefunction(tool.run) else run_plain


def _output(result: object, text: str) -> object:
    if not text:
        return result
    output = as_output(result)
    return replace(output, text=f"{output.text or NO_OUTPUT}{text}")


def _told(error: ToolError, text: str) -> ToolError:
    told = type(error)(f"{error}{text}")
    told.origin = error.origin
    return told
