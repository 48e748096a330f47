"""A model that sees for one that does not."""

from __future__ import annotations

from hermes_nb.core.events import UsageReported
from hermes_nb.core.messages import Image, Message
from hermes_nb.models.consulting import WithVision
from hermes_nb.models.scripted import ScriptedModel

from tests.conftest import take_turn

PICTURE = Image("aGVsbG8=")


def test_eyes_describe_a_picture_once(make_agent):
    eyes = ScriptedModel(["A bar chart; 7 for May."], name="eyes")
    blind = ScriptedModel(["Seven.", "Still seven."])
    agent = make_agent()
    agent.model = WithVision(blind, eyes)
    events = take_turn(agent, Message.user("What was May?", images=[PICTURE]))
    take_turn(agent, "Sure?")
    (asked,) = eyes.requests
    assert asked.messages[0].images == (PICTURE,) and "What was May?" in asked.messages[0].text
    first, second = blind.requests
    assert "[1 picture, as eyes describes it]\nA bar chart; 7 for May." in first.messages[0].text
    assert not first.messages[0].images
    assert second.messages[: len(first.messages)] == first.messages
    assert agent.messages[0].images == (PICTURE,), "the conversation keeps it"
    assert [e.purpose for e in events if isinstance(e, UsageReported)] == ["vision", ""]


def test_eyes_that_fail_cost_the_picture_and_not_the_turn(make_agent):
    from hermes_nb.core.errors import FailureKind, ModelError

    eyes = ScriptedModel([ModelError("no quota", kind=FailureKind.QUOTA)])
    blind = ScriptedModel(["I could not see it."])
    agent = make_agent()
    agent.model = WithVision(blind, eyes)
    assert take_turn(agent, Message.user("?", images=[PICTURE]))[-1].reason == "answered"
    assert "could not be described: no quota" in blind.requests[0].messages[0].text
