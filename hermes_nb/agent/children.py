"""The toolset `delegation`: gives independent tasks to child agents and returns their reports.

A child has its own conversation with fewer tools and no user to ask. It shares the model, budgets
and safety rules of the parent's turn. It does not get SOUL.md, the project's files or the parent's
conversation. It cannot delegate, use memory, or access the kernel or the notebook, and actions that
require approval are denied. Its report is a tool result, enclosed in tags for untrusted data. A
child's failure is reported, never raised.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, NotRequired, TypedDict

from hermes_nb.agent.jobs import Jobs, sharing, side_by_side
from hermes_nb.agent.prompt_sources import PromptSources
from hermes_nb.agent.session.session import CHILD, Identity, Session, SessionSpec
from hermes_nb.agent.session.turn import turn_of
from hermes_nb.agent.settings.config import DelegationSettings
from hermes_nb.core.budget import Budget, Pool, pools
from hermes_nb.core.errors import HermesError, ToolError
from hermes_nb.core.escapes import visible
from hermes_nb.core.events import (
    ChildFinished,
    ChildProgress,
    ChildStarted,
    ChildStatus,
    Event,
    ToolFinished,
    ToolStarted,
    UsageReported,
)
from hermes_nb.core.messages import Message, Origin, Usage
from hermes_nb.core.protocols import SessionStore
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Arguments, Risk, ToolContext, ToolOutput, Toolset
from hermes_nb.safety.provenance import outside
from hermes_nb.safety.redact import redact
from hermes_nb.safety.scan import ScanResult, neutralised, scan, without_marks, wrap
from hermes_nb.tools.schema import tool, with_arguments
from hermes_nb.tools.wrappers import in_turn

logger = logging.getLogger(__name__)

IDENTITY = (
    "You are a child agent of Hermes. You have one task, and you cannot see the conversation it "
    "comes from. Find out what you need with your tools; you cannot ask anyone. Change only what "
    "the task is about. End with a report: what you found or did, with the numbers and paths that "
    "matter, and what is still open. The caller sees only this report."
)
STATUS: dict[str, ChildStatus] = {"answered": "done", "budget": "budget", "interrupted": "stopped"}
"""A child's status, by the reason its turn ended; for any other reason it is `failed`."""
DOING = 120
"""Maximum length of a child's progress text, in characters."""
SUMMARY = 24_000
"""Maximum length of one child's report, in characters."""
REPORTS = 45_000
"""Maximum total length of a call's reports, in characters, divided evenly."""
MOST_TASKS = 20
REPORTED = "reports of child agents"
_MARKER = 80
"""Characters reserved for the note about how much of a report was dropped."""
_ERROR = 400
_FILES = 50
"""Maximum number of files that a report lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """A child's task."""

    goal: str
    """What to do."""
    context: str = ""
    """Background information for the child, or "" for none."""
    toolsets: tuple[str, ...] = ()
    """Names of tools and toolsets; empty for all tools that children may have."""
    max_requests: int | None = None
    """Maximum number of model requests, or None for the settings' limit."""
    number: int = 1
    """The task's number in its call, from 1."""
    of: int = 1
    """Number of tasks in the call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of a child."""

    status: ChildStatus
    """How it ended."""
    summary: str = ""
    """The child's last message."""
    outside: bool = False
    """Whether the child has read untrusted content."""
    error: str = ""
    """Why it failed or stopped early, or "" if it did not."""
    requests: int = 0
    """Number of model requests."""
    tokens: int = 0
    """Total tokens in prompts and answers."""
    files: tuple[str, ...] = ()
    """Files that it changed."""


class Task(TypedDict):
    """A task as the model may pass it; missing keys default to the call's values."""

    goal: str
    """What to do."""
    context: NotRequired[str | None]
    """Background information for the child."""
    toolsets: NotRequired[list[str] | None]
    """Names of tools and toolsets."""


