"""A reply without a word and without a call is nudged, twice at most."""

from __future__ import annotations

import pytest
from hermes_nb.core.loop import EMPTY_REPLIES, NUDGE

from tests.faults.cells import calls, says
from tests.loopback import DONE, Reply, chunk, event, stream, usage_chunk

EMPTY = {
    "no text": stream([chunk({"role": "assistant", "content": ""}), chunk(finish="stop")]),
    "null": stream([chunk({"role": "assistant", "content": None}), chunk(finish="stop")]),
    "spaces": stream([chunk({"content": " \n\t "}), chunk(finish="stop")]),
    "nothing but an end": stream([chunk(finish="stop")]),
    "only reasoning": stream([chunk({"reasoning_content": "Let me think."}), chunk(finish="stop")]),
    "only a thought in parts": stream(
        [chunk({"content": [{"type": "thinking", "thinking": [{"text": "Hm."}]}]}), chunk({})]
    ),
    "only usage": Reply([event(usage_chunk()), DONE]),
    "an empty list of calls": stream([chunk({"tool_calls": []}), chunk(finish="tool_calls")]),
    "calls without a name": stream(
        [chunk({"tool_calls": [{"index": 0, "id": "x"}]}), chunk(finish="tool_calls")]
    ),
    "cut off before the first word": stream([chunk(finish="length")]),
    "filtered": stream([chunk(finish="content_filter")]),
}


def nudges(body):
    """Count the nudges in a request."""
    return sum(message["content"] == NUDGE for message in body["messages"])


@pytest.mark.parametrize("reply", EMPTY.values(), ids=EMPTY)
def test_45_for_ever(story, reply):
    turn = story.ask(reply, fails=True)
    assert len(story.server.exchanges) == EMPTY_REPLIES + 1
    assert [nudges(body) for body in story.server.bodies] == [0, 1, 2]
    assert "empty replies" in turn.error
    assert turn.usage.requests == 3
    story.goes_on()


@pytest.mark.parametrize("reply", EMPTY.values(), ids=EMPTY)
def test_45_once(story, reply):
    turn = story.ask(reply, says("Oh, I see."))
    assert turn.text == "Oh, I see."
    assert nudges(story.server.bodies[-1]) == 1
    story.goes_on()


def test_45_in_the_middle_of_the_work(story):
    """The count begins anew whenever something is done."""
    (story.work / "a.txt").write_text("seven", encoding="utf-8")
    empty, read = EMPTY["no text"], calls(("read_file", {"path": "a.txt"}))
    turn = story.ask(empty, empty, read, empty, empty, read, empty, says("Seven."))
    assert turn.text == "Seven."
    assert nudges(story.server.bodies[-1]) == 5
    story.goes_on()


@pytest.mark.kernel
def test_45_in_the_cell(cells):
    result = cells.ask(EMPTY["only reasoning"], allow_stdin=True)
    assert result.status == "error"
    assert "empty replies" in result.error["evalue"]
