"""The tools that read and edit cells, and the set of all tools for a kernel.

The functions are async, so they run on the event loop's thread, which is the kernel's main thread.
Each edit contains its cell's id, and is refused if the user has changed that cell since it was
read. So a preview doesn't need a digest of the cell, and moving a cell does not require another
approval.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from hermes_nb.agent.undo.changes import Change, rows
from hermes_nb.core.errors import ToolError
from hermes_nb.core.tools import (
    Arguments,
    Content,
    Risk,
    Tool,
    ToolContext,
    ToolOutput,
    Toolset,
)
from hermes_nb.notebook.access import NotebookAccess
from hermes_nb.notebook.document.document import (
    Cell,
    CellType,
    brief_id,
    find,
    short_ids,
    source_hash,
)
from hermes_nb.notebook.document.outline import (
    KnownCells,
    Open,
    SeenCells,
    digest,
    editing,
    first_words,
    moving,
    name_of,
    outline,
    reading,
    rendered,
    selected,
    telling,
    titled,
    turn_mark,
    with_outputs,
)
from hermes_nb.notebook.execute.network import kernel_origin
from hermes_nb.notebook.run_tools import (
    RUNNER,
    approved_code,
    kernel_tools,
    run_approved,
    run_tools,
    stale_note,
)
from hermes_nb.notebook.shell import Shell, has_kernel, is_message
from hermes_nb.tools.schema import tool

TOOLSET = "notebook"
ADDED = "The user added it and ran it:"
KEPT = "The user kept it and ran it:"


def notebook_tools(
    shell: Shell,
    document: Open,
    *,
    seen: SeenCells | None = None,
    root: Path | None = None,
    foreign: Callable[[str], bool] = lambda _: False,
) -> Toolset:
    """Return the tools for the notebook; each call opens it with `document`.

    Args:
        shell: the kernel's IPython shell
        document: opens the notebook, given the place of the call
        seen: record of the cells that the agent has seen; None to create one
        root: the directory that other notebooks must be in to be run, or None for the working
            directory at the call
        foreign: returns whether a source contains untrusted content
    """
    bench = KnownCells(
        shell=shell,
        open=document,
        seen=SeenCells() if seen is None else seen,
        foreign=foreign,
    )
    makers = (_outline, _read, _insert, _edit, _delete, _move)
    return Toolset(make(bench) for make in makers) + run_tools(bench, root=root)


def _outline(bench: KnownCells) -> Tool:
    @tool(toolset=TOOLSET)
    async def notebook_outline(context: ToolContext) -> ToolOutput:
        """List the cells, one line each, and what changed since you last looked."""
        document = await bench.open(context.place)
        cells = await document.sketch()
        text = outline(cells, changed=bench.seen.changes(document.way, cells))
        bench.seen.record_all(document.way, cells)
        foreign = any(bench.foreign(cell.source) for cell in cells)
        stale = await stale_note(bench, context.place, earlier=True)
        message = f"{document.way}, {len(cells)} cells:\n{text}{stale}"
        return ToolOutput(message, origin="outside" if foreign else "workspace")

    return notebook_outline


def _read(bench: KnownCells) -> Tool:
    @tool(toolset=TOOLSET, describe=partial(reading, name=bench.named))
    async def read_cells(
        context: ToolContext,
        ids: list[str] | None = None,
        range: str | None = None,
        section: str | None = None,
        outputs: bool = True,
    ) -> ToolOutput:
        """Read cells: source and outputs.

        Args:
            range: indices, e.g. '3-7'
            section: text of a heading
        """
        document, cells = await bench.cells(context.place)
        chosen = selected(cells, ids, range, section)
        if outputs:
            chosen = await with_outputs(document, chosen)
        bench.seen.learn(document.way, chosen)
        names = short_ids(cell.id for cell in cells)
        shown = rendered(chosen, names, images=context.sees_images)
        if any(bench.foreign(cell.source) for cell in chosen):
            return replace(shown, origin="outside")
        return replace(shown, origin=kernel_origin()) if any(c.outputs for c in chosen) else shown

    return read_cells


def _insert(bench: KnownCells) -> Tool:
    async def preview(context: ToolContext, arguments: Arguments) -> Content:
        kind = arguments.get("type", "code")
        document, cells = await bench.cells(context.place)
        after = arguments.get("after") or bench.below(document, cells, context.place)
        place = f"below {titled(find(cells, after))}" if after else "at the end"
        source = str(arguments["source"])
        code = source if kind == "code" and not is_message(source) else ""
        return Content(shown=f"new {kind} cell {place}:\n{source}", code=code)

    def gist(arguments: Arguments) -> str:
        return telling(str(arguments.get("source", "")))

    @tool(
        toolset=TOOLSET,
        risk=Risk.WRITE,
        exclusive=True,
        preview=preview,
        describe=gist,
        runner=RUNNER,
    )
    async def insert_cell(
        context: ToolContext, source: str, after: str | None = None, type: CellType = "code"
    ) -> ToolOutput:
        """Add a cell without running it.

        Args:
            after: cell id; default: below the running cell
        """
        document, cells = await bench.cells(context.place)
        behind = find(cells, after).id if after else bench.below(document, cells, context.place)
        # The cell counts as the agent's while its source has this hash.
        mark = {"hermes": {**turn_mark(context.place), "hash": source_hash(source)}}
        cell = await document.insert(source, after=behind, type=type, metadata=mark)
        bench.seen.learn(document.way, [cell])
        bench.placed(cell, context.place)
        bench.wrote(document.way, cell)
        inserted = f"inserted {_where(cell)} in {document.way}"
        if approved_code(context) == cell.source:
            return await run_approved(bench, context, cell, f"{inserted}\n\n{ADDED}")
        return ToolOutput(inserted)

    return insert_cell


def _edit(bench: KnownCells) -> Tool:
    async def preview(context: ToolContext, arguments: Arguments) -> Content:
        _, (cell,) = await bench.known(context.place, [arguments["id"]])
        new = _edited(cell, arguments.get("old"), arguments["new"])
        return Content(
            shown=f"{name_of(cell)}\n{_shown(cell.source, new)}",
            digests={f"cell {cell.id}": digest(f"{cell.source}\0{new}")},
            code=new if cell.type == "code" and not is_message(new) else "",
        )

    async def result(context: ToolContext, arguments: Arguments) -> str:
        _, (cell,) = await bench.known(context.place, [arguments["id"]])
        return _edited(cell, arguments.get("old"), arguments["new"])

    gist = partial(editing, name=bench.named)

    @tool(
        toolset=TOOLSET,
        risk=Risk.WRITE,
        exclusive=True,
        preview=preview,
        result=result,
        describe=gist,
        runner=RUNNER,
        joint=True,
    )
    async def edit_cell(
        context: ToolContext, id: str, new: str, old: str | None = None
    ) -> ToolOutput:
        """Replace a passage of a cell, or its whole source.

        Args:
            old: exact and unique in the cell; omit to replace all
        """
        document, (cell,) = await bench.known(context.place, [id])
        changed = _edited(cell, old, new)
        after = await document.replace(cell.id, changed, seen=cell.hash, review=True)
        bench.seen.learn(document.way, [after])
        bench.moved(after)
        part = "" if after.source == changed else "; the user kept only a part of it"
        edited = f"edited {_where(after)} in {document.way}{part}"
        edited = f"{edited}\n{_diff(cell.source, after.source)}"
        if (old is None or bench.owns(id)) and after.source == changed:
            bench.wrote(document.way, after)
        # The page lets the user keep a part of the change and run that.
        if (code := approved_code(context)) and (after.source == code or after.run):
            return await run_approved(bench, context, after, f"{edited}\n\n{KEPT}")
        return ToolOutput(edited + await stale_note(bench, context.place, but=after.id))

    return edit_cell


def _delete(bench: KnownCells) -> Tool:
    async def preview(context: ToolContext, arguments: Arguments) -> Content:
        _, (cell,) = await bench.known(context.place, [arguments["id"]])
        return Content(
            shown=f"{name_of(cell)}\n{_shown(cell.source, '')}",
            digests={f"cell {cell.id}": digest(cell.source)},
        )

    @tool(toolset=TOOLSET, risk=Risk.WRITE, exclusive=True, preview=preview, describe=bench.gist)
    async def delete_cell(context: ToolContext, id: str) -> str:
        """Remove a cell."""
        document, (cell,) = await bench.known(context.place, [id])
        await document.delete(cell.id, seen=cell.hash)
        bench.seen.forget(document.way, cell.id)
        bench.deleted(cell)
        return f"deleted {_where(cell)} from {document.way}: {first_words(cell)}"

    return delete_cell


def _move(bench: KnownCells) -> Tool:
    async def preview(context: ToolContext, arguments: Arguments) -> Content:
        _, cells = await bench.cells(context.place)
        after = arguments.get("after")
        place = f"below {titled(find(cells, after))}" if after else "to the top"
        return Content(shown=f"move {titled(find(cells, arguments['id']))} {place}")

    async def result(context: ToolContext, arguments: Arguments) -> str:
        _, cells = await bench.cells(context.place)
        return find(cells, arguments["id"]).source

    gist = partial(moving, name=bench.named)

    @tool(
        toolset=TOOLSET,
        risk=Risk.WRITE,
        exclusive=True,
        preview=preview,
        result=result,
        describe=gist,
    )
    async def move_cell(context: ToolContext, id: str, after: str | None = None) -> str:
        """Move a cell.

        Args:
            after: cell id; default: to the top
        """
        document, cells = await bench.cells(context.place)
        behind = find(cells, after).id if after else None
        cell = await document.move(find(cells, id).id, after=behind)
        bench.moved(cell)
        return f"moved {_where(cell)} in {document.way}"

    return move_cell


def _edited(cell: Cell, old: str | None, new: str) -> str:
    if old is None:
        return new
    count = cell.source.count(old) if old else 0
    if count == 1 and old != new:
        return cell.source.replace(old, new)
    if count == 1:
        message = "`old` and `new` are the same; there is nothing to change"
    elif count:
        lines = [n for n, line in enumerate(cell.source.split("\n"), 1) if old in line]
        where = f" (lines {', '.join(map(str, lines[:10]))})" if lines else ""
        message = f"`old` is in cell {cell.id} {count} times{where}; add surrounding lines"
    else:
        message = f"`old` is not in cell {cell.id}, which contains:\n{cell.source}"
    raise ToolError(message)


def _diff(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.split("\n"), after.split("\n"), lineterm="", n=2)
    return "\n".join(list(lines)[2:]) or "(no difference)"


def _shown(before: str, after: str) -> str:
    """Compare two sources line by line, for the user to read."""
    change = Change(name="", kind="edited", before=before, after=after)
    return "\n".join(f"{row.mark} {row.text}" for row in rows(change))


def _where(cell: Cell) -> str:
    return f"cell {brief_id(cell.id)} (index {cell.index})"


def own_tools(shell: Shell, access: NotebookAccess) -> Toolset:
    """Return the kernel's tools, including notebook tools if there is a notebook."""
    tools = kernel_tools(shell)
    if not has_kernel(shell):
        return tools
    return tools + notebook_tools(shell, access.document, seen=access.seen, foreign=access.foreign)
