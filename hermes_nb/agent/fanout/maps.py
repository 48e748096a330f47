"""Runs one prompt on each of many inputs, and returns the results as a table.

Each task is claimed in a ledger (see `ClaimLedger`) before it starts, and its result is stored
there. Running the same map again resumes it: results of finished tasks come from the ledger, and
interrupted tasks run again. Failed tasks are listed, but run again only with `retry`. The same
applies to tasks that started but did not finish; their status is `unknown`.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
import platform
import re
import secrets
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from hermes_nb.agent.fanout.executors import NO_TOOLS, Crew, MapResult, MapTask, open_crew, perform
from hermes_nb.agent.fanout.inputs import Input
from hermes_nb.agent.jobs import Jobs, sharing, side_by_side
from hermes_nb.agent.session.usage import total_usage
from hermes_nb.core.budget import Budget, pools, refusal
from hermes_nb.core.calls import STOP_GRACE
from hermes_nb.core.claims import Claim, ClaimLedger, ClaimState
from hermes_nb.core.errors import ConfigError, StoreError, ToolError
from hermes_nb.core.escapes import visible
from hermes_nb.core.json_values import canonical_json
from hermes_nb.core.loop import Observer
from hermes_nb.core.messages import Usage
from hermes_nb.core.protocols import ChatModel, SessionStore
from hermes_nb.core.text import both_ends, estimate_tokens, one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Place, Risk, Toolset
from hermes_nb.safety.markup import escape
from hermes_nb.safety.redact import redact
from hermes_nb.tools.wrappers import in_turn

ItemStatus = Literal["waiting", "running", "done", "failed", "unknown", "stopped", "budget"]
"""The states of an item."""
ERROR = 300
"""Maximum length of an error, in characters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An input and its result."""

    name: str
    """The input's name."""
    status: ItemStatus = "waiting"
    """The state; see the module's description."""
    answer: str = ""
    """The model's answer, or "" if there is none."""
    error: str = ""
    """Why it has no answer, or "" if it has one."""
    usage: Usage = field(default_factory=Usage)
    """Tokens and cost of the task."""
    seconds: float = 0.0
    """Duration of the task, or 0.0 if it did not run in this map."""
    kept: bool = False
    """Whether the result is from an earlier run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MapPlan:
    """The parameters of a map."""

    prompt: str
    """The prompt for each input."""
    model: str = ""
    """The model's name."""
    base_url: str = ""
    """The address of the model's server, or "" for the default one."""
    tools: tuple[str, ...] = ()
    """Names of tools and toolsets that each task may use."""
    root: str = ""
    """The tools' working directory."""
    parallel: int | None = None
    """Number of tasks that run in parallel, or None for the executor's default."""
    retry: bool = False
    """Whether to run failed and unknown tasks again."""
    afresh: bool = False
    """Whether to ignore earlier runs, which a recording requires."""

    @property
    def run(self) -> str:
        """The key of this map in the ledger."""
        extra = [" ".join(("tools:", *self.tools))] if self.tools else []
        extra += [secrets.token_hex(8)] if self.afresh else []
        return digest_of([self.prompt, self.model, *extra])


def progress_of(items: Sequence[Item]) -> str:
    """Return a short description of a map's progress."""
    over = sum(item.status not in ("waiting", "running") for item in items)
    bad = sum(item.status in ("failed", "unknown", "budget") for item in items)
    return f"{over} of {len(items)}" + (f", {bad} without an answer" if bad else "")


def known(name: str, claim: Claim) -> Item:
    """Return the item of a task that another run has claimed."""
    if claim.state == "running":
        host, process, *_ = (*claim.owner.split(":"), "")
        text = f"process {process} on {host} started it and has not finished it"
        return Item(name=name, status="unknown", error=text, kept=True)
    try:
        result = MapResult.from_json(claim.result)
    except ValueError as error:
        return Item(name=name, status="failed", error=str(error), kept=True)
    return replace(of_result(name, result), kept=True)


def of_result(name: str, result: MapResult) -> Item:
    """Return the item of a finished task."""
    return Item(
        name=name,
        status=result.status,
        answer=result.text,
        error=one_line(result.error, ERROR),
        usage=result.usage,
    )


def digest_of(parts: Sequence[str]) -> str:
    """Return a digest of several texts."""
    return hashlib.sha256(canonical_json(list(parts)).encode("utf-8", "replace")).hexdigest()[:32]


