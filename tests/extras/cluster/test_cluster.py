"""A map on a real ipyparallel cluster of two engines, also when an engine dies in the middle."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from contextlib import closing, suppress

import pytest
from hermes_nb import Hermes
from hermes_nb.agent.fanout.executors import executor_names, open_crew
from hermes_nb.agent.fanout.inputs import inputs_of
from hermes_nb.agent.fanout.maps import Fanout, MapPlan
from hermes_nb.core.errors import ConfigError
from hermes_nb.memory.sessions import SqliteStore

from tests.loopback import Loopback, Reply, pause, stall, stream, text_chunks

ipyparallel = pytest.importorskip("ipyparallel")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(180),
    # What the library leaves to the garbage collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
PROFILE = "hermestest"


@pytest.fixture
def cluster(tmp_path, monkeypatch, home):
    """Start two engines under a profile of their own; what they run knows the test's home."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("HERMES_NB_LOCAL_SERVERS", "0")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    made = ipyparallel.Cluster(
        n=2,
        profile=PROFILE,
        cluster_id="",
        controller_ip="127.0.0.1",
        log_level=40,
        engine_timeout=60,
    )
    made.start_cluster_sync()
    client = made.connect_client_sync()
    client.wait_for_engines(2, timeout=60, interactive=False)
    yield client
    client.close()
    made.stop_cluster_sync()


def mapped(address, inputs, tmp_path, **options):
    with Hermes("loopback", base_url=address, cwd=tmp_path) as hermes:
        return hermes.map("Say", inputs, executor=f"ipyparallel:{PROFILE}", **options)


def states(result):
    return [item.status for item in result.items]


def test_engines_do_the_tasks_and_each_once(cluster, tmp_path):
    with Loopback(stream(text_chunks("from an engine"))) as server:
        inputs = {f"n{n}": f"text {n}" for n in range(8)}
        result = mapped(server.url, inputs, tmp_path)
        assert [item.answer for item in result.items] == ["from an engine"] * 8
        again = mapped(server.url, inputs, tmp_path)
        assert all(item.kept for item in again.items)
        assert len(server.exchanges) == 8


async def on_cluster(server, tmp_path, inputs, story):
    """Tell a story with a map that runs; return what became of its items and its claims."""
    crew = await open_crew(f"ipyparallel:{PROFILE}")
    plan = MapPlan(prompt="Say", model="loopback", base_url=server.url, parallel=len(inputs))
    with closing(SqliteStore(tmp_path / "n.db")) as store, closing(crew):
        found = inputs_of(inputs, root=tmp_path)
        fanout = Fanout(plan, found, model=None, ledger=store, crew=crew)
        task = asyncio.create_task(fanout.run())
        while len(server.exchanges) < 2:
            await asyncio.sleep(0.05)
        await story(fanout)
        begun = time.monotonic()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert time.monotonic() - begun < 8  # all of the pauses below would take 9
        return states(fanout), [claim.state for claim in store.claims(plan.run)]


def test_an_engine_that_is_killed_leaves_its_task_unknown(cluster, tmp_path):
    slow = Reply([b": begun\n\n", stall])
    with Loopback(slow, slow, stream(text_chunks("yes"))) as server:
        pids = cluster[:].apply_sync(os.getpid)

        async def kill(fanout):
            os.kill(pids[0], signal.SIGKILL)
            async with asyncio.timeout(60):
                while "unknown" not in states(fanout):
                    await asyncio.sleep(0.1)

        # The other one goes on in its engine when the map is stopped, and nobody knows how far.
        found = asyncio.run(on_cluster(server, tmp_path, {"a": "1", "b": "2"}, kill))
        assert found == (["unknown", "unknown"], ["running", "running"])
        assert len(server.exchanges) == 2


def test_a_stop_aborts_what_no_engine_had_begun(cluster, tmp_path):
    with Loopback(Reply([b": begun\n\n", pause(3), b"data: [DONE]\n\n"])) as server:
        texts = {f"n{n}": str(n) for n in range(6)}
        cluster[0].apply_async(time.sleep, 12)  # it has other work, and half of the tasks wait
        found, left = asyncio.run(on_cluster(server, tmp_path, texts, lambda _: asyncio.sleep(0)))
        time.sleep(3)
        # What was aborted is begun by no engine; a claim is left for what may have been. An empty
        # reply is asked about once.
        assert len(server.exchanges) <= 2 * found.count("unknown")
        assert left == ["running"] * found.count("unknown")


def test_without_a_cluster_it_is_said_how_to_get_one(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    with pytest.raises(ConfigError, match="start one with `ipcluster start"):
        asyncio.run(open_crew("ipyparallel:nobody"))


def test_without_the_library_it_is_said_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ipyparallel", None)
    with pytest.raises(ConfigError, match=r'pip install "hermes_nb\[parallel\]"'):
        asyncio.run(open_crew("ipyparallel"))


def test_the_cluster_is_offered_by_name():
    assert "ipyparallel" in executor_names()
    with pytest.raises(ConfigError, match="use threads, ipyparallel, processes or package:factory"):
        asyncio.run(open_crew("nothing"))
