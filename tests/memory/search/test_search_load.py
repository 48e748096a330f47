"""The benchmark of searches makes its stores beside the store's own code: it has to keep up."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

BENCH = Path(__file__).parents[3] / "bench" / "search_load.py"


def test_a_small_store_is_made_and_searched(tmp_path):
    command = [sys.executable, str(BENCH), "3000"]
    env = os.environ | {"TMPDIR": str(tmp_path)}
    ran = subprocess.run(command, check=False, env=env, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert "3,000 messages" in ran.stdout
    assert "95th percentile" in ran.stdout
    assert (tmp_path / "hermes-nb-search-3000.db").exists()
