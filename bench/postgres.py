"""The session store on PostgreSQL: writers side by side, searches at 100,000 messages, recall.

Run with `make bench-postgres`, or with the names of some parts (`writers`, `search`, `recall`). It
starts a server of its own, with fsync as it comes. Limits, each printed with its figure:

- 8 processes of 8 users that append at once: 99 of 100 take at most three times what a bare INSERT
  of the same text takes, 8 at once on the same server, the two in turns.
- A search at 100,000 messages of one user beside 20,000 of another: 100 ms at the 95th percentile,
  in time and not only of the processor; each query for the first time in its process.
- What a search finds is within 3 points of R@10 on SQLite, for each set of `bench/recall.py`.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).parents[1]))

from hermes_nb.core.messages import Message
from hermes_nb.extras.postgres import rows
from hermes_nb.extras.postgres.store import PostgresStore
from hermes_nb.memory.rows import SessionRow, encode
from tests.extras.postgres.server import PASSWORD, Postgres

import recall
from figures import figure
from memory import text, words
from search_load import SECONDS, SESSION, STARTED, Language, queries

WRITERS, EACH, ROUNDS, TIMES = 8, 500, 5, 3.0
MESSAGES, OTHERS, SEARCH_MS = 100_000, 20_000, 100.0
POINTS = 3.0
USERS = [f"user_{n}" for n in range(WRITERS)]


def store(url: str) -> PostgresStore:
    """Return a user's store."""
    return PostgresStore(url, claims=":memory:", password=PASSWORD)


def bare(dsn: str) -> Callable[[Message], object]:
    """Return a durable INSERT of a message's text."""
    connection = psycopg.connect(dsn, autocommit=True)
    session, position = f"20261126-{random.random()}", iter(range(10**9))
    query = "INSERT INTO bare (session, position, body) VALUES (%s, %s, %s)"
    return lambda message: connection.execute(query, (session, next(position), message.text))


def stored(url: str) -> Callable[[Message], object]:
    """Return an append to the store, in a session that has begun."""
    opened = store(url)
    session = opened.start(system_prompt="p" * 12_000)
    opened.append(session, Message.user("begun"))
    return lambda message: opened.append(session, message)


def write(kind: str, address: str, number: str, start: str) -> None:
    """Append as one of several processes, and print how long each took."""
    append = {"bare": bare, "stored": stored}[kind](address)
    dice = random.Random(int(number))
    vocabulary = words(random.Random(1))
    messages = [Message.user(text(dice, vocabulary, dice.randint(30, 1_500))) for _ in range(EACH)]
    time.sleep(max(0.0, float(start) - time.time()))
    waits = []
    for message in messages:
        begun = time.perf_counter()
        append(message)
        waits.append(time.perf_counter() - begun)
    print(json.dumps([waits, time.time()]))


