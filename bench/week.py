"""A week of ordinary use: notebooks and a chat on one home, whose store is away now and then.

`make bench-week` (STORES="sqlite postgres"), or `python bench/week.py --turns 60 --notebooks 4`.
Two kernels side by side open one notebook after the other, each on two days, and a gateway answers
chats. A loopback server plays the model; it has files, notes and skills written and code run. The
store goes away three times: SQLite is locked by another program, a PostgreSQL server is stopped.
At the end each prompt and answer is stored once, and so is what was written, with its undo; and no
process, lock, descriptor, thread or temporary file is left. Ends with 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import fcntl
import os
import random
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import nbformat

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from hermes_nb.agent.undo.store import CheckpointStore  # noqa: E402 - of this repository
from hermes_nb.core.files import TEMPORARY  # noqa: E402
from hermes_nb.memory.sessions import SqliteStore  # noqa: E402
from hermes_nb.tools import process  # noqa: E402
from tests.extras.gateway.services import Memory, serving  # noqa: E402
from tests.extras.postgres.server import PASSWORD, Postgres  # noqa: E402
from tests.faults.cells import environment  # noqa: E402
from tests.faults.processes import descriptors, unique  # noqa: E402
from tests.faults.provider import check_request  # noqa: E402
from tests.faults.test_away import locked  # noqa: E402
from tests.kernels import Kernel, kernel  # noqa: E402
from tests.loopback import Loopback, Reply, calls, says  # noqa: E402
from tests.patience import until  # noqa: E402

DAYS, AWAY = 2, 3
"""How often each notebook is opened, and how often the store goes away."""
MISSED = 6
"""Turns that are taken while it is away."""
LOOPS = 6
"""Descriptors of the event loops that jupyter_client leaves in the threads of our two clients."""
SETTLES = 60.0
"""Seconds within which what was away is surely caught up, and what ends has ended."""
SKILL = (
    "---\nname: {0}\ndescription: Use for {1}.\n---\n# {1}\n\n1. Read `{2}.csv`.\n2. Plot {1}.\n"
)
LOOK = """
import os, re, threading
for each in os.scandir("/proc/self/fd"):
    try: print(re.sub(r"[0-9]+", "", os.readlink(each.path)))
    except OSError: pass
for each in threading.enumerate(): print("thread", re.sub(r"[0-9]+", "", each.name))
"""


def words(number: int, count: int = 2) -> str:
    """Return words that no other number has."""
    dice = random.Random(number)
    return " ".join("".join(dice.choices("bdfgklmnprstvaeiou", k=7)) for _ in range(count))


def acts(number: int, *, chat: bool) -> list[tuple[str, dict[str, str]]]:
    """Return the calls of a turn, one a request."""
    write = ("write_file", {"path": f"notes/{number}.txt", "content": f"{number}\n"})
    note = {"action": "add", "target": "memory", "content": words(number)}
    made = {"name": words(number, 1), "content": ""}
    made["content"] = SKILL.format(made["name"], words(number + 10**6), words(number, 1))
    kinds: list[list[tuple[str, dict[str, str]]]] = [
        [],
        [write],
        [("terminal", {"command": f"echo {number}"}), write],
        [("memory", note)] if number % 4 == 0 or number < 20 else [],
        [("read_file", {"path": "data.csv"})],
        [("run_python", {"code": f"total = {number}"})] if not chat else [write],
        [("skill_manage", {"action": "create", **made})] if number % 3 == 0 else [write],
    ]
    return kinds[number % len(kinds)]


class Model(Loopback):
    """Answers each turn by its number, and all else with as good as nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.chat: set[int] = set()
        self.results: dict[int, list[str]] = collections.defaultdict(list)

    def take(self, exchange) -> Reply:
        body = exchange.json
        try:
            check_request(body)
        except AssertionError as error:
            self.wrong.append(f"a request that a provider refuses: {error}")
        last = max(i for i, each in enumerate(body["messages"]) if each["role"] == "user")
        found = re.findall(r"\[turn (\d+)\]", str(body["messages"][last]["content"]))
        if not found or "tools" not in body:
            return says("Nothing to save.")
        number = max(map(int, found))
        results = [str(each["content"]) for each in body["messages"][last + 1 :]]
        self.results[number] = results[1::2]
        wanted = acts(number, chat=number in self.chat)
        done = len(results) // 2
        return calls(wanted[done]) if done < len(wanted) else says(f"Answer {number}.")


