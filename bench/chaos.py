"""Turns against a server, a disk and processes that fail at random, and what is left of them.

`make bench-chaos` (MINUTES=30), or `python bench/chaos.py --minutes 5 --seed 7`. One process takes
turn after turn through `Hermes`. Its server answers with errors, broken streams, silence, odd calls
and sense; its disk is full now and then (a tmpfs, where one may be mounted, else a limit on the
size of files); its commands are killed, and its turns stopped. After each turn the events follow
their grammar, each request is one that a strict provider takes, and each call has one result. At
the end of a session all is well again, and what was said is stored; at the end of all, no process,
thread, descriptor or temporary file is left. Prints figures, and ends with 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import collections
import gc
import os
import random
import resource
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from contextlib import closing, suppress
from pathlib import Path

import psutil

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))

from hermes_nb import Hermes  # noqa: E402 - of this repository
from hermes_nb.core.files import TEMPORARY  # noqa: E402
from hermes_nb.memory.sessions import SqliteStore  # noqa: E402
from hermes_nb.models.chat.client import OpenAIChat  # noqa: E402
from hermes_nb.models.chat.retries import Retrying  # noqa: E402
from hermes_nb.safety.redact import without_secrets  # noqa: E402
from hermes_nb.tools import process  # noqa: E402
from tests.conftest import every_call_has_one_result  # noqa: E402
from tests.core.grammar import check_grammar  # noqa: E402
from tests.faults.processes import descriptors, running, unique  # noqa: E402
from tests.faults.provider import check_request  # noqa: E402
from tests.loopback import (  # noqa: E402
    Loopback,
    Reply,
    disconnect,
    document,
    failure,
    pause,
    stall,
    stream,
    text_chunks,
    tool_chunks,
)

MARK = unique()
"""A number of seconds that only our commands sleep, so that one that is left is found."""
LONG = f"60{MARK}"
DISK = 64_000_000
TURNS_A_SESSION = (1, 12)
SESSIONS_A_HOME = 20
"""After which another home begins, so that the disk is full only when it is meant to be."""
FULL, STOPPED, KILLED = 0.15, 0.15, 0.3
"""Shares: of turns that find a full disk, that are stopped, of looks at which a child is killed."""
SENSE = 0.75
"""Share of requests that are answered with sense."""
SETTLES = 20.0


class Server(Loopback):
    """A provider that answers at random, and notes what it was asked."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__()
        self.dice = dice
        self.kinds: collections.Counter[str] = collections.Counter()
        self.wrong: list[str] = []
        self.well = False

    def take(self, exchange) -> Reply:
        try:
            if exchange.body:  # else the turn was stopped while it was sent
                check_request(exchange.json)
        except Exception:  # noqa: BLE001 - whatever it is, a provider would refuse it
            self.wrong.append(traceback.format_exc(limit=3))
        if self.well:
            return stream(text_chunks("All is well."))
        kind = self.dice.choice(list(FAULTS)) if self.dice.random() > SENSE else "sense"
        self.kinds[kind] += 1
        return FAULTS[kind](self.dice) if kind in FAULTS else sense(self.dice)


def sense(dice: random.Random) -> Reply:
    if dice.random() < 0.35:
        return stream(text_chunks("word " * dice.randint(1, 400), size=50))
    calls = [dice.choice(CALLS)(dice) for _ in range(dice.choice((1, 1, 1, 2, 4)))]
    return stream(tool_chunks(*calls, size=40, ids=f"c{dice.randrange(10**6)}_"))


def broken_off(dice: random.Random) -> Reply:
    whole = sense(dice).steps
    return Reply([*whole[: dice.randrange(len(whole))], disconnect])


FAULTS = {
    "429": lambda _: failure(429, Retry_After="0"),
    "500": lambda _: failure(500),
    "503": lambda _: failure(503, b"<html>overloaded</html>"),
    "529": lambda _: failure(529),
    "broken off": broken_off,
    "silent": lambda _: Reply([stall]),
    "slow": lambda dice: Reply([pause(dice.random()), *sense(dice).steps]),
    "web page": lambda _: document(b"<html>sign in</html>"),
    "no stream": lambda _: Reply([b"data: {\n\n", b"data: [DONE]\n\n"]),
    "empty": lambda _: stream([]),
    "cut arguments": lambda _: stream(tool_chunks(("write_file", '{"path": "a.txt", "cont'))),
    "too long": lambda _: failure(400, {"error": {"code": "context_length_exceeded"}}),
}


def path(dice: random.Random) -> str:
    return f"{dice.choice('abcdef')}.txt"


def text(dice: random.Random) -> str:
    return f"{dice.random()} walrus\n" * dice.choice((1, 10, 3_000))


