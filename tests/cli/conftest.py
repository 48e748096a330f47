"""A provider for command lines to talk to, and command lines as processes of their own."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack

import psutil
import pytest

from tests.loopback import Loopback
from tests.patience import SOON

KEY = "sk-proj-" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ" * 2


@pytest.fixture
def serve(monkeypatch, tmp_path):
    """Return a function that starts a server with these replies, for runs in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    with ExitStack() as running:

        def start(*replies):
            server = running.enter_context(Loopback(*replies))
            monkeypatch.setenv("HERMES_NB_BASE_URL", server.url)
            monkeypatch.setenv("HERMES_NB_MODEL", "loopback-model")
            return server

        yield start


def gone(pid, seconds=SOON):
    """Say whether a process ends within a moment, even if nobody reaps it."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def numbers_in(file, process, seconds=150.0):
    """Return the numbers that a process writes into a file, as a line, once they are there."""
    end = time.monotonic() + seconds
    while not (file.exists() and file.read_text().endswith("\n")):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "nothing was written"
        time.sleep(0.05)
    return [int(word) for word in file.read_text().split()]


def start(words, cwd, **options):
    return subprocess.Popen(
        [sys.executable, "-m", "hermes_nb.cli", *words], cwd=cwd, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options,
    )  # fmt: skip
