"""Real shells, in this process and in kernels of their own."""

from __future__ import annotations

import asyncio
import inspect
import os
import queue
import signal
import sys
import time
from dataclasses import dataclass, field
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


@dataclass
class Cell:
    """What a cell of a real kernel showed; `latency` counts from the interrupt, in seconds."""

    outputs: list[dict] = field(default_factory=list)
    latency: float | None = None
    reply: dict = field(default_factory=dict)

    @property
    def text(self) -> str:
        return "".join(o["text"] for o in self.outputs if "text" in o)

    @property
    def error(self) -> str:
        return "".join(f"{o['ename']}: {o['evalue']}" for o in self.outputs if "ename" in o)

    @property
    def mimes(self) -> list[str]:
        return [mime for o in self.outputs for mime in o.get("data", {})]


class Kernel:
    """A kernel process, driven as a front end drives it."""

    def __init__(self) -> None:
        from tests.kernels import started

        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        # With it set, ipykernel does not watch descriptors 1 and 2, as it does for users.
        env.pop("PYTEST_CURRENT_TEST", None)
        self.manager, self.client = started(env=env)
        assert not self.run(
            "import asyncio, time, sys, os\n"
            "from hermes_nb.notebook.execute.nested import execute\n"
            "from hermes_nb.notebook.interrupt import stoppable\n"
            "ip = get_ipython()\n"
        ).error

    def run(self, code: str, *, interrupt: float | None = None, timeout: float = 30) -> Cell:
        """Run a cell; `interrupt` presses stop that many seconds after it said `ready`."""
        message = self.client.execute(code)
        cell, pressed, due = Cell(), None, None
        until = time.monotonic() + timeout
        while time.monotonic() < until:
            if due is not None and pressed is None and time.monotonic() > due:
                pressed = time.monotonic()
                self.manager.interrupt_kernel()
            try:
                got = self.client.get_iopub_msg(timeout=0.02)
            except queue.Empty:
                continue
            if got["parent_header"].get("msg_id") != message:
                continue
            content = got["content"]
            if got["msg_type"] == "status" and content["execution_state"] == "idle":
                break
            if got["msg_type"] in (
                *("stream", "error", "display_data", "execute_result", "update_display_data"),
            ):
                cell.outputs.append(content)
                if interrupt is not None and due is None and "ready" in cell.text:
                    due = time.monotonic() + interrupt
        else:
            pytest.fail(f"the kernel was still busy after {timeout} s: {cell}")
        if pressed is not None:
            cell.latency = time.monotonic() - pressed
        cell.reply = self.client.get_shell_msg(timeout=timeout)["content"]
        return cell

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


@pytest.fixture(scope="module")
def kernel():
    """Yield a real kernel that the module's tests share."""
    pytest.importorskip("ipykernel")
    kernel = Kernel()
    yield kernel
    kernel.close()
