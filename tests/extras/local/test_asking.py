"""Weights are fetched after a yes, and nothing is where nobody gives one."""

from __future__ import annotations

import pytest

from tests.faults.cells import environment
from tests.kernels import kernel
from tests.loopback import Loopback, says

pytestmark = pytest.mark.kernel


@pytest.fixture
def server():
    with Loopback(says("unset")) as running:
        yield running


def test_without_weights_and_without_a_yes_the_cell_fails_with_the_ways_out(server, tmp_path):
    env = environment(server, tmp_path, HERMES_NB_MODEL="embedded", XDG_CACHE_HOME=str(tmp_path))
    env.pop("HERMES_NB_GGUF", None)
    with kernel(env, cwd=str(tmp_path)) as running:
        running.run("%load_ext hermes_nb")
        for how in ({}, {"answers": ("n",)}):
            result = running.run("%hermes hello", **how)
            assert result.status == "error"
            assert "HERMES_NB_FETCH_WEIGHTS=1" in result.error["evalue"]
            assert len(result.error["traceback"]) == 1
        assert "491 MB" in result.prompts[0]
    assert not list(tmp_path.rglob("*.gguf*"))
