"""Faults of turns that run next to the user's cells."""

from __future__ import annotations

import pytest
from bench.interleavings import ROUNDS, failures

from tests.beside import PINS, beside_kernel

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(180)]


@pytest.mark.parametrize("version", PINS)
def test_100_a_users_cell_runs_while_the_agents_code_awaits(tmp_path, version):
    """Nothing of the user's cells is lost or moved, and nothing of the agent's appears in them."""
    with beside_kernel(tmp_path, version) as cells:
        assert list(failures(cells, ROUNDS // 100, seed=100)) == []
