"""Whether agreement between candidates of the built-in model tells right answers from wrong ones.

`python bench/candidates.py` lets the weights write code for questions about tables that no rule
answers, five times a question, with different seeds. A result is accepted if three candidates or
more have it. `--all` also asks the questions that rules answer, without the rules. The code runs in
this process, on a copy of the table and in an empty folder.
Needs the weights, as `bench/embedded.py`.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import httpx
from hermes_nb.core.messages import Message
from hermes_nb.core.protocols import Request, Variable
from hermes_nb.core.tools import Toolset
from hermes_nb.extras.local.model import WINDOW, EmbeddedModel, EmbeddedServer, usable_cores
from hermes_nb.extras.local.prompting import plain
from hermes_nb.extras.local.rules import next_step
from hermes_nb.extras.local.weights import WeightsStore
from hermes_nb.notebook.run_tools import kernel_tools
from hermes_nb.notebook.variables import variables_of
from IPython.core.interactiveshell import InteractiveShell

from embedded_questions import ASIDE, NEWCOMERS, Part, admitted

CANDIDATES, AGREED = 5, 3
"""Candidates per question, and how many of them must have the same result."""
WARMTH = 0.7
"""The temperature. At 0, all candidates would be the same."""


class Weights:
    """The built-in model without its rules."""

    def __init__(self) -> None:
        path = WeightsStore().locate()
        assert path is not None, "python -m hermes_nb.models.weights downloads the weights"
        self._server = EmbeddedServer(path, window=WINDOW, threads=usable_cores())

    async def code(self, body: bytes, seed: int) -> str:
        """Return the code that the model writes for a request, or ""."""
        address = await self._server.start()
        sent = json.loads(body) | {"stream": False, "temperature": WARMTH, "seed": seed}
        sent.pop("stream_options", None)
        url = f"{address.url}/v1/chat/completions"
        headers = {"Authorization": f"Bearer {address.token}", "Connection": "close"}
        async with httpx.AsyncClient(timeout=600) as client:
            reply = (await client.post(url, json=sent, headers=headers)).json()
        try:
            call = json.loads(reply["choices"][0]["message"]["content"])
        except ValueError:  # cut off
            return ""
        return str(call.get("run_python") or call.get("try_python") or "")

    def stop(self) -> None:
        """End its process."""
        self._server.stop()


def result(code: str, part: Part) -> str:
    """Return what code prints or evaluates to on a copy of the table; "" if it fails."""
    shell = InteractiveShell.instance()
    assert part.table is not None
    shell.user_ns[part.variable] = part.table.copy()
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(io.StringIO()):
        ran = shell.run_cell(code)
    if not ran.success:
        return ""
    return plain(printed.getvalue().strip() if ran.result is None else str(ran.result))


async def main(*, everything: bool) -> None:
    """Ask and print each question's result, and how many were right and wrong."""
    shell, weights = InteractiveShell.instance(), Weights()
    outcome, seconds = Counter[str](), list[float]()
    for part in (make() for make in (*ASIDE, *NEWCOMERS)):
        if part.table is None:
            continue
        shell.user_ns[part.variable] = part.table.copy()
        variables: list[Variable] = [*variables_of(shell)]
        model = EmbeddedModel(lambda variables=variables: variables)
        tools: Toolset = kernel_tools(shell)
        for text, check in part.questions:
            request = Request(messages=(Message.user(text),), tools=tools)
            if not everything and next_step(request, variables) is not None:
                continue
            begun, body = time.monotonic(), model.body(request)
            found = [result(await weights.code(body, n), part) for n in range(CANDIDATES)]
            seconds.append(time.monotonic() - begun)
            (best, count), *_ = Counter(filter(None, found)).most_common(1) or [("", 0)]
            said = best if count >= AGREED else ""
            right = not said if check is admitted else check(said)
            kind = "right" if right else "wrong" if said else "not found"
            outcome[kind] += 1
            print(f"{kind:9} {seconds[-1]:5.1f} s  {text}  {found}", flush=True)
        shell.user_ns.pop(part.variable)
    weights.stop()
    print(dict(outcome), f"median {statistics.median(seconds):.1f} s a question")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="also what rules answer")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, chdir(name):
        asyncio.run(main(everything=given.all))