def command(dice: random.Random) -> str:
    """Return a command; none with `setsid`, which escapes on purpose, as from a terminal."""
    return dice.choice(
        (
            "echo hello",
            f"sleep {LONG}",
            f"sleep {LONG} & sleep {LONG} & wait",
            f"(trap '' TERM; sleep {LONG})",
            "kill -9 $$",
            "yes | head -c 300000",
            "seq 1 9999 > numbers.txt",
            "exit 3",
            "cat no-such-file",
        )
    )


CALLS = (
    lambda dice: ("terminal", {"command": command(dice), "timeout": dice.choice((1, 2))}),
    lambda dice: ("terminal", {"command": command(dice), "timeout": 1}),
    lambda dice: ("write_file", {"path": path(dice), "content": text(dice)}),
    lambda dice: ("patch", {"path": path(dice), "old_string": "walrus", "new_string": "seal"}),
    lambda dice: ("read_file", {"path": path(dice)}),
    lambda _: ("list_files", {}),
    lambda _: ("search_files", {"pattern": "walrus"}),
    lambda dice: ("memory", {"action": "add", "target": "memory", "content": f"{dice.random()}"}),
    lambda dice: ("session_search", {"query": dice.choice(("walrus", "word", '"'))}),
    lambda _: ("delegate_task", {"tasks": ["count the files", "count the lines"]}),
    lambda _: ("no_such_tool", {"a": 1}),
    lambda _: ("read_file", {"path": 3}),
)


