"""What cuts across tools, as functions from toolset to toolset; each is async like what it wraps.

`limited` bounds what a tool may say, `marked` says whose text it is, `with_hints` adds what leads
there, `asking` puts the guard in front of what a tool may do, `checkpointed` saves what it changes:
inside of `asking`, since only a call that was allowed is saved.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import re
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from hermes_nb.core.calls import NO_OUTPUT, as_output, in_thread, invoke
from hermes_nb.core.errors import ToolDenied, ToolError
from hermes_nb.core.events import Answer, ApprovalAsked, ApprovalGiven
from hermes_nb.core.files import make_private, write_atomic
from hermes_nb.core.messages import Origin, ToolCall
from hermes_nb.core.protocols import Approval, ApprovalRequest, Approver, Keeper
from hermes_nb.core.text import head_tail
from hermes_nb.core.tools import (
    Arguments,
    Question,
    Risk,
    Run,
    Tool,
    ToolContext,
    ToolOutput,
    Toolset,
)
from hermes_nb.safety.guard import Decision, Guard
from hermes_nb.safety.redact import redact
from hermes_nb.safety.sandbox import Profile
from hermes_nb.safety.scan import scan
from hermes_nb.safety.untrusted import wrap
from hermes_nb.safety.visible import visible
from hermes_nb.tools.workspace import Workspace

CAP = 50_000
TURN_CAP = 200_000
KEPT = 500
"""Whole outputs that are kept as files, of all sessions."""
_MARKER = 400
"""Characters kept free for the marker that says what was dropped."""


def limited(
    toolset: Toolset, cap: int = CAP, turn_cap: int = TURN_CAP, spill: Path | None = None
) -> Toolset:
    """Cap what each call returns at `cap` characters (or the tool's own) and a turn at `turn_cap`.

    Head and tail stay, around a marker that says how much was dropped. With `spill`, the whole
    output is kept below that directory, readable by its owner only and without secrets, and the
    marker names the file. What a failing tool says is capped as well.
    """
    budget = _Budget(turn_cap)

    def limit(tool: Tool) -> Tool:
        own = cap if tool.cap is None else tool.cap

        def cut(context: ToolContext, output: ToolOutput) -> ToolOutput:
            return replace(output, text=shortened(context, output.text))

        def shortened(context: ToolContext, text: str) -> str:
            room = budget.take(context.turn, min(own, len(text)))
            if room >= len(text):
                return text
            place = _spilled(spill, context, text)
            if room < min(own, _MARKER):
                told = f"the {turn_cap:,} characters that a turn's tool output may have are used up"
                kept = f"; it is in {place}" if place else ""
                return f"[{len(text):,} characters of output left out: {told}{kept}]"
            return head_tail(text, max(room - _MARKER, room // 2), where=place)

        return replace(tool, run=passing(tool.run, cut))

    return toolset.map(limit)


def asking(toolset: Toolset, guard: Guard, approver: Approver) -> Toolset:
    """Let the guard decide on every call that is not a mere read, and ask where it wants to know.

    Such a tool becomes async, because an answer may take its time, and exclusive for as long as
    the guard may ask about it. It hears how it may run, and may put further questions itself. A
    refusal raises `ToolDenied`.
    """

    def ask(tool: Tool) -> Tool:
        if not guard.watches(tool):
            return tool

        async def run(context: ToolContext, arguments: Arguments) -> Any:  # noqa: ANN401
            decision = await in_thread(
                lambda: guard.decide(tool, arguments, messages=context.messages)
            )
            if decision.verdict == "deny":
                raise ToolDenied(_refusal(tool, decision.why))

            async def further(question: Question) -> Answer:
                if not guard.asks:
                    return "deny"
                return (await _approval(tool, context, question, approver)).answer

            way: object = decision.way
            if decision.verdict == "ask":
                way = await _decided(tool, context, arguments, decision, guard, approver)
            permitted = replace(
                context,
                permit=way,
                ask=further,
                remember=lambda given: guard.remember(decision.shape, given),
            )
            return await invoke(tool, permitted, arguments)

        return replace(tool, run=run, exclusive=tool.exclusive or guard.may_ask(tool))

    return toolset.map(ask)


async def _decided(
    tool: Tool,
    context: ToolContext,
    arguments: Arguments,
    decision: Decision,
    guard: Guard,
    approver: Approver,
) -> object:
    """Ask, and return how the call runs; raise ToolDenied unless the answer is a yes."""
    way, shown = decision.way, decision.shown
    if tool.preview is not None:
        shown = visible(await tool.preview(arguments), lines=True)
    why, confined = decision.why, False
    if way is not None:
        confined = Profile.OUTSIDE not in way.profile
        why = f"{why}. It would run {way.profile.words}"
    question = Question(
        why=why, shown=shown, shape=decision.shape, lasting=decision.lasting, outside=confined
    )
    approval = await _approval(tool, context, question, approver)
    if approval.answer == "deny":
        raise ToolDenied(_refusal(tool, f"the user declined: {approval.reason}".rstrip(": ")))
    if approval.answer == "outside" and way is not None:
        way = replace(way, profile=Profile.OUTSIDE, watched=False)
    elif approval.answer == "always" and decision.shape:
        guard.remember(decision.shape, way)
    return way


async def _approval(
    tool: Tool, context: ToolContext, question: Question, approver: Approver
) -> Approval:
    """Announce the question, ask, and announce the answer."""
    call = context.call
    context.emit(ApprovalAsked(call, question.why, question.shown))
    await asyncio.sleep(0)  # it is announced before a question holds up the loop
    approval = await approver.ask(
        ApprovalRequest(
            call=call,
            tool=tool,
            why=question.why,
            shown=question.shown,
            shape=question.shape,
            lasting=question.lasting,
            outside=question.outside,
            yes=question.yes,
        )
    )
    context.emit(ApprovalGiven(call.id, approval.answer, approval.reason))
    return approval


def _refusal(tool: Tool, why: str) -> str:
    return f"{tool.name} was not run: {why}. Do not try the same another way; go on without it"


def passing(
    run: Run,
    cut: Callable[[ToolContext, ToolOutput], ToolOutput],
    *,
    apart: type[ToolError] | None = None,
) -> Run:
    """Return `run` with what it returns or raises passed through `cut`, async if it was.

    A result of whatever kind passes as the output that the model would read. Errors of the kind
    `apart` stay as they are.
    """

    def shorter(context: ToolContext, result: object) -> ToolOutput:
        return cut(context, as_output(result))

    def told(context: ToolContext, error: ToolError) -> ToolError:
        if apart is not None and isinstance(error, apart):
            return error
        given = ToolOutput(str(error), origin=error.origin)
        output = cut(context, given)
        if output == given:
            return error
        changed = type(error)(output.text)
        changed.origin = output.origin
        return changed

    async def awaited(context: ToolContext, result: Awaitable[object]) -> object:
        try:
            return shorter(context, await result)
        except ToolError as error:
            raise told(context, error) from error

    async def run_async(context: ToolContext, arguments: Arguments) -> object:
        return await awaited(context, run(context, arguments))

    def run_plain(context: ToolContext, arguments: Arguments) -> object:
        try:
            result = run(context, arguments)
        except ToolError as error:
            raise told(context, error) from error
        return awaited(context, result) if inspect.isawaitable(result) else shorter(context, result)

    return run_async if inspect.iscoroutinefunction(run) else run_plain


def _spilled(spill: Path | None, context: ToolContext, text: str) -> str:
    """Keep the whole output in a file and return its path, or "" where there is none.

    A file of an earlier output stays what its own marker says that it is.
    """
    if spill is None:
        return ""
    call = re.sub(r"[^\w-]", "_", f"{context.call.name}-{context.call.id}")[:80]
    data = redact(text).encode("utf-8", "replace")
    name = f"{context.turn:04}-{call}"
    try:
        make_private(spill)
        path = spill / f"{name}.txt"
        if path.exists() and path.read_bytes() != data:
            path = spill / f"{name}-{hashlib.sha256(data).hexdigest()[:8]}.txt"
        write_atomic(path, data, mode=0o600)
        _sweep(spill)
    except OSError:  # a full disk costs the file, not the result
        return ""
    return str(path)


def _sweep(spill: Path) -> None:
    """Remove the oldest outputs, so that they do not fill the disk over the years."""
    paths = list(spill.iterdir())
    if len(paths) <= KEPT:
        return
    for path in sorted(paths, key=lambda each: each.lstat().st_mtime_ns)[:-KEPT]:
        path.unlink(missing_ok=True)


@dataclass(slots=True)
class _Budget:
    """What a turn's tool output may still have; calls may take from several threads."""

    total: int
    _turn: int = -1
    _left: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, turn: int, wanted: int) -> int:
        """Return how much of `wanted` there is, and count it as used."""
        with self._lock:
            if turn != self._turn:
                self._turn, self._left = turn, self.total
            granted = min(wanted, self._left)
            self._left -= granted
            return granted