def delegation_tools(children: Delegation) -> Toolset:
    """Return the tool `delegate_task`."""

    # Exclusive: a child may change files that another call in the same reply uses.
    async def delegate_task(
        running: ToolContext,
        tasks: list[str],
        context: str | None = None,
        toolsets: list[str] | None = None,
        max_requests: int | None = None,
    ) -> ToolOutput:
        """Give independent tasks to child agents; each sees only its task and context.

        Args:
            tasks: one goal per child
            max_requests: per child
        """
        common = Assignment(
            goal="",
            context=context or "",
            toolsets=tuple(toolsets or ()),
            max_requests=max_requests,
        )
        assignments = _assignments(common, tasks)
        if wanted := dict.fromkeys(name for each in assignments for name in each.toolsets):
            _check_toolsets(wanted, children.toolsets(running))
        reports = await children.run(running, assignments)
        foreign = any(report.outside for report in reports)
        return ToolOutput(_tagged_reports(reports), origin="outside" if foreign else "workspace")

    made = tool(toolset="delegation", exclusive=True, describe=_gist)(delegate_task)
    # In the schema a task is a string, which costs the fewest tokens.
    checked = replace(made, check=lambda arguments: made.check(_in_words(arguments)))
    # Names of single tools are accepted too.
    names = {"type": "string", "enum": children.toolset_names()}
    properties = made.parameters["properties"]
    toolsets_named = {**properties, "toolsets": {**properties["toolsets"], "items": names}}
    parameters = {**made.parameters, "properties": toolsets_named}
    return Toolset([with_arguments(replace(checked, parameters=parameters), _without_goal)])


def _without_goal(arguments: Arguments) -> Arguments:
    """Return the arguments with the earlier argument `goal` as the first task."""
    given = dict(arguments)
    goal, tasks = given.pop("goal", None), given.get("tasks") or []
    if not isinstance(tasks, list) or not isinstance(goal, str | None):
        return arguments
    return {**given, "tasks": [*filter(None, [goal]), *tasks]}


def _in_words(arguments: Arguments) -> Arguments:
    """Return the arguments with each task object replaced by its goal, as the schema expects."""
    tasks = arguments.get("tasks")
    if not isinstance(tasks, list):
        return arguments
    return {**arguments, "tasks": [_goal(each) if _is_task(each) else each for each in tasks]}


def _is_task(value: object) -> bool:
    """Return whether a value is an object with a goal and, optionally, context and toolsets."""
    if not isinstance(value, Mapping) or value.keys() - {"goal", "context", "toolsets"}:
        return False
    goal, context, toolsets = map(value.get, ("goal", "context", "toolsets"))
    named = isinstance(toolsets or [], list) and all(isinstance(n, str) for n in toolsets or [])
    return isinstance(goal, str) and isinstance(context or "", str) and named


def _goal(task: str | Task) -> str:
    return (task if isinstance(task, str) else task["goal"]).strip()