class Disk:
    """Where everything is kept; `full` leaves a few bytes of it, or none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "hermes", str(folder)]
        self.mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
        if not self.mounted:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        self._limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        self._filler = folder / "filler"

    def full(self, spare: int) -> None:
        if not self.mounted:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000 + spare, self._limit[1]))
            return
        with suppress(OSError), self._filler.open("wb", buffering=0) as file:
            while file.write(bytes(4096)):
                pass
        with suppress(OSError):
            os.truncate(self._filler, max(0, self._filler.stat().st_size - spare))

    def roomy(self) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limit)
        self._filler.unlink(missing_ok=True)

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.folder)], check=False)


class Trouble:
    """Kills children at random, and stops turns, while a turn runs."""

    def __init__(self, dice: random.Random) -> None:
        self.kills = 0
        self.stops = 0
        self._dice = dice
        self._asking = False
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._kill, daemon=True)
        self._thread.start()
        signal.signal(signal.SIGINT, self._stop)

    def ask(self, hermes: Hermes, prompt: str):
        """Take a turn; return it, or None where it was stopped."""
        timer = None
        if self._dice.random() < STOPPED:
            delay = self._dice.choice((0.01, 0.1, 0.5, 1.0)) * self._dice.random()
            timer = threading.Timer(delay, os.kill, (os.getpid(), signal.SIGINT))
            timer.start()
        try:
            self._asking = True
            try:
                return hermes.ask(prompt)
            finally:
                self._asking = False
        except KeyboardInterrupt:
            self.stops += 1
            return None
        finally:
            if timer is not None:
                timer.cancel()
                timer.join()

    def _stop(self, *_: object) -> None:
        if self._asking:
            self._asking = False
            raise KeyboardInterrupt

    def _kill(self) -> None:
        dice = random.Random(self._dice.random())
        while not self._over.wait(0.3):
            if dice.random() > KILLED:
                continue
            with suppress(psutil.Error, IndexError):
                dice.choice(psutil.Process().children(recursive=True)).kill()
                self.kills += 1

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        signal.signal(signal.SIGINT, signal.default_int_handler)


class Chaos:
    """The whole of it: sessions on one home, and what was found wrong."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.disk = Disk(folder)
        self.home, self.work, self.temporary = (folder / n for n in ("home", "work", "tmp"))
        self.work.mkdir()
        self.temporary.mkdir()
        tempfile.tempdir = str(self.temporary)
        self.wrong: list[str] = []
        self.reasons: collections.Counter[str] = collections.Counter()
        self.tools: collections.Counter[str] = collections.Counter()
        self.seconds: list[float] = []
        self.sessions = self.full = 0

    def run(self, until: float) -> None:
        with Server(random.Random(self.dice.random())) as server:
            self.server, self.trouble = server, Trouble(random.Random(self.dice.random()))
            while time.monotonic() < until:
                self.session(until)
                if self.sessions % SESSIONS_A_HOME == 0:
                    self.check_home()
                    shutil.rmtree(self.home)
            self.trouble.close()
            self.wrong += server.wrong

    def session(self, until: float) -> None:
        self.sessions += 1
        with Hermes(
            "m", base_url=self.server.url, cwd=self.work, home=self.home, approve="all"
        ) as it:
            it.progress = False
            for _ in range(self.dice.randint(*TURNS_A_SESSION)):
                if time.monotonic() > until:
                    break
                if self.dice.random() < FULL:
                    self.full += 1
                    self.disk.full(self.dice.choice((0, 0, 5_000, 50_000)))
                self.turn(it)
                if self.dice.random() < 0.5:
                    self.disk.roomy()
            self.disk.roomy()
            self.server.well = True
            ended = it.ask("And now?")
            self.server.well = False
            self.must(ended.text == "All is well.", f"not well again: {ended.reason} {ended.error}")
            said, name = [without_secrets(each) for each in it.messages], it.session_id
        with closing(SqliteStore(self.home / "notebook.db")) as store:
            stored = store.messages(name)
        self.must(stored == said, f"{name}: {len(said)} messages, {len(stored)} stored")

    def turn(self, hermes: Hermes) -> None:
        began = time.monotonic()
        turn = self.trouble.ask(hermes, "go on " * self.dice.choice((1, 1, 300)))
        self.seconds.append(time.monotonic() - began)
        messages = hermes.messages
        self.must(every_call_has_one_result(messages), "a call has no result, or two")
        if turn is None:
            self.reasons["stopped"] += 1
            return
        self.reasons[turn.reason] += 1
        self.tools.update(call.name for message in turn.messages for call in message.calls)
        self.must("\n" not in turn.error, f"an error of several lines: {turn.error}")
        try:
            check_grammar(turn.events)
        except AssertionError:
            self.wrong.append(traceback.format_exc(limit=2))

    def must(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.wrong.append(otherwise)

    def check_home(self) -> None:
        """See that stores are whole, and nothing lies about."""
        for database in self.home.glob("*.db"):
            with closing(sqlite3.connect(database)) as connection:
                found = connection.execute("PRAGMA integrity_check").fetchall()
            self.must(found == [("ok",)], f"{database.name}: {found[:3]}")
        set_aside = [each.name for each in self.home.glob("*.damaged-*")]
        self.must(not set_aside, f"the store was set aside: {set_aside}")
        left = [each for top in (self.home, self.work) for each in top.rglob(f"*{TEMPORARY}")]
        self.must(not left, f"temporary files are left: {left[:5]}")

    def look(self, threads: set[threading.Thread], open_files: int) -> None:
        """See what is left, once it had a moment to go."""
        self.check_home()
        left = [*self.temporary.iterdir()]
        self.must(not left, f"temporary files are left: {left[:5]}")
        end = time.monotonic() + SETTLES
        while time.monotonic() < end and (running(MARK) or threading.active_count() > len(threads)):
            time.sleep(0.1)
        self.must(not running(MARK), f"{len(running(MARK))} commands still run")
        watcher = process._watcher._shell
        everybody = psutil.Process().children(recursive=True)
        children = [each for each in everybody if watcher is None or each.pid != watcher.pid]
        self.must(not children, f"children are left: {children}")
        others = [each.name for each in threading.enumerate() if each not in threads]
        self.must(not others, f"threads are left: {others}")
        gc.collect()
        opened = [str(each.resolve()) for each in Path("/proc/self/fd").iterdir()]
        self.must(len(opened) <= open_files, f"{open_files} descriptors before, now {opened}")

    def print(self, grown: float) -> None:
        ordered = sorted(self.seconds)
        print(f"{len(ordered)} turns in {self.sessions} sessions: {counted(self.reasons)}")
        print(f"requests: {counted(self.server.kinds)}")
        print(f"calls: {counted(self.tools)}")
        print(
            f"turns with a full disk {self.full}, commands killed {self.trouble.kills}; "
            f"a turn takes {statistics.median(ordered):.2f} s, at most {ordered[-1]:.1f} s; "
            f"memory grew by {grown:.0f} MB"
        )


def counted(counter: collections.Counter[str]) -> str:
    return ", ".join(f"{name} {n}" for name, n in counter.most_common())


def main() -> int:
    parser = argparse.ArgumentParser(description="turns while everything fails")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {arguments.minutes:g} minutes", flush=True)
    Retrying.__init__.__kwdefaults__.update(base=0.01, cap=0.1)
    OpenAIChat.__init__.__kwdefaults__["idle"] = 1.0
    folder = Path(tempfile.mkdtemp(prefix="hermes-chaos-"))
    process._watcher.start()  # one shell for as long as this process runs
    threads, open_files = set(threading.enumerate()), descriptors()
    memory = psutil.Process().memory_info().rss
    (folder / "disk").mkdir()
    chaos = Chaos(folder / "disk", arguments.seed)
    try:
        chaos.run(time.monotonic() + arguments.minutes * 60)
        chaos.look(threads, open_files)
    finally:
        chaos.disk.close()
        shutil.rmtree(folder, ignore_errors=True)
    chaos.print((psutil.Process().memory_info().rss - memory) / 2**20)
    for each, times in collections.Counter(chaos.wrong).most_common(10):
        print(f"WRONG ({times} times): {each}")
    return int(bool(chaos.wrong))


if __name__ == "__main__":
    sys.exit(main())
