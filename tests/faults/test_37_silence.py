"""A provider that falls silent is given up after a while; what it said until then is kept."""

from __future__ import annotations

import pytest
from hermes_nb.core.events import ToolStarted

from tests.faults.cells import says
from tests.faults.provider import retried
from tests.loopback import (
    DONE,
    Reply,
    chunk,
    event,
    pause,
    stall,
    text_chunks,
    tool_chunks,
    usage_chunk,
)
from tests.patience import STOPS_WITHIN

BEGINNING = [event(each) for each in text_chunks("The beginning of it")[:-1]]
HALF_A_CALL = [
    event(each) for each in tool_chunks(("write_file", {"path": "a", "content": "b"}))[:-3]
]

pytestmark = pytest.mark.usefixtures("impatient")


def test_37_in_the_middle_of_a_sentence(story, waits):
    turn = story.ask(Reply([*BEGINNING, stall]), fails=True)
    assert "did not answer in time" in turn.error
    assert len(story.server.exchanges) == 3 and len(waits) == 2
    assert turn.messages[-1].interrupted
    assert turn.messages[-1].text == "The beginning of it", "the partial answer, once"
    assert all(each.left.wait(10) for each in story.server.exchanges), "its connection is closed"
    story.goes_on()
    assert "The beginning of it" in story.server.bodies[-1]["messages"][2]["content"]


def test_37_before_the_first_word(story):
    turn = story.ask(Reply([stall]), says("Now I am awake."))
    assert turn.text == "Now I am awake."
    assert len(retried(turn)) == 1


def test_37_in_the_middle_of_a_call(story):
    turn = story.ask(Reply([*HALF_A_CALL, stall]), fails=True)
    assert not any(isinstance(each, ToolStarted) for each in turn.events)
    assert not list(story.work.iterdir())
    story.goes_on()


def test_37_once_and_then_all_of_it(story):
    turn = story.ask(Reply([*BEGINNING, stall]), says("The whole of it."))
    assert turn.text == "The whole of it."
    assert [message.text for message in turn.messages] == ["go", "The whole of it."]
    story.goes_on()


def test_37_behind_the_end_mark(story):
    ended = [event(each) for each in text_chunks("All of it.")] + [event(usage_chunk()), DONE]
    turn = story.ask(Reply([*ended, stall]))
    assert turn.text == "All of it."
    assert turn.usage.input == 10
    assert not retried(turn)
    story.goes_on()


def test_37_behind_the_last_word(story):
    """Without an end mark, an answer that says itself that it is whole is whole."""
    ended = [event(each) for each in text_chunks("All of it.")]
    turn = story.ask(Reply([*ended, stall]))
    assert turn.text == "All of it."
    assert not retried(turn)
    assert len(story.server.exchanges) == 1
    story.goes_on()


def test_37_signs_of_life_are_no_silence(story):
    beats = [b": still thinking\n\n", pause(0.2)] * 5
    turn = story.ask(Reply([*beats, *[event(each) for each in text_chunks("At last.")], DONE]))
    assert turn.text == "At last."
    assert not retried(turn)


def test_37_a_word_at_a_time_is_no_silence(story):
    words = [step for n in range(6) for step in (event(chunk({"content": f"{n} "})), pause(0.2))]
    turn = story.ask(Reply([*words, event(chunk(finish="stop")), DONE]))
    assert turn.text.split() == list("012345")
    assert not retried(turn)


@pytest.mark.kernel
def test_37_a_stop_ends_the_silence(cells):
    result = cells.ask(Reply([*BEGINNING, stall]), allow_stdin=True, stop_on="The beginning")
    assert result.status == "error"
    assert result.stop_seconds < STOPS_WITHIN
    assert "The beginning of it" in result.markdown
    assert cells.server.exchanges[0].left.wait(10)
    assert "The beginning of it" in cells.goes_on()[2]["content"]
