"""The stop button at random moments of every command and phase, in real kernels.

`make bench-stops`, or `python -m bench.stops --stops 30 --seed 7`. A stop is a SIGINT to the kernel
from outside. A third of them strike in the first turn of a kernel, while that imports; the others
in turns and commands that a loopback provider holds up, and in each command there is. Prints the
time from the stop to the idle kernel, and how many prompts of stopped turns the next turn still
had. Ends with 1 where a cell showed more than one line, or a prompt was lost.
"""

from __future__ import annotations

import argparse
import os
import queue
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

from hermes_nb.notebook.commands.table import COMMANDS
from tests.faults.cells import Cells, served_kernel
from tests.faults.processes import running
from tests.faults.test_starts import KINDS, Start
from tests.faults.test_threads import beside_a_printing_thread
from tests.kernels import Result
from tests.loopback import Loopback, Reply, calls, event, failure, says, stall, text_chunks

BEGUN = [event(each) for each in text_chunks("The beginning")[:-1]]
ASKS = "%%hermes --approve {mode}\n{prompt}"
TURNS = {
    "before a word": (Reply([stall]), "all"),
    "in the answer": (Reply([*BEGUN, stall]), "all"),
    "in a command": (calls(("terminal", {"command": "sleep 60", "timeout": 90})), "all"),
    "in code": (calls(("run_python", {"code": "import time; time.sleep(60)"})), "all"),
    "in a question": (calls(("run_python", {"code": "1"})), "ask"),
    "between retries": (failure(503), "all"),
}
WORDS = {
    "search": "hello",
    "map": '"What is it?" *.txt',
    "model": "loopback-model",
    "explain": "it",
    "diff": "1",
}
LEAVE = ("new", "undo", "resume")
"""Commands that change which conversation goes on."""


class Trial:
    """What the stops gave."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.early = 0
        self.wrong: list[str] = []
        self.prompts = self.kept = 0

    def press(self, cells: Cells, name: str, code: str, delay: float) -> bool:
        """Run a cell and stop it `delay` seconds after it was sent; say whether that ended it.

        In the first milliseconds, while ipykernel takes the message apart, a stop is its own.
        """
        pressed: list[float] = []

        def stop() -> None:
            pressed.append(time.monotonic())
            os.kill(cells.kernel.manager.provisioner.process.pid, signal.SIGINT)

        timer = threading.Timer(delay, stop)
        timer.start()
        result = Result("ok")
        try:
            result = cells.run(code, allow_stdin=True, timeout=20)
        except queue.Empty:
            print(f"{name}: ipykernel had not begun the cell after {delay:.3f} s")
        ended = time.monotonic()
        timer.cancel()
        timer.join()
        while cells.kernel.client.stdin_channel.msg_ready():
            cells.kernel.client.get_stdin_msg(timeout=1)
        stopped = result.status == "error" and result.error["traceback"] == ["stopped"]
        if stopped:
            self.seconds.setdefault(name, []).append(ended - pressed[0])
        elif not pressed or result.status == "ok":
            self.early += 1
        elif "ConfigError" not in result.error["traceback"][0]:
            self.wrong.append(f"{name} after {delay:.3f} s: {result.error['traceback'][:3]}")
        if any(word in result.text for word in ("Traceback", "Cancelled", "KeyboardInterrupt")):
            self.wrong.append(f"{name} after {delay:.3f} s: {result.text[-300:]}")
        return stopped

    def turn(self, cells: Cells, name: str, reply: Reply, mode: str, delay: float) -> None:
        """Stop a turn; the next one has its prompt and sends one request."""
        prompt = f"prompt {random.random()}"
        cells.plays(reply)
        if not self.press(cells, name, ASKS.format(mode=mode, prompt=prompt), delay):
            return
        self.prompts += 1
        sent = cells.goes_on()
        self.kept += any(prompt in str(each["content"]) for each in sent)


def main() -> int:
    """Press stop, print the figures, and return 1 if something was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--stops", type=int, default=150)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, help="only that many calls beside a printing thread")
    parser.add_argument("--starts", type=int, help="only that many stops while a command starts")
    options = parser.parse_args()
    random.seed(options.seed)
    trial = Trial()
    if options.threads:
        with tempfile.TemporaryDirectory() as folder, Loopback(says("unset")) as server:
            beside_a_printing_thread(server, Path(folder), options.threads)
        print(f"{options.threads} calls beside a printing thread: none was disturbed")
        return 0
    if options.starts:
        return _while_commands_start(options.starts)
    with tempfile.TemporaryDirectory() as folder, Loopback(says("unset")) as server:
        work = Path(folder)
        (work / "a.txt").write_text("A text.\n", encoding="utf-8")
        for _ in range(options.stops // 3):
            with served_kernel(server, work) as kernel:
                delay = random.uniform(0.02, 3)
                trial.turn(Cells(kernel, server, work), "first turn", Reply([stall]), "all", delay)
        with served_kernel(server, work) as kernel:
            _later(trial, Cells(kernel, server, work), options.stops - options.stops // 3)
    return _told(trial)


def _while_commands_start(count: int) -> int:
    """Close sessions at random moments of a command's start; nothing stays, in a second at most."""
    seconds, left = [], 0
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HERMES_HOME"] = str(Path(folder, "home"))
        for number in range(count):
            start = Start(folder, list(KINDS)[number % len(KINDS)])
            time.sleep(random.uniform(0, 0.06))
            seconds.append(start.closed())
            start.asking.join()
            left += bool(running(start.mark))
    print(
        f"{count} stops while a command starts: close p50 {statistics.median(seconds):.3f} s, "
        f"max {max(seconds):.3f} s; {left} left processes"
    )
    return int(left > 0 or max(seconds) > 1)


def _later(trial: Trial, cells: Cells, stops: int) -> None:
    cells.goes_on()
    commands = [name for name in COMMANDS if name not in LEAVE]
    moments = [*TURNS, "compress", *commands]
    for number in range(stops):
        name = moments[number % len(moments)]
        if name in TURNS:
            trial.turn(cells, name, *TURNS[name], random.uniform(0.02, 1.5))
            continue
        if name == "compress":
            cells.begin()  # else the conversation would be shortened by itself sooner or later
            for _ in range(3):
                cells.ask(says("word " * 3000), prompt="word " * 3000)
        cells.plays(Reply([stall]))
        cells.server.listing = Reply([stall])
        begun = name in ("compress", "doctor", "map", "explain", "fix")
        line = f"%hermes {name} {WORDS.get(name, '')}"
        trial.press(cells, name, line, random.uniform(0.01, 1 if begun else 0.1))
        cells.goes_on()


def _told(trial: Trial) -> int:
    every = sorted(each for times in trial.seconds.values() for each in times)
    for name, times in sorted(trial.seconds.items(), key=lambda item: -max(item[1])):
        told = f"median {statistics.median(times):.2f} s  max {max(times):.2f} s"
        print(f"{name:16} {len(times):4}  {told}")
    p95 = every[int(0.95 * (len(every) - 1))]
    print(
        f"{len(every)} stops: p50 {statistics.median(every):.2f} s, p95 {p95:.2f} s, "
        f"max {every[-1]:.2f} s; {trial.early} cells had ended before; "
        f"{trial.kept} of {trial.prompts} prompts kept; {len(trial.wrong)} wrong"
    )
    print(*trial.wrong, sep="\n")
    return int(bool(trial.wrong) or trial.kept < trial.prompts)


if __name__ == "__main__":
    sys.exit(main())