def in_turn(toolset: Toolset, lock: asyncio.Lock) -> Toolset:
    """Return the tools so that those which write hold the lock while they run.

    Several children change files one at a time, so that no change is lost; within one agent the
    loop sees to that.
    """

    def hold(tool: Tool) -> Tool:
        async def run(context: ToolContext, arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401 - a tool's
            async with lock:
                return await invoke(tool, context, arguments)

        return replace(tool, run=run) if tool.risk is Risk.WRITE else tool

    return toolset.map(hold)


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


Hint = Callable[[ToolContext, Arguments], str]


class Hinting(Protocol):
    """What has something to say about calls: the running session's `HintTracker`."""

    def after(
        self, tool_name: str, arguments: Arguments, *, earlier: Sequence[Arguments] = ()
    ) -> str:
        """Return the hint that a call leads to, "" for none."""
        ...


def with_hints(toolset: Toolset, tracker: Hinting) -> Toolset:
    """Append to each result, error results too, what the tracker has to say about the call.

    Of calls that run side by side the first in call order gets a hint that several lead to,
    whichever ends first. What was denied or stopped gets none.
    """

    def hint(context: ToolContext, arguments: Arguments) -> str:
        return tracker.after(context.call.name, arguments, earlier=_earlier(context, toolset))

    return toolset.map(lambda tool: replace(tool, run=_followed(tool, hint)))


def _earlier(context: ToolContext, toolset: Toolset) -> list[Arguments]:
    """Return the arguments of the calls beside this one that come first and will have a result."""
    found: list[Arguments] = []
    for call in context.beside:
        if call is context.call:
            return found
        if _runs(call, toolset.get(call.name)):
            found.append(call.arguments)
    return []


def _runs(call: ToolCall, tool: Tool | None) -> bool:
    return tool is not None and not call.problem and not tool.check(call.arguments)


def _followed(tool: Tool, hint: Hint) -> Run:
    async def awaited(
        context: ToolContext, arguments: Arguments, result: Awaitable[object]
    ) -> object:
        # Off the loop: the file system may be slow.
        try:
            value = await result
        except ToolDenied:
            raise
        except ToolError as error:
            raise _told(error, await in_thread(lambda: hint(context, arguments))) from error
        return _output(value, await in_thread(lambda: hint(context, arguments)))

    async def run_async(context: ToolContext, arguments: Arguments) -> object:
        return await awaited(context, arguments, tool.run(context, arguments))

    def run_plain(context: ToolContext, arguments: Arguments) -> object:
        try:
            result = tool.run(context, arguments)
        except ToolDenied:
            raise
        except ToolError as error:
            raise _told(error, hint(context, arguments)) from error
        if inspect.isawaitable(result):
            return awaited(context, arguments, result)
        return _output(result, hint(context, arguments))

    return run_async if inspect.iscoroutinefunction(tool.run) else run_plain


def _output(result: object, text: str) -> object:
    if not text:
        return result
    output = as_output(result)
    return replace(output, text=f"{output.text or NO_OUTPUT}{text}")


def _told(error: ToolError, text: str) -> ToolError:
    told = type(error)(f"{error}{text}")
    told.origin = error.origin
    return told
