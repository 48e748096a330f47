"""Saving what a call changes before it runs, as a function from toolset to toolset.

Put it inside of `asking`: only a call that was allowed is saved.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

from hermes_nb.core.calls import in_thread
from hermes_nb.core.errors import ToolError
from hermes_nb.core.protocols import Keeper
from hermes_nb.core.tools import Arguments, Risk, Run, Tool, ToolContext, Toolset
from hermes_nb.tools.workspace import Workspace


def checkpointed(toolset: Toolset, keeper: Keeper, root: Path) -> Toolset:
    """Let the keeper save the files that a call names before it changes them.

    That is possible for tools that write and whose `paths` say where. What runs code may change
    anything, so the keeper notes that it was used. Files outside of the tool's root, or of `root`
    where it has none, are not saved, which is noted too.
    """

    def keep(tool: Tool) -> Tool:
        if tool.risk is Risk.EXECUTE:
            return replace(tool, run=_noting(tool, keeper))
        if tool.risk is Risk.WRITE and tool.paths:
            return replace(tool, run=_saving(tool, keeper, tool.root or root))
        return tool

    return toolset.map(keep)


def _noting(tool: Tool, keeper: Keeper) -> Run:
    text = f"{tool.name} was used; what its code did is not undone"

    async def run_async(context: ToolContext, arguments: Arguments) -> Any:  # noqa: ANN401
        await in_thread(lambda: keeper.note(context.turn, text))
        return await tool.run(context, arguments)

    def run_plain(context: ToolContext, arguments: Arguments) -> Any:  # noqa: ANN401
        keeper.note(context.turn, text)
        return tool.run(context, arguments)

    return run_async if inspect.iscoroutinefunction(tool.run) else run_plain


def _saving(tool: Tool, keeper: Keeper, root: Path) -> Run:
    space = Workspace(root=root)

    async def saved(context: ToolContext, paths: list[Path], result: Awaitable[Any]) -> Any:  # noqa: ANN401
        try:
            return await result
        finally:
            await in_thread(lambda: keeper.after(context.turn, paths))

    async def run_async(context: ToolContext, arguments: Arguments) -> Any:  # noqa: ANN401
        paths, outside = _paths(tool, space, arguments)
        await in_thread(lambda: keeper.before(context.turn, paths))
        result = await saved(context, paths, tool.run(context, arguments))
        await in_thread(lambda: _note_outside(keeper, context, outside))
        return result

    def run_plain(context: ToolContext, arguments: Arguments) -> Any:  # noqa: ANN401
        paths, outside = _paths(tool, space, arguments)
        keeper.before(context.turn, paths)
        result = None
        try:
            result = tool.run(context, arguments)
        finally:
            if not inspect.isawaitable(result):
                keeper.after(context.turn, paths)
        _note_outside(keeper, context, outside)
        return saved(context, paths, result) if inspect.isawaitable(result) else result

    return run_async if inspect.iscoroutinefunction(tool.run) else run_plain


def _paths(tool: Tool, space: Workspace, arguments: Arguments) -> tuple[list[Path], list[str]]:
    """Return the files that a call names, and the names that lead out of the workspace.

    Those the tool mostly refuses by itself; it is asked all the same, since it may know better.
    """
    inside: list[Path] = []
    outside: list[str] = []
    for name in tool.paths:
        given = arguments.get(name)
        for path in given if isinstance(given, list | tuple) else [given]:
            if not isinstance(path, str):
                continue
            try:
                inside.append(space.resolve(path, write=True))
            except ToolError:
                outside.append(path)
    return inside, outside


def _note_outside(keeper: Keeper, context: ToolContext, outside: list[str]) -> None:
    for path in outside:
        keeper.note(context.turn, f"{path!r} is outside of the workspace and was not saved")
