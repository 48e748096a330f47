"""The tools that a context engine offers, made safe to call."""

from __future__ import annotations

from dataclasses import replace

from hermes_nb.core.protocols import ContextEngine
from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.tools.arguments import Checker


def context_tools(engine: ContextEngine) -> Toolset:
    """Return an engine's tools as the toolset `context`, their arguments checked by schema.

    An engine sits below the layer that validates, and a third party's may not validate at all.
    """

    def checked(tool: Tool) -> Tool:
        return replace(
            tool, toolset="context", check=Checker(tool.name, tool.parameters, frozenset())
        )

    return engine.tools().map(checked)
