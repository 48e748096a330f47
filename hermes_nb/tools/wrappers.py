"""What cuts across tools, as functions from toolset to toolset; each is async like what it wraps.

`limited` bounds what a tool may say, `marked` says whose text it is, `asking` puts the guard in
front of what a tool may do, `with_hints` appends what folders have to say. What belongs to one
mechanism stands there: `agent.checkpoints` saves what a call changes.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from hermes_nb.core.calls import NO_OUTPUT, as_output
from hermes_nb.core.errors import ToolDenied, ToolError
from hermes_nb.core.events import Answer, ApprovalAsked, ApprovalGiven
from hermes_nb.core.files import make_private, write_atomic
from hermes_nb.core.messages import Origin
from hermes_nb.core.protocols import Approval, ApprovalRequest, Approver, ContextEngine
from hermes_nb.core.text import head_tail, visible
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Arguments, Question, Risk, Tool, ToolContext, ToolOutput, Toolset
from hermes_nb.prompt.hints import HintTracker
from hermes_nb.safety.administrator import policy
from hermes_nb.safety.guard import Decision, Guard
from hermes_nb.safety.redact import redact
from hermes_nb.safety.sandbox import Profile
from hermes_nb.safety.scan import scan, wrap
from hermes_nb.tools.arguments import Checker
from hermes_nb.tools.installed import left, left_of_added

CAP = 50_000
TURN_CAP = 200_000
KEPT = 500
"""Whole outputs that are kept as files, of all sessions."""
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
_MARKER = 400
"""Characters kept free for the marker that says what was dropped."""
_QUICK = 2_000
"""Characters that are looked through on the loop, within a millisecond or two."""

Change = Callable[[ToolContext, Arguments, ToolOutput], Awaitable[ToolOutput]]


def limited(
    toolset: Toolset, cap: int = CAP, turn_cap: int = TURN_CAP, spill: Path | None = None
) -> Toolset:
    """Cap what each call returns at `cap` characters (or the tool's own) and a turn at `turn_cap`.

    Head and tail stay, around a marker that says how much was dropped. With `spill`, the whole
    output is kept below that directory, readable by its owner only and without secrets, and the
    marker names the file. What a failing tool says is capped as well.
    """
    lock = threading.Lock()
    turn, left = -1, 0

    def taken(of: int, wanted: int) -> int:
        nonlocal turn, left
        with lock:
            turn, left = of, left if of == turn else turn_cap
            granted = min(wanted, left)
            left -= granted
            return granted

    def limit(tool: Tool) -> Tool:
        own = cap if tool.cap is None else tool.cap

        async def shortened(
            context: ToolContext, _arguments: Arguments, output: ToolOutput
        ) -> ToolOutput:
            text = output.text
            room = taken(context.turn, min(own, len(text)))
            if room >= len(text):
                return output
            place = await in_thread(_spilled, spill, context, text) if spill else ""
            if room < min(own, _MARKER):
                told = f"the {turn_cap:,} characters that a turn's tool output may have are used up"
                kept = f"; it is in {place}" if place else ""
                shown = f"[{len(text):,} characters of output left out: {told}{kept}]"
            else:
                shown = head_tail(text, max(room - _MARKER, room // 2), where=place)
            return replace(output, text=shown)

        return following(tool, shortened)

    return toolset.map(limit)


def marked(toolset: Toolset, *, mark: bool = True) -> Toolset:
    """Give each result its origin; with `mark`, put untrusted ones between marks.

    What cells and commands print, what a server answers and what lies outside the working directory
    is always marked as data. Every other result is looked through, and marked as soon as it reads
    like an attack. A refusal, and what a tool says to be `ours`, stays as it is. A file that could
    not be read brings nothing from outside: why it could not is said in our own words.
    """

    def change(tool: Tool) -> Tool:
        async def look(
            context: ToolContext, _arguments: Arguments, output: ToolOutput, *, failed: bool = False
        ) -> ToolOutput:
            text, source = output.text, _source(tool, context.call.arguments)
            own = output.origin == "ours" and tool.toolset not in OUTSIDE
            if not (failed and tool.toolset == "files"):
                output = replace(output, origin=_whose(tool, source, output.origin))
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


def asking(toolset: Toolset, guard: Guard, approver: Approver) -> Toolset:
    """Let the guard decide on every call that is not a mere read, and ask where it wants to know.

    Such a tool is exclusive for as long as the guard may ask about it. It hears how it may run, and
    may put further questions itself. A refusal raises `ToolDenied`.
    """

    def ask(tool: Tool) -> Tool:
        async def run(context: ToolContext, arguments: Arguments) -> object:
            left = None if tool.result is None else await tool.result(arguments)
            judge = partial(guard.decide, messages=context.messages, result=left)
            decision = await in_thread(judge, tool, arguments)
            way: object = decision.way
            if decision.verdict == "deny":
                raise ToolDenied(_refusal(tool, decision.why))
            if decision.verdict == "ask":
                way = await _decided(tool, context, arguments, decision, guard, approver)

            async def further(question: Question) -> Answer:
                if not guard.asks:
                    return "deny"
                return (await put_question(tool, context, question, approver)).answer

            permitted = replace(
                context,
                permit=way,
                ask=further,
                remember=lambda given: guard.remember(decision.shape, given),
            )
            return await tool.run(permitted, arguments)

        return replace(tool, run=run, exclusive=tool.exclusive or guard.may_ask(tool))

    return toolset.map(lambda tool: ask(tool) if guard.watches(tool) else tool)


def context_tools(engine: ContextEngine) -> Toolset:
    """Return an engine's tools as the toolset `context`, their arguments checked by schema.

    An engine sits below the layer that validates, and a third party's may not validate at all.
    """

    def checked(tool: Tool) -> Tool:
        return replace(
            tool, toolset="context", check=Checker(tool.name, tool.parameters, frozenset())
        )

    return engine.tools().map(checked)


def in_turn(toolset: Toolset, lock: asyncio.Lock) -> Toolset:
    """Return the tools so that those which write hold the lock while they run.

    Several children change files one at a time, so that no change is lost; within one agent the
    loop sees to that.
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
    """Return the tool so that what it returns or raises is changed as the model would read it.

    Errors of the kind `apart` stay as they are; `failed` changes the others where it is given.
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
        why=why,
        shown=shown,
        shape=decision.shape,
        lasting=decision.lasting,
        outside=confined and not policy().why("network"),
    )
    approval = await put_question(tool, context, question, approver)
    if approval.answer == "deny":
        raise ToolDenied(_refusal(tool, f"the user declined: {approval.reason}".rstrip(": ")))
    if approval.answer == "outside" and way is not None:
        way = replace(way, profile=Profile.OUTSIDE, watched=False)
    elif approval.answer == "always" and decision.shape:
        guard.remember(decision.shape, way)
    return way


ABSENT = "nobody was there to answer"


async def put_question(
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
            choices=question.choices,
        )
    )
    if question.choices is not None and approval.answer == "deny" and approval.reason:
        approval = replace(approval, reason=ABSENT)  # whatever lets calls run answers nothing
    context.emit(ApprovalGiven(call.id, approval.answer, approval.reason))
    return approval


def _refusal(tool: Tool, why: str) -> str:
    return f"{tool.name} was not run: {why}. Do not try the same another way; go on without it"


def _source(tool: Tool, arguments: Arguments) -> str:
    """Return where a result comes from if it is not to be trusted, else ""."""
    if tool.origin is not None:
        return tool.origin(arguments)
    if tool.risk in (Risk.WRITE, Risk.REMEMBER):
        return ""
    return ORIGINS.get(tool.toolset, "")


def _whose(tool: Tool, source: str, given: Origin) -> Origin:
    """Return the origin of a result; what the tool itself says to be from outside stays so."""
    stranger = tool.toolset in OUTSIDE if tool.origin is None else bool(source)
    if given == "outside" or stranger:
        return "outside"
    return "ours" if tool.toolset in OURS else given


def _spilled(spill: Path, context: ToolContext, text: str) -> str:
    """Keep the whole output in a file and return its path, or "" where there is none.

    A file of an earlier output stays what its own marker says that it is.
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
        # The oldest go, so that they do not fill the disk over the years.
        kept = sorted(spill.iterdir(), key=lambda each: each.lstat().st_mtime_ns)
        for old in kept[:-KEPT]:
            old.unlink(missing_ok=True)
    except OSError:  # a full disk costs the file, not the result
        return ""
    return str(path)


def with_context(tools: Toolset, engine: ContextEngine | None) -> Toolset:
    """Return these tools and those of a context engine, as far as no name is taken.

    To the administrator's policy those of an engine of a package's are `added:NAME`.
    """
    offered = context_tools(engine) if engine is not None else Toolset()
    ours = type(engine).__module__.startswith("hermes_nb.")
    offered = left(offered) if ours else left_of_added(offered)
    return tools + Toolset(tool for tool in offered if tool.name not in tools)


def with_hints(toolset: Toolset, tracker: HintTracker) -> Toolset:
    """Append to each result, error results too, what the tracker has to say about the call.

    Of calls that run side by side the first in call order gets a hint that several lead to,
    whichever ends first. What was denied or stopped gets none.
    """

    async def hint(context: ToolContext, arguments: Arguments, output: ToolOutput) -> ToolOutput:
        earlier = _earlier(context, toolset)
        # Off the loop: the file system may be slow.
        text = await in_thread(tracker.after, context.call.name, arguments, earlier=earlier)
        return replace(output, text=f"{output.text or NO_OUTPUT}{text}") if text else output

    return toolset.map(lambda tool: following(tool, hint, apart=ToolDenied))


def _earlier(context: ToolContext, toolset: Toolset) -> list[Arguments]:
    """Return the arguments of the calls beside this one that come first and will have a result."""
    found: list[Arguments] = []
    for call in context.beside:
        if call is context.call:
            return found
        tool = toolset.get(call.name)
        if tool is not None and not call.problem and not tool.check(call.arguments):
            found.append(call.arguments)
    return []
