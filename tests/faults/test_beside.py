"""Faults of turns that run next to the user's cells."""

from __future__ import annotations

import pytest
from bench.interleavings import ROUNDS, failures, steers

from tests.beside import PINS, beside_kernel

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(180)]


@pytest.mark.parametrize("version", PINS)
def test_100_a_users_cell_runs_while_the_agents_code_awaits(tmp_path, version):
    """Nothing of the user's cells is lost or moved, and nothing of the agent's appears in them."""
    with beside_kernel(tmp_path, version) as cells:
        assert list(failures(cells, ROUNDS // 100, seed=100)) == []


@pytest.mark.parametrize("version", PINS)
def test_no_message_that_a_turn_accepts_is_lost(tmp_path, version):
    with beside_kernel(tmp_path, version) as cells:
        assert list(steers(cells, 6, seed=3)) == []


@pytest.mark.parametrize("version", PINS)
@pytest.mark.parametrize("how", ["--background", ""])
def test_a_partial_answer_is_saved_when_the_kernel_shuts_down(tmp_path, version, how):
    line = f"%%hermes {how} --approve all --session mine\n"
    with beside_kernel(tmp_path, version) as cells:
        cells.run("plays('word ' * 200, delay=0.05)")
        cells.send(f"{line}Tell me.", "turn")
        cells.until(lambda: "word word" in cells.text("turn"))
        cells.kernel.client.shutdown()
        cells.kernel.manager.provisioner.process.wait(20)
    with beside_kernel(tmp_path, version) as cells:
        cells.run("plays('Yes.')\nmodel = agent().models.main")
        cells.run(f"{line}Continue.", "next")
        cells.run("%hermes wait")
        told = cells.run("print([m.text for m in model.requests[-1].messages])")
    assert [text[:9] for text in eval(told) if text.startswith("word")] == ["word word"]
