"""Track untrusted content through files: mark what tools write and check what they read.

Everything written while a conversation contains untrusted content is marked in the Hermes directory
(`safety.marks`). A tool result from marked content is untrusted, for any tool and in any session.
The content itself is not changed.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import replace
from pathlib import Path

from hermes_nb.core.calls import as_output
from hermes_nb.core.errors import ToolDenied, ToolError
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import (
    Arguments,
    Risk,
    Tool,
    ToolContext,
    ToolOutput,
    Toolset,
    foreseen,
)
from hermes_nb.safety.marks import Marks
from hermes_nb.safety.named_files import files_of
from hermes_nb.safety.provenance import outside
from hermes_nb.tools.wrappers import OURS, OUTSIDE, following

_FOUND = re.compile(r"(?m)^(.{1,400}?)[:-]\d{1,9}[:-]")
"""The start of a search result line: the file and line number."""


def keeping_origins(toolset: Toolset, marks: Marks, root: Path) -> Toolset:
    """Return tools that mark what they write, and whose results are untrusted if their input is.

    Tools that run code may change any file under `root`, so all files changed during the run are
    marked.
    """

    def keep(tool: Tool) -> Tool:
        if tool.toolset in OURS:
            return tool
        place = tool.root or root

        async def look(_: ToolContext, arguments: Arguments, output: ToolOutput) -> ToolOutput:
            if output.origin == "outside":
                return output
            found = await in_thread(_reads, tool, place, marks, arguments, output.text)
            return replace(output, origin="outside") if found else output

        reading = following(tool, look, apart=ToolDenied)
        if tool.risk is Risk.READ or not (tool.paths or _runs(tool) or tool.toolset == "notebook"):
            return reading

        async def run(context: ToolContext, arguments: Arguments) -> object:
            since, foreign = time.time(), bool(outside(context.messages))
            left = await _written_source(tool, context, arguments) if foreign else ""
            try:
                output = as_output(await reading.run(context, arguments))
                foreign = foreign or output.origin == "outside"
            except ToolError as error:
                foreign = foreign or error.origin == "outside"
                raise
            finally:
                session = context.place.session
                if foreign and left:
                    await in_thread(marks.mark_text, left, session)
                elif foreign and _runs(tool):
                    await in_thread(marks.mark_changed, place, since, session)
                elif foreign:
                    files = filter(os.path.isfile, _paths(tool, place, arguments))
                    await in_thread(marks.mark_files, files, session)
            return output

        return replace(reading, run=run)

    return toolset.map(keep)


def _runs(tool: Tool) -> bool:
    return tool.risk is Risk.EXECUTE or tool.toolset in OUTSIDE


async def _written_source(tool: Tool, context: ToolContext, arguments: Arguments) -> str:
    """Return a cell's source after a call that writes it, or "" for other calls."""
    if tool.toolset != "notebook" or tool.risk is not Risk.WRITE:
        return ""
    if tool.result is None:
        return str(arguments.get("source", ""))
    return await foreseen(tool.result, context, arguments)


def _paths(tool: Tool, root: Path, arguments: Arguments) -> list[Path]:
    given = (arguments.get(name) for name in tool.paths)
    return [root / Path(each).expanduser() for each in given if isinstance(each, str)]


def _reads(tool: Tool, root: Path, marks: Marks, arguments: Arguments, text: str) -> bool:
    """Return whether a call has read marked content: a file in it, or lines in its result."""
    files = _paths(tool, root, arguments)
    code = arguments.get("command") or arguments.get("code")
    if isinstance(code, str) and _runs(tool):
        directory = root / str(arguments.get("workdir") or ".")
        files += [directory / name for name in files_of(code, directory).digests]
    if tool.name == "search_files":
        files += [root / name for name in {found[1] for found in _FOUND.finditer(text)}]
    return any(marks.holds(path) for path in files) or marks.quoted(text, root)
