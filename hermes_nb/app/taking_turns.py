"""Changes of files by several children: one at a time, so that none of them is lost.

Within one agent the loop sees to that; it knows nothing of the agents beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hermes_nb.core.calls import invoke
from hermes_nb.core.tools import Risk, Tool, ToolContext, Toolset


def in_turn(toolset: Toolset, lock: asyncio.Lock) -> Toolset:
    """Return the tools so that those which write hold the lock while they run."""

    def hold(tool: Tool) -> Tool:
        async def run(context: ToolContext, arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a tool's
            async with lock:
                return await invoke(tool, context, arguments)

        return replace(tool, run=run) if tool.risk is Risk.WRITE else tool

    return toolset.map(hold)
