"""How the injection scan does on attacks and real files, and what it costs: `python bench/scan.py`.

The texts are JSON lines with `kind` (`attack` or `benign`), `type`, `source` and `text`, found in
HERMES_BENCH_DATA or beside the repository. Every text is "tuned" or "held out" by its hash.
The patterns were written with the first in view, and with the benign ones of both; what they do on
the attacks held out is what to expect of others. The costs are CPU time; the hostile inputs are
those of `tests/safety/floods.py`, the honest documents made of files that every install has. What
must hold is said with it: of honest mail, tables and code in `injection/`, of real context files
and of skills, which the guard of skills reads.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import sysconfig
import time
import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from importlib import metadata
from pathlib import Path

from hermes_nb.safety.scan import scan
from hermes_nb.safety.words import forget
from hermes_nb.skills.trust import examine

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.safety.floods import floods

ROOT = Path(__file__).parent.parent
DATA = ROOT.parent / "shared" / "data"
FILE = Path("security", "texts_dev.jsonl")
SIZE = 65_536
ROUNDS = 5
"""The best of these counts: a busy machine makes everything slower, never faster."""
PARTLY_TUNED = ("skill", "direct")
"""Types of which three quarters were in view: half of them left out kinds that are common."""
INVENTED = ("fp_trap", "SKILL.md(synthetic)")
HONEST = {"email": 0.05, "table": 0.0, "code": 0.0}
"""Honest texts in `injection/`, and the share of each that may be marked."""
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
        rows = [json.loads(line) for line in lines]
        report(rows)
        context(rows)
    else:
        print(f"{path} is not there; recall and false alarms were not measured")
    for name, most in HONEST.items():
        source = root / "injection" / f"honest_{name}_train.jsonl"
        if source.exists():
            texts = map(honest, source.read_text(encoding="utf-8").splitlines())
            held(f"honest {name}", [scan(text).verdict for text in texts], {"marked": most})
        else:
            print(f"{source} is not there; honest {name} was not measured")
    return costs()


def context(rows: list[dict[str, str]]) -> None:
    """Print what comes of real context files, and of skills when they are viewed."""
    print()
    real = [r["text"] for r in rows if r["kind"] == "benign" and r["type"] not in INVENTED]
    held("context files", [scan(text).verdict for text in real], {"blocked": 0.005, "marked": 0.02})
    for kind, bounds in (("benign", {"refused": 0.01}), ("attack", {})):
        skills = [r["text"] for r in rows if r["kind"] == kind and "skill" in r["type"].lower()]
        held(f"{kind} skills", [examine(text).level for text in skills], bounds)


def honest(line: str) -> str:
    """Return the text of a JSON line: a mail, a table, or code with its error and its context."""
    row = json.loads(line)
    parts = (row.get(name, "") for name in ("error", "code", "context"))
    return "\n".join("\n".join(part) if isinstance(part, list) else part for part in parts)


def held(title: str, verdicts: list[str], bounds: dict[str, float]) -> None:
    """Print the shares of verdicts, and what must hold of them."""
    bad = sum(verdict in ("blocked", "dangerous") for verdict in verdicts)
    noted = sum(verdict != "clean" for verdict in verdicts)
    words = " ".join(f"{name} <= {most:.1%}" for name, most in bounds.items())
    shares = f"marked {noted / len(verdicts):5.1%}, blocked or refused {bad / len(verdicts):5.1%}"
    print(f"{title:15} {len(verdicts):4}: {shares}{'; to hold: ' + words if words else ''}")


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
    """Print what honest and hostile inputs of 64 KB cost, the dearest first."""
    honest = best_of((name, text, True) for _ in range(ROUNDS) for name, text in documents())
    shown("honest documents", honest, len(honest))
    # Other random texts in each round, so that nothing of them is remembered.
    hostile = best_of(
        (name, text, False) for seed in range(ROUNDS) for name, text in floods(SIZE, seed)
    )
    shown("hostile inputs", hostile, 20)
    worst = max(hostile.values())
    print(f"worst {worst * 1000:.0f} ms of CPU; to hold: 250 ms, and 100 for honest documents")
    return 0 if worst < 1.0 else 1


def best_of(texts: Iterable[tuple[str, str, bool]]) -> dict[str, float]:
    """Return the least CPU seconds of each name's texts.

    The last of each says whether what is remembered of words is to be forgotten before.
    """
    best: dict[str, float] = {}
    for name, text, forgetting in texts:
        if forgetting:
            forget()
        started = time.process_time()
        scan(text)
        spent = time.process_time() - started
        best[name] = min(best.get(name, spent), spent)
    return best


def shown(title: str, best: dict[str, float], most: int) -> None:
    """Print the dearest of some texts."""
    print(f"\n{len(best)} {title} of 64 KB, dearest first: ms of CPU, best of {ROUNDS}")
    for name, seconds in sorted(best.items(), key=lambda item: item[1], reverse=True)[:most]:
        print(f"  {seconds * 1000:6.0f}  {name}")


def documents() -> Iterator[tuple[str, str]]:
    """Yield honest documents of 64 KB, each with what it is."""
    library = Path(sysconfig.get_path("stdlib"))
    yield "manual", filled([library / "pydoc_data" / "topics.py"])
    yield "Python", filled([library / "argparse.py", *sorted(library.glob("asyncio/*.py"))])
    yield "HTML", filled([library / "idlelib" / "help.html"])
    yield "notebooks", filled(sorted(ROOT.glob("notebooks/*.ipynb")))
    yield "documentation", filled(sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]))
    yield "words in twenty languages", filled(sorted(ROOT.glob("hermes_nb/safety/words.toml")))
    packages = sorted(metadata.distributions(), key=lambda each: each.metadata["Name"])
    yield "descriptions of packages", filled(map(described, packages))
    yield "checksums (CSV)", filled(each.read_text("RECORD") or "" for each in packages)
    yield (
        "metadata (JSON)",
        filled([json.dumps([each.metadata.json for each in packages], indent=1)]),
    )
    data = sorted((ROOT / "tests" / "safety" / "data").glob("benign*.toml"))
    rows = [row["text"] for path in data for row in tomllib.loads(path.read_text("utf-8"))["text"]]
    foreign = [text for text in rows if not text.isascii()]
    yield "Markdown in many languages", filled(foreign)
    numbers = (f"{n},{n * 7919 % 10007 / 13:.4f},{n % 28 + 1:02}.11.2026\n" for n in range(9_999))
    yield "numbers (CSV)", filled(["".join(numbers)])
    lines = (
        f"2026-11-22 10:{n % 60:02}:07 INFO worker-{n % 7}: job {n} done\n" for n in range(9_999)
    )
    yield "log", filled(["".join(lines)])


def described(package: metadata.Distribution) -> str:
    """Return what a package says of itself."""
    return (package.read_text("METADATA") or "").partition("\n\n")[2]


def filled(texts: Iterable[str | Path]) -> str:
    """Return a document of texts, and once more of them until it is long enough."""
    found = [each.read_text("utf-8") if isinstance(each, Path) else each for each in texts]
    text = "\n\n".join(found)
    return (text * (SIZE // max(1, len(text)) + 1))[:SIZE]


if __name__ == "__main__":
    sys.exit(main())