def _assignments(common: Assignment, tasks: Sequence[str | Task]) -> list[Assignment]:
    """Return the children's tasks; raise ToolError if there are none, too many or duplicates.

    `common` holds the call's own goal and each task's defaults.
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
        raise ToolError("give at least one task")
    if len(asked) > MOST_TASKS:
        raise ToolError(f"{len(asked)} tasks are too many for one call; give at most {MOST_TASKS}")
    if len({(each.goal, each.context) for each in asked}) < len(asked):
        raise ToolError("two of the tasks are identical; list each task only once")
    return [replace(each, of=len(asked)) for each in asked]


def _check_toolsets(wanted: Iterable[str], there: Sequence[str]) -> None:
    if missing := [name for name in wanted if name not in there]:
        raise ToolError(
            f"child agents cannot use {', '.join(map(repr, missing))}; "
            f"they can use {', '.join(there) or 'no tools at all'}"
        )


def _tagged_reports(reports: Sequence[Report]) -> str:
    """Return the reports as tagged JSON, one per line, without likely prompt injections.

    Each report is scanned separately: JSON escapes line breaks, and removing a passage from the
    JSON could also remove braces.
    """
    room = min(SUMMARY, REPORTS // max(len(reports), 1)) - _MARKER
    lines = []
    for number, report in enumerate(reports, 1):
        summary, withheld = _without_orders(report.summary, room)
        error, more = _without_orders(one_line(report.error, _ERROR), _ERROR)
        fields = _fields(number, replace(report, summary=summary, error=error), withheld + more)
        lines.append(json.dumps(fields, ensure_ascii=False))
    told = '{"results": [\n' + ",\n".join(lines) + "\n]}"
    return wrap(told, source=REPORTED, scanned=ScanResult(verdict="clean", text=told))


def _without_orders(text: str, room: int) -> tuple[str, list[str]]:
    """Return a child's text, shortened, and the categories of passages removed from it."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Delegation:
    """Creates and runs the children of one agent's calls.

    Files that a child changes are saved for undo as changes made by the parent's turn.
    """

    settings: DelegationSettings
    """Limits for children."""
    store: SessionStore
    """The store for the children's sessions."""
    jobs: Jobs
    """The list of running jobs."""
    spec: Callable[[], SessionSpec]
    """Returns the specification for a child's session."""
    sources: PromptSources | None = None
    """Prompt sources whose external memory is notified when a child ends, or None for none."""
    tell: Callable[[str], None] = lambda _: None
    """Shows a line to the user."""

    def toolset_names(self) -> list[str]:
        """Return the names of the toolsets that children may have."""
        return list(dict.fromkeys(tool.toolset for tool in self.spec().tools))

    def toolsets(self, context: ToolContext) -> list[str]:
        """Return the names of the tools and toolsets available to a call's children."""
        tools = self.given(context).tools
        return list(dict.fromkeys(name for tool in tools for name in (tool.toolset, tool.name)))

    async def run(self, context: ToolContext, assignments: Sequence[Assignment]) -> list[Report]:
        """Return a report for each assignment, in the same order; only cancellation is raised."""
        shared = pools(context.budgets)
        writing = asyncio.Lock()
        over = itertools.count(1)

        async def one(number: int) -> Report:
            report = await Child(self, context, assignments[number]).run(shared, writing)
            if len(assignments) > 1:
                context.progress(f"{next(over)} of {len(assignments)} done")
            return report

        return await side_by_side(self.settings.side_by_side, len(assignments), one)

    def given(self, context: ToolContext, wanted: Sequence[str] = ()) -> SessionSpec:
        """Return the specification for a call's child, with at most the turn's tools."""
        spec = self.spec()
        tools = spec.tools
        if context.tools:
            tools = tools.only(*(tool.name for tool in context.tools))
        return replace(spec, tools=tools.only(*wanted) if wanted else tools)


