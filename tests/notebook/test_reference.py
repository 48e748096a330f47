"""The page on the magics says what the code says."""

from __future__ import annotations

import inspect
import pkgutil
from pathlib import Path

import pytest
from hermes_nb.notebook.commands.table import COMMANDS
from hermes_nb.notebook.reference import commands_table, options, options_table, reference, updated

PAGE = Path(__file__).parents[2] / "docs" / "magics.md"


def test_the_page_is_up_to_date():
    page = PAGE.read_text(encoding="utf-8")
    assert options_table() in page
    assert commands_table() in page
    assert updated(page) == page, "run python -m hermes_nb.notebook.reference docs/magics.md"


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


def test_every_option_has_a_help_text():
    found = dict(options())
    assert len(found) == 14
    assert all(found.values())
    assert "--max-cost USD" in found
    assert reference().count("\n## ") == 1
