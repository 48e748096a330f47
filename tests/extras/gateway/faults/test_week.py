"""A hundredth of `make bench-week`: ordinary use while the store is away now and then."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.examples.runs import ROOT


@pytest.mark.kernel
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_little_of_a_week_loses_nothing_and_leaves_nothing(tmp_path):
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "week.py", "sqlite", "--turns", "6", "--notebooks", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 turns" in done.stdout
