"""`try_python`: code runs on a copy of the variables, and changes nothing."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from hermes_nb.core.errors import ToolDenied, ToolError
from hermes_nb.core.messages import ToolCall
from hermes_nb.core.protocols import Approval
from hermes_nb.core.tools import ToolContext, Toolset
from hermes_nb.notebook.display.drawings import drawings
from hermes_nb.notebook.execute import trial
from hermes_nb.notebook.run_tools import kernel_tools
from hermes_nb.safety import guard as guards
from hermes_nb.safety.guard import Guard
from hermes_nb.safety.permissions import Level
from hermes_nb.tools.asking import asking

from tests.loopback import Loopback
from tests.notebook.conftest import shell, signals

__all__ = ["shell", "signals"]

pytestmark = [pytest.mark.usefixtures("signals"), pytest.mark.kernel]


class Approver:
    """Answers every question the same way, and keeps them."""

    def __init__(self, answer="deny"):
        self.answer, self.questions = answer, []

    async def ask(self, request):
        self.questions.append(request)
        return Approval(self.answer)


class Trying:
    """The guarded tools of a shell in a folder of its own; its coroutines share one loop."""

    def __init__(self, shell, runner):
        self.shell, self.runner = shell, runner
        self.guard, self.approver = Guard("ask"), Approver()
        self.tools: Toolset = asking(kernel_tools(shell), self.guard, self.approver)

    def output(self, code, name="try_python", **context):
        call = ToolCall(id="1", name=name, arguments={"code": code})
        tool = self.tools.get(name)
        return self.runner.run(tool.run(ToolContext(call=call, **context), call.arguments))

    def __call__(self, code, **options):
        return self.output(code, **options).text


@pytest.fixture
def trying(shell, tmp_path, monkeypatch):
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(trial, "_USUAL", ())  # imported only where a test uses them
    tmp_path.chmod(0o755)
    with asyncio.Runner() as runner:
        yield Trying(shell, runner)


@pytest.fixture
def unconfined(monkeypatch):
    """Pretend that this machine has no sandbox."""
    monkeypatch.setattr(guards, "level", lambda: Level("none", "there is none"))


SETUP = """
import pandas as pd
df = pd.DataFrame({"a": [1, 2, 3]})
seen = []
def total(frame): return frame["a"].sum() + len(seen)
"""


def test_code_runs_on_a_copy_without_a_question(trying):
    trying.shell.run_cell(SETUP)
    before = trying.shell.user_ns["df"]
    told = trying("df['b'] = df.a * 2\nseen.append(1)\nnew = total(df)\nprint(new)\ndf.b.sum()")
    assert told.startswith(
        "7\nnp.int64(12)\n[in the copy only: new new: numpy int64 | changed df: "
    )
    assert trying.approver.questions == []
    assert trying.shell.user_ns["df"] is before and list(before) == ["a"]
    assert trying.shell.user_ns["seen"] == [] and "new" not in trying.shell.user_ns
    assert trying("list(df), 'new' in globals()") == "(['a'], False)"


EACH = """
for name in {}:
    try:
        print(open(name, "w" if "made" in name or "data" in name else "r").read())
    except OSError:
        print(name, "is refused")
