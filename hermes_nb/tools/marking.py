"""Says whose text a result is, and marks what somebody else may have written.

What cells and commands print, what a server answers and what lies outside the working directory is
always marked as data. Every other result is looked through, and marked as soon as it reads like an
attack. A refusal is our own text, and stays as it is.
"""

from __future__ import annotations

from dataclasses import replace

from hermes_nb.core.errors import ToolDenied
from hermes_nb.core.messages import Origin
from hermes_nb.core.tools import Arguments, Risk, Tool, ToolContext, ToolOutput, Toolset
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
OUTSIDE = frozenset({"mcp"})
"""Toolsets whose results come from other machines."""
OURS = frozenset({"memory", "skills"})
"""Toolsets whose results are what the user and the agent have kept."""
SHORT = 24
"""Characters that cannot carry an instruction: numbers, a name, `done`."""


def marked(toolset: Toolset, *, mark: bool = True) -> Toolset:
    """Give each result its origin; with `mark`, put untrusted ones between marks."""

    def change(tool: Tool) -> Tool:
        def look(context: ToolContext, output: ToolOutput) -> ToolOutput:
            text, source = output.text, _origin(tool, context.call.arguments)
            output = replace(output, origin=_whose(tool, source, output.origin))
            if not mark or (len(text) <= SHORT and "\n" not in text):
                return output
            scanned = scan(text, name=tool.name)
            if scanned.verdict != "clean":
                source = source or f"a result of {tool.name}"
            return (
                replace(output, text=wrap(text, source=source, scanned=scanned))
                if source
                else output
            )

        return replace(tool, run=passing(tool.run, look, apart=ToolDenied))

    return toolset.map(change)


def _whose(tool: Tool, source: str, given: Origin) -> Origin:
    """Return the origin of a result; what the tool itself says to be from outside stays so."""
    if given == "outside" or tool.toolset in OUTSIDE or (tool.origin is not None and source):
        return "outside"
    return "ours" if tool.toolset in OURS else given


def _origin(tool: Tool, arguments: Arguments) -> str:
    """Return where a result comes from if it is not to be trusted, else ""."""
    if tool.origin is not None:
        return tool.origin(arguments)
    if tool.risk in (Risk.WRITE, Risk.REMEMBER):
        return ""
    return ORIGINS.get(tool.toolset, "")
