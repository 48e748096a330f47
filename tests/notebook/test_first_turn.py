"""A kernel's first turn leaves the event loop free for the user's cells."""

from __future__ import annotations

import os

import pytest

from tests.kernels import kernel
from tests.loopback import Loopback, says

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(120)]

WATCH = """
import sys, threading
class Finder:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is threading.main_thread():
            found.append(name)
found = []
sys.meta_path.insert(0, Finder())
"""
SLOW = {"hermes_nb", "openai", "httpx", "httpcore", "yaml", "pydantic"}


def test_a_first_turn_imports_in_a_thread(tmp_path):
    with Loopback(says("Forty-two.")) as server:
        env = os.environ | {"HERMES_HOME": str(tmp_path / "home"), "HERMES_NB_MODEL": "m"}
        with kernel(env | {"HERMES_NB_BASE_URL": server.url}, cwd=str(tmp_path)) as running:
            running.run("%load_ext hermes_nb")
            running.run("%%hermes --background\nWhat is it?", allow_stdin=True)
            running.run(WATCH)
            running.run("%hermes wait")
            found = eval(running.run("print(found)").printed)
        assert len(server.bodies) == 1
    assert sorted(name for name in found if name.partition(".")[0] in SLOW) == []
