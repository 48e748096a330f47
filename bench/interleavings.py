"""Random interleavings of the user's cells with a turn's code, in real kernels.

`python bench/interleavings.py [ROUNDS] [VERSION]` (500 rounds on each version of ipykernel by
default) prints the number of rounds, and each one in which an output, a value or a number was lost
or appeared in another cell. tests/faults/test_beside.py runs 1 % of them.

`python bench/interleavings.py several [ROUNDS] [VERSION]` (100 rounds by default) plays three turns
of different sessions at the same time, and reports each text, call or output in the wrong cell.
tests/contract/notebook/test_several_turns.py runs a few.
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.beside import ASK, PINS, BesideKernel, beside_kernel, scripts

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


def several(cells: BesideKernel, rounds: int, seed: int) -> Iterator[str]:
    """Play rounds of three turns at the same time, and yield a description of each failure."""
    chance = random.Random(seed)
    for number in range(rounds):
        cells.outputs.clear()
        yield from (f"round {number}: {told}" for told in _three(cells, chance))


def _three(cells: BesideKernel, chance: random.Random) -> Iterator[str]:
    names = [f"{word}{chance.randint(0, 9)}" for word in ("red", "green", "blue")]
    cells.run(f"done = []; plays_by_prompt({scripts(*names, n=chance.randint(0, 1))}, delay=0.01)")
    end, chosen = chance.choice(("answer", "stop", "steer")), chance.choice(names)
    for name in names:
        cells.send(f"%%hermes --background --approve all --session {name}\n{name}", name)
    cells.until(lambda: all("◌" in cells.text(name) for name in names))
    cells.rest(chance.uniform(0.0, 0.3))
    told = cells.run("print('mine'); await asyncio.sleep(0.02)\n'value'", "mine")
    if told != "mine\n\n'value'":
        yield f"the user's cell shows {told!r}"
    steered = False
    if end == "stop":
        cells.control(stop=chosen)
    elif end == "steer":
        told = cells.run(f"%hermes steer --cell {cells.count[chosen]} heard {chosen}", "steers")
        steered = "reads this" in told
    cells.until(lambda: all("◌" not in cells.text(name) for name in names))
    for name in names:
        text, stopped = cells.text(name), end == "stop" and name == chosen
        wrong = [each for each in names if each != name and each in text]
        answers = (f"The answer of {name}.", f"Once more, {name}.")
        whole = f"{name} a\n{name} b" in text and any(each in text for each in answers)
        if wrong or not (whole or stopped) or ("Stopped" in text and not stopped):
            yield f"{end} {chosen}: {name} shows {text}"
        if steered and (f"*You added:* heard {chosen}" in text) != (name == chosen):
            yield f"{name} shows another turn's message: {text}"
    ran = cells.run("print(sorted(set(done)))").strip()
    if end != "stop" and ran != str(sorted(names)):
        yield f"the agent ran {ran}"
    if "done" in cells.errors:
        yield str(dict(cells.errors))


def main() -> None:
    """Play all rounds and print the failures."""
    if sys.argv[1:2] == ["several"]:
        del sys.argv[1]
        play, usual = several, 100
    else:
        play, usual = failures, ROUNDS
    rounds = int(sys.argv[1]) if sys.argv[1:] else usual
    for version in sys.argv[2:] or PINS:
        with (
            tempfile.TemporaryDirectory() as folder,
            beside_kernel(Path(folder), version) as cells,
        ):
            found = list(play(cells, rounds, seed=1))
        print(f"ipykernel {version}: {rounds} rounds, {len(found)} failures")
        print("\n".join(found[:20]))


if __name__ == "__main__":
    main()