def together(kind: str, addresses: list[str]) -> tuple[list[float], float]:
    """Return how long each append of all took, in ms, and how many there were a second."""
    start = time.time() + 6
    writers = [
        subprocess.Popen(
            [sys.executable, __file__, kind, address, str(number), str(start)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for number, address in enumerate(addresses)
    ]
    told = [json.loads(writer.communicate()[0]) for writer in writers]
    waits = [wait * 1_000 for each, _ in told for wait in each]
    return waits, len(waits) / (max(end for _, end in told) - start)


def most(waits: list[float]) -> float:
    """Return what 99 of 100 waits are at most."""
    return sorted(waits)[len(waits) * 99 // 100]


def writers(server: Postgres) -> bool:
    """Print how many appends processes do together, beside a bare INSERT."""
    server.sql(
        "CREATE TABLE bare (id bigserial PRIMARY KEY, session text, position int, body text,"
        " UNIQUE (session, position)); GRANT ALL ON bare, bare_id_seq TO PUBLIC"
    )
    within = True
    for name, users in (("of 8 users", USERS), ("of one user", USERS[:1] * WRITERS)):
        addresses = {
            "bare": [server.dsn(user) for user in users],
            "stored": [server.url(user) for user in users],
        }
        everything: dict[str, list[float]] = {"bare": [], "stored": []}
        for _ in range(ROUNDS):
            for kind, waits in everything.items():
                now, rate = together(kind, addresses[kind])
                waits.extend(now)
                median = f"median {statistics.median(now):.1f} ms"
                print(f"  {kind:7} {rate:6.0f} a second, {median}, p99 {most(now):.1f} ms")
        ratio = most(everything["stored"]) / most(everything["bare"])
        within &= figure(f"{WRITERS} writers {name}, p99", ratio, "times an INSERT", most=TIMES)
    return within


def fill(server: Postgres, user: str, number: int, language: Language) -> None:
    """Write so many messages as the store would, but in few transactions."""
    opened = store(server.url(user))
    connection = opened.server._open()
    connection.execute("SET statement_timeout = 0")
    session = 0
    with connection.transaction():
        for row in range(number):
            position, at = row % SESSION, STARTED + row * SECONDS
            if position == 0:
                begun = SessionRow(id=f"20261121-220751-{row // SESSION:06x}", started=at)
                session = rows.insert(connection, begun)
            message = (Message.user, Message.assistant)[row % 2](language.text())
            made = rows.Row(message.role, encode(message), at)
            made.add(connection, opened._known, session, position)
    opened.close()


def search(server: Postgres) -> bool:
    """Print what searches cost in time."""
    language = Language()
    begun = time.time()
    fill(server, USERS[1], OTHERS, language)
    fill(server, USERS[0], MESSAGES, language)
    print(f"  {MESSAGES + OTHERS:,} messages written in {time.time() - begun:.0f} s")
    server.sql("VACUUM ANALYZE")
    size = (
        "SELECT pg_total_relation_size('hermes.search'), pg_total_relation_size('hermes.messages')"
    )
    found, said = server.sql(size)[0]
    print(f"  messages {said / 1e6:.0f} MB, search {found / 1e6:.0f} MB")
    opened = store(server.url(USERS[0]))
    stored_at = [each.id for each in opened.sessions(limit=40)]
    last = STARTED + MESSAGES * SECONDS
    kinds: dict[str, list[float]] = {}
    spent_here = processor(opened)
    for kind, query, filters in queries(language, last, stored_at):
        begun = time.perf_counter()
        opened.search(query, **filters)
        kinds.setdefault(kind, []).append((time.perf_counter() - begun) * 1_000)
    everything = sorted(itertools.chain.from_iterable(kinds.values()))
    for kind, spent in kinds.items():
        print(f"  {kind:16} median {statistics.median(spent):6.1f} ms   most {max(spent):6.1f} ms")
    both = (processor(opened) - spent_here) / len(everything)
    print(f"  of the processor {both:.1f} ms a search, client and server together")
    worst = everything[int(len(everything) * 0.95)]
    return figure("a search of 100,000 messages, p95", worst, "ms", most=SEARCH_MS)


def processor(opened: PostgresStore) -> float:
    """Return the ms of the processor that this process and its server's have used."""
    pid = opened.server._open().info.backend_pid
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    ticks = int(fields[11]) + int(fields[12])
    return (time.process_time() + ticks / os.sysconf("SC_CLK_TCK")) * 1_000


def found_by(opened: PostgresStore) -> recall.Finder:
    """Return the search of the store."""
    return lambda query, limit: [
        (hit.session_id, hit.position) for hit in opened.search(query, limit=limit)
    ]


def compare(server: Postgres) -> bool:
    """Print what both stores find of each set of questions."""
    sets = {
        "talks, names": [(recall.conversation(n), True) for n in range(recall.CONVERSATIONS)],
        "talks, roles": [(recall.conversation(n), False) for n in range(recall.CONVERSATIONS)],
        **{
            f"chats, {mode}": [(one, False) for one in recall.chats(mode)]
            for mode in ("names", "roles", "log", "all")
        },
        "notebooks": [(recall.notebook_sessions(), False)],
    }
    within, user = True, 0
    for name, conversations in sets.items():
        results = {"SQLite": recall.Result(), "PostgreSQL": recall.Result()}
        for one, named in conversations:
            user += 1
            server.user(f"reader_{user}")
            opened = store(server.url(f"reader_{user}"))
            put(opened, one, named=named)
            connection, _ = recall.store(one, named=named)
            for which, find in (
                ("SQLite", recall.ours(connection)),
                ("PostgreSQL", found_by(opened)),
            ):
                for question in one.questions:
                    results[which].count(question, find)
            opened.close()
        for which, result in results.items():
            print(f"  {name:14} {which:11} {result.line()}  n={len(result.at10)}")
        lost = 100 * (
            statistics.mean(results["SQLite"].at10) - statistics.mean(results["PostgreSQL"].at10)
        )
        within &= figure(f"R@10 that SQLite is ahead, {name}", lost, "points", most=POINTS)
    return within


def put(opened: PostgresStore, one: recall.Conversation, *, named: bool) -> None:
    """Write a conversation as `recall.store` does."""
    connection = opened.server._open()
    now = time.time()
    with connection.transaction():
        for name, started, turns in one.sessions:
            session = rows.insert(connection, SessionRow(id=name, started=started))
            for position, turn in enumerate(turns):
                said = f"{one.names[not turn.first]}: {turn.text}" if named else turn.text
                message = (Message.user if turn.first else Message.assistant)(said)
                made = rows.Row(message.role, encode(message), now)
                made.add(connection, opened._known, session, position)


PARTS = {"writers": writers, "search": search, "recall": compare}


def main() -> None:
    """Print the figures and exit with 1 where a limit is broken; or be one of the writers."""
    if sys.argv[1:2] in (["bare"], ["stored"]):
        write(*sys.argv[1:])
        return
    within = True
    for part in sys.argv[1:] or PARTS:
        server = Postgres(*USERS)
        try:
            within &= PARTS[part](server)
        finally:
            server.close()
    sys.exit(not within)


if __name__ == "__main__":
    main()
