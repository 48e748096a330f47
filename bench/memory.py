"""CPU of an append, growth of the file, and writers side by side, next to SQLite alone.

Run with `make bench-memory`. Each message is durable when its append returns; the search index
follows in a thread. Limits, each printed with its figure:

- 0.5 ms of CPU a message, the index included, over conversations as they are kept in a notebook.
- A file of 2.5 times the text in it: what was said, the tools' results, the calls' arguments.
- An append of 160 or 850 bytes takes 1.5 times the CPU of a durable INSERT, the two in turns.
- An append now and then, of 8 KB, takes the turn's thread 5 ms of CPU at most.
- 8 processes that append at once do 0.7 times as many as with SQLite alone, and 99 of 100 take at
  most three times as long. SQLite keeps no queue: there a few write and the others wait for them to
  end, so that the longest wait is printed too.
"""

from __future__ import annotations

import json
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from hermes_nb.core.messages import Message, ToolCall
from hermes_nb.memory.sessions import SqliteStore

from figures import figure

SESSIONS, TURNS = 40, 25
CPU_MS, GROWTH, TIMES, RARE_MS = 0.5, 2.5, 1.5, 5.0
WRITERS, EACH, RATE, LONGEST = 8, 200, 0.7, 3.0
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


def alone(path: Path) -> Callable[[Message], object]:
    """Return a durable INSERT into SQLite alone, with the store's pragmas."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=60)
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON"):
        connection.execute(f"PRAGMA {pragma}")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS messages (id INTEGER PRIMARY KEY, session TEXT NOT NULL,"
        " position INTEGER NOT NULL, body TEXT NOT NULL, UNIQUE (session, position))"
    )
    session, position = f"20261121-220751-{random.random()}", iter(range(10**9))

    def insert(message: Message) -> None:
        connection.execute("BEGIN IMMEDIATE")
        values = session, next(position), message.text
        connection.execute(
            "INSERT INTO messages (session, position, body) VALUES (?, ?, ?)", values
        )
        connection.execute("COMMIT")

    return insert


def stored(path: Path) -> Callable[[Message], object]:
    """Return an append to the store."""
    store = SqliteStore(path)
    session = store.start(system_prompt="p" * 12_000)
    return lambda message: store.append(session, message)


def conversations() -> None:
    """Print what conversations cost, and how large their file is."""
    dice = random.Random(20_261_121)
    vocabulary = words(dice)
    sessions = [list(conversation(dice, vocabulary)) for _ in range(SESSIONS)]
    cpu = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "notebook.db"
        for messages in sessions:
            store = SqliteStore(path)
            session = store.start(system_prompt="p" * 12_000)
            begun = time.process_time()
            for message in messages:
                store.append(session, message)
            store.search("nothing")  # indexes what is left
            cpu.append((time.process_time() - begun) * 1_000 / len(messages))
            store.close()
        size = sum(size_of(message) for messages in sessions for message in messages)
        growth = path.stat().st_size / (size + 12_000 * SESSIONS)
    figure("a message, the index included", statistics.median(cpu), "ms CPU", most=CPU_MS)
    figure("the file", growth, "times the text", most=GROWTH)


def appends() -> None:
    """Print what an append takes beside an INSERT, and one now and then."""
    for size in (160, 850):
        spent: dict[str, list[float]] = {"insert": [], "append": []}
        with tempfile.TemporaryDirectory() as folder:
            runs = {"insert": alone(Path(folder) / "b.db"), "append": stored(Path(folder) / "n.db")}
            for _ in range(20):
                for name, run in runs.items():
                    begun = time.thread_time()
                    for number in range(40):
                        run(Message.user(f"{number:4} " + "word " * (size // 5 - 1)))
                    spent[name].append(time.thread_time() - begun)
        ratio = statistics.median(spent["append"]) / statistics.median(spent["insert"])
        figure(f"an append of {size} bytes", ratio, "times an INSERT", most=TIMES)
    dice = random.Random(20_261_121)
    vocabulary = words(dice)
    rare = []
    with tempfile.TemporaryDirectory() as folder:
        append = stored(Path(folder) / "n.db")
        for _ in range(300):
            message = Message.user(text(dice, vocabulary, 8_000))
            time.sleep(0.02)
            begun = time.thread_time()
            append(message)
            rare.append((time.thread_time() - begun) * 1_000)
    figure("an append of 8 KB now and then", max(rare), "ms CPU", most=RARE_MS)


def write(kind: str, path: Path, start: float) -> None:
    """Append as one of several processes, and print how long each took and when all were done."""
    append = {"alone": alone, "stored": stored}[kind](path)
    waits = []
    time.sleep(max(0.0, start - time.time()))
    for number in range(EACH):
        begun = time.time()
        append(Message.user(f"{number:4} " + "word " * 31))
        waits.append(time.time() - begun)
    print(json.dumps([waits, time.time()]))


def together(kind: str) -> tuple[float, float, float]:
    """Return appends a second of several processes, and in ms: 99 of 100 waits, the longest."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "n.db"
        start = time.time() + 3
        command = [sys.executable, __file__, kind, str(path), str(start)]
        writers = [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(WRITERS)
        ]
        told = [json.loads(writer.communicate()[0]) for writer in writers]
    waits = sorted(wait for each, _ in told for wait in each)
    seconds = max(end for _, end in told) - start
    return len(waits) / seconds, waits[len(waits) * 99 // 100] * 1_000, waits[-1] * 1_000


def side_by_side() -> None:
    """Print how many appends processes do together, beside SQLite alone."""
    runs = [(together("alone"), together("stored")) for _ in range(3)]
    theirs, ours = (
        [statistics.median(run[side][n] for run in runs) for n in range(3)] for side in (0, 1)
    )
    for name, (rate, most, longest) in (("SQLite alone", theirs), ("the store", ours)):
        print(f"{name:14} {rate:6.0f} a second, p99 {most:.0f} ms, longest wait {longest:.0f} ms")
    figure(f"{WRITERS} writers", ours[0] / theirs[0], "times SQLite", least=RATE)
    figure(f"{WRITERS} writers, p99", ours[1] / theirs[1], "times SQLite", most=LONGEST)


def main() -> None:
    """Print the figures, each with its limit; or be one of the writers."""
    if len(sys.argv) > 1:
        kind, path, start = sys.argv[1:]
        write(kind, Path(path), float(start))
        return
    conversations()
    appends()
    side_by_side()


if __name__ == "__main__":
    main()