class Week:
    """One home and all that happens on it; `wrong` is what was found."""

    def __init__(self, folder: Path, turns: int, notebooks: int, postgres: Postgres | None) -> None:
        self.folder, self.postgres = folder, postgres
        self.home, self.work, self.temporary = (folder / n for n in ("home", "work", "tmp"))
        for each in (self.home, self.work, self.temporary):
            each.mkdir(mode=0o700)
        config = "hermes_nb:\n  approve: all\n  gateway: {approve: all}\n"
        if postgres is not None:
            config += f"  session_store: {postgres.url('ada')!r}\n"
            (self.home / ".env").write_text(f'PGPASSWORD="{PASSWORD}"\n')
        (self.home / "config.yaml").write_text(config)
        (self.work / "data.csv").write_text("a,b\n1,2\n")
        self.names = [f"week-{number:02}.ipynb" for number in range(notebooks)]
        for name in self.names:
            nbformat.write(nbformat.v4.new_notebook(), self.work / name)
        self.mark, self.wrong, self.turns = unique(), [], turns
        self.done = self.refused = self.missed = 0
        self.undone: set[int] = set()
        self.changed = threading.Condition()
        self.present, self.needing, self.lanes = True, 0, 3

    def run(self) -> None:
        third = self.turns // 3
        chats = range(2 * third, self.turns)
        with Model() as self.model, ThreadPoolExecutor(4) as pool:
            self.model.chat.update(chats)
            lanes = [
                pool.submit(self.lane, self.notebooks, self.names[0::2], range(third)),
                pool.submit(self.lane, self.notebooks, self.names[1::2], range(third, 2 * third)),
                pool.submit(self.lane, lambda: asyncio.run(self.chat(chats))),
            ]
            keeper = pool.submit(self.take_away)
            for lane in lanes:
                lane.result()
            keeper.result()
            self.wrong += self.model.wrong

    def lane(self, work: Callable[..., object], *arguments: object) -> None:
        try:
            work(*arguments)
        finally:
            with self.changed:
                self.lanes -= 1

    def take_away(self) -> None:
        """Have the store away a few times, each until some turns were taken without it."""
        for number in range(1, AWAY + 1):
            soon = number * self.turns // (AWAY + 1)
            until(lambda soon=soon: self.done >= soon or not self.at_work, 3_600)
            with self.away():
                until(lambda end=self.done + MISSED: self.done >= end or not self.at_work, SETTLES)

    @property
    def at_work(self) -> int:
        """How many of the lanes neither need the store nor are at their end."""
        return self.lanes - self.needing

    @contextmanager
    def there(self, numbers: range = range(0)) -> Iterator[None]:
        """Have the store, with all that was said in some turns, and keep it there meanwhile."""
        with self.changed:
            self.needing += 1
            self.changed.wait_for(lambda: self.present)
        answers = {f"Answer {number}." for number in numbers}
        caught_up = until(lambda: answers <= {text for _, text in self.stored()}, SETTLES)
        self.must(caught_up, f"not caught up: {numbers}")
        yield
        with self.changed:
            self.needing -= 1
            self.changed.notify_all()

    def have(self, numbers: range) -> None:
        """Wait until the store is there, with all that was said in some turns."""
        with self.there(numbers):
            pass

    @contextmanager
    def away(self) -> Iterator[None]:
        with self.changed:
            self.changed.wait_for(lambda: not self.needing)
            self.present = False
        before = self.done
        if self.postgres is not None:
            self.postgres.stop()
            yield
            self.postgres.start()
        else:
            with locked(self.home / "notebook.db"):
                yield
        self.missed += self.done - before
        with self.changed:
            self.present = True
            self.changed.notify_all()

    def notebooks(self, names: list[str], numbers: range) -> None:
        """Open each notebook on each day, and take its share of the turns there."""
        visits = [(day, name) for day in range(DAYS) for name in names]
        for at, (day, name) in enumerate(visits):
            share = numbers[
                at * len(numbers) // len(visits) : (at + 1) * len(numbers) // len(visits)
            ]
            more = {"JPY_SESSION_NAME": str(self.work / name), "TMPDIR": str(self.temporary)}
            env = environment(self.model, self.folder, HERMES_WEEK=self.mark, **more)
            with kernel(env, cwd=str(self.work)) as running:
                self.visit(running, share, again=bool(day))
                with self.there(share):
                    self.compare(running)
                    running.manager.shutdown_kernel()

    def visit(self, running: Kernel, share: range, *, again: bool) -> None:
        self.must(running.run("%load_ext hermes_nb").status == "ok", "it is not loaded")
        if again:
            with self.there():
                self.must(running.run("%hermes resume").status == "ok", "nothing to resume")
        for number in share:
            result = running.run(f"%%hermes\n[turn {number}] go on", timeout=120)
            said = f"Answer {number}." in result.text + result.markdown
            self.must(result.status == "ok" and said, f"turn {number}: {result.text[-300:]}")
            self.done += 1
            running.open = getattr(running, "open", None) or self.open(running)
        written = [each for each in share if self.writes(each)]
        if again and written and written[-1] == share[-1]:
            running.run("%hermes undo")
            self.undone.add(share[-1])

    def compare(self, running: Kernel) -> None:
        """See that what a kernel has open, and its threads, did not grow with its turns."""

        def more() -> list[str]:  # one of a kind may come with what the first turn did not need
            now = self.open(running)
            return [name for name in now if now[name] > running.open[name] + 1]

        self.must(until(lambda: not more()), f"a kernel has more and more open: {more()}")

    def open(self, running: Kernel) -> collections.Counter[str]:
        return collections.Counter(running.run(LOOK).printed.splitlines())

    async def chat(self, numbers: range) -> None:
        """Write to the gateway, to another chat each day, and wait for each answer."""
        service = Memory()
        os.environ |= environment(self.model, self.folder)
        async with serving(service, root=self.work, home=self.home, model=None):
            for number in numbers:
                for _ in range(3):
                    day = 7 * (number - numbers[0]) // len(numbers)
                    before = len(service.sent)
                    service.post(f"[turn {number}] go on", chat=f"day {day}")
                    (said,) = (await service.said(before + 1))[before:]
                    if said == f"Answer {number}.":
                        break
                    self.refused += 1  # without its session it cannot answer, and says so
                    self.must(said.startswith("✗"), f"turn {number}: {said}")
                    await asyncio.to_thread(self.have, range(0))
                else:
                    self.must(False, f"turn {number} was never answered: {said}")
                self.done += 1
            await asyncio.to_thread(self.have, numbers)

    def writes(self, number: int) -> bool:
        """Say whether a turn writes a file."""
        names = [name for name, _ in acts(number, chat=number in self.model.chat)]
        return "write_file" in names

    def must(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.wrong.append(otherwise)

    def once(self, found: list[int], wanted: set[int], what: str) -> None:
        counted = collections.Counter(found)
        self.must(not (lost := wanted - set(counted)), f"{what} lost: {sorted(lost)}")
        more = {n: times for n, times in counted.items() if times > 1 or n not in wanted}
        self.must(not more, f"{what} there too often: {more}")

    def stored(self) -> list[tuple[str, str]]:
        """Return who said what, as another process would read it."""
        server, path = self.postgres, self.home / "notebook.db"
        with closing(server.store("ada", self.home) if server else SqliteStore(path)) as store:
            self.sessions = [each.id for each in store.sessions(limit=10_000)]
            return [(m.role, m.text) for each in self.sessions for m in store.messages(each)]

    def check(self) -> None:
        """See that nothing is lost and nothing is there twice."""
        every, texts = set(range(self.turns)), self.stored()
        prompts = [text for role, text in texts if role == "user"]
        asked = re.findall(r"^\[turn (\d+)\]", "\n".join(prompts), re.MULTILINE)
        self.once(list(map(int, asked)), every, "prompts")
        answers = [re.match(r"Answer (\d+)\.", text) for role, text in texts if role == "assistant"]
        self.once([int(match[1]) for match in answers if match], every, "answers")
        made = [act for n in every for act in acts(n, chat=n in self.model.chat)]
        memory = (self.home / "memories" / "MEMORY.md").read_text(encoding="utf-8").split("\n§\n")
        notes = [act["content"] for name, act in made if name == "memory"]
        self.must(sorted(memory) == sorted(notes), f"memory has {memory}, not {notes}")
        skills = [act["name"] for name, act in made if name == "skill_manage"]
        there = [each.parent.name for each in (self.home / "skills").rglob("SKILL.md")]
        self.must(sorted(there) == sorted(skills), f"skills are {there}, not {skills}")
        written = {n for n in every if self.writes(n)}
        files = [int(each.stem) for each in (self.work / "notes").iterdir()]
        self.once(files, written - self.undone, "files")
        journal = CheckpointStore(self.home / "checkpoints", limit=10**9)
        saved = [
            int(Path(file).stem)
            for session in self.sessions
            for turn in journal.load(session).turns
            for file in turn.files
        ]
        self.once(saved, written, "records of the undo")

    def look(self, threads: set[threading.Thread], opened: int) -> None:
        """See that nothing is left."""
        self.must(until(lambda: not self.processes(), SETTLES), f"left: {self.processes()}")
        places = (self.home, self.work)
        left = [*self.temporary.iterdir()]
        left += [each for top in places for each in top.rglob(f"*{TEMPORARY}")]
        self.must(not left, f"temporary files are left: {left[:5]}")
        self.must(not (held := list(self.locks())), f"locks are held: {held}")
        others = lambda: [each for each in threading.enumerate() if each not in threads]  # noqa: E731
        self.must(until(lambda: not others(), SETTLES), f"threads are left: {others()}")
        self.must(
            until(lambda: descriptors() <= opened + LOOPS),
            f"{opened} descriptors, now {descriptors()}",
        )
        if self.postgres is not None:
            clients = "SELECT usename FROM pg_stat_activity WHERE usename = 'ada'"
            gone = until(lambda: not self.postgres.sql(clients), SETTLES)
            self.must(gone, "the server still has clients")

    def processes(self) -> list[str]:
        """Return what runs with our mark in its environment."""
        found = []
        for file in Path("/proc").glob("[0-9]*/environ"):
            try:
                if f"HERMES_WEEK={self.mark}".encode() in file.read_bytes():
                    found.append((file.parent / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue
        return found

    def locks(self) -> Iterator[str]:
        """Yield the files and folders of the home that somebody still holds a lock of."""
        for path in (self.home, *self.home.rglob("*")):
            handle = os.open(path, os.O_RDONLY)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield str(path)
            finally:
                os.close(handle)


def week(store: str, turns: int, notebooks: int) -> list[str]:
    """Live through a week with one of the stores, print what it was, return what is wrong."""
    began, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="hermes-week-"))
    postgres = Postgres("ada") if store == "postgres" else None
    process._watcher.start()  # one shell for as long as this process runs
    with kernel(dict(os.environ), cwd=str(folder)):
        pass  # so does what the first client of a kernel opens
    threads, opened = set(threading.enumerate()), descriptors()
    try:
        lived = Week(folder, turns, notebooks, postgres)
        lived.run()
        lived.check()
        lived.look(threads, opened)
    finally:
        if postgres is not None:
            postgres.close()
        shutil.rmtree(folder, ignore_errors=True)
    print(
        f"{store}: {lived.done} turns in {notebooks} notebooks, each opened {DAYS} times, and 7 "
        f"chats, {lived.missed} of them while the store was away, {lived.refused} sent again, "
        f"{len(lived.undone)} undone; {time.monotonic() - began:.0f} s",
        flush=True,
    )
    return [f"{store}: {each}" for each in lived.wrong]


def main() -> int:
    parser = argparse.ArgumentParser(description="a week of ordinary use")
    parser.add_argument("stores", nargs="*", default=["sqlite", "postgres"])
    parser.add_argument("--turns", type=int, default=600)
    parser.add_argument("--notebooks", type=int, default=30)
    arguments = parser.parse_args()
    wrong = [
        each
        for store in arguments.stores
        for each in week(store, arguments.turns, arguments.notebooks)
    ]
    for each, times in collections.Counter(wrong).most_common(20):
        print(f"WRONG ({times} times): {each}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