class Child:
    """One child. It is also the event sink of its own turn, which is how it collects its report."""

    def __init__(self, up: Delegation, context: ToolContext, assignment: Assignment) -> None:
        self._up = up
        self._context = context
        self._assignment = assignment
        self._told_outside = self._foreign = bool(outside(context.messages))
        self._usage = Usage()
        self._doing = ""
        self._files: dict[str, None] = {}
        self._tools = Toolset()
        self._began = time.monotonic()
        self._started = False

    def doing(self) -> str:
        """Return a short description of its current activity."""
        return self._doing

    async def run(self, shared: Sequence[Pool], writing: asyncio.Lock) -> Report:
        """Run the child as a job, emit its end and return its report.

        `shared` holds the budgets of all the call's children. `writing` is the lock for calls that
        write.
        """
        goal, work = redact(self._assignment.goal), self._live(shared, writing)
        ended = await self._up.jobs.run("child", goal, work, doing=self.doing)
        report = ended or Report(status="stopped")
        report = replace(
            report,
            outside=self._foreign,
            error=redact(report.error),
            requests=self._usage.requests,
            tokens=self._usage.input + self._usage.output,
            files=tuple(self._files),
        )
        if self._started:
            seconds = time.monotonic() - self._began
            call_id, number = self._context.call.id, self._assignment.number
            self._context.emit(ChildFinished(call_id, number, report.status, seconds, self._usage))
        return report

    async def _live(self, shared: Sequence[Pool], writing: asyncio.Lock) -> Report:
        """Return the child's report; errors are included in it."""
        seconds = self._up.settings.seconds
        try:
            with sharing(shared) as budgets:
                async with asyncio.timeout(seconds):
                    return await self._turn(budgets, writing)
        except TimeoutError:
            return Report(status="failed", error=f"it did not finish within {seconds:g} s")
        except HermesError as error:
            return Report(status="failed", error=str(error))
        except Exception as error:  # the parent gets it as a report
            logger.exception("a child agent failed unexpectedly")
            return Report(status="failed", error=f"{type(error).__name__}: {error}")

    async def _turn(self, budgets: Sequence[Budget], writing: asyncio.Lock) -> Report:
        """Run the child's turn and return its report, without its usage."""
        up, asked, call = self._up, self._assignment, self._context.call
        place = self._context.place
        spec = up.given(self._context, asked.toolsets)
        self._tools = in_turn(spec.tools, writing)
        most = up.settings.max_requests
        if asked.max_requests is not None:
            most = max(1, min(asked.max_requests, most))
        session = Session.start(
            store=up.store,
            spec=replace(spec, tools=self._tools, max_requests=most),
            identity=Identity(source=CHILD, title=one_line(asked.goal, 60), parent=place.session),
            warn=up.tell,
        )
        self._started = True
        self._context.emit(ChildStarted(call.id, asked.number, redact(asked.goal), session.id))
        events: list[Event] = []
        try:
            origin: Origin = "outside" if self._told_outside else "ours"
            task = Message.user(_message(asked), origin=origin)
            running = session.turn(task, sinks=[self], budgets=budgets, place=place)
            async with aclosing(running):
                async for event in running:
                    events.append(event)
        finally:
            session.end()
        self._foreign = bool(outside(session.messages))
        turn = turn_of(events)
        if up.sources is not None and up.sources.settings.memory.provider:
            told = turn.text or turn.error or turn.note
            await in_thread(up.sources.delegated, asked.goal, told)
        status = STATUS.get(turn.reason, "failed")
        return Report(status=status, summary=turn.text, error=turn.error or turn.note)

    def __call__(self, event: Event) -> None:
        """Process an event of the child's turn and emit its progress."""
        match event:
            case ToolStarted(call):
                gist = self._tools.describe(call) or next(iter(call.arguments.values()), "")
                self._report_activity(f"{call.name} {gist}")
            case ToolFinished(call, "ok", _):
                tool = self._tools.get(call.name)
                paths = tool.paths if tool is not None and tool.risk is Risk.WRITE else ()
                named = map(call.arguments.get, paths)
                self._files |= {path: None for path in named if isinstance(path, str)}
            case UsageReported(usage):
                self._usage += usage
                self._report_activity(self._doing)
            case _:
                pass

    def _report_activity(self, doing: str) -> None:
        self._doing = one_line(redact(doing), DOING)
        call_id, number = self._context.call.id, self._assignment.number
        self._context.emit(ChildProgress(call_id, number, self._doing, self._usage))


def _message(asked: Assignment) -> str:
    """Return a child's prompt, numbered so that no two prompts in a call are equal."""
    head = f"Task {asked.number} of {asked.of}: " if asked.of > 1 else ""
    tail = f"\n\nContext:\n{asked.context}" if asked.context else ""
    return f"{head}{asked.goal}{tail}"
