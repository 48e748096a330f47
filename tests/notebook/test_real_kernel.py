"""What only a real kernel shows: the stop button, figures, workers, memory, descriptors."""

from __future__ import annotations

import pytest

from tests.patience import STOPS_WITHIN

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(120)]

NESTED = """
code = {code!r}
with stoppable() as stop:
    print('ready', flush=True)
    result = await execute(ip, code)
print('stopped', stop.stopped, 'interrupted', result.interrupted, result.error[0])
print('went on', asyncio.current_task().cancelling())
"""


@pytest.mark.parametrize(
    ("code", "ename"),
    [
        ("while True: pass", "KeyboardInterrupt"),
        ("import subprocess; subprocess.run(['sleep', '20'])", "KeyboardInterrupt"),
        ("await asyncio.sleep(0)\ntime.sleep(20)", "KeyboardInterrupt"),
        ("!sleep 20\n1/0", "ZeroDivisionError"),  # the shell takes the stop, and the code goes on
    ],
)
def test_stop_in_nested_code(kernel, code, ename):
    cell = kernel.run(NESTED.format(code=code), stop_on="ready", stop_delay=0.5)
    assert f"stopped False interrupted True {ename}\nwent on 0" in cell.printed, cell
    assert cell.stop_seconds < STOPS_WITHIN


def test_the_kernels_own_handler_is_back(kernel):
    cell = kernel.run("print('ready', flush=True)\ntime.sleep(20)", stop_on="ready", stop_delay=0.2)
    assert cell.error["ename"] == "KeyboardInterrupt"
    assert cell.stop_seconds < STOPS_WITHIN


def test_exit_does_not_end_the_kernel(kernel):
    for code in ("exit()", "quit()", "exit(True)", "import sys; sys.exit(2)"):
        cell = kernel.run(f"r = await execute(ip, {code!r})\nprint(r.error[:2])")
        assert "SystemExit" in cell.printed
    assert kernel.run("print('alive')").printed == "alive\n"


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


def test_worker_processes_of_user_code_work(kernel):
    code = (
        "import multiprocessing as mp\n"
        "with mp.get_context('fork').Pool(2) as pool: print(pool.map(abs, [-1, -2]))"
    )
    cell = kernel.run(f"r = await execute(ip, {code!r}, timeout=20)\nprint(r.outputs[0]['text'])")
    assert cell.printed == "[1, 2]\n\n"


@pytest.mark.parametrize(
    ("code", "least"),
    [
        ("for i in range(200): print('x' * 1_000_000)", 9_000_000),
        ("for i in range(300_000): print('x' * 60)", 5_000_000),
    ],
)
def test_much_output_stays_small(kernel, code, least):
    cell = kernel.run(
        "import psutil\nbefore = psutil.Process().memory_info().rss\n"
        f"r = await execute(ip, {code!r})\n"
        "print((psutil.Process().memory_info().rss - before) // 10**6, len(r.outputs[0]['text']))"
    )
    grown, kept = map(int, cell.printed.split())
    assert grown < 100
    assert least < kept < 11_000_000


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
