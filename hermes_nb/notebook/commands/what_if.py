"""`%hermes keep` and `drop`: run in the kernel what a turn with `--what-if` tried, or forget it."""

from __future__ import annotations

from argparse import Namespace

from hermes_nb.core.errors import ConfigError, ToolDenied, ToolError
from hermes_nb.core.messages import ToolCall
from hermes_nb.core.tools import Arguments, Place, Risk, Tool, ToolContext, Toolset
from hermes_nb.notebook.display.changes import variables_line
from hermes_nb.notebook.display.tables import plain_text
from hermes_nb.notebook.execute.trial import Tried
from hermes_nb.notebook.execute.variable_changes import brief_change, changes
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.notebook.run_tools import kernel_tools
from hermes_nb.notebook.shell import (
    Shell,
    TurnCell,
    can_ask,
    next_number,
    request_of,
    turn_cell,
)
from hermes_nb.safety.markup import code_block, escape
from hermes_nb.safety.redact import redact

NOTHING = (
    "there is nothing to keep or drop: no turn with `--what-if` has run code since the kernel "
    "started, or it was kept or dropped"
)


async def keep(agent: KernelAgent, given: Namespace) -> str:
    """Run the code of the last turn with `--what-if` in the kernel, and report what changed."""
    place = _place(agent, given)
    what_if, _, messages = agent.tried or (None, None, ())
    tried = what_if.tried if what_if else []
    made = agent.runtime.offered(
        Toolset([_runner(agent.shell, tried)]),
        guard=agent.guard,
        approver=agent.approver,
        source="notebook",
    )
    code = "\n\n".join(each.code for each in tried)
    call = ToolCall(id="keep", name="run_python", arguments={"code": code})
    context = ToolContext(call=call, turn=place.turn, place=place, messages=messages)
    shell = agent.shell
    cell = TurnCell(request=request_of(shell), can_ask=can_ask(shell), count=next_number(shell))
    cell.mode = await agent.permission.granted_in_page(agent.settings().approve)
    token = turn_cell.set(cell)
    problem = ""
    try:
        await next(iter(made)).run(context, call.arguments)
    except ToolDenied as denied:
        return f"Nothing was kept: {escape(str(denied))}"
    except ToolError as error:
        problem = redact(plain_text(str(error)))
    finally:
        turn_cell.reset(token)
    agent.tried = None
    how = "until it failed" if problem else "completely"
    agent.message_builder.decided[place.session] = (
        f"[The user kept the code of turn {place.turn}: it ran in the kernel, {how}.]"
    )
    found = [brief_change(each) for each in changes(agent.shell, place.session, place.turn)]
    told = escape(variables_line(found)) or "No variable changed."
    head = f"**Turn {place.turn} is kept.** {told} `%hermes undo {place.turn}` undoes it."
    if not problem:
        return head
    block = code_block(problem, "text")
    return f"{head}\n\nThe code failed here, and the rest did not run:\n\n{block}"


def drop(agent: KernelAgent, given: Namespace) -> str:
    """Forget the code of the last turn with `--what-if`."""
    place = _place(agent, given)
    agent.tried = None
    agent.message_builder.decided[place.session] = (
        f"[The user dropped the code of turn {place.turn}: it never ran in the kernel.]"
    )
    return f"Turn {place.turn} is dropped; nothing has changed."


def _place(agent: KernelAgent, given: Namespace) -> Place:
    """Return the place of the turn that the user means; raise `ConfigError` if it is not there."""
    place = agent.tried[1] if agent.tried is not None else Place()
    if not place.turn or given.turn not in ("", place.turn) or given.of not in ("", place.session):
        raise ConfigError(NOTHING)
    return place


def _runner(shell: Shell, tried: list[Tried]) -> Tool:
    """Return `run_python` for the code of several calls, so that the user is asked once."""
    inner = kernel_tools(shell).only("run_python")

    async def run(context: ToolContext, _arguments: Arguments) -> str:
        for each in tried:
            try:
                await next(iter(inner)).run(context, {"code": each.code})
            except ToolError:
                if not each.failed:  # in the copy, the turn continued after a failure
                    raise
        return "kept"

    return Tool(
        name="run_python",
        description="",
        parameters={"type": "object", "properties": {"code": {"type": "string"}}},
        run=run,
        toolset="kernel",
        risk=Risk.EXECUTE,
        exclusive=True,
    )
