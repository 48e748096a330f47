"""A hundredth of `make bench-gateway`: what is there after the gateway was killed."""

from __future__ import annotations

import pytest
from bench.gateway import trial


@pytest.mark.slow
@pytest.mark.parametrize("deduplicates", [True, False])
def test_nothing_is_lost_and_nothing_answered_twice(tmp_path, deduplicates):
    result = trial(
        tmp_path, messages=10, chats=5, kills=1, seed=7 + deduplicates, deduplicates=deduplicates
    )
    assert result.faults == []
    assert result.kills == 1
