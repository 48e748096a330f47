"""What a try on a copy costs, and whether anything gets out: `bench/copies.py [escapes]`.

Times are those of `Copies.run`, as the tool `try_python` calls it; `escapes` also tries the escapes
of the tests from inside, as Python and as shell commands. Effects are looked for on the disk, in
processes and on sockets.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))

from bench.figures import figure
from hermes_nb.core.errors import ToolError
from hermes_nb.core.messages import ToolCall
from hermes_nb.core.tools import ToolContext
from hermes_nb.notebook.execute.handover import hand_over
from hermes_nb.notebook.execute.trial import Copies
from IPython.core.interactiveshell import InteractiveShell
from tests.safety import escapes
from traitlets.config import Config

ROUNDS = 5
WAIT = 8.0
"""Seconds for a process to import pandas on a busy machine."""
THREADS = """
import polars as pl
pl.DataFrame({"a": [1, 2] * 1000, "b": range(2000)}).group_by("a").agg(pl.col("b").sum())
from sklearn.ensemble import HistGradientBoostingClassifier as H
import numpy as np
x = np.random.rand(500, 3); model = H(max_iter=3).fit(x, x[:, 0] > .5); model.predict(x)
"""


def shell() -> InteractiveShell:
    """Return a shell without history."""
    config = Config()
    config.HistoryManager.enabled = False
    return InteractiveShell.instance(config=config)


async def told(copies: Copies, code: str) -> str:
    """Return the text of what code showed, or its error."""
    context = ToolContext(call=ToolCall(id="1", name="try_python"))
    try:
        execution, note = await copies.run(context, code)
    except ToolError as error:
        return str(error)
    return f"{execution.outputs} {execution.error} {note}"


async def costs() -> None:
    """Print seconds and CPU seconds of an empty run, and of a large variable."""
    user = shell()
    user.run_cell("import pandas as pd, numpy as np")
    copies = Copies(user)
    started = time.perf_counter()
    await told(copies, "")
    figure("empty run, no process waits", time.perf_counter() - started, "s", most=0.5)
    times, cpu = [], []
    for _ in range(ROUNDS):
        await asyncio.sleep(WAIT)
        started, before = time.perf_counter(), time.process_time()
        await told(copies, "")
        times.append(time.perf_counter() - started)
        cpu.append(time.process_time() - before)
    figure("empty run, a process waits", min(times), "s", most=0.15)
    figure("its CPU in the kernel", min(cpu), "s", most=0.05)
    user.run_cell("df = pd.DataFrame({n: np.random.rand(4_700_000) for n in 'abcdefgh'})")
    before = time.process_time()
    hand_over("df", user.user_ns, {})
    figure("CPU of pickling 300 MB", time.process_time() - before, "s", most=1.5)
    await asyncio.sleep(WAIT)
    before, started = time.process_time(), time.perf_counter()
    answer = await told(copies, "import time; df.shape, time.process_time()")
    cpu_here = time.process_time() - before
    figure("CPU in the kernel of a try with 300 MB", cpu_here, "s", most=1.5)
    print(f"  {time.perf_counter() - started:.2f} s; in the process: {answer[-90:]}")


async def threads() -> None:
    """Try code with libraries whose threads a forked child would wait for."""
    user = shell()
    done = user.run_cell(THREADS)
    if not done.success:
        print("polars or scikit-learn is not installed")
        return
    copies = Copies(user)
    started = time.perf_counter()
    answer = await told(copies, f"{THREADS}\nprint('done', model.score(x, x[:, 0] > .5) > 0.5)")
    assert "done True" in answer, answer
    figure(
        "polars and boosting after they were used here", time.perf_counter() - started, "s", most=10
    )


async def outside(folder: Path) -> list[str]:
    """Return the effects of the escapes, tried as code on a copy."""
    found: list[str] = []
    copies, tried = Copies(shell()), 0  # before HOME changes, because IPython writes to it
    canary = escapes.Canary(folder)
    os.environ["CANARY_TOKEN"] = escapes.SECRET
    canary.build()
    around = escapes.Outside(canary)
    os.environ["HOME"] = str(canary.home)
    os.chdir(canary.work)
    for name, code in scripts(canary, around):
        answer = await asyncio.wait_for(told(copies, code), 100)
        tried += 1
        effects = canary.sprung(answer.encode(), writes=False) + around.look()
        found += [f"{name}: {'; '.join(effects)}"] if effects else []
        if effects:
            print(found[-1], flush=True)
            canary.build()
            around.renew()
            os.chdir(canary.work)
    around.close()
    print(f"  {tried} attempts, {len(found)} with an effect")
    return found


def scripts(canary: escapes.Canary, around: escapes.Outside) -> list[tuple[str, str]]:
    """Return the attempts as Python code."""
    known: dict[str, object] = {"home": canary.home, "work": canary.work}
    known |= {"victim": around.victim.pid, "parent": os.getpid(), "port": around.port}
    known |= {"udp": around.udp, "token": around.token, "shm": around.shm}
    out = []
    for name, attempt in escapes.chosen("bubblewrap", "R").items():
        code = attempt.code.replace("ESCAPED", "ESC''APED")
        code = code.format(**known, tmpsock=around.tmpsock)
        if code.startswith("py:"):
            out.append((name, code[3:]))
            code = f"python3 - <<'CODE'\n{code[3:]}\nCODE"
        run = f"import subprocess\nprint(subprocess.run(['bash', '-c', {code!r}], "
        out.append((f"{name} (shell)", f"{run}capture_output=True, timeout=8))"))
    return out


def main() -> int:
    """Print the figures."""
    asyncio.run(costs())
    asyncio.run(threads())
    missed: list[str] = []
    if "escapes" in sys.argv:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            missed = asyncio.run(outside(Path(folder).resolve()))
    print("\n".join(missed) or "within its limits")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
