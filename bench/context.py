"""What context engines cost and keep: billed tokens, planted facts, CPU. Run: `make bench-context`.

Long tool conversations made from a seed are replayed through the agent loop against a model double
that bills as providers do: what extends the longest prefix of its last requests is cached and costs
a tenth. Then facts planted in seven kinds of place are counted, and CPU time is measured. The last
lines have the figures that have a limit (`context.py figures` has only these).
"""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from hermes_nb.context.archive import Archive, everything
from hermes_nb.context.boundaries import flat, grouped, tail_start
from hermes_nb.context.compressor import Compressor
from hermes_nb.context.lossless import Lossless
from hermes_nb.context.policy import CompressionLimits
from hermes_nb.context.pruning import Pruner
from hermes_nb.core.events import ContextCompressed, MessageAdded, UsageReported
from hermes_nb.core.loop import Agent
from hermes_nb.core.messages import Message, Reply, Usage
from hermes_nb.core.protocols import ContextEngine, Request
from hermes_nb.core.text import estimate_tokens
from hermes_nb.core.tools import Tool, ToolContext, Toolset
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import ScriptedModel
from tests.context import unmarked
from tests.context.plain_facts import in_view
from tests.context.probes import PLACES, Probe, Story

from figures import figure

WINDOW = 200_000
CACHED_PRICE = 0.1
SYSTEM = "You are an agent in a notebook; look before you claim. " * 200
SUMMARY = "## Goal\nBuild the weekly report.\n## Progress\n" + "- one more part is done\n" * 100


@dataclass
class Bill:
    """Prompt tokens as a provider counts them; `summaries` is the part of side requests."""

    fresh: int = 0
    cached: int = 0
    summaries: float = 0
    last: list[tuple[Message, ...]] = field(default_factory=list)

    @property
    def paid(self) -> float:
        return self.fresh + self.cached * CACHED_PRICE

    def charge(self, request: Request, *, side: bool) -> int:
        total = estimate_tokens(request.messages)
        cached = max((common(request.messages, old) for old in self.last), default=0)
        before = self.paid
        self.fresh += total - cached
        self.cached += cached
        if side:
            self.summaries += self.paid - before
        self.last = [*self.last[-1:], request.messages]
        return total


def common(new: Sequence[Message], old: Sequence[Message]) -> int:
    """Return the tokens of the prefix that two prompts share."""
    count = 0
    for one, other in zip(new, old, strict=False):
        if one is not other and one != other:
            pairs = zip(everything(one), everything(other), strict=False)
            shared = "".join(
                a for a, b in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)
            )
            return estimate_tokens([*new[:count], Message.user(shared)])
        count += 1
    return estimate_tokens(new[:count])


class Replay:
    """Plays the assistant of a story, whatever the conversation was compressed to."""

    name = "replay"
    window = WINDOW

    def __init__(self, story: Story, bill: Bill) -> None:
        self.script = [message for message in story.messages if message.role == "assistant"]
        self.script.append(Message.assistant("The report is done."))
        self.bill = bill

    async def stream(self, request: Request):
        side = request.tool_choice == "none" or not len(request.tools)
        total = self.bill.charge(request, side=side)
        message = Message.assistant(SUMMARY) if side else self.script.pop(0)
        yield Reply(
            message=message, usage=Usage(input=total, output=estimate_tokens([message]), requests=1)
        )

    async def aclose(self) -> None:
        pass


