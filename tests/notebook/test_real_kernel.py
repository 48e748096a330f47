"""What only a real kernel shows: the stop button, figures, forks, memory, descriptors."""

from __future__ import annotations

import pytest

from tests.patience import STOPS_WITHIN

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(120)]

IDLE = """
with stoppable() as stop:
    print('ready', flush=True)
    await asyncio.sleep(20)
print('stopped', stop.stopped)
"""

NESTED = """
code = {code!r}
with stoppable() as stop:
    print('ready', flush=True)
    result = await execute(ip, code, timeout={timeout})
print('stopped', stop.stopped, 'interrupted', result.interrupted, result.error[0])
print('went on', asyncio.current_task().cancelling())
"""


def nested(code, timeout=None):
    return NESTED.format(code=code, timeout=timeout)


def test_stop_while_idle(kernel):
    cell = kernel.run(IDLE, stop_on="ready", stop_delay=0.3)
    assert cell.printed == "ready\nstopped True\n"
    assert cell.stop_seconds < STOPS_WITHIN


@pytest.mark.parametrize(
    "code",
    [
        *("for i in range(300): time.sleep(.1)", "time.sleep(20)", "while True: pass"),
        *("await asyncio.sleep(20)", "await asyncio.sleep(0)\ntime.sleep(20)"),
        "import subprocess; subprocess.run(['sleep', '20'])",
    ],
)
def test_stop_in_nested_code(kernel, code):
    cell = kernel.run(nested(code), stop_on="ready", stop_delay=0.3)
    assert "stopped False interrupted True KeyboardInterrupt\nwent on 0" in cell.printed, cell
    assert cell.stop_seconds < STOPS_WITHIN


def test_stop_in_a_shell_command(kernel):
    cell = kernel.run(nested("!sleep 20\n1/0"), stop_on="ready", stop_delay=0.5)
    assert "interrupted True" in cell.printed
    assert cell.stop_seconds < STOPS_WITHIN


def test_the_kernels_own_handler_is_back(kernel):
    cell = kernel.run("print('ready', flush=True)\ntime.sleep(20)", stop_on="ready", stop_delay=0.2)
    assert cell.error["ename"] == "KeyboardInterrupt"
    assert cell.stop_seconds < STOPS_WITHIN


def test_time_limits(kernel):
    for code in (
        "time.sleep(20)",
        "await asyncio.sleep(20)",
        "await asyncio.sleep(0)\ntime.sleep(20)",
    ):
        cell = kernel.run(nested(code, 0.3))
        assert "interrupted False TimeLimit" in cell.printed, (code, cell)


def test_the_cell_around_is_undisturbed(kernel):
    kernel.run("41")
    first = kernel.run(
        "a = _\nr = await execute(ip, '99\\nprint(1)\\n1/0\\n')\n(_, ip.execution_count)"
    )
    assert "(41, " in first.outputs[-1]["data"]["text/plain"], first
    second = kernel.run("_")
    assert "(41, " in second.outputs[-1]["data"]["text/plain"]
    assert second.reply["execution_count"] == first.reply["execution_count"] + 1
    assert first.reply["status"] == "ok" and first.reply["payload"] == []
    assert len(first.outputs) == 1


def test_exit_does_not_end_the_kernel(kernel):
    for code in ("exit()", "quit()", "exit(True)", "import sys; sys.exit(2)"):
        cell = kernel.run(f"r = await execute(ip, {code!r})\nprint(r.error[:2])")
        assert "SystemExit" in cell.printed
    assert kernel.run("print('alive')").printed == "alive\n"


def test_a_figure_is_shown_and_closed(kernel):
    cell = kernel.run(
        "r = await execute(ip, 'import matplotlib.pyplot as plt\\nplt.plot([1, 2]);')\n"
        "print([list(o.get('data', ())) for o in r.outputs], plt.get_fignums())",
        timeout=60,
    )
    assert cell.printed == "[['text/plain', 'image/png']] []\n" or "image/png" in cell.printed, cell
    assert "[]\n" in cell.printed
    assert "image/png" not in cell.mimes


def test_the_users_own_figure_waits_for_its_cell(kernel):
    kernel.run("import matplotlib.pyplot as plt", timeout=60)
    cell = kernel.run(
        "mine = plt.figure()\nplt.plot([3])\n"
        "r = await execute(ip, 'plt.figure(); plt.plot([1, 2]);')\n"
        "print(sum('image/png' in o.get('data', ()) for o in r.outputs), plt.get_fignums())"
    )
    assert cell.printed == "1 [1]\n"
    assert cell.mimes.count("image/png") == 1