SIDE_BY_SIDE = 4
"""Default number of tasks that run in parallel in this process."""


class Fanout:
    """A running map. `items` holds the current state of each input, in the order of the inputs.

    Args:
        plan: the parameters
        inputs: the inputs
        model: runs the tasks in this process; needed without a `crew`
        ledger: stores claims and results
        crew: runs the tasks elsewhere
        tools: the tools for tasks in this process
        place: their calls' session and turn
        budgets: limits for the whole map
        jobs: lists the map while it runs; by default, a new list
        spent: called with the usage of each task
        observers: observers of the tasks' agents
    """

    def __init__(  # noqa: PLR0913 - most of them optional
        self,
        plan: MapPlan,
        inputs: Sequence[Input],
        *,
        model: ChatModel | None,
        ledger: ClaimLedger,
        crew: Crew | None = None,
        tools: Toolset = NO_TOOLS,
        place: Place | None = None,
        budgets: Sequence[Budget] = (),
        jobs: Jobs | None = None,
        spent: Callable[[Usage], None] = lambda _: None,
        observers: Sequence[Observer] = (),
    ) -> None:
        self.plan = plan
        self.items = [Item(name=each.name) for each in inputs]
        self.usage = Usage()
        self.moved: Callable[[], None] = lambda: None  # called after each change
        self._inputs = inputs
        self._model = model
        self._crew = crew
        self._tools = in_turn(tools, asyncio.Lock())
        self._lasting = any(tool.risk is not Risk.READ for tool in self._tools)
        self._place = place
        self._ledger = ledger
        self._shared = pools(budgets)
        self._jobs = Jobs() if jobs is None else jobs  # not `or`: an empty list of jobs is false
        self._spent, self._observers = spent, observers
        self._run = plan.run
        self._settling: list[asyncio.Task[None]] = []

    async def run(self) -> list[Item]:
        """Run all tasks and return the items; an interrupt keeps the results obtained so far."""
        size = self._crew.size if self._crew is not None else SIDE_BY_SIDE
        at_once = min(self.plan.parallel or size, len(self.items))
        if self._crew is not None:
            self._crew.share = math.ceil(at_once / self._crew.size)
        work = side_by_side(at_once, len(self.items), self._process_input)
        session = self._place.session if self._place is not None else ""
        try:
            with ExitStack() as around:
                for each in self._observers:
                    around.enter_context(each.mapping(session))
                await self._jobs.run("map", redact(self.plan.prompt), work, doing=self.progress)
        finally:
            await asyncio.gather(*self._settling)
            for number, item in enumerate(self.items):
                if item.status in ("waiting", "running"):
                    self._set(number, status="stopped")
        return self.items

    def progress(self) -> str:
        """Return a short description of the progress."""
        return progress_of(self.items)

    async def _process_input(self, number: int) -> None:
        """Process one input: read it, claim it, run the task, store the result."""
        self._set(number, status="running")
        try:
            text = await self._inputs[number].read()
        except (ToolError, OSError, UnicodeError) as error:
            self._set(number, status="failed", error=f"it cannot be read: {error}")
            return
        name = self.items[number].name
        attempt = Attempt(self._ledger, self._run, digest_of([name, text]))
        claim = await attempt.claim(retry=self.plan.retry)
        if claim.owner != attempt.owner:
            self.items[number] = known(name, claim)
            self.moved()
            return
        attempt.lasting = self._lasting
        started = time.monotonic()
        try:
            with sharing(self._shared) as budgets:
                result = await self._run_task(self._task(name, text), budgets, attempt)
        except asyncio.CancelledError:
            self._set(number, status=attempt.left())
            raise
        except Exception as error:  # noqa: BLE001 - an executor failed
            message = one_line(redact(f"{type(error).__name__}: {error}"), ERROR)
            if attempt.future is not None:
                self._set(number, status="unknown", error=message)
                return
            result = MapResult(status="failed", error=message)  # it was never passed to a worker
        self.usage += result.usage
        self._spent(result.usage)
        item = replace(of_result(name, result), seconds=time.monotonic() - started)
        self.items[number] = item
        self.moved()
        self._settling.append(asyncio.create_task(self._store_result(number, attempt, result)))

    async def _store_result(self, number: int, attempt: Attempt, result: MapResult) -> None:
        """Store a result without delaying the next input."""
        try:
            await in_thread(attempt.settle, result)
        except StoreError as error:  # a later run will not find the answer
            self._set(number, error=one_line(f"its result was not saved: {error}", ERROR))

    def _task(self, name: str, text: str) -> MapTask:
        plan = self.plan
        return MapTask(
            prompt=plan.prompt,
            name=name,
            text=text,
            model=plan.model,
            base_url=plan.base_url,
            tools=plan.tools,
            root=plan.root,
        )

    async def _run_task(
        self, task: MapTask, budgets: Sequence[Budget], attempt: Attempt
    ) -> MapResult:
        """Run a task, in this process or in the crew."""
        if self._crew is None:
            assert self._model is not None  # noqa: S101 - required without a crew
            return await perform(
                task,
                self._model,
                budgets,
                tools=self._tools,
                place=self._place,
                observers=self._observers,
            )
        refused = refusal(budgets, estimate_tokens([task.message]))
        if refused is not None:
            return MapResult(status="budget", error=str(refused))
        future = attempt.future = self._crew.submit(task.to_json())
        try:
            result = MapResult.from_json(await asyncio.shield(asyncio.wrap_future(future)))
        except asyncio.CancelledError:
            attempt.unbegun = bool(await self._crew.abandon([future]))
            raise
        for budget in budgets:
            budget.spend(result.usage)
        return result

    def _set(self, number: int, *, status: ItemStatus | None = None, error: str = "") -> None:
        item = self.items[number]
        self.items[number] = replace(item, status=status or item.status, error=error)
        self.moved()


