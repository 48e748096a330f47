"""Running tool calls: one call to one result, a segment of calls side by side.

Tools raise; here, and only here, an exception becomes what the model reads. A stop is the one
exception: it passes through, and the loop closes what it left open.
"""

from __future__ import annotations

import asyncio
import difflib
import json
import logging
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from hermes_nb.core.errors import HermesError, ToolDenied, ToolError, TurnInterrupted
from hermes_nb.core.events import (
    Event,
    MessageAdded,
    ToolEvent,
    ToolFinished,
    ToolStarted,
    ToolStatus,
)
from hermes_nb.core.messages import Message, Origin, ToolCall
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.core.tools import (
    MOST_ARGUMENTS,
    Arguments,
    Tool,
    ToolContext,
    ToolOutput,
    Toolset,
)

logger = logging.getLogger(__name__)

SIDE_BY_SIDE = 8
"""At most this many calls of a segment run at a time."""
NO_OUTPUT = "(no output)"
"""What a result without any text says, since a message may not be empty."""
STOP_GRACE = 2.0
"""Seconds that a stopped call has to end; what has not ended by then is left behind."""
ERROR_LIMIT = 8_000
"""Characters that are kept of what an unforeseen exception says."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a call ended, and the message that answers it."""

    status: ToolStatus
    message: Message


def bounded(message: Message, tools: Toolset) -> Message:
    """Return the message without the arguments of calls that are too long for their tool.

    They are neither stored nor looked at: the checks of a call take a time that grows with them.
    """
    calls = tuple(_bounded(call, tools.get(call.name)) for call in message.calls)
    return message if calls == message.calls else replace(message, calls=calls)


def _bounded(call: ToolCall, tool: Tool | None) -> ToolCall:
    most = MOST_ARGUMENTS if tool is None else tool.most
    size = len(call.text or call.arguments_json())
    if size <= most:
        return call
    problem = f"the arguments have {size:,} characters, and it takes {most:,} at most"
    return ToolCall(id=call.id, name=call.name, problem=problem)


async def execute(call: ToolCall, tools: Toolset, context: ToolContext) -> Outcome:
    """Run one call; raise `TurnInterrupted` or `CancelledError` when the user stopped it."""
    tool = tools.get(call.name)
    try:
        problem = _problem(call, tool, tools)
        if problem or tool is None:
            return _failed(call, problem, origin="ours")
        output = as_output(await tool.run(context, call.arguments))
    except (TurnInterrupted, asyncio.CancelledError):
        raise
    except KeyboardInterrupt as error:
        raise TurnInterrupted(f"{call.name} was stopped") from error
    except ToolDenied as error:
        return _failed(call, str(error), "denied", origin="ours")
    except HermesError as error:
        origin = error.origin if isinstance(error, ToolError) else "workspace"
        return _failed(call, str(error), origin=origin)
    except (Exception, SystemExit) as error:
        logger.warning("tool %s failed", call.name, exc_info=True)
        return _failed(call, f"{call.name} failed: {type(error).__name__}: {_said(error)}")
    text = output.text or NO_OUTPUT
    return Outcome("ok", Message.tool(call, text, images=output.images, origin=output.origin))


Settle = Callable[[ToolCall, Message], None]
"""Hears of a result before its `ToolFinished` is announced: a stop in between loses nothing."""


async def run_segment(
    calls: Sequence[ToolCall],
    tools: Toolset,
    *,
    context: Callable[..., ToolContext],
    settle: Settle,
) -> AsyncGenerator[Event, None]:
    """Run calls side by side and yield their events; messages come in call order.

    `context` makes what a call is told of its turn.
    """
    queue: asyncio.Queue[Event | BaseException] = asyncio.Queue()
    stop = threading.Event()
    slots = asyncio.Semaphore(SIDE_BY_SIDE)
    results: dict[str, Message] = {}

    def record(call: ToolCall, result: Message) -> None:
        results[call.id] = result
        settle(call, result)

    def start(call: ToolCall) -> asyncio.Task[None]:
        running = context(call=call, beside=tuple(calls), emit=_emitter(queue), stop=stop)
        return asyncio.create_task(_run_one(running, tools, queue, slots, record))

    tasks = [start(call) for call in calls]
    waiting = list(calls)
    announced: set[str] = set()
    try:
        while waiting:
            item = await queue.get()
            if isinstance(item, BaseException):
                raise item
            yield item
            if isinstance(item, ToolFinished):
                announced.add(item.call.id)
            while waiting and waiting[0].id in announced:
                yield MessageAdded(results[waiting.pop(0).id])
    finally:
        stop.set()
        await _end(tasks)


