"""Random interleavings of the user's cells with a turn's code, in real kernels.

`python bench/interleavings.py [ROUNDS] [VERSION]` (500 rounds on each version of ipykernel by
default) prints the number of rounds, and each one in which an output, a value or a number was lost
or appeared in another cell. tests/faults/test_beside.py runs 1 % of them.

`python bench/interleavings.py several [ROUNDS] [VERSION]` (100 rounds by default) plays three turns
of different sessions at the same time, and reports each text, call or output in the wrong cell.
tests/contract/notebook/test_several_turns.py runs a few.

`python bench/interleavings.py steers [NUMBER] [VERSION]` (200 by default) adds that many messages
to running turns, and reports each one that the conversation does not contain exactly once, and the
longest time until one was accepted.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
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


def steers(cells: BesideKernel, number: int, seed: int) -> Iterator[str]:
    """Add messages to running turns at random times; yield a description of each lost one."""
    chance, accepted, slowest, sent = random.Random(seed), [], 0.0, 0
    steps = ("code('time.sleep(0.1)')", "code('await asyncio.sleep(0.1)')", "'word ' * 8")
    while sent < number:
        script = ", ".join([*(chance.choice(steps) for _ in range(3)), *["'More words.'"] * 9])
        cells.run(f"plays({script}, delay=0.01)")
        cells.run(f"{ASK}go", "turn")
        if chance.random() < 1 / 3:
            cells.send("time.sleep(0.3)", "mine")
        for _ in range(min(chance.randint(1, 3), number - sent)):
            cells.rest(chance.uniform(0.0, 0.15))
            sent, began = sent + 1, time.monotonic()
            accepted += [f"<{sent}>"] if cells.control(steer=f"<{sent}>")["steered"] else []
            slowest = max(slowest, time.monotonic() - began)
        if chance.random() < 1 / 4:
            cells.control(stop="turn")
        cells.until(lambda: "◌" not in cells.text("turn"))
    cells.run("plays('The end.', 'The very end.')")
    cells.run("%hermes --approve all This prompt includes what no turn has read", "last")
    told = "[m.text for m in agent().session.messages if m.role == 'user']"
    texts = "\n".join(eval(cells.run(f"print({told})")))
    print(f"{len(accepted)} of {sent} accepted, each in less than {slowest:.3f} s")
    yield from (f"{text} {texts.count(text)} times" for text in accepted if texts.count(text) != 1)
    if not accepted:
        yield "no message was accepted"


def main() -> None:
    """Play all rounds and print the failures."""
    play, usual = failures, ROUNDS
    for other, many in ((several, 100), (steers, 200)):
        if sys.argv[1:2] == [other.__name__]:
            del sys.argv[1]
            play, usual = other, many
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
