"""What waits for approval, through the commands and through the panel."""

from __future__ import annotations

import pytest
from hermes_nb.agent.proposals import MemoryWrite, SkillWrite
from hermes_nb.core.errors import ConfigError
from hermes_nb.memory.entries import Operation
from hermes_nb.memory.history import Origin
from hermes_nb.notebook.commands.knowledge import memory, skills
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.skills.editing import Change

from tests.notebook.panels.test_panels import HOSTILE, SKILL, desk, played

__all__ = ["desk"]
FROM = Origin(session="s", turn=4, notebook="/work/report.ipynb", source="review")


@pytest.fixture
def agent(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    agent = KernelAgent(shell, say=lambda _: None)
    yield agent
    agent.close()


def wait_for(agent, *texts):
    """Put notes before the user, then a skill."""
    pending = agent.runtime.approvals.pending
    for text in texts:
        steps = (Operation(action="add", content=text),)
        pending.propose(MemoryWrite(target="memory", steps=steps), FROM)
    content = SKILL.format(name="plots", about="Plots as this user likes them")
    change = Change(action="create", name="plots", content=content)
    pending.propose(SkillWrite(change=change), FROM)


def test_nothing_waits_at_first(agent):
    assert "Nothing waits" in memory(agent, "pending")
    assert "approval" not in memory(agent, "")


def test_it_is_listed_with_what_it_would_do_and_where_it_came_from(agent):
    wait_for(agent, "Likes tea.", "Uses pandas.")
    told = memory(agent, "pending")
    assert "**1** add memory: Likes tea." in told
    assert "+Uses pandas." in told
    assert "report.ipynb" in told
    assert "plots" not in told
    assert "# plots" in skills(agent, "pending 3")
    assert "2 notes wait: keep `%hermes memory approve 1 2`" in memory(agent, "")
    assert "1 change of skills waits: keep `%hermes skills approve 3`" in skills(agent, "")


def test_numbers_are_approved_rejected_and_reworded(agent):
    wait_for(agent, "Likes tea.", "Uses pandas.", "Data lives in `data/`.")
    assert "undo" in memory(agent, "approve 1, 3")
    assert "dropped" in memory(agent, "reject 2")
    assert agent.knowledge.memory.entries("memory") == ["Likes tea.", "Data lives in `data/`."]
    assert "created skill" in skills(agent, "approve 4").lower()
    assert agent.knowledge.library.get("plots")
    wait_for_text = (Operation(action="add", content="Has a cat."),)
    agent.runtime.approvals.pending.propose(MemoryWrite(target="user", steps=wait_for_text), FROM)
    memory(agent, "approve 5 Has 2 cats.")
    assert agent.knowledge.memory.entries("user") == ["Has 2 cats."]


def test_all_of_a_kind_are_kept_or_dropped_at_once(agent):
    wait_for(agent, "Likes tea.", "Uses pandas.")
    assert "undo" in memory(agent, "approve all")
    assert agent.knowledge.memory.entries("memory") == ["Likes tea.", "Uses pandas."]
    assert "dropped" in skills(agent, "reject all")
    assert agent.runtime.approvals.waiting() == []
    with pytest.raises(ConfigError, match="nothing waits"):
        memory(agent, "approve all")


@pytest.mark.parametrize(
    "words", ["approve", "approve x", "approve all x", "reject", "approve 9", "pending 9"]
)
def test_a_number_that_is_none_says_what_to_do(agent, words):
    with pytest.raises(ConfigError, match=r"pending|nothing waits under 9"):
        memory(agent, words)


def test_what_is_about_skills_is_not_approved_unseen(agent):
    wait_for(agent, "Likes tea.")
    with pytest.raises(ConfigError, match="2 is about skills"):
        memory(agent, "approve 1 2")
    assert agent.knowledge.memory.entries("memory") == []


def test_what_cannot_be_saved_fails_the_cell_and_still_waits(agent):
    wait_for(agent, "Likes tea.")
    step = {"action": "add", "content": "Likes tea."}
    agent.knowledge.memory.apply("memory", [step])
    with pytest.raises(ConfigError, match=r"1 still waits: .*says that already"):
        memory(agent, "approve 1")
    assert "could not be saved" in memory(agent, "pending")


def test_hostile_text_is_shown_and_does_nothing(agent):
    wait_for(agent, HOSTILE)
    told = memory(agent, "pending")
    assert "\u202e" not in told
    assert "**1** add memory: <img" not in told


@played
async def test_what_cannot_be_saved_says_so_in_the_panel(desk):
    wait_for(desk.agent, "Likes tea.")
    step = {"action": "add", "content": "Likes tea."}
    desk.agent.knowledge.memory.apply("memory", [step])
    await desk.open()
    assert "says that already" in await desk.click("approve")
    assert "It could not be saved" in desk.text()
