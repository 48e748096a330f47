"""How often honest work is interrupted by a question, and how much of what matters is learnt.

Run with `make bench-comfort`. A scripted model plays each story in a real shell, with real tools;
every question is answered with yes and counted. `before` is the same at the commit that
`comfort_before.json` names, which `--record COMMIT` writes for the package that is first on the
path. Measure on an idle machine: a look at the workspace that does not end in time asks.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from tests.safety.seat import fresh_shell
from tests.safety.session import played
from tests.safety.stories import OWN, WISHES, asked, notebooks, questions, saved

BEFORE = Path(__file__).with_name("comfort_before.json")
DATA = os.environ.get("HERMES_BENCH_TABLES") or Path(__file__).parents[2] / "shared/data/bench"
QUESTIONS = Path(DATA, "dabench")
MODES = ("ask", "edits")


def main() -> None:
    shell = fresh_shell()
    stories = [*OWN, *notebooks()]
    if QUESTIONS.exists():
        stories += questions(QUESTIONS)
    else:
        print(f"no questions over tables: {QUESTIONS} is not there")
    counts: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory() as name:
        for number, story in enumerate(stories):
            places = [Path(name, f"{number}-{mode}") for mode in MODES]
            counts[story.name] = [
                asked(shell, place, story, mode) for place, mode in zip(places, MODES, strict=True)
            ]
        session, _ = played(shell, Path(name, "session"))
        kept = {
            way: sum(
                saved(shell, Path(name, f"{way}-{n}"), wish, review=way == "review")
                for n, wish in enumerate(WISHES)
            )
            for way in ("turn", "review")
        }
    if sys.argv[1:2] == ["--record"]:
        found = {"commit": sys.argv[2], "asked": counts, "kept": kept}
        BEFORE.write_text(json.dumps(found) + "\n", encoding="utf-8")
        return
    before = json.loads(BEFORE.read_text(encoding="utf-8"))
    _show(counts, kept, before)
    number, clicks = len(session.asked), session.clicks
    print(f"twenty minutes in mode ask: {number} questions (limit 8), {clicks} clicks (limit 9)")


def _show(counts: dict[str, list[int]], kept: dict[str, int], before: dict) -> None:
    print(f"questions a story; before is commit {before['commit']}\n")
    print(f"{'story':26}{'ask':>6}{'before':>8}{'edits':>8}{'before':>8}")
    worse = 0
    for name, (ask, edits) in counts.items():
        was = before["asked"].get(name)
        more = was is not None and (ask > was[0] or edits > was[1])
        worse += more
        known = was or ["", ""]
        mark = "  more than before" if more else ""
        print(f"{name:26}{ask:6}{known[0]:>8}{edits:8}{known[1]:>8}{mark}")
    both = [name for name in counts if name in before["asked"]]
    now, was = (
        [sum(rows[n][i] for n in both) for i in (0, 1)] for rows in (counts, before["asked"])
    )
    print(
        f"\n{len(both)} stories: ask {now[0]} (before {was[0]}), edits {now[1]} (before {was[1]})"
    )
    print(f"stories that ask more than before: {worse} (limit 0)")
    for way, number in kept.items():
        share = number / len(WISHES)
        print(f"what should be learnt, saved unasked in a {way}: {share:.0%} (at least 80 %)")


if __name__ == "__main__":
    main()
