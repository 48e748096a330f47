"""Many users on a JupyterHub, each with a kernel that has taken a turn: memory and seconds a user.

`python bench/hub.py [USERS]`: a hub of its own on 127.0.0.1 (SimpleLocalProcessSpawner), the model
of all is a server here, behind `jupyter hermes proxy`. Memory is what a process has for itself and
its share of the rest (PSS). About 3.5 GB for 20 users.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.loopback import Loopback, says
from tests.systems.hub import Hub, installed

AT_ONCE = 5
"""Servers that start at a time: the hub starts more at once, and two cores do not."""
KINDS = {
    "configurable-http-proxy": "the hub's proxy",
    "hermes_nb.cli": "jupyter hermes proxy",
    "-m jupyterhub -f": "the hub",
    "singleuser": "a user's server",
    "ipykernel_launcher": "a user's kernel",
}


def main(count: int) -> None:
    """Let users come, take a turn each, one after the other and then all at once."""
    place = installed()
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name, Loopback(says("Hello.")) as server:
        folder = Path(name)
        folder.chmod(0o755)
        began = time.monotonic()
        with closing(Hub(place, folder, server.url, budget={})) as hub:
            print(f"hub ready: {time.monotonic() - began:.1f} s")
            began = time.monotonic()
            with ThreadPoolExecutor(AT_ONCE) as pool:
                users = list(pool.map(hub.join, [f"user{n:02}" for n in range(count)]))
            took = time.monotonic() - began
            print(f"{count} servers and kernels: {took:.0f} s, {took / count:.1f} s a user")
            for user in users:
                user.run("%load_ext hermes_nb")
            first = timed(users[:1], "%hermes hi")
            print(f"first turn of a first kernel: {first[0]:.1f} s")
            rest = timed(users[1:], "%hermes hi")
            print(f"first turns of all others at once: {statistics.median(rest):.1f} s each")
            again = timed(users, "%hermes hi")
            told = f"{statistics.median(again):.2f} s each, {max(again):.2f} s at most"
            print(f"a turn of all at once: {told}")
            print(f"requests that the model got: {len(server.exchanges)}")
            for kind, sizes in memory(folder).items():
                each = f"{statistics.median(sizes):.0f} MB"
                print(f"{kind}: {each}" + (f", {len(sizes)} of them" if len(sizes) > 1 else ""))
            print(f"all: {sum(map(sum, memory(folder).values())) / 1024:.2f} GB")
            began = time.monotonic()
        print(f"end: {time.monotonic() - began:.0f} s")


def timed(users: list, code: str) -> list[float]:
    """Return the seconds that a cell took with each of these users, all at once."""
    taken: list[float] = []

    def run(user):
        began = time.monotonic()
        shown = user.run(code, seconds=300)
        assert "Hello." in shown, shown
        taken.append(time.monotonic() - began)

    threads = [threading.Thread(target=run, args=(user,)) for user in users]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == len(users)
    return taken


def memory(folder: Path) -> dict[str, list[float]]:
    """Return the MB of each process of the hub in `folder`, by kind."""
    found: dict[str, list[float]] = {}
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
            if str(folder) not in f"{words} {process.cwd()}":
                continue
            size = process.memory_full_info().pss / 2**20
        except psutil.Error:
            continue
        kind = next((kind for mark, kind in KINDS.items() if mark in words), "others")
        found.setdefault(kind, []).append(size)
    return found


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 20)
