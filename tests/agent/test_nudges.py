"""Counters that know when to look back, wherever the conversation came from."""

from __future__ import annotations

from hermes_nb.agent.reviews import Nudges
from hermes_nb.context.boundaries import GO_ON, SUMMARY
from hermes_nb.core.loop import NUDGE, OUT_OF_BUDGET, Agent
from hermes_nb.core.messages import Message, ToolCall
from hermes_nb.models.scripted import ScriptedModel
from hypothesis import given
from hypothesis import strategies as st


def calls(*names):
    return Message.assistant(calls=[ToolCall(id=str(n), name=name) for n, name in enumerate(names)])


def after(*messages, **options):
    nudges = Nudges(memory_every=3, skills_every=2, **options)
    nudges.see_all(messages)
    return nudges


USER, ANSWER = Message.user("x"), Message.assistant("y")


def test_nothing_is_due_at_first():
    assert after().due() is None


def test_memory_is_due_after_so_many_user_turns():
    assert after(*[USER, ANSWER] * 2).due() is None
    assert after(*[USER, ANSWER] * 3).due() == "memory"


def test_what_is_said_in_the_users_name_is_no_turn_of_theirs():
    spent = Message.user(OUT_OF_BUDGET.format(limit="$0.05 for this turn"))
    ours = [Message.user(NUDGE), spent, Message.user(f"{SUMMARY}\nso far"), Message.user(GO_ON)]
    assert after(*ours, *[USER, ANSWER] * 2).due() is None
    theirs = Message.user("The budget of the project is tight.")
    assert after(*ours, *[theirs, ANSWER] * 3).due() == "memory"
    assert Agent(ScriptedModel([]), messages=[*ours, theirs]).turns == 3


def test_skills_are_due_after_so_many_tool_iterations():
    assert after(USER, calls("a"), ANSWER).due() is None
    assert after(USER, calls("a", "b"), calls("a"), ANSWER).due() == "skills"


def test_both_may_be_due():
    assert after(*[USER, calls("a"), ANSWER] * 3).due() == "both"


def test_using_the_tool_starts_the_count_anew():
    assert after(*[USER, ANSWER] * 3, calls("memory")).due() is None
    assert after(calls("a"), calls("a"), calls("skill_manage")).due() is None
    assert after(*[USER, ANSWER] * 3, calls("skill_view")).due() == "memory"


def test_an_interval_of_zero_is_never():
    nudges = Nudges(memory_every=0, skills_every=0)
    nudges.see_all([USER, calls("a")] * 50)
    assert nudges.due() is None


def test_a_review_starts_the_count_of_its_subject_anew():
    nudges = after(*[USER, calls("a"), ANSWER] * 3)
    nudges.reset("memory")
    assert nudges.due() == "skills"
    nudges.reset("skills")
    assert nudges.due() is None


@given(
    st.lists(st.sampled_from([USER, ANSWER, calls("a"), calls("memory"), calls("skill_manage")]))
)
def test_a_restart_in_between_changes_nothing(messages):
    whole = after(*messages)
    for cut in range(len(messages)):
        resumed = after(*messages[:cut])
        resumed.see_all(messages[cut:])
        assert resumed == whole
