"""Random interleavings of the user's cells with a turn's code, in real kernels.

`python bench/interleavings.py [ROUNDS] [VERSION]` (500 rounds on each version of ipykernel by
default) prints the number of rounds, and each one in which an output, a value or a number was lost
or appeared in another cell. tests/faults/test_beside.py runs 1 % of them.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.beside import ASK, PINS, BesideKernel, beside_kernel

ROUNDS = 500
CELLS = {
    "sync": "print('{n} a'); time.sleep({s}); print('{n} b')\n'{n} value'",
    "async": "print('{n} a'); await asyncio.sleep({s}); print('{n} b')\n'{n} value'",
    "display": "print('{n} a'); await asyncio.sleep({s}); print('{n} b'); display('{n} value')",
    "capture": (
        "from IPython.utils.capture import capture_output\n"
        "with capture_output() as seen:\n    print('{n} in'); await asyncio.sleep({s})\n"
        "print('{n} a'); print('{n} b') if seen.stdout == '{n} in\\n' else print(seen.stdout)\n"
        "'{n} value'"
    ),
    "thread": (
        "def work(): time.sleep({s}); found.append({n})\n"
        "print('{n} a'); t = threading.Thread(target=work); t.start()\n"
        "await asyncio.to_thread(t.join); print('{n} b')\n'{n} value'"
    ),
}
"""The user's cells; each prints `a` and `b`, and has a value."""
AGENT = (
    "print('AGENT a'); time.sleep({s}); print('AGENT b'); done.append({n})",
    "print('AGENT a'); await asyncio.sleep({s}); print('AGENT b'); done.append({n})",
)
"""The agent's code."""


def failures(cells: BesideKernel, rounds: int, seed: int) -> Iterator[str]:
    """Play the rounds, and yield a description of each failure."""
    cells.run("found, done = [], []")
    chance = random.Random(seed)
    for number in range(rounds):
        cells.outputs.clear()
        yield from (f"round {number}: {told}" for told in _round(cells, chance))


def _round(cells: BesideKernel, chance: random.Random) -> Iterator[str]:
    def seconds() -> float:
        return round(chance.uniform(0.0, 0.06), 3)

    calls = [chance.choice(AGENT).format(n=n, s=seconds()) for n in range(chance.randint(1, 3))]
    steps = ", ".join(f"code({each!r})" for each in calls)
    end = chance.choice(("answer", "answer", "stop", "steer"))
    cells.run(f"done.clear(); plays({steps}, 'It is done.', 'Again.', delay=0.01)")
    cells.run(f"{ASK}go", "turn")
    kinds = [chance.choice(list(CELLS)) for _ in range(chance.randint(1, 4))]
    sent = []
    for n, kind in enumerate(kinds):
        cells.rest(seconds())
        sent.append(cells.send(CELLS[kind].format(n=n, s=seconds()), f"cell {n}"))
        if n == 0 and end != "answer":
            cells.control(**{end: "turn"})
    cells.until(lambda: all(map(cells.done, sent)))
    cells.until(lambda: "◌" not in cells.text("turn"))
    yield from _wrong(cells, sent, end, calls)


def _wrong(cells: BesideKernel, sent: list[str], end: str, calls: list[str]) -> Iterator[str]:
    for n, cell in enumerate(sent):
        told = cells.text(cell).replace("\n", " ").replace("'", "").split("  ")
        if told != [f"{n} a {n} b", f"{n} value"]:
            yield f"{cell} shows {told}"
    counts = [cells.count[cell] for cell in sent]
    if counts != list(range(counts[0], counts[0] + len(counts))):
        yield f"counts {counts}"
    if end != "stop":
        ran = cells.run("print(done)").strip()
        if ran != str(list(range(len(calls)))):
            yield f"the agent ran {ran} of {len(calls)}"
        if cells.text("turn").count("AGENT b") < len(calls):
            yield "the agent lost output"
    if cells.errors:
        yield str(dict(cells.errors))
        cells.errors.clear()


def main() -> None:
    """Play all rounds and print the failures."""
    rounds = int(sys.argv[1]) if sys.argv[1:] else ROUNDS
    for version in sys.argv[2:] or PINS:
        with (
            tempfile.TemporaryDirectory() as folder,
            beside_kernel(Path(folder), version) as cells,
        ):
            found = list(failures(cells, rounds, seed=1))
        print(f"ipykernel {version}: {rounds} rounds, {len(found)} failures")
        print("\n".join(found[:20]))


if __name__ == "__main__":
    main()
