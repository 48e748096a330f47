"""`%load_ext hermes_nb` prints one line where a user works, and nothing in scripts."""

from __future__ import annotations

import pytest

from tests.faults.cells import environment
from tests.kernels import kernel
from tests.loopback import Loopback

pytestmark = pytest.mark.kernel


def test_it_prints_one_line_where_a_user_works(tmp_path):
    with Loopback() as server, kernel(environment(server, tmp_path), cwd=str(tmp_path)) as running:
        line = running.run("%load_ext hermes_nb", allow_stdin=True).text
        assert line.startswith("Hermes is loaded.") and line.strip().count("\n") == 0
        assert "%%hermes" in line and "%hermes panel" in line
        running.run("%unload_ext hermes_nb", allow_stdin=True)
        load = "get_ipython().extension_manager.load_extension('hermes_nb') and None"
        assert running.run(load, allow_stdin=True).text == ""
        running.run("%unload_ext hermes_nb")
        assert running.run("%load_ext hermes_nb").text == ""
