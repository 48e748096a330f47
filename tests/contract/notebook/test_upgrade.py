"""Another version is installed while a kernel runs: what it can no longer import is explained."""

from __future__ import annotations

import importlib.metadata
import sys

import hermes_nb
import pytest
from hermes_nb.core.errors import ConfigError

from tests.notebook.conftest import shell

__all__ = ["shell"]


@pytest.mark.parametrize(("installed", "explained"), [("99.0", True), ("", False), (None, False)])
def test_a_module_that_is_gone_asks_for_a_restart(shell, monkeypatch, capsys, installed, explained):
    monkeypatch.setitem(sys.modules, "hermes_nb.notebook.commands.sessions", None)

    def version(name):
        if installed is None:  # it was removed, and nothing put in its place
            raise importlib.metadata.PackageNotFoundError(name)
        return installed or hermes_nb.__version__

    monkeypatch.setattr(importlib.metadata, "version", version)
    shell.run_cell("%load_ext hermes_nb")
    done = shell.run_cell("%hermes status")
    shell.run_cell("%unload_ext hermes_nb")
    assert isinstance(done.error_in_exec, ConfigError) == explained
    told = capsys.readouterr()
    assert ("restart the kernel" in told.out + told.err) == explained
