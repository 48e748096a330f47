"""Marks results that somebody else may have written: they are data, never instructions.

What cells and commands print, what a server answers and what lies outside the working directory is
always marked. Every other result is looked through, and marked as soon as it reads like an attack;
from then on the turn counts as tainted. A refusal is our own text, and stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from hermes_nb.core.errors import ToolDenied
from hermes_nb.core.tools import Risk, Tool, ToolContext, Toolset
from hermes_nb.safety.scan import scan
from hermes_nb.safety.untrusted import wrap
from hermes_nb.tools.wrap import passing

ORIGINS = {
    "kernel": "what code in the kernel shows",
    "notebook": "cells and their outputs",
    "terminal": "what a command prints",
    "mcp": "what a server answers",
}
"""Where the results of a toolset's tools come from, as far as they read or run something."""
TAINTING = frozenset({"mcp"})
"""Toolsets whose results come from other machines: they taint the turn whatever they say."""
SHORT = 24
"""Characters that cannot carry an instruction: numbers, a name, `done`."""


def marked(toolset: Toolset, taint: Callable[[str], None]) -> Toolset:
    """Mark untrusted results; `taint(what)` hears of those that may carry instructions."""

    def mark(tool: Tool) -> Tool:
        def look(context: ToolContext, text: str) -> str:
            source = _origin(tool, context.call.arguments)
            if len(text) <= SHORT and "\n" not in text:
                return text
            scanned = scan(text, name=tool.name)
            if scanned.verdict != "clean":
                source = source or f"a result of {tool.name}"
                taint(f"{source} that may give orders")
            elif source and (tool.toolset in TAINTING or tool.origin is not None):
                taint(source)
            return wrap(text, source=source, scanned=scanned) if source else text

        return replace(tool, run=passing(tool.run, look, apart=ToolDenied))

    return toolset.map(mark)


def _origin(tool: Tool, arguments: Mapping[str, Any]) -> str:
    """Return where a result comes from if it is not to be trusted, else ""."""
    if tool.origin is not None:
        return tool.origin(arguments)
    if tool.risk in (Risk.WRITE, Risk.REMEMBER):
        return ""
    return ORIGINS.get(tool.toolset, "")