async def _run_one(
    context: ToolContext,
    tools: Toolset,
    queue: asyncio.Queue[Event | BaseException],
    slots: asyncio.Semaphore,
    settle: Settle,
) -> None:
    """Run one call of a segment and announce it; a stop goes through the queue to its reader."""
    call = context.call
    async with slots:
        queue.put_nowait(ToolStarted(call))
        # The announcement goes out first: the call may hold up the loop for as long as it runs.
        await asyncio.sleep(0)
        started = time.monotonic()
        try:
            outcome = await execute(call, tools, context)
        except asyncio.CancelledError as error:
            if _cancelled():
                raise
            # It is the tool's own cancellation, and the turn goes on.
            outcome = _failed(call, f"{call.name} was cancelled: {error}")
        except BaseException as error:  # noqa: BLE001 - raised again by the queue's reader
            queue.put_nowait(error)
            return
        settle(call, outcome.message)
        queue.put_nowait(ToolFinished(call, outcome.status, time.monotonic() - started))


def _emitter(queue: asyncio.Queue[Event | BaseException]) -> Callable[[ToolEvent], None]:
    """Return a function that puts events into the queue from whichever thread calls it."""
    loop = asyncio.get_running_loop()
    home = threading.get_ident()

    def emit(event: ToolEvent) -> None:
        if threading.get_ident() == home:
            queue.put_nowait(event)
            return
        with suppress(RuntimeError):  # a thread left behind by a stop may outlive the loop
            loop.call_soon_threadsafe(queue.put_nowait, event)

    return emit


def _cancelled() -> bool:
    """Say whether somebody cancelled the current task, rather than something it waited for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel what still runs and give it a moment to clean up."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=STOP_GRACE)
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()):
            logger.error("a tool call broke", exc_info=error)


async def invoke(tool: Tool, context: ToolContext, arguments: Arguments) -> object:
    """Run a tool's function and return what it returns."""
    return await tool.run(context, arguments)


def _problem(call: ToolCall, tool: Tool | None, tools: Toolset) -> str:
    """Return why a call must not run, or nothing."""
    if tool is None:
        names = [each.name for each in tools]
        near = difflib.get_close_matches(call.name, names, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        return f"there is no tool {one_line(call.name)!r}; {hint}the tools are: {', '.join(names)}"
    if call.problem:
        return f"{call.name} was not run: {call.problem}"
    if problem := tool.check(call.arguments):
        return f"{call.name} was not run: {problem}"
    return tool.available()


def _said(error: BaseException) -> str:
    """Return what an exception of anybody's says, within bounds."""
    try:
        return head_tail(str(error), ERROR_LIMIT)
    except (Exception, SystemExit) as unspeakable:  # noqa: BLE001 - its own code may do anything
        return f"(its text cannot be shown: {type(unspeakable).__name__})"


def _failed(
    call: ToolCall, text: str, status: ToolStatus = "error", *, origin: Origin = "workspace"
) -> Outcome:
    return Outcome(status, Message.tool(call, text or "failed", failed=True, origin=origin))


def as_output(result: object) -> ToolOutput:
    """Return what a tool's function returned as the model is to read it."""
    if isinstance(result, ToolOutput):
        return result
    if result is None:
        return ToolOutput("")
    if isinstance(result, str):
        return ToolOutput(result)
    return ToolOutput(json.dumps(result, ensure_ascii=False, default=str))
