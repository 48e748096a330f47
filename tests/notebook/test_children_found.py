"""Sessions of child agents and maps: shown and exported, found with their parents, not resumed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hermes_nb.agent.session.session import CHILD
from hermes_nb.cli.main import main
from hermes_nb.core.errors import ConfigError
from hermes_nb.models.scripted import call

from tests.notebook.desks import Desk


class Family(Desk):
    """An agent that has had a child read a paper, and what the two are called."""

    def __init__(self, shell):
        super().__init__(shell)
        task = call("delegate_task", goal="count the walruses")
        self.plays(task, "Seventeen walruses.", "As counted.", "About walruses: many.")
        self.ask("How many are there?")
        self.parent = self.agent.session.id
        self.child = self.family()[0]

    def family(self):
        stored = map(self.agent.store.get, self.agent.store.lineage(self.parent))
        return [each.id for each in stored if each.source == CHILD]


@pytest.fixture
def desk(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    desk = Family(shell)
    yield desk
    desk.agent.close()


def test_the_history_of_a_session_names_its_children_and_that_of_a_child_its_parent(desk):
    told = desk("history")
    assert f"| `{desk.child}` | count the walruses | 2 |" in told
    told = desk(f"history {desk.child}")
    assert f"was created by `{desk.parent}` for one task: count the walruses" in told
    assert "Seventeen walruses." in told


def test_a_child_is_exported(desk, capsys):
    desk(f"export {desk.child}")
    assert "Seventeen walruses." in Path(f"hermes-{desk.child}.md").read_text()
    assert main(["export", desk.child]) == 0
    assert "Seventeen walruses." in capsys.readouterr().out


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_child_is_not_gone_on_with(desk, dry_run):
    with pytest.raises(ConfigError, match=f"hermes resume {desk.parent}` resumes its parent"):
        desk(f"resume {desk.child}")
    with pytest.raises(ConfigError, match="belongs to a child agent and cannot be resumed"):
        desk.ask("go on", session=desk.child, dry_run=dry_run)
    assert desk.agent.session.id == desk.parent
    desk("new")
    assert desk.parent in desk(f"resume {desk.parent}")


def test_what_a_child_said_is_found_with_its_parent(desk, capsys):
    told = desk("search seventeen walruses")
    assert f"`{desk.child}`, a child of `{desk.parent}`" in told
    assert main(["sessions", "--search", "seventeen walruses", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["session"], row["child_of"]) for row in rows} >= {(desk.child, desk.parent)}
    assert main(["sessions", "--search", "seventeen walruses"]) == 0
    assert f"{desk.child}  child of {desk.parent}" in capsys.readouterr().out


def test_a_map_is_a_child_without_a_conversation(desk):
    Path("a.md").write_text("walruses")
    desk('map "What is it?" a.md')
    made = next(each for each in desk.family() if each != desk.child)
    assert "map: What is it?" in desk("history")
    assert "run its `%hermes map` line again" in desk(f"history {made}")
    with pytest.raises(ConfigError, match="belongs to a child agent and cannot be resumed"):
        desk(f"resume {made}")
