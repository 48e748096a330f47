from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from hermes_nb.extras.local.weights import locate

REPOSITORY = Path(__file__).parents[3]


@pytest.mark.embedded
@pytest.mark.skipif(locate() is None, reason="the weights are not here")
def test_what_every_request_carries_is_small():
    command = [sys.executable, "bench/prompt.py", "tokens"]
    said = subprocess.run(
        command, cwd=REPOSITORY, check=True, capture_output=True, text=True
    ).stdout
    assert "characters / 3.5" not in said
    tools, fixed = (
        int(re.search(rf"{name}.* ([\d,]+)$", said, re.MULTILINE)[1].replace(",", ""))
        for name in ("tool schemas", "fixed part")
    )
    assert 1_500 < tools < fixed <= 2_700
