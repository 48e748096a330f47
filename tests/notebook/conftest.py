"""Real shells, in this process and in kernels of their own."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    """Run a test that is a coroutine on a loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture
def shell():
    """Yield a fresh IPython shell; `display()` finds its shell as the singleton, so it is that."""
    from IPython.core import async_helpers
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    config = Config()
    config.HistoryManager.enabled = False
    config.HistoryManager.hist_file = ":memory:"
    InteractiveShell.clear_instance()
    names = ("displayhook", "excepthook", "stdout", "stderr")
    kept = {name: getattr(sys, name) for name in names}
    main = sys.modules["__main__"]
    path = list(sys.path)
    shell = InteractiveShell.instance(config=config)
    try:
        yield shell
    finally:
        shell.restore_sys_module_state()
        InteractiveShell.clear_instance()
        if async_helpers._asyncio_event_loop is not None:
            async_helpers._asyncio_event_loop.close()
            async_helpers._asyncio_event_loop = None
        for name, value in kept.items():
            setattr(sys, name, value)
        sys.modules["__main__"] = main
        sys.path[:] = path


@pytest.fixture
def desk(shell, tmp_path, monkeypatch):
    """Yield an agent in an empty folder, with commands and prompts as if they were typed."""
    from tests.notebook.desks import Desk

    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    desk = Desk(shell)
    yield desk
    desk.agent.close()


@pytest.fixture
def run(shell):
    """Return a function that runs code nested, without a cell around it."""
    from hermes_nb.notebook.execute.nested import execute

    def run(code, **options):
        return asyncio.run(execute(shell, code, **options))

    return run


@pytest.fixture
def signals():
    """Check that signal handlers and the timer (pytest-timeout may run one) are as before."""
    names = (signal.SIGINT, signal.SIGALRM)
    before = [signal.getsignal(name) for name in names]
    timer = signal.getitimer(signal.ITIMER_REAL)
    yield
    after = [signal.getsignal(name) for name in names]
    left = signal.getitimer(signal.ITIMER_REAL)
    assert after == before
    assert bool(left[0]) == bool(timer[0])
    assert left[1] == timer[1]


@pytest.fixture(scope="module")
def kernel():
    """Yield a real kernel that the module's tests share."""
    from tests import kernels

    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    # With it set, ipykernel does not watch descriptors 1 and 2, as it does for users.
    env.pop("PYTEST_CURRENT_TEST", None)
    with kernels.kernel(env, cwd=str(ROOT)) as running:
        assert not running.run(
            "import asyncio, time, sys, os\n"
            "from hermes_nb.notebook.execute.nested import execute\n"
            "from hermes_nb.notebook.interrupt import stoppable\n"
            "ip = get_ipython()\n"
        ).error
        yield running
