"""Whether the gateway loses a message, or answers one twice, through kills; and what it adds.

Run with `make bench-gateway`: 1,000 messages from 50 chats, the gateway killed 20 times at random,
over a service that de-duplicates and over one that does not. A second copy may be sent only there,
only marked, and no more often than turns ran side by side at a kill. Then 200 messages without
kills: what passes between a message's arrival and its answer, beside what the model takes.
"""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

from tests.extras.gateway.services import Disk, Memory, serving
from tests.loopback import Loopback, pause, says

MESSAGES, CHATS, KILLS = 1_000, 50, 20
PARALLEL = 8
SERVE = (sys.executable, "-m", "tests.extras.gateway.services")
TIMED, BETWEEN, MODEL = 200, 0.2, 0.05
"""Messages that are timed, seconds between two of them, and what the model takes for one."""
WARM = 20
"""Messages that come while the first one has the SDK imported; that one is told apart."""


@dataclass
class Trial:
    """What became of the messages: copies by whether they were marked, and what was wrong."""

    kills: int = 0
    seconds: float = 0.0
    copies: int = 0
    asked: int = 0
    faults: list[str] = field(default_factory=list)


def trial(
    folder: Path, *, messages: int, chats: int, kills: int, seed: int, deduplicates: bool
) -> Trial:
    """Have so many messages answered, kill so often, and count."""
    chance = random.Random(seed)
    moments = sorted(chance.sample(range(1, messages), kills))
    disk = Disk(folder, deduplicates=deduplicates)
    for number in range(messages):
        disk.post(number, f"chat {number % chats}")
    result, began = Trial(), time.monotonic()
    reply = says("Done.")
    reply.steps = [pause(0.05), *reply.steps]
    with Loopback(reply) as server:
        variables = {
            "HERMES_HOME": str(folder / "home"),
            "HERMES_NB_BASE_URL": server.url,
            "HERMES_NB_MODEL": "loopback",
        }
        while _confirmed(disk) < messages:
            gateway = subprocess.Popen(
                [*SERVE, str(folder), str(int(deduplicates))],
                env={**os.environ, **variables},
            )
            try:
                goal = moments[result.kills] if result.kills < kills else messages
                while _confirmed(disk) < goal and gateway.poll() is None:
                    time.sleep(0.02)
                if result.kills < kills:
                    time.sleep(chance.uniform(0, 0.2))
                    result.kills += 1
                elif gateway.poll() is not None:
                    result.faults.append(f"it ended with {gateway.returncode}")
                    break
            finally:
                gateway.kill()
                gateway.wait()
        result.asked = len(server.exchanges)
    result.seconds = time.monotonic() - began
    _judge(result, disk, messages, chats)
    return result


def _confirmed(disk: Disk) -> int:
    return len({row["id"] for row in disk.seen() if row["kind"] == "confirmed"})


def _judge(result: Trial, disk: Disk, messages: int, chats: int) -> None:
    sent = defaultdict(list)
    for row in disk.seen():
        if row["kind"] == "sent":
            sent[row["id"]].append(row)
    order = defaultdict(list)
    for number in range(messages):
        rows = sent.get(f"m{number}", [])
        order[number % chats].append(rows[0]["chat"] if rows else "")
        if not rows:
            result.faults.append(f"message {number} was lost")
        elif len({row["key"] for row in rows}) > 1 or {row["text"] for row in rows} != {"Done."}:
            result.faults.append(f"message {number} has other answers: {rows}")
        result.copies += max(0, len(rows) - 1)
        if not disk.deduplicates and any(not row["again"] for row in rows[1:]):
            result.faults.append(f"message {number} has a copy without a mark")
    firsts = [(row["chat"], int(row["id"][1:])) for rows in sent.values() for row in rows[:1]]
    for chat in {chat for chat, _ in firsts}:
        numbers = [number for name, number in firsts if name == chat]
        if numbers != sorted(numbers):
            result.faults.append(f"{chat} was answered in another order: {numbers}")
    if result.copies > PARALLEL * result.kills:
        result.faults.append(f"{result.copies} copies for {result.kills} kills")


class Timed(Memory):
    """A service that notes when an answer comes."""

    def __post_init__(self):
        super().__post_init__()
        self.at: dict[str, float] = {}

    async def send(self, answer):
        self.at[answer.to] = time.perf_counter()
        await super().send(answer)


async def overhead(folder: Path, messages: int) -> tuple[list[float], float]:
    """Return what the gateway added to each message, in ms, and the CPU of all in s."""
    service, began, cpu = Timed(), {}, time.process_time()
    async with serving(service, root=folder, home=folder / "home", model=None):
        for number in range(messages):
            began[service.post(f"task {number}", chat=str(number % CHATS))] = time.perf_counter()
            await asyncio.sleep(BETWEEN)
        await service.until(lambda: len(service.sent) == messages)
    assert {answer.text for answer in service.sent} == {"Done."}
    added = [1_000 * (service.at[each] - began[each] - MODEL) for each in began]
    return added, time.process_time() - cpu


def main() -> None:
    failed = False
    for deduplicates in (True, False):
        with tempfile.TemporaryDirectory() as name:
            result = trial(
                Path(name), messages=MESSAGES, chats=CHATS, kills=KILLS, seed=1,
                deduplicates=deduplicates,
            )  # fmt: skip
        kind = "de-duplicates" if deduplicates else "does not"
        print(
            f"{MESSAGES} messages, {CHATS} chats, {result.kills} kills, service {kind}: "
            f"{result.seconds:.0f} s, {result.copies} sent again, {result.asked} model requests"
        )
        print(*result.faults or ["none lost, none answered twice"], sep="\n")
        failed |= bool(result.faults)
    reply = says("Done.")
    reply.steps = [pause(MODEL), *reply.steps]
    with tempfile.TemporaryDirectory() as name, Loopback(reply) as server:
        os.environ |= {
            "HERMES_HOME": f"{name}/home",
            "HERMES_NB_BASE_URL": server.url,
            "HERMES_NB_MODEL": "loopback",
        }
        added, cpu = asyncio.run(overhead(Path(name), TIMED))
    twentieths = quantiles(added[WARM:], n=20)
    print(
        f"added to a message beside the model's {1_000 * MODEL:.0f} ms, {TIMED} messages: "
        f"median {twentieths[9]:.0f} ms, p95 {twentieths[18]:.0f} ms (limit 150), "
        f"the first {added[0]:.0f} ms; {1_000 * cpu / TIMED:.0f} ms of CPU each, with the server's"
    )
    sys.exit(failed or twentieths[18] > 150)


if __name__ == "__main__":
    main()
