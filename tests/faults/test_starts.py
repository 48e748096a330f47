"""Commands whose turn is stopped, or whose process is killed, while they start."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import CancelledError
from contextlib import suppress

import pytest
from hermes_nb import Hermes
from hermes_nb.core import threads
from hermes_nb.core.protocols import Approval
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.tools.process import _WATCH, _began

from tests.faults.processes import running, unique
from tests.faults.stores import run_python
from tests.patience import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")

STOPS = 12
"""`python -m bench.stops --starts 200` makes more, and measures the time that a close takes."""
KINDS = {"confined": "", "outside": "crontab -l; "}


class Allows:
    async def ask(self, request):
        return Approval("outside" if request.outside else "once")


class Start:
    """A command that starts beside this thread, in a session of its own."""

    def __init__(self, folder, kind):
        self.mark = unique()
        sleep = f"sleep 1000 {self.mark}"
        model = ScriptedModel(
            [
                call("terminal", command="true"),
                "warm",
                call("terminal", command=f"{KINDS[kind]}{sleep} & {sleep} & {sleep}"),
            ]
        )
        self.hermes = Hermes(model, cwd=folder, approve=Allows())
        self.hermes.ask("warm up")
        self.asking = threading.Thread(target=self._ask, daemon=True)
        self.asking.start()

    def _ask(self):
        with suppress(CancelledError):
            self.hermes.ask("go")

    def closed(self):
        """Close the session; return the seconds that it took."""
        began = time.monotonic()
        self.hermes.close()
        return time.monotonic() - began


@pytest.mark.parametrize("kind", KINDS)
def test_96_a_stop_while_a_command_starts_leaves_nothing(home, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(threads, "STOP_SECONDS", 300.0)  # what hangs is not waited out
    for number in range(STOPS):
        start = Start(tmp_path, kind)
        time.sleep(random.Random(number).uniform(0, 0.06))
        closing = threading.Thread(target=start.hermes.close, daemon=True)
        closing.start()
        assert until(lambda: not closing.is_alive()), "close() hangs"  # noqa: B023 - at once
        assert until(lambda: not start.asking.is_alive())  # noqa: B023
        assert running(start.mark) == []


RUNNER = """
import sys
from hermes_nb import Hermes
from hermes_nb.core.protocols import Approval
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.tools.process import _WATCH, _began
class Allows:
    async def ask(self, request):
        return Approval("outside" if request.outside else "once")
command, folder = sys.argv[1:]
model = ScriptedModel([call("terminal", command=command, timeout=600)])
print(Hermes(model, cwd=folder, approve=Allows()).ask("go"), flush=True)
"""


def test_96_a_number_that_is_another_programs_by_now_is_left_alone():
    """As where a number was not taken off the list, and the system gave it out again."""
    sleep = ["sleep", "1000"]
    killed, spared = (subprocess.Popen(sleep, start_new_session=True) for _ in "12")
    listed = f"+ {killed.pid}:{_began(killed.pid)}\n+ {spared.pid}:1\n"
    subprocess.run(["/bin/sh", "-c", _WATCH], input=listed.encode(), check=True)
    assert killed.wait() == -signal.SIGKILL
    assert spared.poll() is None
    spared.kill()
    spared.wait()


@pytest.mark.parametrize("kind", KINDS)
def test_96_a_killed_runner_leaves_no_command(home, tmp_path, kind):
    mark = unique()
    with run_python(
        RUNNER, f"{KINDS[kind]}sleep 1000 {mark} & sleep 1000 {mark}", tmp_path
    ) as runner:
        alone = {runner.pid}
        assert until(lambda: len(set(running(f"1000\0{mark}")) - alone) >= 2)
        runner.send_signal(signal.SIGKILL)
        runner.wait()
        assert until(lambda: not running(mark))
