"""What the tests of a notebook's faults share: notebooks with something in them, tools on them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import nbformat
import pytest
from hermes_nb.core.errors import ToolError
from hermes_nb.core.messages import ToolCall
from hermes_nb.core.tools import Place, ToolContext, ToolOutput, Toolset
from hermes_nb.notebook.cell_tools import notebook_tools
from hermes_nb.notebook.document.file import FileDocument

STREAM = {"output_type": "stream", "name": "stdout", "text": ["1\n", "2\n"]}


def written(path: Path, *sources: str) -> Path:
    """Write a notebook of code cells `cell0`, `cell1`, …, each with an output."""
    cells = [
        nbformat.v4.new_code_cell(source, id=f"cell{n}", outputs=[nbformat.from_dict(STREAM)])
        for n, source in enumerate(sources)
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)
    return path


def tools_on(shell: Any, path: Path, *, keep: Path | None = None) -> Toolset:
    """Return the notebook's tools for a file that nobody has open."""

    async def document(_place: Place) -> FileDocument:
        return FileDocument(path, keep=keep)

    return notebook_tools(shell, document, root=path.parent)


def use(tools: Toolset, name: str, **arguments: Any) -> str:
    """Run one tool and return what the model reads of it."""
    tool = tools.get(name)
    assert tool is not None
    context = ToolContext(call=ToolCall(id="1", name=name, arguments=arguments))
    result = asyncio.run(tool.run(context, arguments))
    return result.text if isinstance(result, ToolOutput) else result


def refused(tools: Toolset, name: str, **arguments: Any) -> str:
    """Run a tool that must refuse, and return why: some plain lines, no traceback."""
    with pytest.raises(ToolError) as error:
        use(tools, name, **arguments)
    text = str(error.value)
    assert "Traceback" not in text
    return text


def valid(path: Path) -> dict[str, Any]:
    """Return what a notebook holds; it must follow its schema."""
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    nbformat.validate(document)
    return document
