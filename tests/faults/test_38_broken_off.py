"""A connection that breaks in the middle of a reply: asked again, and nothing is there twice."""

from __future__ import annotations

import socket
import struct

import pytest
from hermes_nb.core.events import ToolStarted

from tests.faults.cells import says
from tests.faults.provider import retried
from tests.loopback import (
    DONE,
    Reply,
    chunk,
    disconnect,
    event,
    stream,
    text_chunks,
    tool_chunks,
    usage_chunk,
)


def reset(exchange):
    """Break the connection off without a word of goodbye."""
    exchange.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    exchange.socket.close()
    disconnect(exchange)


WRITES = ("write_file", {"path": "made.txt", "content": "once\n"})
TEXT = [event(each) for each in text_chunks("Half of the answer")]
CALL = [event(each) for each in tool_chunks(WRITES)]
BREAKS = {
    "before a word": [],
    "in the text": TEXT[:3],
    "before the end of the text": TEXT[:-1],
    "in the arguments": CALL[:4],
    "behind the arguments": CALL[:-1],
    "in the bytes of an event": [*TEXT[:2], TEXT[2][:20]],
    "in a character": ['data: {"choices": [{"delta": {"content": "é'.encode()[:-1]],
    "in thought": [event(chunk({"reasoning_content": "Let me see. "}))],
    "in text and a call": [*TEXT[:-1], *CALL[:-1]],
}


@pytest.mark.parametrize(("number", "steps"), list(enumerate(BREAKS.values())), ids=BREAKS)
def test_38_nothing_is_there_twice(story, number, steps):
    how = (disconnect, reset)[number % 2]
    whole = stream([chunk({"content": "The whole answer."}), *tool_chunks(WRITES)])
    turn = story.ask(Reply([*steps, how]), whole, says("Done."))
    assert len(retried(turn)) == 1
    assert len(story.server.exchanges) == 3
    texts = [message.text for message in turn.messages if message.role == "assistant"]
    assert texts == ["The whole answer.", "Done."]
    assert len([each for each in turn.events if isinstance(each, ToolStarted)]) == 1
    assert (story.work / "made.txt").read_text(encoding="utf-8") == "once\n"
    assert "reasoning" not in str(story.server.bodies[-1]["messages"][2])
    assert turn.usage.requests == 2
    story.goes_on()


def test_38_each_time(story):
    turn = story.ask(Reply([*TEXT[:3], disconnect]), fails=True)
    assert len(story.server.exchanges) == 3
    assert "no connection" in turn.error or "broke" in turn.error
    assert turn.messages[-1].interrupted
    assert "Half of the answer".startswith(turn.messages[-1].text)
    assert turn.messages[-1].text
    story.goes_on()


@pytest.mark.parametrize("end", [[], [event(usage_chunk())], [event(usage_chunk()), DONE]])
@pytest.mark.parametrize("how", [disconnect, reset])
def test_38_behind_its_end_it_is_whole(story, end, how):
    """An answer that says itself that it is whole needs no polite end of the connection."""
    turn = story.ask(Reply([*TEXT, *end, how]))
    assert turn.text == "Half of the answer"
    assert not retried(turn)
    assert len(story.server.exchanges) == 1
    story.goes_on()


@pytest.mark.kernel
def test_38_what_the_cell_shows(cells):
    result = cells.ask(Reply([*TEXT[:3], disconnect]), says("The whole answer."), allow_stdin=True)
    assert result.status == "ok"
    assert "The whole answer." in result.markdown
    assert "Half" not in result.markdown
    assert len(cells.server.exchanges) == 2
