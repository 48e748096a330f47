"""How often the built-in model is right, and whether it admits what it cannot find out.

`python bench/embedded.py` asks the questions of `embedded_questions.py` in `%%hermes` cells of a
real kernel, each in a new session. Only the words of the answer count: no footers, calls or
tracebacks. `--set aside` and `--set newcomers` ask other questions; run them to measure, not to
develop.
Needs the weights, which `python -m hermes_nb.models.weights` downloads; `HERMES_NB_GGUF` selects
another size.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import psutil
from tests.kernels import Kernel, kernel

from embedded_questions import SETS, Check, Part, admitted
from figures import figure

LEAST = {"tables": 0.70, "files": 0.60, "unknown": 0.90, "talk": 0.90}
"""Least share of right answers of the 0.5B model, by kind."""
SECONDS = 600
BAD = re.compile(
    r"Traceback|\b\w+(?:Error|Exception)\b|```|\.groupby\(|\bprint\(|\bimport \w+$"
    r"|\w\[['\"]\w+['\"]\]|was not run"
)
"""Code or an error, where an answer should be."""
REPORT = """
import json, hermes_nb
_turn = hermes_nb.last_turn()
_calls = [f"{c.name}: {json.dumps(dict(c.arguments))}" for m in _turn.messages for c in m.calls]
print(json.dumps([_turn.text, _turn.usage.requests, _turn.usage.output, _calls]))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of one question."""

    right: bool
    """Whether the answer's words are right."""
    bad: bool
    """Whether it is code or an error, under a check mark."""
    false: bool
    """Whether it is wrong and does not say that it could not be found out."""
    ticked: bool
    """Whether a check mark is below it."""
    seconds: float
    """Duration of the turn."""
    tokens: int
    """Tokens that the model generated."""


def ask(running: Kernel, text: str, check: Check) -> Answer:
    """Ask one question in a new session, print the result and return it."""
    running.run("%hermes new")
    result = running.run(f"%%hermes\n{text}", timeout=SECONDS)
    reported = running.run(REPORT).printed
    words, requests, tokens, calls = json.loads(reported.strip().rpartition("\n")[2])
    shown = result.markdown + result.text
    ticked = "✓" in shown.rpartition("\n")[2] or "<sub>✓" in shown
    seconds = float(found[1]) if (found := re.search(r"[✓–✗◔] (\d+\.\d) s", shown)) else 0.0
    wanted = check is admitted or not admitted(words)
    right = wanted and check(words) and not BAD.search(words)
    bad = ticked and BAD.search(words) is not None
    mark = "ok   " if right else "WRONG"
    print(f"{mark}{' BAD' if bad else ''} {seconds:5.1f} s {requests} r {tokens:3d} t", end=" ")
    print(text, *calls, repr(words[:300]), sep="\n        ", flush=True)
    false = not right and not admitted(words)
    return Answer(right=right, bad=bad, false=false, ticked=ticked, seconds=seconds, tokens=tokens)


def asked(part: Part, folder: Path) -> Iterator[Answer]:
    """Ask a part's questions in a kernel of its own."""
    for name, text in (part.files or {}).items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    home = folder.parent / "home"
    env = {**os.environ, "HERMES_HOME": str(home), "HERMES_NB_MODEL": "embedded"}
    env |= {"HERMES_NB_CEILING": "all"}
    with kernel(env, cwd=str(folder)) as running:
        running.run("%load_ext hermes_nb")
        assert running.run("%hermes approve all").status == "ok"
        if part.table is not None:
            kept = folder.parent / "table.pkl"
            part.table.to_pickle(kept)
            code = f"import pandas as pd\n{part.variable} = pd.read_pickle({str(kept)!r})"
            assert running.run(code).status == "ok"
        for text, check in part.questions:
            yield ask(running, text, check)
        child = psutil.Process(running.manager.provisioner.pid).children(recursive=True)
        print(
            f"memory of the model: {max(p.memory_info().rss for p in child) / 1e6:,.0f} MB"
            if child
            else "the model was not started"
        )


def main(parts: list[Part]) -> None:
    """Ask the questions of these parts and print a figure for each kind."""
    answers: list[Answer] = []
    right, total = Counter[str](), Counter[str]()
    for part in parts:
        kind = part.name.partition("-")[0]
        print(f"-- {part.name}, load {os.getloadavg()[0]:.1f}")
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name, "work")
            folder.mkdir()
            found = list(asked(part, folder))
        answers += found
        here = sum(each.right for each in found)
        right[kind] += here
        total[kind] += len(found)
        print(f"== {part.name}: {here} of {len(found)}\n", flush=True)
    for kind, count in total.items():
        figure(f"right or admitted, {kind}", right[kind] / count, least=LEAST[kind])
    print(f"wrong answers, not admitted: {sum(each.false for each in answers)}")
    figure("wrong answers with a check mark", sum(a.false and a.ticked for a in answers), most=0)
    figure("code or an error as an answer", sum(each.bad for each in answers), most=0)
    figure("median of a question", statistics.median(a.seconds for a in answers), "s", most=10)
    print(f"tokens generated: {sum(each.tokens for each in answers)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="names of parts; all of them without")
    parser.add_argument("--set", choices=tuple(SETS), default="tuned", help="which questions")
    options = parser.parse_args()
    made = [make() for make in SETS[options.set]]
    main([part for part in made if not options.parts or part.name in options.parts])