class Attempt:
    """One attempt at a task, from the claim to the end of the task.

    `future` is set once the task has been submitted to a worker, and `unbegun` if the worker
    definitely did not start it. `lasting` means that the task may have called tools with side
    effects.
    """

    def __init__(self, ledger: ClaimLedger, run: str, key: str) -> None:
        self.owner = f"{platform.node()}:{os.getpid()}:{secrets.token_hex(8)}"
        self.future: Future[str] | None = None
        self.unbegun = False
        self.lasting = False
        self._ledger = ledger
        self._task = run, key

    async def claim(self, *, retry: bool) -> Claim:
        """Claim the task; if cancelled meanwhile, release the claim."""
        again: tuple[ClaimState, ...] = ("stopped", "failed", "running") if retry else ("stopped",)
        claiming = asyncio.ensure_future(
            in_thread(self._ledger.claim, *self._task, owner=self.owner, again=again)
        )
        try:
            return await asyncio.shield(claiming)
        except asyncio.CancelledError:
            await asyncio.wait([claiming], timeout=STOP_GRACE)
            self.left()
            raise

    def settle(self, result: MapResult) -> None:
        """Store the result; a task stopped by the budget may be tried again."""
        if result.status == "budget":
            self._ledger.release(*self._task, owner=self.owner)
            return
        self._ledger.settle(
            *self._task, owner=self.owner, state=result.status, result=result.to_json()
        )

    def left(self) -> ItemStatus:
        """Record that the task was stopped, if that is certain; return its status.

        In this process, a cancelled request has ended, but its tools may have had effects. A task
        submitted to a worker may still be running there.
        """
        if (self.future is not None or self.lasting) and not self.unbegun:
            return "unknown"
        with suppress(StoreError):  # the claim remains, so the task will be unknown
            if self.unbegun:
                self._ledger.release(*self._task, owner=self.owner)
            else:
                self._ledger.settle(*self._task, owner=self.owner, state="stopped")
        return "stopped"


COLUMNS = ("input", "status", "answer", "error", "tokens", "cost", "seconds")
"""Columns in a result table."""
SHOWN = 50
"""Maximum rows of a displayed table."""
ANSWER = 160
"""Maximum length of a displayed answer, in characters."""
NAME = 60
"""Maximum length of a displayed input name, in characters."""


class Rows(list[dict[str, Any]]):
    """Rows as dicts; a notebook displays them as a table."""

    def _repr_markdown_(self) -> str:
        return table_markdown(self)


def rows_of(items: Sequence[Item]) -> Rows:
    """Return a row for each item; unknown values are None."""
    return Rows(
        {
            "input": item.name,
            "status": item.status,
            "answer": item.answer if item.status == "done" else None,
            "error": item.error or None,
            "tokens": item.usage.input + item.usage.output,
            "cost": item.usage.cost,
            "seconds": round(item.seconds, 2),
        }
        for item in items
    )