class Pruning(ContextEngine):
    """Shortens results outside the tail, in one go at the threshold or a little at every step."""

    def __init__(self, limit: int, *, each_step: bool) -> None:
        self.limit = limit
        self.each_step = each_step

    def observe(self, usage: Usage) -> None:
        pass

    def should_compress(self, prompt_tokens: int) -> bool:
        return self.each_step or prompt_tokens > self.limit

    async def compress(self, messages, focus=""):  # noqa: ARG002
        groups = grouped(messages)
        tail = tail_start(groups, 0, tokens=self.limit // 5, most=self.limit // 5, at_least=20)
        pruned = Pruner(lambda _: None, lambda _: "run it again").prune(groups[:tail])
        return flat([*pruned, *groups[tail:]])


def engine_for(name: str, model, store, session: str, limit: int):
    if name == "none":
        return None
    if name == "lossless":
        limits = CompressionLimits(max_prompt_tokens=limit)
        return Lossless(store, session, model=model, limits=limits)
    if name == "compressor":
        return Compressor(model, max_prompt_tokens=limit, archive=Archive(store, session))
    return Pruning(limit, each_step=name == "prune each step")


def replay(story: Story, name: str, limit: int) -> tuple[Bill, int]:
    """Return the bill of a story under an engine, and how often that compressed."""
    results = {m.call_id: m.text for m in story.messages if m.role == "tool"}

    def run(context: ToolContext, _) -> str:
        return results[context.call.id]

    names = sorted({call.name for message in story.messages for call in message.calls})
    tools = Toolset(
        Tool(name=each, description=each, parameters={"type": "object"}, run=run) for each in names
    )
    bill, store, compressions = Bill(), SqliteStore(":memory:"), 0
    session, model = store.start(), Replay(story, bill)

    def record(event) -> None:
        nonlocal compressions
        if isinstance(event, MessageAdded):
            store.append(session, event.message)
        elif isinstance(event, ContextCompressed):
            compressions += 1
            store.replace(session, event.messages)

    engine = engine_for(name, model, store, session, limit)
    agent = Agent(model, tools, system=SYSTEM, engine=engine, sinks=[record], max_requests=10_000)
    if engine is not None:
        engine.session_started(session, agent.request)

    async def turns() -> None:
        for message in story.messages:
            if message.role == "user":
                async with aclosing(agent.run(message)) as events:
                    async for event in events:
                        assert not (isinstance(event, UsageReported) and event.usage.input == 0)

    asyncio.run(turns())
    store.close()
    return bill, compressions


def bills() -> None:
    print("Billed prompt tokens in thousands (cached ones at a tenth), and compressions:")
    names = ("none", "prune each step", "prune", "compressor", "lossless")
    print(f"{'steps':>6} {'limit':>7}  " + "".join(f"{name:>18}" for name in names))
    for steps in (60, 120, 300):
        for limit in (32_000, 100_000):
            row = []
            for name in names:
                bill, count = replay(Story(steps, steps), name, limit)
                row.append(f"{bill.paid / 1e3:.0f} ({count})")
            print(f"{steps:6} {limit:7,}  " + "".join(f"{each:>18}" for each in row))


def shares() -> None:
    story = Story(451, 451)
    whole, _ = replay(story, "none", 64_000)
    print("\nA session of 451 steps under the compressor, by limit: its bill as a share of the")
    print(
        "uncompressed session's, sent in full without a cache (limits: 0.040 and 0.052), with one:"
    )
    for limit, most in ((32_000, 0.040), (64_000, 0.052)):
        bill, count = replay(story, "compressor", limit)
        share = bill.paid / (whole.fresh + whole.cached)
        print(f"{limit:7,}: {share:.4f}, {bill.paid / whole.paid:.3f} ({count} compressions)")
        assert share <= most


def probes(seeds: int = 6, steps: int = 150) -> None:
    print(f"\nPlanted facts of {seeds} conversations of {steps} steps, by where they stood, in %:")
    found: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for seed in range(seeds):
        story = Story(seed, steps)
        store = SqliteStore(":memory:")
        session = store.start()
        for message in story.messages:
            store.append(session, message)
        summariser = ScriptedModel([SUMMARY] * 40, window=WINDOW)
        engines = {
            "compressor": Compressor(summariser, archive=Archive(store, session)),
            "by rule": Compressor(None, window=WINDOW, archive=Archive(store, session)),
            "lossless": Lossless(store, session, window=WINDOW),
        }
        left = {}
        for name, engine in engines.items():
            engine.should_compress(100_000)
            left[name] = asyncio.run(engine.compress(story.messages, "where we stand"))
        sent = "\n".join(request.messages[-1].text for request in summariser.requests)
        search = engines["lossless"].tools().get("context_search")
        for probe in story.probes:
            seen = {n: any(probe.key in everything(m) for m in made) for n, made in left.items()}
            hits = store.search(probe.key, session_id=session, limit=10)
            rows = [store.rows(session, first=h.position, last=h.position) for h in hits]
            stored = any(probe.key in everything(row.message) for each in rows for row in each)
            context = ToolContext(call=replace(story.messages[1].calls[0]))
            columns = {
                "to summariser": probe.key in sent,
                "in view": seen["compressor"],
                "in view, no model": seen["by rule"],
                "in view, lossless": seen["lossless"],
                "reach compressor": seen["compressor"] or stored,
                "reach lossless": seen["lossless"]
                or probe.key in asyncio.run(search.run(context, {"query": probe.key})),
            }
            for column, value in columns.items():
                found[probe.place][column].append(value)
                found["all"][column].append(value)
    columns = list(found["all"])
    print(f"{'':10}" + "".join(f"{column:>19}" for column in columns))
    for place in (*PLACES, "all"):
        shares = [sum(found[place][c]) / len(found[place][c]) for c in columns]
        print(f"{place:10}" + "".join(f"{share * 100:19.1f}" for share in shares))


def plain() -> None:
    print("\nFacts in view that are worded like all around them, in %, least and mean of six:")
    print(
        f"{'limit':>8}{'by rule':>16}{'ideal summary':>16}{'by rule, five':>16}{'ideal, five':>16}"
    )
    for limit in (32_000, 64_000, 100_000):
        row = []
        for rounds, ideal in ((1, False), (1, True), (5, False), (5, True)):
            steps = 240 if rounds == 1 else 90
            shares = [
                in_view(seed, steps=steps, limit=limit, rounds=rounds, ideal=ideal)
                for seed in range(6)
            ]
            row.append(f"{min(shares) * 100:9.1f} {sum(shares) / 6 * 100:6.1f}")
        print(f"{limit:8,}" + "".join(row))


def unmarked_facts(
    *halves: str, rounds: Sequence[int] = (1, 5), ideal: Sequence[bool] = (False, True)
) -> dict[tuple[str, int, int, bool], dict[str, float]]:
    """Print and return how many of the facts that nobody marked are in view, by kind, in percent.

    Where a summary is asked for, it is asked for in each round, as `%hermes compress FOCUS` does.
    """
    settings = list(itertools.product((64_000, 100_000), rounds, ideal))
    shares: dict[tuple[str, int, int, bool], dict[str, float]] = {}
    for half in halves:
        print(f"\nFacts of the {half} half that nobody marked, in view, in %:")
        for limit, count, summary in settings:
            found: dict[str, list[bool]] = defaultdict(list)
            for session in unmarked.make.sessions(half):
                focus = "where we stand" if summary else ""
                view = unmarked.compressed(
                    session, limit=limit, rounds=count, ideal=summary, focus=focus
                )
                for kind, seen in unmarked.in_view(session, view).items():
                    found[kind] += seen
            row = {kind: sum(seen) / len(seen) * 100 for kind, seen in sorted(found.items())}
            shares[half, limit, count, summary] = row
            name = f"{limit // 1000}k, {count} rounds, {'ideal summary' if summary else 'by rule'}"
            print(f"{name}: " + ", ".join(f"{kind} {share:.1f}" for kind, share in row.items()))
    return shares


def cpu() -> None:
    print("\nCPU of one compression, in ms for 1,000 messages:")
    parts = [Story(seed, 100).messages for seed in range(6)]
    for count in (1_000, 5_000, 20_000):
        messages: list[Message] = []
        while len(messages) < count:
            number = len(messages)
            for message in parts[number % len(parts)]:
                calls = tuple(replace(call, id=f"{number}{call.id}") for call in message.calls)
                call_id = f"{number}{message.call_id}" if message.call_id else ""
                messages.append(replace(message, calls=calls, call_id=call_id))
        del messages[count:]
        row = []
        for name in ("compressor", "by rule"):
            model = ScriptedModel([SUMMARY] * 99, window=WINDOW) if name == "compressor" else None
            engine = Compressor(model, window=WINDOW)
            engine.should_compress(max(100_000, estimate_tokens(messages)))
            started = time.process_time()
            asyncio.run(engine.compress(messages, "where we stand"))
            row.append(f"{name} {(time.process_time() - started) / count * 1e6:.0f}")
        characters = sum(len(everything(message)) for message in messages)
        print(f"{count:7,} messages, {characters / 1e6:5.1f} MB: {', '.join(row)}")


def figures() -> bool:
    """Print the figures that have a limit; say whether all are within it."""
    within = True
    for limit, least in ((64_000, 95.0), (100_000, 95.6)):
        shares = [in_view(seed, steps=240, limit=limit) for seed in range(6)]
        name = f"plain facts in view by rule at {limit // 1000}k"
        within &= figure(f"{name}, mean", sum(shares) / 6 * 100, "%", least=least)
        within &= figure(f"{name}, least", min(shares) * 100, "%", least=90)
    for (_, limit, _, _), row in unmarked_facts("tuning", rounds=(1,), ideal=(False,)).items():
        name = f"unmarked facts in view by rule at {limit // 1000}k"
        within &= figure(name, row["all"], "%", least=55 if limit == 64_000 else 70)
        if limit == 64_000:
            for kind in ("assistant_prose", "one_line_result"):
                within &= figure(f"{name}, {kind}", row[kind], "%", least=70)
    messages, planted = very_long()
    spent = []
    for _ in range(3):
        model = ScriptedModel([SUMMARY] * 20, window=WINDOW)
        engine = Compressor(model, window=WINDOW)
        engine.should_compress(estimate_tokens(messages))
        started = time.process_time()
        made = asyncio.run(engine.compress(messages))
        spent.append((time.process_time() - started) / len(messages) * 1e6)
    oldest = planted[: len(planted) // 4]
    for name, some in (("", planted), (", oldest quarter", oldest)):
        sent = "\n".join(request.messages[-1].text for request in model.requests)
        sent += "\n".join(map(everything, made.messages))
        share = sum(probe.key in sent for probe in some) / len(some) * 100
        within &= figure(f"facts of 20,000 messages that arrive{name}", share, "%", least=99.5)
    within &= figure("requests for a summary of 20,000 messages", len(model.requests), most=12)
    within &= figure("a compression's CPU for 1,000 messages", min(spent), "ms", most=300)
    return within


def very_long(count: int = 20_000) -> tuple[list[Message], list[Probe]]:
    """Return so many messages, no two stretches alike, and the facts in them in their order."""
    messages: list[Message] = []
    planted: list[Probe] = []
    for seed in itertools.count(1_000):
        story = Story(seed, 100)
        planted += story.probes
        for message in story.messages:
            calls = tuple(replace(call, id=f"{seed}.{call.id}") for call in message.calls)
            call_id = f"{seed}.{message.call_id}" if message.call_id else ""
            messages.append(replace(message, calls=calls, call_id=call_id))
        if len(messages) >= count:
            return messages, planted
    raise AssertionError


if __name__ == "__main__":
    if sys.argv[1:] != ["figures"]:
        bills()
        shares()
        probes()
        plain()
        unmarked_facts("tuning", "set_aside")
        cpu()
    sys.exit(not figures())
