"""Run tool calls: a single call, or a segment (see `segments`), whose calls run in parallel.

Tools report errors by raising, and only this module converts exceptions to results for the model.
Interrupts are not converted: they propagate, and the loop closes the open calls.
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
"""Maximum number of a segment's calls that run in parallel."""
NO_OUTPUT = "(no output)"
"""Text of a result without output, since a message must not be empty."""
STOP_GRACE = 2.0
"""How many seconds stopped calls may take to end. Calls that take longer are abandoned."""
ERROR_LIMIT = 8_000
"""Maximum length of an unexpected exception's text, in characters."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a tool call."""

    status: ToolStatus
    """Success or the kind of failure."""
    message: Message
    """The tool message with the result."""


def bounded(message: Message, tools: Toolset) -> Message:
    """Return the message without the arguments of calls that exceed their tool's limit.

    Such arguments are neither stored nor checked, because the longer they are, the longer checking
    takes.
    """
    calls = tuple(_bounded(call, tools.get(call.name)) for call in message.calls)
    return message if calls == message.calls else replace(message, calls=calls)


def _bounded(call: ToolCall, tool: Tool | None) -> ToolCall:
    most = MOST_ARGUMENTS if tool is None else tool.most
    size = len(call.text or call.arguments_json())
    if size <= most:
        return call
    problem = f"the arguments have {size:,} characters, but at most {most:,} are allowed"
    return ToolCall(id=call.id, name=call.name, problem=problem)


async def execute(call: ToolCall, tools: Toolset, context: ToolContext) -> Outcome:
    """Run one call and return its outcome.

    Raises:
        TurnInterrupted: The user interrupted the tool.
        asyncio.CancelledError: The turn was cancelled.
    """
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
        return _failed(
            call, f"{call.name} failed: {type(error).__name__}: {_exception_text(error)}"
        )
    text = output.text or NO_OUTPUT
    return Outcome("ok", Message.tool(call, text, images=output.images, origin=output.origin))


Settle = Callable[[ToolCall, Message], None]
"""Callback that receives a result before `ToolFinished` is announced, so that a stop in between
does not lose the result."""


async def run_segment(
    calls: Sequence[ToolCall],
    tools: Toolset,
    *,
    context: Callable[..., ToolContext],
    settle: Settle,
) -> AsyncGenerator[Event, None]:
    """Run calls in parallel and yield their events.

    Args:
        calls: The calls.
        tools: The turn's tools.
        context: Creates the `ToolContext` of a call.
        settle: Receives each result, before `ToolFinished` is yielded.

    Yields:
        The calls' events interleaved, and their result messages in call order.
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
    """Run one call of a segment and queue its events, or an exception for the reader to raise."""
    call = context.call
    async with slots:
        queue.put_nowait(ToolStarted(call))
        # Let the reader take the event now: the call may block the loop while it runs.
        await asyncio.sleep(0)
        started = time.monotonic()
        try:
            outcome = await execute(call, tools, context)
        except asyncio.CancelledError as error:
            if _cancelled():
                raise
            # The tool was cancelled from inside; the turn continues.
            outcome = _failed(call, f"{call.name} was cancelled: {error}")
        except BaseException as error:  # noqa: BLE001 - re-raised by the queue's reader
            queue.put_nowait(error)
            return
        settle(call, outcome.message)
        queue.put_nowait(ToolFinished(call, outcome.status, time.monotonic() - started))


def _emitter(queue: asyncio.Queue[Event | BaseException]) -> Callable[[ToolEvent], None]:
    """Return a thread-safe function that puts events in the queue."""
    loop = asyncio.get_running_loop()
    home = threading.get_ident()

    def emit(event: ToolEvent) -> None:
        if threading.get_ident() == home:
            queue.put_nowait(event)
            return
        with suppress(RuntimeError):  # an abandoned thread may outlive the loop
            loop.call_soon_threadsafe(queue.put_nowait, event)

    return emit


def _cancelled() -> bool:
    """Return whether the current task was cancelled, rather than something it awaited."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _end(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Cancel running tasks and wait up to STOP_GRACE for their cleanup."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=STOP_GRACE)
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()):
            logger.error("a tool call failed unexpectedly", exc_info=error)


async def invoke(tool: Tool, context: ToolContext, arguments: Arguments) -> object:
    """Call a tool and return its raw result."""
    return await tool.run(context, arguments)


def _problem(call: ToolCall, tool: Tool | None, tools: Toolset) -> str:
    """Return the reason a call must not run, or ""."""
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


def _exception_text(error: BaseException) -> str:
    """Return the text of any exception, shortened to ERROR_LIMIT."""
    try:
        return head_tail(str(error), ERROR_LIMIT)
    except (Exception, SystemExit) as unspeakable:  # noqa: BLE001 - its `__str__` may raise anything
        return f"(its text cannot be shown: {type(unspeakable).__name__})"


def _failed(
    call: ToolCall, text: str, status: ToolStatus = "error", *, origin: Origin = "workspace"
) -> Outcome:
    return Outcome(status, Message.tool(call, text or "failed", failed=True, origin=origin))


def as_output(result: object) -> ToolOutput:
    """Convert the return value of a tool's function to a `ToolOutput`."""
    if isinstance(result, ToolOutput):
        return result
    if result is None:
        return ToolOutput("")
    if isinstance(result, str):
        return ToolOutput(result)
    return ToolOutput(json.dumps(result, ensure_ascii=False, default=str))
