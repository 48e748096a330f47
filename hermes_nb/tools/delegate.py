"""The toolset `delegation`: independent tasks go to child agents, reports come back.

A child's report is a result like any other: it stands between the marks of untrusted data, and a
failure in it is told, never raised.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hermes_nb.core.errors import ToolError
from hermes_nb.core.events import ChildStatus
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.core.tools import ToolContext, Toolset
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
    """What came of it: `tokens` are those of prompts and answers, `files` those it changed."""

    status: ChildStatus
    summary: str = ""
    error: str = ""
    requests: int = 0
    tokens: int = 0
    files: tuple[str, ...] = ()


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


def delegation_tools(children: Children, *, taint: Callable[[str], None]) -> Toolset:
    """Return the tool `delegate_task`; `taint(what)` hears of reports that may give orders."""

    # It runs alone: a child may change the files that another call of the reply is about.
    async def delegate_task(  # noqa: D417 - a schema says nothing that is plain
        running: ToolContext,
        goal: str | None = None,
        tasks: list[str] | None = None,
        context: str | None = None,
        toolsets: list[str] | None = None,
        max_requests: int | None = None,
    ) -> str:
        """Give independent tasks to child agents: side by side, told nothing but goal and context.

        Args:
            max_requests: of each
        """
        goals = [each.strip() for each in (goal or "", *(tasks or [])) if each.strip()]
        assignments = _assignments(goals, context or "", toolsets or [], max_requests)
        if toolsets:
            _check_toolsets(toolsets, children.toolsets)
        return _told(await children.run(running, assignments), taint)

    return Toolset([tool(toolset="delegation", exclusive=True, describe=_gist)(delegate_task)])


def _assignments(
    goals: Sequence[str],
    context: str,
    toolsets: Sequence[str],
    max_requests: int | None,
) -> list[Assignment]:
    """Return what each child is asked; raise ToolError for nothing, too much, or the same twice."""
    if not goals:
        message = "what is to be done? give a goal, or tasks"
        raise ToolError(message)
    if len(goals) > MOST_TASKS:
        message = f"{len(goals)} tasks are too many for one call; give at most {MOST_TASKS}"
        raise ToolError(message)
    if len(set(goals)) < len(goals):
        message = "two of the tasks are the same; give each once"
        raise ToolError(message)
    return [
        Assignment(
            goal=each,
            context=context.strip(),
            toolsets=tuple(toolsets),
            max_requests=max_requests,
            number=number,
            of=len(goals),
        )
        for number, each in enumerate(goals, 1)
    ]


def _check_toolsets(wanted: Sequence[str], there: Sequence[str]) -> None:
    if missing := [name for name in wanted if name not in there]:
        message = (
            f"children cannot have {', '.join(map(repr, missing))}; "
            f"they can have {', '.join(there) or 'no tools at all'}"
        )
        raise ToolError(message)


def _told(reports: Sequence[Report], taint: Callable[[str], None]) -> str:
    """Return the reports as JSON between marks, one line each; what reads like an attack is out.

    Each is looked through by itself: in JSON a line break is two letters, and a passage that is
    withheld would take the braces with it.
    """
    room = min(SUMMARY, REPORTS // max(len(reports), 1)) - _MARKER
    lines = []
    for number, report in enumerate(reports, 1):
        summary, withheld = _without_orders(report.summary, room)
        error, more = _without_orders(one_line(report.error, _ERROR), _ERROR)
        if withheld + more:
            taint(f"{SOURCE} that may give orders")
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


def _gist(arguments: Mapping[str, Any]) -> str:
    tasks = [each for each in (arguments.get("goal"), *(arguments.get("tasks") or [])) if each]
    more = f" and {len(tasks) - 1} more" if len(tasks) > 1 else ""
    return visible(one_line(str(tasks[0]), 80) + more if tasks else "")