def table_of(items: Sequence[Item]) -> Any:  # noqa: ANN401 - pandas is not a dependency
    """Return the rows as a DataFrame if pandas is already imported, otherwise as `Rows`."""
    rows = rows_of(items)
    pandas = sys.modules.get("pandas")
    if pandas is None:
        return rows
    return pandas.DataFrame(list(rows), columns=list(COLUMNS))


_BLOCK = re.compile(r"^\s*(?:(?:#{1,6}|[-*+>]|\d{1,3}[.)])\s+|`{3,}\w*$)", re.MULTILINE)
_INLINE = re.compile(
    r"(\*\*|`{1,3}|~~)(\S(?:[^\n]{0,400}?\S)?)\1|\[([^\]\n]{1,400})\]\([^()\s]{1,400}\)"
)


def _answer_start(text: str) -> str:
    """Return the start of an answer on one line, without Markdown markup."""
    bare = _INLINE.sub(lambda m: m[2] or m[3], _BLOCK.sub("", text[: 8 * ANSWER]))
    return one_line(bare, ANSWER)


def table_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as a Markdown table of names, states and shortened answers."""
    lines = ["| input | status | answer |", "|---|---|---|"]
    for row in rows[:SHOWN]:
        said = row["answer"] if row["status"] == "done" else row["error"]
        name = escape(visible(both_ends(redact(row["input"]), NAME)))
        answer = escape(visible(_answer_start(redact(said or ""))))
        lines.append(f"| {name} | {row['status']} | {answer} |")
    if len(rows) > SHOWN:
        lines.append(f"| … {len(rows) - SHOWN:,} more | | |")
    return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Mapped:
    """The results of a map."""

    items: tuple[Item, ...]  # in the order of the inputs

    @property
    def rows(self) -> Rows:
        """A dict for each input: input, status, answer, error, tokens, cost, seconds."""
        return rows_of(self.items)

    @property
    def table(self) -> Any:  # noqa: ANN401 - pandas is not a dependency
        """The rows as a DataFrame if pandas is already imported, otherwise as `Rows`."""
        return table_of(self.items)

    @property
    def usage(self) -> Usage:
        """The usage of this run, not including results from earlier runs."""
        return total_usage(item.usage for item in self.items if not item.kept)

    @property
    def cost(self) -> float | None:
        """The known part of the cost in US dollars, or None if no costs are known."""
        return self.usage.cost

    @property
    def open(self) -> tuple[Item, ...]:
        """The items that have no answer."""
        return tuple(item for item in self.items if item.status != "done")

    def __str__(self) -> str:
        """Return the progress."""
        return progress_of(self.items)

    def _repr_markdown_(self) -> str:
        return f"{table_markdown(self.rows)}\n\n<sub>{self}</sub>"


async def run_map(  # noqa: PLR0913 - most of them for `Fanout`
    plan: MapPlan,
    inputs: Sequence[Input],
    *,
    executor: str,
    model: ChatModel,
    store: SessionStore,
    budgets: Sequence[Budget],
    jobs: Jobs,
    spent: Callable[[Usage], None],
    tools: Toolset = NO_TOOLS,
    place: Place | None = None,
    observers: Sequence[Observer] = (),
    begun: Callable[[Fanout], Callable[[], None]] | None = None,
) -> Mapped:
    """Run a map and return its results.

    `begun(fanout)` is called before the first task. It returns a function that is called after each
    change. For the other arguments, see `Fanout`.

    Raises:
        ConfigError: the store has no ledger, or the executor cannot be used
    """
    if not isinstance(store, ClaimLedger):
        raise ConfigError(
            "this session store does not record which tasks were started, so tasks could run "
            "twice; use the built-in store"
        )
    crew = await open_crew(executor)
    try:
        fanout = Fanout(
            plan,
            inputs,
            model=model,
            ledger=store,
            crew=crew,
            tools=tools,
            place=place,
            budgets=budgets,
            jobs=jobs,
            spent=spent,
            observers=observers,
        )
        if begun is not None:
            fanout.moved = begun(fanout)
        return Mapped(tuple(await fanout.run()))
    finally:
        if crew is not None:
            crew.close()
