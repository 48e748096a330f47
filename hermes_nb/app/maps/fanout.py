"""One prompt over many inputs, each of them once.

Before a task begins it is claimed in the ledger, and its result is kept there. The same map, begun
again (after a restart, a stop, a failure), goes on where it was: what is done is taken from the
ledger, what was stopped runs, what failed is told and runs again with `retry`. A task that somebody
began and nobody ended is `unknown`: it runs again with `retry` alone.
"""

from __future__ import annotations

import asyncio
import os
import platform
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace

from hermes_nb.app.jobs import Job, Jobs
from hermes_nb.app.maps.executors import Crew
from hermes_nb.app.maps.inputs import Input
from hermes_nb.app.maps.items import ERROR, Item, ItemStatus, Plan, digest_of, known, progress_of
from hermes_nb.app.maps.task import MapResult, MapTask, perform
from hermes_nb.core.budget import Budget, Portion, pools, portions, refusal
from hermes_nb.core.calls import STOP_GRACE, in_thread
from hermes_nb.core.claims import Claim, ClaimLedger, ClaimState
from hermes_nb.core.errors import StoreError, ToolError
from hermes_nb.core.messages import Message, Usage
from hermes_nb.core.protocols import ChatModel
from hermes_nb.core.text import estimate_tokens, one_line
from hermes_nb.safety.redact import redact

SIDE_BY_SIDE = 4
"""Tasks at a time in this process, unless the caller says more or less."""


