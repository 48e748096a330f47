"""What runs unasked of generated commands has no effect: nothing changed, sent or shown.

A hundredth of `make bench-policy`, always the same one.
"""

from __future__ import annotations

import sys

import pytest
from bench.canary import commands, effects
from hermes_nb.safety.sandbox import level

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="inotify tells who reads")


@pytest.mark.slow
def test_allowed_commands_have_no_effect():
    found = effects(commands(7, 500))
    assert found.ran > 50
    assert found.sprung == []


@pytest.mark.slow
@pytest.mark.skipif(level().name == "none", reason="there is no sandbox here")
def test_confined_commands_have_no_effect():
    found = effects(commands(11, 100), confined=True)
    assert found.ran > 20
    assert found.sprung == []
