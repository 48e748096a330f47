"""What the tests of faults share: a shell, a provider to misbehave, a kernel in front of one."""

from __future__ import annotations

import subprocess

import pytest
from hermes_nb.models.chat.client import OpenAIChat
from hermes_nb.models.chat.retries import Retrying

from tests.faults.cells import Cells, served_kernel
from tests.faults.provider import instant, told_by
from tests.loopback import Loopback, stream, text_chunks
from tests.notebook.conftest import shell

__all__ = ["shell"]


@pytest.fixture
def small_disk(request, tmp_path):
    """Yield a file system as large as `room` says."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={request.param}", "hermes", mount]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("no tmpfs may be mounted here")
    yield mount
    subprocess.run(["umount", "-l", mount], check=True)


@pytest.fixture
def server():
    """Yield a provider; a test sets what it answers."""
    with Loopback(stream(text_chunks("unset"))) as running:
        yield running


@pytest.fixture
def waits(monkeypatch):
    """Return the list of seconds that retries would have waited; nobody waits them."""
    waited: list[float] = []
    monkeypatch.setitem(Retrying.__init__.__kwdefaults__, "sleep", instant(waited))
    return waited


@pytest.fixture
def impatient(monkeypatch):
    """Let a silence of half a second count as the end of a reply."""
    monkeypatch.setitem(OpenAIChat.__init__.__kwdefaults__, "idle", 0.5)


@pytest.fixture
def story(server, waits, home, tmp_path):
    """Yield a conversation with the provider, whose tools work in `tmp_path/work`.

    Whatever a test did, it goes on afterwards.
    """
    with told_by(server, home, tmp_path / "work") as told:
        yield told
        told.goes_on()


@pytest.fixture(scope="session")
def kernel_and_server(tmp_path_factory):
    """Yield one kernel, and the provider it talks to, for every row that leaves it as it was."""
    folder = tmp_path_factory.mktemp("kernel")
    with Loopback(stream(text_chunks("unset"))) as server, served_kernel(server, folder) as kernel:
        yield Cells(kernel, server, folder)


@pytest.fixture
def cells(kernel_and_server):
    """Yield the shared kernel; whatever a test did, `%%hermes` works in it afterwards."""
    kernel_and_server.begin()
    yield kernel_and_server
    kernel_and_server.goes_on()