class Fanout:
    """One map: `items` has what became of each input so far, in the inputs' order.

    `model` does the tasks in this process, or a `crew` elsewhere. `spent` hears what each task
    used, `moved` that something changed. `budgets` hold for all of it together.
    """

    def __init__(  # noqa: PLR0913 - everything a map touches comes together here
        self,
        plan: Plan,
        inputs: Sequence[Input],
        *,
        model: ChatModel | None,
        ledger: ClaimLedger,
        crew: Crew | None = None,
        budgets: Sequence[Budget] = (),
        jobs: Jobs | None = None,
        spent: Callable[[Usage], None] = lambda _: None,
        moved: Callable[[], None] = lambda: None,
    ) -> None:
        self.plan = plan
        self.items = [Item(name=each.name) for each in inputs]
        self.usage = Usage()
        self._inputs = inputs
        self._model = model
        self._crew = crew
        self._ledger = ledger
        self._shared = pools(budgets)
        self._jobs = Jobs() if jobs is None else jobs
        self._spent = spent
        self._moved = moved
        self._run = plan.run
        self._again: tuple[ClaimState, ...] = (
            ("stopped", "failed", "running") if plan.retry else ("stopped",)
        )
        self._place = f"{platform.node()}:{os.getpid()}"

    async def run(self) -> list[Item]:
        """Do all that is to be done and return the items; a stop keeps what there is by then."""
        loop = asyncio.get_running_loop()
        queue = iter(range(len(self.items)))
        task = asyncio.create_task(self._all(queue))

        def stop() -> None:
            with suppress(RuntimeError):  # the loop is closed: nothing is left to stop
                loop.call_soon_threadsafe(task.cancel)

        with self._jobs.running("map", redact(self.plan.prompt), stop) as job:
            self._note(job)
            try:
                while not task.done():
                    await asyncio.wait([task], timeout=0.5)
                    self._note(job)
            finally:
                if not task.done():
                    task.cancel()
                    await asyncio.wait([task], timeout=2 * STOP_GRACE)
                self._stop_waiting()
        if not task.cancelled():
            task.result()
        return self.items

    async def _all(self, queue: Iterator[int]) -> None:
        size = self._crew.size if self._crew is not None else SIDE_BY_SIDE
        count = min(self.plan.parallel or size, len(self.items))
        workers = [asyncio.create_task(self._work(queue)) for _ in range(count)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.wait(workers, timeout=2 * STOP_GRACE)

    async def _work(self, queue: Iterator[int]) -> None:
        mine = portions(self._shared)
        try:
            for number in queue:  # which all workers share
                await self._one(number, mine)
        finally:
            for budget in mine:
                budget.release()

    async def _one(self, number: int, mine: Sequence[Portion]) -> None:
        """Bring one input to an end: read it, claim it, do it, settle it."""
        self._set(number, status="running")
        try:
            text = await self._inputs[number].read()
        except (ToolError, OSError, UnicodeError) as error:
            self._set(number, status="failed", error=f"it cannot be read: {error}")
            return
        name = self.items[number].name
        key = digest_of([name, text])
        owner = f"{self._place}:{secrets.token_hex(8)}"
        claim = await self._claimed(key, owner)
        if claim.owner != owner:
            self.items[number] = known(name, claim)
            self._moved()
            return
        plan = self.plan
        task = MapTask(
            prompt=plan.prompt, name=name, text=text, model=plan.model, base_url=plan.base_url
        )
        attempt = Attempt(self._ledger, self._run, key, owner)
        started = time.monotonic()
        try:
            result = await self._done(task, mine, attempt)
        except asyncio.CancelledError:
            self._set(number, status=attempt.left())
            raise
        except Exception as error:  # noqa: BLE001 - a pool or an engine broke, and nobody knows more
            told = one_line(redact(f"{type(error).__name__}: {error}"), ERROR)
            if attempt.future is not None:
                self._set(number, status="unknown", error=told)
                return
            result = MapResult(status="failed", error=told)  # nobody else has had it
        self.usage += result.usage
        self._spent(result.usage)
        self._set(
            number,
            status=result.status,
            answer=result.text,
            error=one_line(result.error, ERROR),
            usage=result.usage,
            seconds=time.monotonic() - started,
        )
        try:
            await in_thread(lambda: attempt.settle(result))
        except StoreError as error:  # the answer is there; another run will not know of it
            self._set(number, error=one_line(f"not kept for later: {error}", ERROR))

    async def _claimed(self, key: str, owner: str) -> Claim:
        """Claim a task; a stop meanwhile leaves no claim behind."""
        claiming = asyncio.ensure_future(
            in_thread(lambda: self._ledger.claim(self._run, key, owner=owner, again=self._again))
        )
        try:
            claim: Claim = await asyncio.shield(claiming)
        except asyncio.CancelledError:
            await asyncio.wait([claiming], timeout=STOP_GRACE)
            with suppress(StoreError):
                self._ledger.settle(self._run, key, owner=owner, state="stopped")
            raise
        return claim

    async def _done(self, task: MapTask, mine: Sequence[Portion], attempt: Attempt) -> MapResult:
        """Do a task, here or elsewhere."""
        if self._crew is None:
            assert self._model is not None  # noqa: S101 - whoever has no crew gives a model
            return await perform(task, self._model, mine)
        refused = refusal(mine, estimate_tokens([Message.user(task.message)]))
        if refused is not None:
            return MapResult(status="budget", error=str(refused))
        future = attempt.future = self._crew.submit(task.to_json())
        try:
            result = MapResult.from_json(await asyncio.shield(asyncio.wrap_future(future)))
        except asyncio.CancelledError:
            attempt.unbegun = bool(await self._crew.abandon([future]))
            raise
        for budget in mine:
            budget.spend(result.usage)
        return result

    def _stop_waiting(self) -> None:
        for number, item in enumerate(self.items):
            if item.status in ("waiting", "running"):
                self._set(number, status="stopped")

    def _set(self, number: int, **changes: object) -> None:
        self.items[number] = replace(self.items[number], **changes)  # type: ignore[arg-type]
        self._moved()

    def _note(self, job: Job) -> None:
        self._jobs.says(job, progress_of(self.items))


@dataclass(slots=True)
class Attempt:
    """One try at a task, from its claim to its end."""

    ledger: ClaimLedger
    run: str
    key: str
    owner: str
    future: Future[str] | None = None
    unbegun: bool = False

    def settle(self, result: MapResult) -> None:
        """Note the result; what the budget did not bear may be tried again by anybody."""
        if result.status == "budget":
            self.ledger.release(self.run, self.key, owner=self.owner)
            return
        self.ledger.settle(
            self.run, self.key, owner=self.owner, state=result.status, result=result.to_json()
        )

    def left(self) -> ItemStatus:
        """Note that it was stopped, as far as anybody knows; return what it is now.

        A request of this process is over when it is cancelled. What runs elsewhere goes on there.
        """
        if self.future is not None and not self.unbegun:
            return "unknown"
        with suppress(StoreError):  # then the claim stands, and the task will be unknown
            if self.unbegun:
                self.ledger.release(self.run, self.key, owner=self.owner)
            else:
                self.ledger.settle(self.run, self.key, owner=self.owner, state="stopped")
        return "stopped"
