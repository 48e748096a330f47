"""Every command is explained where it is declared."""

from __future__ import annotations

import inspect
import pkgutil

import pytest
from hermes_nb.notebook.commands.table import COMMANDS


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_there_and_explained(name):
    command = COMMANDS[name]
    run = pkgutil.resolve_name(command.run)
    assert len(inspect.signature(run).parameters) == 2
    assert inspect.getdoc(run)
    assert command.about
    assert set(command.before) <= set(command.words)
    for word in command.words:
        assert word in command.usage
