"""What a thousand skills cost: `python bench/skills.py [COUNT]`.

CPU of the index, cold in a new process (with and without the verdicts of an earlier one) and warm,
of a view and a search, and the index's size. Where the labelled texts are there, also how many
honest skills the guard refuses and how many hostile ones it does not.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from hermes_nb.core.text import CHARACTERS_PER_TOKEN
from hermes_nb.skills.discovery import Root
from hermes_nb.skills.library import Library
from hermes_nb.skills.trust import examine

DATA = Path(
    os.environ.get("HERMES_BENCH_DATA") or Path(__file__).parents[2] / "shared/data/security"
)
WORDS = (
    "table chart figure axis column frame index join merge filter window signal spectrum image mask"
    " model loss epoch batch tensor gradient cluster label query cache log trace report slide page"
).split()
CATEGORIES = ("data", "plots", "models", "text", "reports", "devops", "")


def main() -> int:
    """Print the figures."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
    with tempfile.TemporaryDirectory() as place:
        roots = [Root(Path(place) / "home/skills", "home"), Root(Path(place) / "more", "external")]
        generate(roots, count)
        time.sleep(0.3)  # files that were just written are not believed to stay as they are
        measure(roots, count)
    guard()
    return 0


def generate(roots: list[Root], count: int) -> None:
    """Write that many skills of about 3 kB, half of them in each root."""
    chance = random.Random(7)
    for number in range(count):
        name = f"{chance.choice(WORDS)}-{chance.choice(WORDS)}-{number:04}"
        folder = roots[number % 2].path / chance.choice(CATEGORIES) / name
        folder.mkdir(parents=True)
        text = " ".join(chance.choices(WORDS, k=14))
        body = "\n".join(f"{n}. {' '.join(chance.choices(WORDS, k=9))}" for n in range(45))
        (folder / "SKILL.md").write_text(
            f"---\nname: {name}\ndescription: Use for {text}.\n"
            f"metadata:\n  hermes:\n    tags: [{chance.choice(WORDS)}]\n---\n# {name}\n\n{body}\n",
            encoding="utf-8",
        )


def measure(roots: list[Root], count: int) -> None:
    """Print what the library costs."""
    library = Library(roots)
    first = cpu(library.index)
    again = cpu(Library(roots).index)
    warm = statistics.median(cpu(library.index) for _ in range(9))
    names = [skill.name for skill in library.list()][:: max(1, count // 40)]
    views = sorted(cpu(lambda name=name: library.view(name)) for name in names)
    query = statistics.median(
        cpu(lambda: library.list(query="spectrum of a signal")) for _ in "123"
    )
    index = library.index()
    print(
        f"{count:,} skills: index {first:.0f} ms CPU the first time, {again:.0f} in a new process"
    )
    print(f"index, nothing changed: {warm:.1f} ms; search {query:.1f} ms")
    print(f"view: median {statistics.median(views):.1f} ms, slowest {views[-1]:.1f} ms")
    tokens = len(index) / CHARACTERS_PER_TOKEN
    print(f"index: {tokens:,.0f} tokens, {index.count(chr(10) + '- '):,} skills in it")


def cpu(work: Callable[[], object]) -> float:
    """Return the milliseconds of CPU that something takes."""
    before = time.process_time()
    work()
    return (time.process_time() - before) * 1_000


def guard() -> None:
    """Print how the guard does on labelled skills."""
    path = DATA / "texts_dev.jsonl"
    if not path.exists():
        print(f"{path} is not there; the guard was not measured")
        return
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    table: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if "skill" in row["type"].lower():
            table[row["kind"], examine(row["text"]).level] += 1
    for kind in ("benign", "attack"):
        counts = {level: table[kind, level] for level in ("clean", "suspicious", "dangerous")}
        print(f"{kind} skills: {counts}")


if __name__ == "__main__":
    sys.exit(main())
