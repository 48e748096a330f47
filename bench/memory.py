"""CPU of an append and growth of the file, over conversations as they are kept in a notebook.

Run with `make bench-memory`. Each message is durable and indexed for search when its append
returns; only this process's CPU time counts, the median over stretches of the run. Growth is the
size of the closed file over the bytes of text in it: what was said, the tools' results, the calls'
arguments. Limits: 0.5 ms of CPU a message, and 2.5 times the text.

Messages are indexed some together, so that most appends cost half of the mean and a few much more;
each stretch has several such batches.
"""

from __future__ import annotations

import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hermes_nb.core.messages import Message, ToolCall
from hermes_nb.memory.sessions import SqliteStore

SESSIONS, TURNS = 40, 25
STRETCH = 1_024
"""Messages over which CPU time is averaged, before the median is taken."""
CPU_MS, GROWTH = 0.5, 2.5
VOCABULARY = 30_000


def words(dice: random.Random) -> list[str]:
    """Return made-up words of the lengths that English has."""
    letters = "etaoinshrdlucmfwypvbgkqjxz"
    weights = range(len(letters), 0, -1)
    return [
        "".join(dice.choices(letters, weights, k=max(2, round(dice.gauss(6.5, 2.5)))))
        for _ in range(VOCABULARY)
    ]


def text(dice: random.Random, vocabulary: list[str], length: int) -> str:
    """Return about `length` characters whose words are as frequent as Zipf has it."""
    ranks = (int(VOCABULARY ** dice.random()) - 1 for _ in range(max(1, length // 7)))
    return " ".join(vocabulary[rank] for rank in ranks)


def conversation(dice: random.Random, vocabulary: list[str]) -> Iterator[Message]:
    """Yield a session's messages: each turn a question, two tool calls, an answer."""
    for turn in range(TURNS):
        yield Message.user(text(dice, vocabulary, dice.randint(30, 400)))
        for n in range(2):
            arguments = {
                "path": f"data/{dice.choice(vocabulary)}.csv",
                "limit": dice.randint(1, 99),
            }
            call = ToolCall(id=f"call_{turn}_{n}", name="read_file", arguments=arguments)
            yield Message.assistant(text(dice, vocabulary, dice.randint(0, 120)), calls=[call])
            yield Message.tool(call, text(dice, vocabulary, dice.randint(100, 3_000)))
        yield Message.assistant(text(dice, vocabulary, dice.randint(100, 1_500)))


def size_of(message: Message) -> int:
    """Return the bytes of text in a message."""
    said = [message.text, *(call.arguments_json() for call in message.calls)]
    return sum(len(each.encode("utf-8", "replace")) for each in said)


def main() -> int:
    """Print what an append costs and how much the file grows; fail beyond the limits."""
    dice = random.Random(20_261_121)
    vocabulary = words(dice)
    sessions = [list(conversation(dice, vocabulary)) for _ in range(SESSIONS)]
    spent, size = [], 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "notebook.db"
        store = SqliteStore(path)
        for messages in sessions:
            session = store.start(system_prompt="p" * 12_000)
            for message in messages:
                begun = time.process_time()
                store.append(session, message)
                spent.append((time.process_time() - begun) * 1_000)
            size += sum(map(size_of, messages)) + 12_000
        store.close()
        growth = path.stat().st_size / size
    count = sum(map(len, sessions))
    stretches = (spent[first : first + STRETCH] for first in range(0, len(spent), STRETCH))
    cpu = statistics.median(map(statistics.mean, stretches))
    print(f"{count:,} messages, {size / count:,.0f} bytes of text each")
    print(f"append   {cpu:.2f} ms CPU a message (at most {CPU_MS}), most {max(spent):.0f} ms")
    print(f"growth   {growth:.2f} times the text (at most {GROWTH})")
    return 0 if cpu <= CPU_MS and growth <= GROWTH else 1


if __name__ == "__main__":
    sys.exit(main())