"""


def test_it_changes_no_file_and_reads_no_secret(trying, tmp_path):
    Path("data.csv").write_text("a\n1\n")
    Path(".env").write_text("KEY=sekret-81723")
    (tmp_path / "elsewhere.txt").write_text("private")
    assert trying("import pandas as pd; pd.read_csv('data.csv').a.sum()") == "np.int64(1)"
    told = trying(EACH.format(["made", "data.csv", "../made", ".env", "../elsewhere.txt"]))
    assert told.count("is refused") == 5 and "sekret" not in told and "private" not in told
    assert "sekret" not in trying("!cat .env; touch made; ls -A")
    assert (
        sorted(each.name for each in Path().iterdir()) == [".env", "data.csv"]
        and Path("data.csv").read_text() == "a\n1\n"
    )


@pytest.mark.parametrize("name", ["try_python", "run_python"])
def test_no_tool_prints_what_inspect_variable_hides(trying, name):
    trying.approver.answer = "once"
    trying.shell.run_cell(
        "config = {'host': 'db1', 'password': 'hunter2', 'more': [{'api_key': 'abcd-1234-efgh'}]}"
    )
    told = trying("print(config['host'], config['password'], config)", name=name)
    assert "hunter2" not in told and "abcd-1234" not in told and told.startswith("db1 [redacted]")
    with pytest.raises(ToolError) as error:
        trying("raise ValueError(config['password'])", name=name)
    assert "hunter2" not in str(error.value)


def test_it_sends_nothing_and_cannot_signal_the_kernel(trying):
    with Loopback() as server:
        address = server._server.server_address
        code = f"import os, socket\nprint(socket.socket().connect_ex({address!r}))"
        told = trying(f"{code}\ntry: os.kill({os.getpid()}, 9)\nexcept OSError: print('refused')")
        assert server.exchanges == [] and told.endswith("refused") and not told.startswith("0")


def test_no_chart_reaches_the_page_because_it_could_load_an_address(trying):
    """A page fetches the address that a chart's data names, and that address can carry data."""
    charts = ("vega.v5", "vegalite.v5", "plotly.v1")
    shown = {f"application/vnd.{each}+json": "https://example.com/?leak=1" for each in charts}
    code = f"display({shown | {'image/png': 'AAAA', 'text/plain': 'bar'}!r}, raw=True)"
    call = ToolCall(id="1", name="try_python", arguments={"code": code})
    copies = trial.Copies(trying.shell)
    execution, _ = trying.runner.run(copies.run(ToolContext(call=call), code))
    assert drawings(execution.outputs) == [{"image/png": "AAAA", "text/plain": "bar"}]


def test_no_name_of_a_function_runs_code_while_it_is_copied(trying):
    trying.shell.run_cell(
        "ran = []\n"
        "class Odd(str):\n"
        "    def __bool__(self):\n        ran.append(1)\n        return True\n"
        "def f(): return 5\n"
        "f.__module__, f.__qualname__ = Odd('m'), Odd('f')"
    )
    trying("f")
    assert trying.shell.user_ns["ran"] == []


def test_errors_outputs_and_awaiting_are_those_of_run_python(trying):
    trying.shell.run_cell("def f(x):\n    return 1 / x")
    codes = ["print('a'); 1 + 1", "import asyncio; await asyncio.sleep(0); 3", "f(0)"]
    trying.approver.answer = "once"
    for code in codes:
        told = []
        for name in ("run_python", "try_python"):
            try:
                told.append(trying(code, name=name))
            except ToolError as error:
                told.append(str(error))
        assert told[1] == told[0].replace("[new", "[in the copy only: new")


def test_a_plot_comes_back_as_an_image(trying):
    pytest.importorskip("matplotlib")
    made = trying.output(
        "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()", sees_images=True
    )
    assert made.text.startswith("[image/png ") and made.images[0].mime == "image/png"


def test_what_is_not_copied_is_named(trying):
    trying.shell.run_cell(
        "import threading\nlock = threading.Lock()\nboth = {'lock': lock, 'n': 3}"
    )
    assert trying("both['n']") == "3\n[not in the copy: both (_thread.lock)]"
    with pytest.raises(ToolError, match=r"this _thread\.lock is not in the copy; use run_python"):
        trying("lock.acquire()")
    trying.shell.run_cell("api_key = 'sk-abcdefghijklmnop'")
    with pytest.raises(ToolError, match=r"not in the copy: api_key \(a secret\)"):
        trying("print(api_key)")


def test_limits(trying, monkeypatch):
    with pytest.raises(ToolError, match="MemoryError"):
        trying("x = bytearray(3 << 30)")
    with pytest.raises(ToolError, match="ended without a result"):
        trying("import os; os._exit(3)")
    with monkeypatch.context() as patched:
        patched.setattr(trial, "SECONDS", 0.5)
        with pytest.raises(ToolError, match=r"TimeLimit: stopped after 0\.5 s"):
            trying("print('x')\nwhile True: pass")
    trying.shell.run_cell("import numpy as np; big = np.empty(63_000_000)")
    with pytest.raises(ToolError, match="more than 500 MB; use run_python"):
        trying("big.sum()")
    # The last one: its processes are still ending when the next copy would start.
    with pytest.raises(ToolError, match=r"fork|Resource|unable|BlockingIOError"):
        trying(
            "import os, time\nfor _ in range(600):\n    os.fork() or (time.sleep(9), os._exit(0))"
        )


