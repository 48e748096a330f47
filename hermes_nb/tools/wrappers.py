"""Wrappers for all tools in a toolset: limit, mark and extend their results.

`limited` limits the length of results, `marked` marks untrusted ones, `with_hints` appends hints
found in folders. Other wrappers are in the modules that they use: `tools.asking` asks the guard
before a call, `agent.undo.checkpoints` saves files that a call changes.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path

from hermes_nb.core.calls import NO_OUTPUT, as_output
from hermes_nb.core.errors import ToolDenied, ToolError
from hermes_nb.core.files import make_private, write_atomic
from hermes_nb.core.messages import Origin
from hermes_nb.core.protocols import ContextEngine
from hermes_nb.core.text import head_tail
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Arguments, Risk, Tool, ToolContext, ToolOutput, Toolset
from hermes_nb.prompt.hints import HintTracker
from hermes_nb.safety.administrator import Policy
from hermes_nb.safety.redact import redact
from hermes_nb.safety.scan import scan, wrap
from hermes_nb.tools.arguments import Checker
from hermes_nb.tools.installed import left, left_of_added

CAP = 50_000
TURN_CAP = 200_000
TURNS = 64
"""Maximum number of turns whose results are counted at the same time."""
KEPT = 500
"""Maximum number of full outputs saved as files, across all sessions."""
ORIGINS = {
    "kernel": "output of code in the kernel",
    "notebook": "cells and their outputs",
    "terminal": "output of a command",
    "mcp": "response from a server",
}
"""Descriptions of untrusted results by toolset, for tools that read or run something."""
OUTSIDE = frozenset({"mcp"})
"""Toolsets whose results come from other machines."""
OURS = frozenset({"memory", "skills"})
"""Toolsets whose results were saved by the user and the agent."""
SHORT = 24
"""Text up to this many characters is too short to be an instruction: numbers, a name, `done`."""
_MARKER = 400
"""Characters reserved for the marker that describes the dropped part."""
_QUICK = 2_000
"""Maximum characters to scan on the event loop, which takes a millisecond or two."""

Change = Callable[[ToolContext, Arguments, ToolOutput], Awaitable[ToolOutput]]


def limited(
    toolset: Toolset, cap: int = CAP, turn_cap: int = TURN_CAP, spill: Path | None = None
) -> Toolset:
    """Truncate each call's result to `cap` characters, and a turn's results to `turn_cap`.

    A tool's own `cap` takes precedence. The head and tail are kept, around a marker that counts the
    dropped characters. Error messages are truncated as well.

    Args:
        toolset: the tools to wrap.
        cap: maximum characters of a result.
        turn_cap: maximum characters of all results in a turn.
        spill: directory for full outputs, redacted and private to the owner; the marker contains
            the file's name. None to drop them.
    """
    lock = threading.Lock()

    @lru_cache(TURNS)
    def left(_session: str, _turn: int) -> list[int]:
        return [turn_cap]

    def taken(context: ToolContext, wanted: int) -> int:
        with lock:
            room = left(context.place.session, context.turn)
            granted = min(wanted, room[0])
            room[0] -= granted
            return granted

    def limit(tool: Tool) -> Tool:
        own = cap if tool.cap is None else tool.cap

        async def shortened(
            context: ToolContext, _arguments: Arguments, output: ToolOutput
        ) -> ToolOutput:
            text = output.text
            room = taken(context, min(own, len(text)))
            if room >= len(text):
                return output
            place = await in_thread(_spilled, spill, context, text) if spill else ""
            if room < min(own, _MARKER):
                message = (
                    f"the tool output of this turn has reached its limit of {turn_cap:,} characters"
                )
                kept = f"; it is in {place}" if place else ""
                shown = f"[{len(text):,} characters of output left out: {message}{kept}]"
            else:
                shown = head_tail(text, max(room - _MARKER, room // 2), where=place)
            return replace(output, text=shown)

        return following(tool, shortened)

    return toolset.map(limit)


def marked(toolset: Toolset, *, mark: bool = True) -> Toolset:
    """Set the origin of each result; with `mark`, enclose untrusted ones in tags.

    Output from cells and commands, replies from servers, and files outside the working directory
    are always marked as data. Other results are scanned, and marked if they read like an attack.
    Denials, and results that the tool declares as `ours`, are unchanged. The error for a file that
    cannot be read contains no untrusted content.
    """

    def change(tool: Tool) -> Tool:
        async def look(
            context: ToolContext, _arguments: Arguments, output: ToolOutput, *, failed: bool = False
        ) -> ToolOutput:
            text, source = output.text, _source(tool, context.call.arguments)
            own = output.origin == "ours" and tool.toolset not in OUTSIDE
            if not (failed and tool.toolset == "files"):
                output = replace(output, origin=_result_origin(tool, source, output.origin))
            if not mark or own or (len(text) <= SHORT and "\n" not in text):
                return output
            quick = len(text) <= _QUICK
            look_through = partial(scan, text, name=tool.name)
            scanned = look_through() if quick else await in_thread(look_through)
            if scanned.verdict != "clean":
                source = source or f"a result of {tool.name}"
            if not source:
                return output
            return replace(output, text=wrap(text, source=source, scanned=scanned))

        return following(tool, look, apart=ToolDenied, failed=partial(look, failed=True))

    return toolset.map(change)


def context_tools(engine: ContextEngine) -> Toolset:
    """Return an engine's tools as the toolset `context`, with validated arguments.

    Engines bypass the layer that validates arguments, and a third-party engine may not validate
    them itself.
    """

    def checked(tool: Tool) -> Tool:
        return replace(
            tool, toolset="context", check=Checker(tool.name, tool.parameters, frozenset())
        )

    return engine.tools().map(checked)


def in_turn(toolset: Toolset, lock: asyncio.Lock) -> Toolset:
    """Return the tools; those that write hold the lock while they run.

    This makes child agents change files one at a time, so that no change is lost. Within one agent
    the loop takes care of this.
    """

    def hold(tool: Tool) -> Tool:
        async def run(context: ToolContext, arguments: Arguments) -> object:
            async with lock:
                return await tool.run(context, arguments)

        return replace(tool, run=run) if tool.risk is Risk.WRITE else tool

    return toolset.map(hold)


def following(
    tool: Tool,
    change: Change,
    *,
    apart: type[ToolError] | tuple[()] = (),
    failed: Change | None = None,
) -> Tool:
    """Return the tool with `change` applied to its results and error messages.

    Errors of the type `apart` are unchanged; `failed` replaces `change` for other errors if given.
    """
    on_error = failed or change

    async def run(context: ToolContext, arguments: Arguments) -> ToolOutput:
        try:
            output = as_output(await tool.run(context, arguments))
        except apart:
            raise
        except ToolError as error:
            given = ToolOutput(str(error), origin=error.origin)
            output = await on_error(context, arguments, given)
            if output == given:
                raise
            changed = type(error)(output.text)
            changed.origin = output.origin
            raise changed from error
        return await change(context, arguments, output)

    return replace(tool, run=run)


def _source(tool: Tool, arguments: Arguments) -> str:
    """Return the source of an untrusted result, or "" for a trusted one."""
    if tool.origin is not None:
        return tool.origin(arguments)
    if tool.risk in (Risk.WRITE, Risk.REMEMBER):
        return ""
    return ORIGINS.get(tool.toolset, "")


def _result_origin(tool: Tool, source: str, given: Origin) -> Origin:
    """Return the origin of a result. If the tool itself declares it as "outside", it remains so."""
    stranger = tool.toolset in OUTSIDE if tool.origin is None else bool(source)
    if given == "outside" or stranger:
        return "outside"
    return "ours" if tool.toolset in OURS else given


def _spilled(spill: Path, context: ToolContext, text: str) -> str:
    """Save the full output in a file and return its path, or "" if that fails.

    A file of an earlier output is never overwritten, because a marker refers to it.
    """
    call = re.sub(r"[^\w-]", "_", f"{context.call.name}-{context.call.id}")[:80]
    data = redact(text).encode("utf-8", "replace")
    name = f"{context.turn:04}-{call}"
    try:
        make_private(spill)
        path = spill / f"{name}.txt"
        if path.exists() and path.read_bytes() != data:
            path = spill / f"{name}-{hashlib.sha256(data).hexdigest()[:8]}.txt"
        write_atomic(path, data, mode=0o600)
        # The oldest files are removed, so that they don't fill the disk over the years.
        kept = sorted(spill.iterdir(), key=lambda each: each.lstat().st_mtime_ns)
        for old in kept[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError:  # if the disk is full, only the file is lost, not the result
        return ""
    return str(path)


def with_context(tools: Toolset, engine: ContextEngine | None, policy: Policy) -> Toolset:
    """Return the tools plus those of a context engine, except for names already taken.

    The administrator's policy knows the tools of a package's engine as `added:NAME`.
    """
    offered = context_tools(engine) if engine is not None else Toolset()
    ours = type(engine).__module__.startswith("hermes_nb.")
    offered = left(offered, policy) if ours else left_of_added(offered, policy)
    return tools + Toolset(tool for tool in offered if tool.name not in tools)


def with_hints(
    toolset: Toolset, tracker: HintTracker, foreign: Callable[[str], bool] = lambda _: False
) -> Toolset:
    """Append the tracker's hints for a call to its result or error.

    A hint that is `foreign` makes the result untrusted. If several parallel calls lead to the same
    hint, only the first in call order receives it. Denied and interrupted calls receive none.
    """

    async def hint(context: ToolContext, arguments: Arguments, output: ToolOutput) -> ToolOutput:
        earlier = _earlier(context, toolset)
        # In a thread, because the file system may be slow.
        text = await in_thread(tracker.after, context.call.name, arguments, earlier=earlier)
        if not text:
            return output
        origin: Origin = "outside" if await in_thread(foreign, text) else output.origin
        return replace(output, text=f"{output.text or NO_OUTPUT}{text}", origin=origin)

    return toolset.map(lambda tool: following(tool, hint, apart=ToolDenied))


def _earlier(context: ToolContext, toolset: Toolset) -> list[Arguments]:
    """Return the arguments of earlier valid calls in the same batch."""
    found: list[Arguments] = []
    for call in context.beside:
        if call is context.call:
            return found
        tool = toolset.get(call.name)
        if tool is not None and not call.problem and not tool.check(call.arguments):
            found.append(call.arguments)
    return []
