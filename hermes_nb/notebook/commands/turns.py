"""Stop, steer and await the turns that are running: by commands, and by messages from a page."""

from __future__ import annotations

import asyncio
import time
from argparse import Namespace
from collections.abc import Mapping

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.protocols import Approval
from hermes_nb.notebook.approval import OpenQuestion
from hermes_nb.notebook.background import NAMED
from hermes_nb.notebook.kernel_agent import KernelAgent

ASKS = "A turn asks you something. Answer with `%hermes yes` or `%hermes no`, then wait again."


def steer(agent: KernelAgent, given: Namespace) -> str:
    """Pass a text to a running turn."""
    if not given.text:
        raise ConfigError("`%hermes steer TEXT` needs the text to add")
    if not agent.steer(given.text, _number(given)):
        raise ConfigError("no running turn can read this; send it as a prompt")
    return "Hermes reads this before its next request."


async def stop(agent: KernelAgent, _given: Namespace) -> str:
    """Stop all turns, and wait up to a second for their end."""
    found = list(agent.running)
    for each in found:
        each.stop()
    if not found:
        return "No turn is running."
    end = time.monotonic() + NAMED
    while not all(each.task.done() for each in found):  # a subshell cannot await them
        if time.monotonic() > end:
            return "Stopping."
        await asyncio.sleep(0.01)
    return "Stopped."


async def wait(agent: KernelAgent, _given: Namespace) -> str:
    """Wait for all turns, or for a question of one; they may run code meanwhile."""
    asked = asyncio.create_task(agent.approver.typed.some.wait())
    try:
        for each in list(agent.running):
            await each.ended(asked)
    finally:
        asked.cancel()
    return ASKS if agent.approver.typed.open else ""


def yes(agent: KernelAgent, given: Namespace) -> str:
    """Approve what a turn asks."""
    question = _question(agent, given)
    question.allow(given.answer)
    return f"Answered the question of [{question.cell.count}]."


def no(agent: KernelAgent, given: Namespace) -> str:
    """Deny what a turn asks."""
    question = _question(agent, given)
    question.answer(Approval("deny", given.why))
    return f"Denied what [{question.cell.count}] asked."


def _question(agent: KernelAgent, given: Namespace) -> OpenQuestion:
    return agent.approver.typed.question(_number(given))


def _number(given: Namespace) -> int | None:
    """Return the execution count that `--cell` names, or None."""
    try:
        return int(given.cell) if given.cell else None
    except ValueError:
        raise ConfigError("`--cell N` needs the number of the turn's cell, such as 3") from None


def answer(agent: KernelAgent | None, asked: Mapping[str, str]) -> dict[str, object]:
    """Do what a page asks on the control channel; the kernel may be running code.

    `stop` and `detach` name a turn's cell; "" means every turn. `steer` is a text for the running
    turn.
    """
    if agent is None:
        return {}
    if text := asked.get("steer"):
        return {"steered": agent.steer(text)}
    cell = asked.get("stop", asked.get("detach", ""))
    found = [turn for turn in list(agent.running) if cell in ("", turn.cell.id)]
    if "stop" in asked:
        delayed = [turn.stop() for turn in found]
        return {"stopped": len(found), "delayed": any(delayed)}
    for turn in found if "detach" in asked else ():
        turn.detach()
    return {"running": len(found)}
