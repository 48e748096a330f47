"""What twenty MCP servers cost: how much later a first turn ends, and what they do when idle.

With `door`, what other agents meet in a live notebook instead: how soon they see the tools and a
variable, and whether any of 200 tries changes something without an approval.

Run with `make bench-mcp`. Fresh processes, by turns with and without servers, ask a loopback
provider once; the servers are small programs that have been started before. Idle is the CPU of this
side and of all servers in ten seconds after the last of them is ready.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.extras.mcp_server.doors import LOOP, TRIES, TURN, Served, client, served, text
from tests.loopback import Loopback, stream, text_chunks
from tests.patience import until

from figures import figure

SERVERS, RUNS, IDLE = 20, 7, 10
PEER = str(Path(__file__).parents[1] / "tests" / "faults" / "mcp_peer.py")
PROBE = """
import json, os, sys, time
from hermes_nb import Hermes
idle = float(sys.argv[2])
hermes = Hermes("m", base_url=sys.argv[1], api_key="k")
before = time.perf_counter()
turn = hermes.ask("hello")
first = time.perf_counter() - before
assert turn.reason == "answered", turn.error
found = {"first": first, "mcp": "mcp" in sys.modules}
if idle:
    import psutil
    connections = hermes._opening._mcp.servers.connections.values()
    while any(each.state in ("waiting", "starting") for each in connections):
        time.sleep(0.1)
    me = psutil.Process()
    def cpu():
        return [sum(p.cpu_times()[:2]) for p in (me, *me.children(recursive=True))]
    time.sleep(1)
    began = cpu()
    time.sleep(idle)
    found |= {"ready": sum(each.state == "ready" for each in connections)}
    ended = cpu()
    found |= {"own": ended[0] - began[0], "servers": sum(ended[1:]) - sum(began[1:])}
hermes.close()
print(json.dumps(found))
"""


def probe(home: Path, url: str, idle: float = 0) -> dict:
    env = {**os.environ, "HERMES_HOME": str(home), "HERMES_NB_PROGRESS": "0"}
    command = [sys.executable, "-c", PROBE, url, str(idle)]
    out = subprocess.run(command, env=env, capture_output=True, text=True, check=True, cwd=home)
    return json.loads(out.stdout.splitlines()[-1])


LOOKS, ROUNDS = 100, 25
"""How often a variable is looked at, and how often each forbidden call is tried."""


async def looks(session) -> list[float]:
    times = []
    for _ in range(LOOKS):
        began = time.perf_counter()
        found = text(await session.call_tool("inspect_variable", {"name": "oak"}))
        times.append((time.perf_counter() - began) * 1e3)
        assert found.startswith("oak: int"), found
    return sorted(times)


async def tries(session, times: int) -> int:
    """Return how many calls were not refused."""
    await session.call_tool("read_cells")
    results = [await session.call_tool(*each) for _ in range(times) for each in TRIES]
    return sum("not open in a page" not in text(each) for each in results)


async def beside(door: Served) -> None:
    folder = door.path.parent
    async with client(door.env) as session:
        began = time.perf_counter()
        assert len((await session.list_tools()).tools) == 12
        figure("12 tools are listed", (time.perf_counter() - began) * 1e3, "ms", most=100)
        idle = await looks(session)
        door.kernel.client.execute(LOOP)
        await asyncio.sleep(1)
        busy = await looks(session)
        (folder / "go").touch()
        door.kernel.run("1")
        print(f"a variable, p50 and p95: {idle[50]:.0f}, {idle[95]:.0f} ms; busy {busy[50]:.0f} ms")
        figure("a variable is seen beside a Python loop, p95", busy[95], "ms", most=50)
        passed = await tries(session, ROUNDS // 2)
        door.reset()
        before = door.path.read_bytes()
        door.kernel.client.execute("%%hermes --approve all\ngo")
        assert until((folder / "began").exists)
        passed += await tries(session, ROUNDS - ROUNDS // 2)
        passed += door.path.read_bytes() != before or (folder / "got").exists()
        (folder / "go").touch()
        figure(f"of {ROUNDS * len(TRIES)} tries passed the guard", passed, most=0)


def door() -> None:
    os.environ["HERMES_NB_CEILING"] = "all"
    with tempfile.TemporaryDirectory() as name, served(Path(name), Path(name) / "home") as found:
        assert not found.kernel.run(TURN).error
        assert not found.kernel.run("%hermes serve").error
        asyncio.run(beside(found))


def cost() -> None:
    with (
        tempfile.TemporaryDirectory() as folder,
        Loopback(stream(text_chunks("Hello."))) as server,
    ):
        bare, full = Path(folder, "bare"), Path(folder, "full")
        bare.mkdir()
        full.mkdir()
        servers = {
            f"s{number}": {"command": sys.executable, "args": [PEER, str(full / "pids")]}
            for number in range(SERVERS)
        }
        (full / "config.yaml").write_text(yaml.safe_dump({"mcp_servers": servers}))
        resting = probe(full, server.url, IDLE)
        times: dict[Path, list[float]] = {bare: [], full: []}
        for _ in range(RUNS):
            for home, found in times.items():
                found.append(probe(home, server.url)["first"] * 1e3)
        # Other work on the machine only adds to them.
        without, with_them = (min(each) for each in times.values())
        print(f"first turn: {without:.0f} ms without, {with_them:.0f} ms with {SERVERS} servers")
        figure(f"a first turn with {SERVERS} MCP servers", with_them - without, "ms more", most=100)
        print(f"{resting['ready']} of {SERVERS} servers are ready")
        figure("CPU of idle MCP servers", resting["servers"] / IDLE * 1e3, "ms a second", most=1)
        figure("our CPU beside them", resting["own"] / IDLE * 1e3, "ms a second", most=1)
        assert not probe(bare, server.url)["mcp"], "without a server, mcp is imported"


if __name__ == "__main__":
    door() if sys.argv[1:] == ["door"] else cost()