def test_a_forged_result_is_only_text(trying):
    forged = (
        "import os\nfor n in range(3, 64):\n    try: os.write(n, b'%s\\n')\n    except OSError: 0"
    )
    for line in ("[]", "{", "[" * 100_000, '{"outputs": [{"output_type": 3}]}'):
        with pytest.raises(ToolError, match="ended without a result"):
            trying(forged % line)
    assert trying("1") == "1"


def test_the_process_waits_and_ends(trying, monkeypatch):
    assert trying("import os; os.getpid()") != ""
    trying.runner.run(asyncio.sleep(0.5))
    copies = trying.tools.get("try_python")
    assert copies is not None
    waiting = children()
    assert len(waiting) == 1
    Path(".env").write_text("made after it was started")
    with pytest.raises(ToolError, match="PermissionError"):
        trying("print(open('.env').read())")
    trying.runner.run(asyncio.sleep(0.5))
    assert waiting[0] not in children() and len(children()) == 1
    monkeypatch.setattr(trial, "IDLE_SECONDS", 0.2)
    trying("1")
    until = time.monotonic() + 30
    while children() and time.monotonic() < until:
        trying.runner.run(asyncio.sleep(0.1))
    assert children() == []


def test_a_waiting_process_cannot_read_a_secret_that_the_user_saves_again(trying):
    """An editor replaces the file, and the kernel then drops what covered it."""
    Path(".env").write_text("KEY=sekret-81723")
    trying("1")
    trying.runner.run(asyncio.sleep(0.5))
    assert len(children()) == 1
    Path("new").write_text("KEY=sekret-99104")
    Path("new").replace(".env")
    assert trying(EACH.format([".env"])).startswith(".env is refused")


def children():
    """Return the ids of the processes that wait for code."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent, *_ = file.read_text().rpartition(")")[2].split()
            words = file.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if int(parent) == os.getpid() and state != "Z" and b"copy_worker" in words:
            found.append(int(file.parent.name))
    return found


def test_an_interrupt_ends_the_process(trying):
    async def stopped():
        tool = trying.tools.get("try_python")
        call = ToolCall(
            id="1", name="try_python", arguments={"code": "import time; time.sleep(60)"}
        )
        task = asyncio.create_task(tool.run(ToolContext(call=call), call.arguments))
        while not children():
            await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    trying.runner.run(stopped())
    assert children() == []


def test_never_and_a_policy_refuse_it(trying, administered):
    trying.guard.mode = "never"
    with pytest.raises(ToolDenied, match="approvals are set to never"):
        trying("1")
    trying.guard.mode = "ask"
    for name in ("run_python", "try_python", "kernel"):
        administered(tools={name: "force-off"})
        with pytest.raises(ToolDenied, match="the administrator does not allow it"):
            trying("1")
    administered(network="force-off")
    assert trying("1") == "1"


def test_without_a_sandbox_it_asks_and_the_result_is_the_same(trying, unconfined):
    trying.shell.run_cell(SETUP)
    code = "df['b'] = 1\ntotal(df)"
    with pytest.raises(ToolDenied, match="the user declined"):
        trying(code)
    (question,) = trying.approver.questions
    assert question.why == (
        "it runs on a copy of your variables, but without a sandbox. It would run outside of the "
        "sandbox: everything that you may do"
    )
    trying.approver.answer = "once"
    told = trying(code)
    trying.guard.sandboxed = True
    assert told == "np.int64(6)\n[in the copy only: changed df: pandas DataFrame, 3 x 2]"
    assert list(trying.shell.user_ns["df"]) == ["a"]
    trying.approver.answer = "always"
    trying(code)
    trying.approver.answer = "deny"
    assert trying(code) == told


def test_a_folder_without_a_sandbox_asks_too(trying, monkeypatch):
    monkeypatch.chdir("/")
    with pytest.raises(ToolError, match="the code was not run: the workspace must be a folder"):
        trying("1")
    assert "It would run outside of the sandbox" in trying.approver.questions[0].why
    trying.approver.answer = "once"
    assert trying("1") == "1"
