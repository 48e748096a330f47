"""Many users on a real JupyterHub: budgets, who sees what, idle servers."""

from __future__ import annotations

import contextlib
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.loopback import Loopback, Reply, event, pause, text_chunks, usage_chunk
from tests.patience import until
from tests.systems.hub import SECRET, Hub, installed, refused

ANSWER = Reply([*map(event, [*text_chunks("Hello there."), usage_chunk(50, 10)])])


@pytest.fixture(scope="module")
def place():
    return installed()


@pytest.fixture
def folder():
    """Yield a folder that every user reaches."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="hub-") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


@pytest.fixture
def hub(place, folder):
    """Return a function that starts a hub before a provider with these replies."""
    with contextlib.ExitStack() as running:

        def start(*replies, **options):
            server = running.enter_context(Loopback(*replies))
            hub = running.enter_context(
                contextlib.closing(Hub(place, folder, server.url, **options))
            )
            hub.server = server
            return hub

        yield start
    assert until(lambda: not left(folder))


def left(folder):
    """Return the processes that a hub has left behind."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            if str(folder) in " ".join([*process.cmdline(), process.cwd()]):
                found.append(process)
    return found


def joined(hub, *names):
    """Return users who came at the same time."""
    users = {}
    threads = [
        threading.Thread(target=lambda n=name: users.update({n: hub.join(n)})) for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [users[name] for name in names]


def test_three_users_and_their_budgets(hub):
    running = hub(ANSWER)
    ada, bob, eve = joined(running, "ada", "bob", "eve")
    for user in (ada, bob, eve):
        user.run("%load_ext hermes_nb")
    assert "Hello there." in ada.run("%%hermes\nremember the walnut of ada")
    assert "Hello there." in ada.run("%%hermes\nagain")
    refused_there = ada.run("%%hermes\nand again")
    assert "ada: today's budget of 100 tokens is used up (120)" in refused_there
    assert "Hello there." in bob.run("%%hermes\nhi") and "Hello there." in eve.run("%%hermes\nhi")
    # The key stays where it is; what went to the provider has it, and no token of a user's.
    assert {e.headers["authorization"] for e in running.server.exchanges} == {f"Bearer {SECRET}"}
    seen = ada.run("import os, glob; print(dict(os.environ), glob.glob('**', recursive=True))")
    assert SECRET not in seen and "JUPYTERHUB_API_TOKEN" in seen
    # Nobody is let into another's server, and sessions are those of one's own home.
    assert refused(lambda: running.api("GET", "/kernels", token=ada.token, base=bob.base)) == 403
    assert "walnut" in ada.run("%hermes sessions")
    assert "walnut" not in bob.run("%hermes sessions")
    assert "walnut" not in bob.run("%hermes sessions walnut")


def test_an_idle_server_is_culled_and_one_that_works_is_not(hub):
    slow = Reply([event(text_chunks("Slow.")[1]), pause(25), *map(event, [usage_chunk(5, 5)])])
    running = hub(
        slow,
        cull=12,
        arguments=[
            "--MappingKernelManager.cull_idle_timeout=6",
            "--MappingKernelManager.cull_interval=2",
            "--MappingKernelManager.cull_connected=True",
        ],
    )
    ada, bob = joined(running, "ada", "bob")
    bob.run("import subprocess; subprocess.Popen(['sleep', '300'])")
    ada.run("%load_ext hermes_nb")
    seen = []

    def look():
        time.sleep(20)
        seen.append((running.runs("ada"), running.runs("bob")))

    shown = ada.run("%%hermes\nthink for long", live=True, meanwhile=look)
    assert "Slow" in shown and "✓" in shown
    assert seen == [(True, False)]
    assert until(lambda: not running.runs("ada"), 60)
    kernels = [p for p in left(running.folder) if "ipykernel" in " ".join(p.cmdline())]
    assert not kernels
