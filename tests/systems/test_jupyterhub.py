"""Many users on a real JupyterHub: budgets, who sees what, idle servers, and two real accounts."""

from __future__ import annotations

import contextlib
import json
import pwd
import shutil
import socketserver
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.loopback import Loopback, Reply, calls, event, pause, says, text_chunks, usage_chunk
from tests.patience import until
from tests.systems.hub import SECRET, SHARED, Hub, installed, refused

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
    assert "walnut" not in bob.run("%hermes search walnut")


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


# Two real accounts --------------------------------------------------------------------------------

PEOPLE = ("hnbada", "hnbbob")


@pytest.fixture(scope="module")
def people(place):
    """Make two accounts, and take them away again."""
    if place.parent != SHARED or not shutil.which("useradd"):
        pytest.skip("accounts are made by root, and need a Python that all can run")
    for name in PEOPLE:
        with contextlib.suppress(KeyError):
            pwd.getpwnam(name)
            subprocess.run(["userdel", "-rf", name], check=True, capture_output=True)
        subprocess.run(["useradd", "-m", "-s", "/bin/bash", name], check=True)
    yield PEOPLE
    for name in PEOPLE:
        subprocess.run(["pkill", "-KILL", "-u", name], check=False)
        subprocess.run(["userdel", "-rf", name], check=False, capture_output=True)


class Heard(socketserver.ThreadingUnixStreamServer):
    """A collector of the administrator's."""

    daemon_threads = True

    def __init__(self, path):
        self.lines = []
        super().__init__(str(path), Taking)
        path.chmod(0o666)
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()


class Taking(socketserver.StreamRequestHandler):
    def handle(self):
        for line in self.rfile:
            self.server.lines.append(json.loads(line))


@pytest.fixture
def policed(place, folder, people):
    """Put a policy in force for that environment, with an audit; yield the collector."""
    logs = folder / "audit"
    logs.mkdir(mode=0o755)
    for name in people:
        path = logs / f"{name}.jsonl"
        path.touch(mode=0o600)
        shutil.chown(path, name)
    policy = {
        "modes": {"all": "force-off"},
        "audit": {"file": f"{logs}/{{user}}.jsonl", "collector": f"unix://{folder}/audit.sock"},
    }
    file = place / "etc/jupyter/hermes_policy.json"
    file.write_text(json.dumps({"HermesPolicy": policy}))
    heard = Heard(folder / "audit.sock")
    yield heard
    heard.shutdown()
    heard.server_close()
    file.unlink()


PATCH_GUARD = """
from hermes_nb.safety.guard import Decision, Guard
Guard.decide = lambda self, tool, arguments, **_: Decision(verdict="allow")
"""
PATCH_AUDIT = """
from hermes_nb.extras.hub.audit import Audit
Audit.record = lambda *_, **__: None
"""
ASK_DIRECTLY = """
import json, os, urllib.request, urllib.error
def ask(model, token=os.environ["JUPYTERHUB_API_TOKEN"]):
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "hi"}]}).encode()
    request = urllib.request.Request(os.environ["HERMES_NB_BASE_URL"] + "/chat/completions", body,
                                     {"Authorization": "Bearer " + token})
    try:
        return urllib.request.urlopen(request).status
    except urllib.error.HTTPError as error:
        return error.code
"""


def test_what_holds_between_two_accounts_and_against_one_that_patches(hub, policed, people, folder):
    def writes(name):
        return calls(("write_file", {"path": f"{name}.txt", "content": "x"}))

    running = hub(
        *[writes("settings"), says("One."), calls(("list_files", {})), says("Listed.")],
        *[writes("patched"), says("Two.")],
        *[writes("silent"), says("Three.")],
        spawner="jupyterhub.spawner.LocalProcessSpawner",
        budget={"tokens": 115},
    )
    ada, bob = joined(running, *people)
    home = Path("~hnbada").expanduser()
    for user in (ada, bob):
        user.run("%load_ext hermes_nb")

    # Against settings: no option, variable or file of hers raises what root has written down.
    ada.run("import os; os.environ['HERMES_NB_APPROVE'] = 'all'")
    ada.run("%%hermes\nwrite")
    assert not (home / "settings.txt").exists()
    ended = [line for line in policed.lines if line["event"] == "end"]
    assert [(e["user"], e["tool"], e["outcome"]) for e in ended] == [
        ("hnbada", "write_file", "denied")
    ]
    # A run with nobody there, in a process of its own, as schedules start them.
    assert "administrator" in ada.run("!jupyter hermes run --approve all 'look'")
    assert "Listed." in ada.run("!HERMES_NB_APPROVE= jupyter hermes run 'look'")
    assert [(e["tool"], e["mode"]) for e in policed.lines[2:]] == [("list_files", "ask")] * 2
    policy = f"open({str(running.place / 'etc/jupyter/hermes_policy.json')!r}, 'w')"
    assert "PermissionError" in ada.run(policy)

    # Another account's home, sessions and audit.
    for path in (f"{home}/.hermes/notebook.db", f"{folder}/audit/hnbada.jsonl", f"{folder}/key"):
        assert "PermissionError" in bob.run(f"open({path!r}).read()")
    assert "PermissionError" in bob.run(f"open({f'{folder}/spent.db'!r}, 'a')")

    # Against patched code: it runs, and is seen until the audit is patched as well.
    ada.run(PATCH_GUARD)
    shown = ada.run("%%hermes\nwrite")
    assert (home / "patched.txt").exists(), shown
    assert until(lambda: len(policed.lines) == 6)
    assert policed.lines[-1]["outcome"] == "ok" and policed.lines[-1]["answers"] == []
    ada.run(PATCH_AUDIT)
    ada.run("%%hermes\nwrite")
    assert (home / "silent.txt").exists() and len(policed.lines) == 6

    # What stands outside of the kernel holds: the key, the models and the budget.
    ada.run(ASK_DIRECTLY)
    assert ada.run("ask('large')").strip() == "404"
    assert ada.run("ask('small', 'nonsense')").strip() == "401"
    assert ada.run("ask('small')").strip() == "402"
    assert SECRET not in ada.run("print(dict(os.environ))")
