"""Streams that are not quite what they should be give the same answer; rubbish gives one line."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.provider import retried
from tests.loopback import DONE, Reply, chunk, event, text_chunks, tool_chunks

ANSWER = "The answer is forty-two, é and 🦊."
CHUNKS = text_chunks(ANSWER, size=6)
EVENTS = [event(each) for each in CHUNKS]
WHOLE = b"".join(EVENTS)
CALL = tool_chunks(("write_file", {"path": "made.txt", "content": "é🦊\n"}))


def between(junk):
    """Return the answer's events with `junk` between them."""
    return junk + junk.join(EVENTS) + junk


def spread(value):
    """Return one event as several data lines."""
    lines = json.dumps(value, indent=1).splitlines()
    return b"".join(b"data: " + line.encode() + b"\n" for line in lines) + b"\n"


ODD = {
    "no end mark": WHOLE,
    "windows line ends": WHOLE.replace(b"\n", b"\r\n") + b"data: [DONE]\r\n\r\n",
    "a byte order mark": b"\xef\xbb\xbf" + WHOLE + DONE,
    "comments": between(b": keep-alive\n\n") + DONE,
    "other fields": between(b"id: 7\nevent: ping\nretry: 10\n\n") + DONE,
    "named events": WHOLE.replace(b"data:", b"event: message\ndata:") + DONE,
    "no space": WHOLE.replace(b"data: ", b"data:") + DONE,
    "no blank lines": WHOLE.replace(b"\n\n", b"\n") + DONE,
    "more blank lines": WHOLE.replace(b"\n\n", b"\n\n\n\n") + DONE,
    "one object a line": b"".join(json.dumps(each).encode() + b"\n" for each in CHUNKS),
    "several lines an event": b"".join(map(spread, CHUNKS)) + DONE,
    "broken lines": between(b'data: {"choices": [{"del\n\n') + DONE,
    "no objects": between(b"data: 7\n\ndata: null\n\ndata: []\n\n") + DONE,
    "text": between(b"data: one moment please\n\n") + DONE,
    "empty data": between(b"data:\n\ndata: \n\n") + DONE,
    "no choices": between(event({"choices": []}) + event({"choices": None}) + event({})) + DONE,
    "no deltas": between(event({"choices": [{"delta": None}, 3]})) + DONE,
    "nested deeply": between(b"data: " + b'{"a":' * 20_000 + b"\n\n") + DONE,
    "not utf-8": between(b"data: \xff\xfe\x00\n\n") + DONE,
    "more behind the end": WHOLE + DONE + EVENTS[1] + DONE,
    "the end mark twice": WHOLE + DONE + DONE,
    "odd end mark": WHOLE + b"data:[DONE]  \n\n",
    "a document": json.dumps({"choices": [{"message": {"content": ANSWER}}]}).encode(),
    "numbers in place of text": between(event(chunk({"content": 5, "role": 7}))) + DONE,
    "other choices": between(event(chunk() | {"choices": [{"index": 1, "delta": {}}]})) + DONE,
}


@pytest.mark.parametrize("body", ODD.values(), ids=ODD)
def test_39_it_is_read_all_the_same(story, body):
    turn = story.ask(Reply([body]))
    assert turn.text == ANSWER
    assert not retried(turn)
    assert len(story.server.exchanges) == 1
    story.goes_on()


@given(st.data())
def test_39_wherever_the_pieces_are_cut(data):
    from hermes_nb.models.chat.stream import Assembly, StreamDecoder
    from hermes_nb.models.text_calls import Structured

    body = data.draw(st.sampled_from(list(ODD.values())))
    if len(body) > 20_000:
        return
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    decoder, assembly = StreamDecoder(), Assembly(Structured().reader())
    for start, end in zip([0, *cuts], [*cuts, len(body)], strict=True):
        for value in decoder.feed(body[start:end]):
            assembly.feed(value)
    for value in decoder.finish():
        assembly.feed(value)
    assert assembly.finish(done=decoder.done)[1].message.text == ANSWER


def test_39_one_byte_at_a_time(story):
    body = b"".join(map(event, CALL)) + DONE
    turn = story.ask(Reply([body[n : n + 1] for n in range(len(body))]), Reply([WHOLE]))
    assert turn.text == ANSWER
    assert (story.work / "made.txt").read_text(encoding="utf-8") == "é🦊\n"
    story.goes_on()


RUBBISH = {
    "nothing": b"",
    "an end mark alone": DONE,
    "lines": b"hello\nworld\n" * 50,
    "broken events": b'data: {"choices": [\n\n' * 50,
    "bytes": bytes(range(256)) * 100,
    "brackets": b"[" * 100_000,
    "half a document": b'{"choices": [{"message": {"content": "The ans',
    "a number": b"42",
    "a document of something else": b'{"status": "ok", "version": "1.2.3"}',
    "events of something else": event({"price": 7}) * 20 + DONE,
    "comments": b": ping\n\n" * 50,
    "nul bytes": b"\0" * 100_000,
}


@pytest.mark.parametrize("body", RUBBISH.values(), ids=RUBBISH)
def test_39_rubbish_is_one_line(story, body):
    turn = story.ask(Reply([body]), fails=True)
    assert len(story.server.exchanges) == 3
    assert "the server" in turn.error
    assert turn.error.isprintable()
    assert turn.text == ""
    story.goes_on()
