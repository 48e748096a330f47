"""The model's answers in 16_many_files.ipynb."""

from __future__ import annotations

import json

from scripted import Seen

NOTES = 10
UNCOUNTED = "could not count any"
COUNT = r" (\d+) (?:adults|adelies|chinstraps|by my count)"


def counted(seen: Seen) -> str:
    """Return what a note says; the notes are asked about in any order."""
    place = seen.found(r"\b(Biscoe|Dream|Torgersen)\b", seen.prompt)
    species = seen.found(r"\b([Gg]entoo|[Aa]delie|[Cc]hinstrap)", seen.prompt).capitalize()
    known = UNCOUNTED not in seen.prompt or "Later" in seen.prompt
    count = int(seen.found(COUNT, seen.prompt)) if known else None
    return json.dumps({"place": place, "species": species, "count": count})


STEPS = [counted] * (NOTES + 1)
