"""How the injection scan does on attacks and real files, and what it costs: `python bench/scan.py`.

The texts are JSON lines with `kind` (`attack` or `benign`), `type`, `source` and `text`, found in
HERMES_BENCH_DATA or beside the repository. Every text is "tuned" or "held out" by its hash.
The patterns were written with the first in view, and with the benign ones of both; what they do on
the attacks held out is what to expect of others. The costs are CPU time; the hostile inputs are
those of `tests/safety/floods.py`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

from hermes_nb.safety.scan import scan

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.safety.floods import floods

DATA = Path(__file__).parent.parent.parent / "shared" / "data"
FILE = Path("security", "texts_dev.jsonl")
SIZE = 65_536
ROUNDS = 3
"""The best of these counts: a busy machine makes everything slower, never faster."""
PARTLY_TUNED = ("skill", "direct")
"""Types of which three quarters were in view: half of them left out kinds that are common."""
SCRIPTS = (
    ("Cyrillic", "\u0400", "\u04ff"),
    ("Arabic", "\u0600", "\u06ff"),
    ("Devanagari", "\u0900", "\u097f"),
    ("Han, Kana or Hangul", "\u3040", "\ud7af"),
)
WORDS = {
    "German": {"und", "nicht", "alle", "ist", "die", "sie", "vergiss"},
    "French": {"les", "toutes", "vous", "est", "instructions", "oubliez"},
    "Spanish": {"todas", "las", "instrucciones", "olvida", "que", "todo"},
    "Portuguese": {"todas", "instruções", "anteriores", "você", "mostre"},
    "Italian": {"tutte", "istruzioni", "precedenti", "ignora", "stampa"},
}


def main() -> int:
    """Print recall, false alarms and costs; return 1 if a hostile input takes too long."""
    root = Path(os.environ.get("HERMES_BENCH_DATA", DATA))
    path = root if root.is_file() else root / FILE
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines()
        report([json.loads(line) for line in lines])
    else:
        print(f"{path} is not there; recall and false alarms were not measured")
    return costs()


def report(rows: list[dict[str, str]]) -> None:
    """Print what came of every kind of text."""
    started = time.process_time()
    verdicts = [scan(row["text"]).verdict for row in rows]
    spent = time.process_time() - started
    size = sum(len(row["text"]) for row in rows)
    for kind, title in (("attack", "found"), ("benign", "marked or blocked")):
        chosen = [(r, v) for r, v in zip(rows, verdicts, strict=True) if r["kind"] == kind]
        table(f"{kind}, by type: {title}", chosen, lambda row: row["type"])
    attacks = [(r, v) for r, v in zip(rows, verdicts, strict=True) if r["kind"] == "attack"]
    mutated = [pair for pair in attacks if pair[0]["type"] == "mutated"]
    table("by disguise", mutated, lambda row: row["source"].split("/")[-2])
    table("attacks by language", attacks, lambda row: language(row["text"]))
    print(f"{len(rows)} texts: {spent / size * SIZE * 1000:.1f} ms for each 64 KB, on average")


def table(
    title: str, pairs: Iterable[tuple[dict[str, str], str]], key: Callable[[dict[str, str]], str]
) -> None:
    """Print the verdicts by key, for both halves."""
    counts: dict[str, dict[str, Counter[str]]] = defaultdict(lambda: defaultdict(Counter))
    for row, verdict in pairs:
        counts[key(row)][half(row)][verdict] += 1
    print(f"\n{title}")
    for name, halves in sorted(counts.items()):
        parts = []
        for label in ("tuned", "held out"):
            found = halves[label]
            total = sum(found.values())
            share = f"{(total - found['clean']) / total:4.0%}" if total else "   -"
            blocked = found["blocked"]
            parts.append(f"{label} {share} of {total:3} ({blocked:3} blocked)")
        print(f"  {name:26} {'   '.join(parts)}")


def half(row: dict[str, str]) -> str:
    """Return which half of the data a text belongs to."""
    digest = hashlib.sha256(row["text"].encode("utf-8")).digest()
    tuned = digest[0] % 2 == 0 or (row["type"] in PARTLY_TUNED and digest[1] % 2 == 0)
    return "tuned" if tuned else "held out"


def language(text: str) -> str:
    """Return the script or, of a few languages, the language most of a text is in."""
    for name, low, high in SCRIPTS:
        if sum(low <= c <= high for c in text) * 5 > len(text):
            return name
    words = set(text.lower().split())
    name, found = max(((n, len(words & w)) for n, w in WORDS.items()), key=lambda pair: pair[1])
    return name if found > 1 else "English or other"


def costs() -> int:
    """Print what hostile inputs of 64 KB cost, the dearest first."""
    best: dict[str, float] = {}
    for seed in range(ROUNDS):  # with other random texts, so that nothing is remembered
        for name, text in floods(SIZE, seed):
            started = time.process_time()
            scan(text)
            best[name] = min(best.get(name, 9.0), time.process_time() - started)
    spent = [(seconds, name) for name, seconds in best.items()]
    print(f"\n{len(best)} hostile inputs of 64 KB, dearest first, best of {ROUNDS}")
    for seconds, name in sorted(spent, reverse=True)[:20]:
        print(f"  {seconds * 1000:6.0f} ms  {name}")
    worst = max(spent)[0]
    print(f"worst {worst * 1000:.0f} ms of CPU; to hold: 100 ms on an idle machine")
    return 0 if worst < 1.0 else 1


if __name__ == "__main__":
    sys.exit(main())
