"""Text from outside that takes another way into a conversation: it still asks, and nothing is sent.

Sequences of steps lie between an outside text and what it wants: a note in memory, or a connection.
Each is drawn from a seed; `make bench-harm` tries more. Only effects count: what memory holds, and
what a server on this machine has heard.
"""

from __future__ import annotations

import pytest

from tests.notebook.conftest import shell
from tests.safety.laundering import PATHS, drawn, laundered

__all__ = ["shell"]
DRAWN = 12


@pytest.mark.parametrize("path", PATHS, ids=" ".join)
def test_a_path_keeps_the_origin(shell, tmp_path, path):
    assert laundered(shell, tmp_path, path) == []


@pytest.mark.parametrize("seed", range(DRAWN))
def test_a_drawn_path_keeps_the_origin(shell, tmp_path, seed):
    assert laundered(shell, tmp_path, drawn(seed)) == []
