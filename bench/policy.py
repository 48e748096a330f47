"""How the command policy does on labelled commands: `python bench/policy.py [COMMANDS.jsonl]`.

Each line of the file is a JSON object with `cmd` and `label` (`dangerous` or `benign`). A dangerous
command that is allowed is a hole, a benign one that is denied a nuisance nobody can switch off;
both are printed in full.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from pathlib import Path

from hermes_nb.safety.policy import assess

DEFAULT = Path(__file__).parent.parent.parent / "shared/data/security/commands_dev.jsonl"


def main() -> int:
    """Print the table; return 1 if a dangerous command was allowed or a benign one denied."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else DEFAULT
    if not path.exists():
        print(f"{path} is not there; nothing was measured")
        return 0
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    table: Counter[tuple[str, str]] = Counter()
    wrong, slowest = [], 0.0
    for row in rows:
        started = time.perf_counter()
        assessment = assess(row["cmd"])
        slowest = max(slowest, time.perf_counter() - started)
        table[row["label"], assessment.decision] += 1
        if (row["label"], assessment.decision) in {("dangerous", "allow"), ("benign", "deny")}:
            wrong.append(f"{assessment.decision} {row['cmd']!r}: {assessment.reason}")
    print(f"{'':10} {'allow':>6} {'ask':>6} {'deny':>6}")
    for label in ("dangerous", "benign"):
        counts = [table[label, decision] for decision in ("allow", "ask", "deny")]
        print(f"{label:10} " + " ".join(f"{count:6}" for count in counts))
    print(f"{len(rows)} commands, slowest {slowest * 1000:.1f} ms")
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
