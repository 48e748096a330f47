"""The toolset `delegation`: independent tasks go to child agents, reports come back.

A child's report is a result like any other: it stands between the marks of untrusted data, and a
failure in it is told, never raised.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NotRequired, Protocol, TypedDict

from hermes_nb.core.errors import ToolError
from hermes_nb.core.events import ChildStatus
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.core.tools import Arguments, ToolContext, ToolOutput, Toolset
from hermes_nb.safety.scan import ScanResult, neutralised, scan
from hermes_nb.safety.untrusted import without_marks, wrap
from hermes_nb.safety.visible import visible
from hermes_nb.tools.schema import tool

SUMMARY = 24_000
"""Characters of one child's report."""
REPORTS = 45_000
"""Characters of all the reports of a call, which share them evenly."""
MOST_TASKS = 20
SOURCE = "what child agents report"
_MARKER = 80
"""Characters kept free for the marker that says how much of a report was dropped."""
_ERROR = 400
_FILES = 50
"""Files that a report names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a child is asked: `number` of `of`. Empty `toolsets` are all that children may have."""

    goal: str
    context: str = ""
    toolsets: tuple[str, ...] = ()
    max_requests: int | None = None
    number: int = 1
    of: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What came of it: `tokens` are those of prompts and answers, `files` those it changed.

    `outside` says that the child has read text from outside.
    """

    status: ChildStatus
    summary: str = ""
    outside: bool = False
    error: str = ""
    requests: int = 0
    tokens: int = 0
    files: tuple[str, ...] = ()


class Task(TypedDict):
    """A task as an object: what it does not say is as the call says."""

    goal: str
    context: NotRequired[str | None]
    toolsets: NotRequired[list[str] | None]


class Children(Protocol):
    """Runs child agents, and announces them through the context."""

    @property
    def toolsets(self) -> Sequence[str]:
        """The names of tools and toolsets that a child can be given now."""
        ...

    async def run(
        self, context: ToolContext, assignments: Sequence[Assignment]
    ) -> Sequence[Report]:
        """Return a report for each assignment, in their order; only a stop is raised."""
        ...


def delegation_tools(children: Children) -> Toolset:
    """Return the tool `delegate_task`."""

    # It runs alone: a child may change the files that another call of the reply is about.
    async def delegate_task(  # noqa: D417 - a schema says nothing that is plain
        running: ToolContext,
        goal: str | None = None,
        tasks: list[str] | None = None,
        context: str | None = None,
        toolsets: list[str] | None = None,
        max_requests: int | None = None,
    ) -> ToolOutput:
        """Give independent tasks to child agents: side by side, told nothing but goal and context.

        Args:
            max_requests: of each
        """
        common = Assignment(
            goal=goal or "",
            context=context or "",
            toolsets=tuple(toolsets or ()),
            max_requests=max_requests,
        )
        assignments = _assignments(common, tasks or [])
        for each in assignments:
            _check_toolsets(each.toolsets, children.toolsets)
        reports = await children.run(running, assignments)
        foreign = any(report.outside for report in reports)
        return ToolOutput(_told(reports), origin="outside" if foreign else "workspace")

    made = tool(toolset="delegation", exclusive=True, describe=_gist)(delegate_task)
    # The schema asks for words alone, which costs the fewest tokens.
    return Toolset([replace(made, check=lambda arguments: made.check(_in_words(arguments)))])


def _in_words(arguments: Arguments) -> Arguments:
    """Return the arguments as the schema has them: a task that is an object becomes its goal."""
    tasks = arguments.get("tasks")
    if not isinstance(tasks, list):
        return arguments
    return {**arguments, "tasks": [_goal(each) if _is_task(each) else each for each in tasks]}


def _is_task(value: object) -> bool:
    """Say whether a value is an object with a goal and, at most, what a call has besides."""
    if not isinstance(value, Mapping) or value.keys() - {"goal", "context", "toolsets"}:
        return False
    goal, context, toolsets = map(value.get, ("goal", "context", "toolsets"))
    named = isinstance(toolsets or [], list) and all(isinstance(n, str) for n in toolsets or [])
    return isinstance(goal, str) and isinstance(context or "", str) and named


def _goal(task: str | Task) -> str:
    return (task if isinstance(task, str) else task["goal"]).strip()


def _assignments(common: Assignment, tasks: Sequence[str | Task]) -> list[Assignment]:
    """Return what each child is asked; raise ToolError for nothing, too much, or the same twice.

    `common` has the call's own goal, and what holds for each task that does not say otherwise.
    """
    asked: list[Assignment] = []
    for task in (common.goal, *tasks):
        own: Task = {"goal": task} if isinstance(task, str) else task
        context = own.get("context") or common.context
        toolsets = tuple(own.get("toolsets") or common.toolsets)
        if goal := _goal(task):
            each = replace(common, goal=goal, context=context.strip(), toolsets=toolsets)
            asked.append(replace(each, number=len(asked) + 1))
    if not asked:
        message = "what is to be done? give a goal, or tasks"
        raise ToolError(message)
    if len(asked) > MOST_TASKS:
        message = f"{len(asked)} tasks are too many for one call; give at most {MOST_TASKS}"
        raise ToolError(message)
    if len({(each.goal, each.context) for each in asked}) < len(asked):
        message = "two of the tasks are the same; give each once"
        raise ToolError(message)
    return [replace(each, of=len(asked)) for each in asked]


def _check_toolsets(wanted: Sequence[str], there: Sequence[str]) -> None:
    if missing := [name for name in wanted if name not in there]:
        message = (
            f"children cannot have {', '.join(map(repr, missing))}; "
            f"they can have {', '.join(there) or 'no tools at all'}"
        )
        raise ToolError(message)


def _told(reports: Sequence[Report]) -> str:
    """Return the reports as JSON between marks, one line each; what reads like an attack is out.

    Each is looked through by itself: in JSON a line break is two letters, and a passage that is
    withheld would take the braces with it.
    """
    room = min(SUMMARY, REPORTS // max(len(reports), 1)) - _MARKER
    lines = []
    for number, report in enumerate(reports, 1):
        summary, withheld = _without_orders(report.summary, room)
        error, more = _without_orders(one_line(report.error, _ERROR), _ERROR)
        fields = _fields(number, replace(report, summary=summary, error=error), withheld + more)
        lines.append(json.dumps(fields, ensure_ascii=False))
    told = '{"results": [\n' + ",\n".join(lines) + "\n]}"
    return wrap(told, source=SOURCE, scanned=ScanResult(verdict="clean", text=told))


def _without_orders(text: str, room: int) -> tuple[str, list[str]]:
    """Return a child's text within bounds, and the categories of what was taken out of it."""
    bare = without_marks(head_tail(text, room))
    scanned = scan(bare, name="delegate_task")
    if scanned.verdict == "clean":
        return bare, []
    found = sorted({finding.category for finding in scanned.findings})
    return neutralised(bare, scanned.findings), found


def _fields(number: int, report: Report, withheld: Sequence[str]) -> dict[str, Any]:
    out: dict[str, Any] = {
        "task": number,
        "status": report.status,
        "summary": report.summary,
        "requests": report.requests,
        "tokens": report.tokens,
        "files": list(report.files[:_FILES]),
    }
    if more := len(report.files) - _FILES:
        out |= {"more_files": more} if more > 0 else {}
    if report.error:
        out["error"] = report.error
    return out | ({"withheld": list(withheld)} if withheld else {})


def _gist(arguments: Arguments) -> str:
    given = (arguments.get("goal"), *(arguments.get("tasks") or []))
    goals = [_goal(each) for each in given if each]
    more = f" and {len(goals) - 1} more" if len(goals) > 1 else ""
    return visible(one_line(goals[0], 80) + more if goals else "")
