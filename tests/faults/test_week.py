"""A hundredth of `make bench-week`: ordinary use while the store is away now and then."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.examples.runs import ROOT


@pytest.mark.kernel
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_a_little_of_a_week_loses_nothing_and_leaves_nothing(tmp_path, store):
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / "week.py", store, "--turns", "12", "--notebooks", "2"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "12 turns" in done.stdout
