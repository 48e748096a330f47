"""When the agent looks back, what that costs, and whether the next session is the wiser for it.

Run with `make bench-learning`. A scripted user takes 30 turns; a scripted model answers them with a
tool call every other turn and, in reviews, saves what it was told or corrected about; what waits
for the user is kept. Tokens are
estimated; those that begin like an earlier request count as cached, as providers bill them.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from contextlib import aclosing
from pathlib import Path

from hermes_nb.core.text import estimate_tokens
from hermes_nb.models.scripted import ScriptedModel, call

TURNS = 30
SKILL = """---
name: monthly-report
description: Write the monthly report the way this user wants it.
---

# Monthly report

1. Totals first, in thousands of euros.
"""
WISHES = {
    3: "Please answer in German.",
    12: "No: put the totals first in the report, as I said.",
    21: "Our fiscal year begins in October, mind that.",
}
KNOWN = ("Wants German answers.", "Fiscal year begins in October.", "monthly-report")


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        os.environ["HERMES_HOME"] = str(Path(name, "home"))
        work = Path(name, "work")
        work.mkdir()
        (work / "data.csv").write_text("month,total\n" + "2026-01,17\n" * 200)
        asyncio.run(_story(work))


class Learner(ScriptedModel):
    """Plays both parts: the turns, and the reviews of them."""

    def __init__(self) -> None:
        super().__init__([])
        self.log: list[tuple[str, int, int]] = []
        self._saved = 0

    async def stream(self, request):
        texts = [m.text for m in request.messages if m.role == "user"]
        reviewing = texts[-1].startswith("[Review]")
        tokens = estimate_tokens(request.messages)
        cached = max((_common(request.messages, old.messages) for old in self.requests), default=0)
        self.log.append(("review" if reviewing else "turn", tokens, cached))
        self.steps.append(self._review(request, texts) if reviewing else self._turn(request))
        async with aclosing(super().stream(request)) as items:
            async for item in items:
                yield item

    def _turn(self, request):
        if request.messages[-1].role == "user" and len(self.requests) % 3:
            return call("read_file", path="data.csv", limit=20)
        return "Erledigt."

    def _review(self, request, texts):
        if request.messages[-1].role == "tool":
            return "Saved."
        told = " ".join(texts)
        asked = texts[-1]
        if "totals first" in told and "Skills:" in asked and self._saved < 1:
            self._saved = 1
            return call("skill_manage", action="create", name="monthly-report", content=SKILL)
        if "Memory:" not in asked:
            return "Nothing to save."
        content = "Fiscal year begins in October." if "fiscal" in told else "Wants German answers."
        return call("memory", action="add", target="user", content=content)


def _common(new, old) -> int:
    """Return the tokens of the messages that both begin with."""
    same = 0
    for a, b in zip(new, old, strict=False):
        if a is not b and a != b:
            break
        same += 1
    return estimate_tokens(new[:same])


async def _story(work: Path) -> None:  # noqa: PLR0915 - one story
    from hermes_nb.agent.learning.reviews import Reviews
    from hermes_nb.agent.runtime import Runtime
    from hermes_nb.agent.session.session import Identity, Session
    from hermes_nb.agent.session.stores import open_store
    from hermes_nb.agent.settings.config import load_settings
    from hermes_nb.safety.guard import Guard

    settings = load_settings()
    store = open_store(settings, print)
    model = Learner()
    runtime = Runtime(
        settings,
        root=work,
        store=store,
        guard=Guard("all"),
        approver=None,
        tell=print,
    )
    spec = runtime.spec(model)
    session = Session.start(store=store, spec=spec, identity=Identity(), warn=print)
    reviews = Reviews(runtime, model=lambda: (model, False))
    reviews.watch(session)
    print(f"{'after turn':>10}  {'requests':>8}  {'tokens':>8}  {'uncached':>8}  learned")
    turns, looked_back, held_up = (0, 0), (0, 0), 0.0
    for turn in range(1, TURNS + 1):
        start = len(model.log)
        async with aclosing(session.turn(WISHES.get(turn, f"Look at month {turn}."))) as events:
            async for _ in events:
                pass
        turns = _plus(turns, model.log[start:])
        start = len(model.log)
        began = time.thread_time()
        due = reviews.after_turn(session)
        held_up = max(held_up, time.thread_time() - began)
        if due:
            await asyncio.to_thread(reviews.wait, 30)
            spent = model.log[start:]
            looked_back = _plus(looked_back, spent)
            total, uncached = _plus((0, 0), spent)
            waiting = runtime.approvals.waiting()
            kept = [
                f"{each.gist} (asked)" for each in waiting if runtime.approvals.approve(each.number)
            ]
            learned = "; ".join([*reviews.learned(), *kept]) or "nothing"
            print(f"{turn:10}  {len(spent):8}  {total:8,}  {uncached:8,}  {learned}")
    reviews.close()
    _report(turns, looked_back, held_up)
    second = Session.start(store=store, spec=spec, identity=Identity(), warn=print)
    for fact in KNOWN:
        print(f"the second session's prompt has {fact!r}: {fact in second.prompt.text}")
    store.close()


def _report(turns: tuple[int, int], reviews: tuple[int, int], held_up: float) -> None:
    print(f"\nturns   {turns[0]:10,} tokens, {turns[1]:8,} uncached")
    share = reviews[1] / turns[1]
    print(f"reviews {reviews[0]:10,} tokens, {reviews[1]:8,} uncached ({share:.0%} more)")
    print(f"starting one took the turn's thread {held_up * 1e3:.1f} ms of CPU at most (limit 50)")


def _plus(so_far: tuple[int, int], spent: list[tuple[str, int, int]]) -> tuple[int, int]:
    tokens = sum(tokens for _, tokens, _ in spent)
    uncached = sum(tokens - cached for _, tokens, cached in spent)
    return so_far[0] + tokens, so_far[1] + uncached


if __name__ == "__main__":
    main()
