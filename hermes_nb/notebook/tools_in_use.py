"""The tools of one kernel: its own, what the user chose among all, and what one turn may use."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.tools import Toolset
from hermes_nb.notebook.access import Desk
from hermes_nb.notebook.cell_tools import notebook_tools
from hermes_nb.notebook.display.views import has_kernel
from hermes_nb.notebook.run_tools import kernel_tools


class ToolsInUse:
    """Chooses tools; `everything()` are all there are, built on first use."""

    def __init__(self, everything: Callable[[], Toolset]) -> None:
        self._everything = everything
        self._names: tuple[str, ...] = ()

    def choose(self, names: str) -> Toolset:
        """Use only these tools or toolsets (comma-separated; "" or "all" for all)."""
        wanted = _listed(names)
        chosen = self._only(() if wanted == ("all",) else wanted)
        self._names = () if wanted == ("all",) else wanted
        return chosen

    def chosen(self, names: str = "") -> Toolset:
        """Return the tools for a turn that names these; "" are those chosen before."""
        wanted = _listed(names) or self._names
        return self._only(() if wanted == ("all",) else wanted)

    def _only(self, names: tuple[str, ...]) -> Toolset:
        everything = self._everything()
        if not names:
            return everything
        known = sorted({tool.name for tool in everything} | {tool.toolset for tool in everything})
        for name in names:
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"did you mean {near[0]}?" if near else "%hermes tools lists them"
                message = f"there is no tool or toolset {name!r}; {hint}"
                raise ConfigError(message)
        return everything.only(*names)


def own_tools(
    shell: Any,  # noqa: ANN401 - IPython's shell
    desk: Desk,
    *,
    sees_images: Callable[[], bool],
    mark: Callable[[], Mapping[str, Any]],
    root: Callable[[], Path],
) -> Toolset:
    """Return the kernel's tools, and the notebook's where there is one.

    `mark()` is the metadata of cells that the agent makes now.
    """
    tools = kernel_tools(shell, sees_images=sees_images)
    if not has_kernel(shell):
        return tools
    return tools + notebook_tools(
        shell,
        desk.document,
        turn_mark=lambda: dict(mark()),
        sees_images=sees_images,
        seen=desk.seen,
        path=lambda: desk.path,
        root=root,
    )


def _listed(names: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in names.split(",") if name.strip())
