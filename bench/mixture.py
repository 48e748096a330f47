"""Seconds of a turn with references side by side, beside the slowest and the aggregator alone.

Run with `make bench-mixture`. References that take 200 ms each and an aggregator are servers on
this machine; what counts is the wall clock. Limit: 1.3 times the slowest reference and the
aggregator, at 4 references as at 8.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from hermes_nb import Hermes
from tests.loopback import Loopback, Reply, pause, says, stream, text_chunks

from figures import figure

SLOW = 0.2
ROUNDS = 9


def seconds(hermes: Hermes) -> float:
    """Return the median of some turns; the first one pays for connections."""
    hermes.ask("warm up")
    taken = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        hermes.ask("Is it?")
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def main() -> None:
    late = Reply([pause(SLOW), *stream(text_chunks("yes")).steps])
    with tempfile.TemporaryDirectory() as home, ExitStack() as stack:
        weighs = stack.enter_context(Loopback(says("Yes.")))
        servers = [stack.enter_context(Loopback(late)) for _ in range(8)]
        for count in (1, 4, 8):
            listed = "\n".join(
                f"        - {{model: r, base_url: '{each.url}'}}" for each in servers[:count]
            )
            Path(home, "config.yaml").write_text(
                "hermes_nb:\n  mixture:\n    m:\n      references:\n"
                f"{listed}\n      aggregator: {{model: a, base_url: '{weighs.url}'}}\n"
            )
            os.environ["HERMES_HOME"] = home
            with Hermes("a", base_url=weighs.url, tools=[]) as hermes:
                alone = seconds(hermes)
            with Hermes("mixture:m", tools=[]) as hermes:
                ratio = (seconds(hermes) - alone) / SLOW
            what = f"a turn with {count} references of {SLOW * 1e3:.0f} ms, less the aggregator"
            figure(what, ratio, "times of one", most=1.3)


if __name__ == "__main__":
    main()
