"""What cuts across tools, as functions from toolset to toolset.

`limited` bounds what a tool may say, `asking` puts the guard in front of what it may do. A wrapped
plain function stays one unless it has to wait for the user.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hermes_nb.core.calls import as_output, in_thread, invoke
from hermes_nb.core.errors import ToolDenied, ToolError
from hermes_nb.core.events import Answer, ApprovalAsked, ApprovalGiven
from hermes_nb.core.files import make_private, write_atomic
from hermes_nb.core.protocols import Approval, ApprovalRequest, Approver
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
from hermes_nb.safety.visible import visible

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
