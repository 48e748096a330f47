"""Help and empty answers, as a user reads them who has never used Hermes before."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path

import pytest
from hermes_nb.cli.main import main
from hermes_nb.models.scripted import ScriptedModel
from hermes_nb.notebook.commands.table import every_command, find
from hermes_nb.notebook.magics import load, unload

DOCS = Path(__file__).parents[3] / "docs"
GROUPS = [
    "Ask", "Review changes", "Sessions", "Memory and skills", "Model and cost", "Automate", "Setup",
]  # fmt: skip
SUBCOMMANDS = sorted(
    {*"enable disable doctor sessions export run".split()}
    | {each.name for each in entry_points(group="hermes_nb.cli")}
)


@pytest.fixture
def cell(shell, tmp_path, monkeypatch, capsys):
    """Return a function that runs a cell in an empty home and returns what it prints."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    load(shell)
    model = ScriptedModel(["Hello."])
    shell.magics_manager.registry["HermesMagics"].agent.use(model)

    def run(source):
        shell.run_cell(source)
        return capsys.readouterr().out.strip()

    run.model = model
    yield run
    unload(shell)


def test_the_commands_are_listed_in_groups_in_80_columns(cell):
    lines = cell("%hermes help").splitlines()
    listed = lines[2:-2]
    assert max(map(len, listed)) <= 80
    assert [line for line in listed if not line.startswith("%")][1:] == GROUPS
    assert [line.split()[1] for line in listed if line.startswith("%")] == [
        name for group in GROUPS for name, each in every_command().items() if each.group == group
    ]


@pytest.mark.parametrize("name", every_command())
def test_a_command_has_a_page_with_values_examples_and_an_address(cell, name):
    command, told = every_command()[name], cell(f"%hermes help {name}")
    assert f"%hermes {name}" in told
    assert f"%hermes {name}" in (DOCS / command.page).read_text(encoding="utf-8")
    assert f"Documentation: docs/{command.page}" in told
    assert len(command.examples) >= (2 if command.values else 1)
    for line in command.examples:
        assert f"- %hermes {line}" in told
        assert find(line) == (command, line.removeprefix(name).strip())
    for value, meaning in command.values.items():
        assert value in told and meaning.replace("`", "") in told


@pytest.mark.parametrize("name", SUBCOMMANDS)
def test_a_subcommand_has_examples_and_an_address(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main([name, "--help"])
    told = capsys.readouterr().out
    assert "%%%" not in told and f"\n  jupyter hermes {name}" in told
    (page,) = (line for line in told.splitlines() if line.startswith("documentation: "))
    assert f"jupyter hermes {name}" in (DOCS.parent / page.split()[1]).read_text(encoding="utf-8")


@pytest.mark.parametrize("line", ["diff", "undo", "context", "sessions", "search penguins"])
def test_an_empty_home_is_answered_in_one_line_with_the_next_step(cell, line):
    told = cell(f"%hermes {line}")
    assert "Error" not in told and len(told.splitlines()) == 1
    assert "%%hermes" in told or "Try" in told


@pytest.mark.parametrize("line", ["retry", "compress", "reload", "last", "history", "rename x"])
def test_what_needs_a_session_says_how_to_get_one(cell, line):
    told = cell(f"%hermes {line}")
    assert told.startswith("ConfigError: ") and len(told.splitlines()) == 1
    assert "prompt" in told or "%hermes history" in told


def test_a_cell_without_a_body_is_the_line_alone(cell):
    for empty in ("%%hermes", "%%hermes\n", "%%hermes\n  \n"):
        assert cell(empty).startswith("This cell has no prompt. Write one below %%hermes")
    assert not cell.model.requests
    assert "approvals" in cell("%%hermes status") and not cell.model.requests
    assert "Hello." in cell("%%hermes Who are you?")
    assert "Who are you?" in cell.model.requests[0].messages[-1].text