def test_what_subprocesses_and_old_handlers_write_is_captured(kernel):
    kernel.run(
        "import logging\nlog = logging.getLogger('user')\n"
        "log.addHandler(logging.StreamHandler(sys.stdout))"
    )
    code = (
        "log.warning('logged')\nos.system('echo from a shell')\nimport subprocess\n"
        "subprocess.run(['echo', 'from a child'])\n0;"
    )
    cell = kernel.run(f"r = await execute(ip, {code!r})\nt = r.outputs[0]['text']")
    assert cell.outputs == []
    text = kernel.run("print(t)").printed
    for each in ("logged", "from a shell", "from a child"):
        assert each in text


def test_the_last_words_of_subprocesses_are_not_left_to_the_cell_around(kernel):
    kernel.run("import subprocess")
    code = "subprocess.run(['sh', '-c', 'echo out; echo err >&2']);"
    for _ in range(30):
        cell = kernel.run(f"r = await execute(ip, {code!r})")
        assert cell.outputs == []
        assert (
            kernel.run("print(sorted(o['text'] for o in r.outputs))").printed
            == "['err\\n', 'out\\n']\n"
        )
    assert kernel.run("log.warning('free again')").printed == "free again\n"


def test_a_forked_child_ends_where_the_agent_begins(kernel):
    code = "pid = os.fork()\nprint('child' if pid == 0 else 'parent')"
    cell = kernel.run(
        f"r = await execute(ip, {code!r})\n"
        "print(f'agent goes on {r.error}')\n"  # in one piece: the child may print meanwhile
        "print(f'child ended with {os.waitpid(pid, 0)[1]}')"
    )
    assert cell.printed.count("agent goes on None") == 1
    assert "child ended with 0" in cell.printed
    assert cell.printed.count("child\n") <= 1
    failing = "pid = os.fork()\nif pid == 0: sys.exit(3)"
    cell = kernel.run(
        f"r = await execute(ip, {failing!r})\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))"
    )
    assert cell.printed.endswith("\n3\n")


def test_worker_processes_of_user_code_work(kernel):
    code = (
        "import multiprocessing as mp\n"
        "with mp.get_context('fork').Pool(2) as pool: print(pool.map(abs, [-1, -2]))"
    )
    cell = kernel.run(f"r = await execute(ip, {code!r}, timeout=20)\nprint(r.outputs[0]['text'])")
    assert cell.printed == "[1, 2]\n\n"


def test_200_mb_of_output_stay_small(kernel):
    code = "for i in range(200): print('x' * 1_000_000)"
    cell = kernel.run(
        "import psutil\nbefore = psutil.Process().memory_info().rss\n"
        f"r = await execute(ip, {code!r})\n"
        "print((psutil.Process().memory_info().rss - before) // 10**6, len(r.outputs[0]['text']))"
    )
    grown, kept = map(int, cell.printed.split())
    assert grown < 100
    assert 9_000_000 < kept < 11_000_000


def test_many_small_writes_stay_small(kernel):
    code = "for i in range(300_000): print('x' * 60)"
    cell = kernel.run(
        "before = psutil.Process().memory_info().rss\n"
        f"r = await execute(ip, {code!r})\n"
        "print((psutil.Process().memory_info().rss - before) // 10**6)"
    )
    assert int(cell.printed) < 100


def test_events_registered_by_nested_code_are_kept_but_do_not_fire(kernel):
    kernel.run("fired = []\nip.events.register('post_run_cell', lambda r: fired.append('user'))")
    kernel.run("fired.clear()\nr = await execute(ip, '1')\nn = len(fired)")
    assert kernel.run("print(n, fired[:1])").printed == "0 ['user']\n"


def test_an_update_of_something_shown_elsewhere_goes_there(kernel):
    kernel.run("from IPython.display import display\nh = display('old', display_id=True)")
    cell = kernel.run("r = await execute(ip, 'h.update(1)')\nassert not r.outputs")
    assert [o["data"]["text/plain"] for o in cell.outputs] == ["1"]


def test_widgets_come_as_outputs(kernel):
    cell = kernel.run(
        "r = await execute(ip, 'import ipywidgets as W\\nW.IntSlider()')\n"
        "print(sorted(r.outputs[0]['data']))",
        timeout=60,
    )
    assert "application/vnd.jupyter.widget-view+json" in cell.printed
    assert cell.mimes == []
