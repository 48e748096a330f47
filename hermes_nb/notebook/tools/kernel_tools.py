"""The `kernel` toolset: code in the live namespace, and a look at what is in it.

The functions are async so that they run on the event loop's own thread, which is the shell's: the
namespace belongs to it.
"""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable

from hermes_nb.core.errors import ToolError, TurnInterrupted
from hermes_nb.core.messages import Origin
from hermes_nb.core.protocols import Variable
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Question, Risk, ToolContext, ToolOutput, Toolset
from hermes_nb.notebook.display.drawings import show_drawings
from hermes_nb.notebook.document.known import telling
from hermes_nb.notebook.document.outputs import IMAGES, last_line, render
from hermes_nb.notebook.execute.nested import Execution, execute
from hermes_nb.notebook.values.kinds import Foreign
from hermes_nb.notebook.values.variables import (
    brief,
    changed,
    describe,
    fingerprints,
    summaries,
    user_variables,
)
from hermes_nb.safety.guard import Way
from hermes_nb.safety.visible import visible
from hermes_nb.tools.schema import tool

TIMEOUT = 60.0
"""Seconds that `run_python` gives code by default."""
LISTED = 60
"""Variables that `list_variables` names."""
_MENTIONED = 8


def kernel_tools(
    shell: Foreign,
    *,
    timeout: float | None = TIMEOUT,
    sees_images: Callable[[], bool] = lambda: False,
) -> Toolset:
    """Return the tools that work in `shell`'s namespace.

    `timeout` is in seconds, None for no limit; `sees_images()` says whether the model of the moment
    is shown pictures or told of them.
    """

    @tool(toolset="kernel", risk=Risk.EXECUTE, exclusive=True, describe=_gist)
    async def run_python(context: ToolContext, code: str) -> ToolOutput:
        """Run Python in the live kernel; shows what it prints and its last expression's value."""
        before = fingerprints(shell.user_ns, shell.user_ns_hidden)
        execution = await permitted(
            context,
            code,
            lambda offline: execute(
                shell,
                code,
                timeout=timeout,
                on_output=lambda text: context.progress(last_line(text, 120)),
                offline=offline,
            ),
        )
        show_drawings(shell, execution.outputs)
        after = fingerprints(shell.user_ns, shell.user_ns_hidden)
        changes = changed(before, after)
        note = _mention(shell, changes.added, changes.changed)
        return _answer(execution, note, images=IMAGES if sees_images() else 0)

    @tool(toolset="kernel", risk=Risk.READ, exclusive=True)
    async def inspect_variable(name: str) -> str:
        """Show a variable: type, shape, columns, missing values, first rows or items."""
        variables = user_variables(shell.user_ns, shell.user_ns_hidden)
        if name not in variables and (name.startswith("_") or name not in shell.user_ns):
            raise ToolError(_no_such(name, list(variables)))
        return describe(name, shell.user_ns[name])

    @tool(toolset="kernel", risk=Risk.READ, exclusive=True)
    async def list_variables() -> str:
        """List the user's variables with type and shape."""
        variables = summaries(shell.user_ns, shell.user_ns_hidden)
        lines = [_line(each, shell.user_ns.get(each.name)) for each in variables[-LISTED:]]
        if len(variables) > LISTED:
            lines.insert(0, f"({len(variables) - LISTED:,} older ones left out)")
        return "\n".join(lines) or "(no variables)"

    return Toolset([run_python, inspect_variable, list_variables])


async def permitted(
    context: ToolContext, code: str, run: Callable[[bool], Awaitable[Execution]]
) -> Execution:
    """Run code as the guard said; `run(offline)` again where the user allows it the network."""
    way = context.permit
    execution = await run(isinstance(way, Way) and way.offline)
    if execution.refused and context.ask is not None:
        question = Question(
            why=(
                "it was refused the network, as the conversation holds text from outside. It would "
                "run again from its beginning, with the network"
            ),
            shown=visible(code, lines=True),
        )
        if await context.ask(question) != "deny":
            execution = await run(False)  # noqa: FBT003 - not offline
    return execution


def _answer(execution: Execution, note: str, *, images: int) -> ToolOutput:
    """Return what the model reads of an execution; raise when it failed or was stopped."""
    output = render(execution.outputs, images=images)
    if execution.interrupted:
        message = "the user stopped the code"
        raise TurnInterrupted(message)
    text = "\n".join(part for part in (output.text, note) if part)
    if execution.error is None:
        origin: Origin = "outside" if execution.networked else "workspace"
        return ToolOutput(text or "(no output)", output.images, origin)
    if execution.error.ename not in output.text:
        text = f"{text}\n{execution.error.ename}: {execution.error.evalue}".strip()
    error = ToolError(text)
    error.origin = "outside" if execution.networked else "workspace"
    raise error


def _mention(shell: Foreign, added: tuple[str, ...], altered: tuple[str, ...]) -> str:
    """Return one line on the variables that code made or changed."""
    known = {v.name: v for v in summaries(shell.user_ns, shell.user_ns_hidden)}
    parts = []
    for title, names in (("new", added), ("changed", altered)):
        shown = [brief(known[n], shell.user_ns.get(n)) for n in names[:_MENTIONED] if n in known]
        if len(names) > _MENTIONED:
            shown.append(f"{len(names) - _MENTIONED} more")
        if shown:
            parts.append(f"{title} {'; '.join(shown)}")
    return f"[{' | '.join(parts)}]" if parts else ""


def _line(variable: Variable, value: object) -> str:
    columns = (f"{name} {dtype}" for name, dtype in (variable.columns or {}).items())
    listed = ", ".join(columns)
    return one_line(brief(variable, value) + (f": {listed}" if listed else ""), 300)


def _no_such(name: str, names: list[str]) -> str:
    name = one_line(name, 60)
    if not name.isidentifier():
        return f"{name!r} is not a plain name; use run_python to look at an expression"
    near = difflib.get_close_matches(name, names, n=3) or names[-5:]
    hint = f"near it: {', '.join(near)}" if near else "there are no variables yet"
    return f"no variable {name!r}; {hint}"


def _gist(arguments: Foreign) -> str:
    return telling(str(arguments.get("code", "")))
