"""Running single tools as the loop would."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from pathlib import Path

from hermes_nb.core.calls import as_output
from hermes_nb.core.messages import ToolCall
from hermes_nb.core.protocols import Approval, ApprovalRequest
from hermes_nb.core.tools import Tool, ToolContext


def context_for(tool: Tool, **fields) -> ToolContext:
    """Return a context of a call to `tool`."""
    return ToolContext(call=ToolCall(id="c1", name=tool.name), **fields)


def run(tool: Tool, *, within: ToolContext | None = None, **arguments):
    """Check the arguments, run the tool to its end, return what it returns."""
    assert tool.check(arguments) == ""
    return asyncio.run(tool.run(within or context_for(tool), arguments))


def told(tool: Tool, **arguments) -> str:
    """Run a tool as `run` does, and return the text of what it returns."""
    return as_output(run(tool, **arguments)).text


class Answers:
    """An approver that answers from a list and remembers what it was asked."""

    def __init__(self, *answers: Approval) -> None:
        self.answers = list(answers)
        self.asked: list[ApprovalRequest] = []

    async def ask(self, request: ApprovalRequest) -> Approval:
        self.asked.append(request)
        await asyncio.sleep(0)
        return self.answers.pop(0)


def stopped() -> threading.Event:
    """Return an event that is set."""
    event = threading.Event()
    event.set()
    return event


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a Python of its own, from the project's root."""
    command = [sys.executable, "-c", code]
    cwd = Path(__file__).parents[2]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
