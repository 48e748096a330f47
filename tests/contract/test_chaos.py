"""A hundredth of `make bench-chaos`: everything fails at random, and nothing is lost or left."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.examples.runs import ROOT


@pytest.mark.slow
@pytest.mark.timeout(180)
def test_turns_while_everything_fails(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "chaos.py", "--minutes", "0.3", "--seed", "7"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "stopped" in done.stdout
