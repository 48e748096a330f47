"""What waits for approval, through the commands and through the panel."""

from __future__ import annotations

import pytest
from hermes_nb.agent.proposals import MemoryWrite, SkillWrite
from hermes_nb.core.errors import ConfigError
from hermes_nb.memory.entries import Operation
from hermes_nb.memory.history import WriteOrigin
from hermes_nb.notebook.commands import knowledge
from hermes_nb.notebook.commands.table import COMMANDS
from hermes_nb.skills.editing import SkillChange

from tests.notebook.panels.test_panels import HOSTILE, SKILL, desk

__all__ = ["desk"]
FROM = WriteOrigin(session="s", turn=4, notebook="/work/report.ipynb", source="review")


def memory(agent, words):
    """Run `%hermes memory`."""
    return knowledge.memory(agent, COMMANDS["memory"].arguments(words))


def skills(agent, words):
    """Run `%hermes skills`."""
    return knowledge.skills(agent, COMMANDS["skills"].arguments(words))


@pytest.fixture
def agent(desk):
    return desk.agent


def propose(agent, text, target="memory"):
    steps = (Operation(action="add", content=text),)
    agent.runtime.approvals.pending.propose(MemoryWrite(target=target, steps=steps), FROM)


def wait_for(agent, *texts):
    """Put notes before the user, then a skill."""
    for text in texts:
        propose(agent, text)
    content = SKILL.format(name="plots", about="Plots as this user likes them")
    change = SkillChange(action="create", name="plots", content=content)
    agent.runtime.approvals.pending.propose(SkillWrite(change=change), FROM)


def test_it_is_listed_with_what_it_would_do_and_where_it_came_from(agent):
    assert "Nothing is waiting" in memory(agent, "pending")
    assert "approval" not in memory(agent, "")
    wait_for(agent, "Likes tea.", "Uses pandas.")
    told = memory(agent, "pending")
    parts = ("**1** add memory: Likes tea.", "+Uses pandas.", "report.ipynb")
    assert all(part in told for part in parts) and "plots" not in told
    assert "# plots" in skills(agent, "pending 3")
    assert "2 notes are pending: keep `%hermes memory approve 1 2`" in memory(agent, "")
    assert "1 skill change is pending: keep `%hermes skills approve 3`" in skills(agent, "")


def test_numbers_are_approved_rejected_and_reworded(agent):
    wait_for(agent, "Likes tea.", "Uses pandas.", "Data lives in `data/`.")
    assert "undo" in memory(agent, "approve 1, 3")
    assert "rejected" in memory(agent, "reject 2")
    assert agent.knowledge.memory.entries("memory") == ["Likes tea.", "Data lives in `data/`."]
    assert "created skill" in skills(agent, "approve 4").lower()
    assert agent.knowledge.library.get("plots")
    propose(agent, "Has a cat.", target="user")
    memory(agent, "approve 5 Has 2 cats.")
    assert agent.knowledge.memory.entries("user") == ["Has 2 cats."]


def test_all_of_a_kind_are_kept_or_dropped_at_once(agent):
    wait_for(agent, "Likes tea.", "Uses pandas.")
    assert "undo" in memory(agent, "approve all")
    assert agent.knowledge.memory.entries("memory") == ["Likes tea.", "Uses pandas."]
    assert "rejected" in skills(agent, "reject all")
    assert agent.runtime.approvals.waiting() == []
    with pytest.raises(ConfigError, match="nothing is waiting"):
        memory(agent, "approve all")


@pytest.mark.parametrize(
    "words", ["approve", "approve x", "approve all x", "reject", "approve 9", "pending 9"]
)
def test_a_number_that_is_none_says_what_to_do(agent, words):
    with pytest.raises(ConfigError, match=r"pending|NUMBERS is missing"):
        memory(agent, words)


def test_what_is_about_skills_is_not_approved_unseen(agent):
    wait_for(agent, "Likes tea.")
    with pytest.raises(ConfigError, match="2 is a skills change"):
        memory(agent, "approve 1 2")
    assert agent.knowledge.memory.entries("memory") == []


def test_hostile_text_is_shown_and_does_nothing(agent):
    wait_for(agent, HOSTILE)
    told = memory(agent, "pending")
    assert "\u202e" not in told
    assert "**1** add memory: <img" not in told


async def test_what_cannot_be_saved_fails_the_cell_and_still_waits(desk):
    wait_for(desk.agent, "Likes tea.")
    desk.knows("Likes tea.")
    with pytest.raises(ConfigError, match=r"1 is still pending: .*says that already"):
        memory(desk.agent, "approve 1")
    assert "could not be saved" in memory(desk.agent, "pending")
    await desk.open()
    assert "says that already" in await desk.click("approve")
    assert "It could not be saved" in desk.text()
