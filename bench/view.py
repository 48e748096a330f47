"""What showing a turn costs while an answer streams in: the kernel's CPU, messages to the page.

Run with `python bench/view.py`. A real kernel asks a real server on 127.0.0.1 that says 200 tokens
a second for 20 seconds, once into a notebook cell and once with nothing shown but the end
(`--quiet`); the difference is what the view costs. Then turns of 500 calls of several kinds become
what the notebook saves of them. The limits: 10 updates a second, 10 % of one core, 200 KB.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
from hermes_nb.notebook.display.views import bundle

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.kernels import Kernel
from tests.kernels import kernel as running_kernel
from tests.loopback import Exchange, Loopback, Reply, Step, chunk, event, stream, text_chunks
from tests.notebook.display.test_transcript import LONG_TEXT, SHAPES, of_calls

RATE = 200
SECONDS = 20
MOST_SHARE = 0.10
MOST_UPDATES = 10.0
CALLS = 500
MOST_SAVED = 200_000
PARAGRAPH = (
    "The **median** of `bill_length` is 44.5 mm, $\\\\bar{x} = 43.9$, see [the plot](plot.png). "
)
TABLE = "\n\n| species | n |\n|---|---|\n| Gentoo | 123 |\n\n```python\ndf.describe()\n```\n\n"


def tokens() -> list[str]:
    """Return an answer of the kind that models write, in pieces of about four characters."""
    text = (PARAGRAPH * 6 + TABLE) * 40
    size = 4
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return pieces[: RATE * SECONDS]


def reply() -> Reply:
    """Return the answer as a stream at `RATE`, by the clock."""
    clock: list[float] = []

    def due(number: int) -> Callable[[Exchange], None]:
        def wait(_: Exchange) -> None:
            clock[:] = clock or [time.monotonic()]
            time.sleep(max(clock[0] + number / RATE - time.monotonic(), 0.0))

        return wait

    steps: list[Step] = []
    for number, piece in enumerate(tokens()):
        steps += [due(number), event(chunk({"content": piece}))]
    return Reply([*steps, *stream(text_chunks("")).steps])


def measure(kernel: Kernel, server: Loopback, line: str) -> tuple[float, float, int]:
    """Return a turn's CPU seconds, its seconds, and the messages that its cell was sent."""
    server.replies[:] = [reply()]
    server.exchanges.clear()
    process = psutil.Process(kernel.manager.provisioner.process.pid)
    before, began = sum(process.cpu_times()[:2]), time.monotonic()
    result = kernel.run(f"{line}\nsay something long", allow_stdin=True, timeout=SECONDS * 6)
    assert result.status == "ok", result.error
    spent = sum(process.cpu_times()[:2]) - before
    return spent, time.monotonic() - began, result.messages


def saved() -> int:
    """Return the bytes of what is saved of a turn of `CALLS` calls, of the largest kind."""
    answer = "Word $1 <b> $2. " * 4_000
    return max(
        len(json.dumps(bundle(turn, running=False), ensure_ascii=False).encode())
        for arguments in SHAPES.values()
        for said in ("", LONG_TEXT)
        for turn in (of_calls(CALLS, arguments, said=said, answer=answer),)
    )


def main() -> None:
    with Loopback(stream(text_chunks("ok"))) as server, tempfile.TemporaryDirectory() as folder:
        env = os.environ | {
            "HERMES_HOME": folder,
            "HERMES_NB_BASE_URL": server.url,
            "HERMES_NB_MODEL": "loopback-model",
            "PYTHONPATH": str(Path(__file__).parents[1]),
        }
        with running_kernel(env, cwd=folder) as kernel:
            kernel.run("%load_ext hermes_nb")
            kernel.run("%%hermes\nhello", allow_stdin=True)
            bare, _, _ = measure(kernel, server, "%%hermes --quiet --new")
            shown, seconds, messages = measure(kernel, server, "%%hermes --new")
    share, rate = (shown - bare) / seconds, messages / seconds
    print(f"{len(tokens())} tokens in {seconds:.1f} s: {shown:.2f} s of CPU, {bare:.2f} s without")
    print(f"the view: {share:.1%} of one core (limit 10 %), {rate:.1f} updates/s (limit 10)")
    size = saved()
    print(f"a turn of {CALLS} calls is saved in {size / 1000:.0f} KB at most (limit 200)")
    if share > MOST_SHARE or rate > MOST_UPDATES or size > MOST_SAVED:
        sys.exit("over the limit")


if __name__ == "__main__":
    main()
