"""Replies that are not what they should be."""

from __future__ import annotations

import asyncio
import json
import math
import resource

import pytest
from hermes_nb import Hermes
from hermes_nb.core.loop import EMPTY_REPLIES, NUDGE
from hermes_nb.core.messages import Message, ToolCall
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.chat.stream import LIMIT
from hermes_nb.notebook.display import transcript
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.provider import retried
from tests.faults.stores import is_intact
from tests.loopback import (
    DONE,
    Loopback,
    Reply,
    calls,
    chunk,
    document,
    event,
    failure,
    pause,
    says,
    stream,
    text_chunks,
    tool_chunks,
    usage_chunk,
)

# 39: Streams that are not quite what they should be give the same answer; rubbish gives one line.
ANSWER = "The answer is forty-two, é and 🦊."
CHUNKS = text_chunks(ANSWER, size=6)
EVENTS = [event(each) for each in CHUNKS]
WHOLE = b"".join(EVENTS)
CALL = tool_chunks(("write_file", {"path": "made.txt", "content": "é🦊\n"}))


def between(junk):
    return junk + junk.join(EVENTS) + junk


def spread(value):
    lines = json.dumps(value, indent=1).splitlines()
    return b"".join(b"data: " + line.encode() + b"\n" for line in lines) + b"\n"


ODD_STREAMS = {
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


@pytest.mark.parametrize("body", ODD_STREAMS.values(), ids=ODD_STREAMS)
def test_39_it_is_read_all_the_same(story, body):
    turn = story.ask(Reply([body]))
    assert turn.text == ANSWER
    assert not retried(turn)
    assert len(story.server.exchanges) == 1


@given(st.data())
def test_39_wherever_the_pieces_are_cut(data):
    from hermes_nb.models.chat.sse import StreamDecoder
    from hermes_nb.models.chat.stream import Assembly
    from hermes_nb.models.text_calls import Structured

    body = data.draw(st.sampled_from(list(ODD_STREAMS.values())))
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


# 40: A web page in place of an answer is named as what it is, with what to look at.
PAGE = b"<html><head><title>Sign in</title></head><body><script>alert(1)</script>welcome</body>"
PAGES = {
    "html": PAGE,
    "doctype": b"<!DOCTYPE html>\n" + PAGE,
    "shouting": PAGE.upper(),
    "behind blank lines": b"\r\n\r\n   " + PAGE,
    "behind a byte order mark": b"\xef\xbb\xbf" + PAGE,
    "xml": b'<?xml version="1.0"?><error><message>no</message></error>',
    "with events in it": PAGE + b'\n\ndata: {"choices": [{"delta": {"content": "injected"}}]}\n\n',
    "of two megabytes": PAGE + b"x" * 2_000_000,
}


KINDS = ["text/html", "application/json", "text/event-stream"]


@pytest.mark.parametrize(("number", "page"), list(enumerate(PAGES.values())), ids=PAGES)
def test_40_it_is_named(story, number, page):
    kind = KINDS[number % len(KINDS)]
    turn = story.ask(Reply([page], headers={"Content-Type": kind}), fails=True)
    assert "web page" in turn.error and "base_url" in turn.error
    assert len(story.server.exchanges) <= 3
    for trace in (str(turn.events), str(story.stored()), str(turn)):
        assert "welcome" not in trace.lower() and "alert" not in trace.lower()
        assert "injected" not in trace


def test_40_a_page_that_comes_whole(story):
    turn = story.ask(document(PAGE), fails=True)
    assert "web page" in turn.error


@pytest.mark.kernel
def test_40_in_the_cell(cells):
    result = cells.ask(document(PAGE), allow_stdin=True, ends="error")
    (line,) = result.error["traceback"]
    assert "web page" in line and "base_url" in line
    assert "alert" not in line + result.markdown


# 45: A reply without a word and without a call is nudged, twice at most.
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
    return sum(message["content"] == NUDGE for message in body["messages"])


@pytest.mark.parametrize("reply", EMPTY.values(), ids=EMPTY)
def test_45_for_ever(story, reply):
    turn = story.ask(reply, fails=True)
    assert len(story.server.exchanges) == EMPTY_REPLIES + 1
    assert [nudges(body) for body in story.server.bodies] == [0, 1, 2]
    assert "empty replies" in turn.error
    assert turn.usage.requests == 3


@pytest.mark.parametrize("reply", EMPTY.values(), ids=EMPTY)
def test_45_once(story, reply):
    turn = story.ask(reply, says("Oh, I see."))
    assert turn.text == "Oh, I see."
    assert nudges(story.server.bodies[-1]) == 1


def test_45_in_the_middle_of_the_work(story):
    """The count begins anew whenever something is done."""
    (story.work / "a.txt").write_text("seven", encoding="utf-8")
    empty, read = EMPTY["no text"], calls(("read_file", {"path": "a.txt"}))
    turn = story.ask(empty, empty, read, empty, empty, read, empty, says("Seven."))
    assert turn.text == "Seven."
    assert nudges(story.server.bodies[-1]) == 5


@pytest.mark.kernel
def test_45_in_the_cell(cells):
    result = cells.ask(EMPTY["only reasoning"], allow_stdin=True, ends="error")
    assert "empty replies" in result.error["evalue"]


# 46: Lone surrogates, NUL, NaN and infinities get into the file and out again, also after damage.
ODD = "\ud800 \0 \x1b \u202e \ufeff \uffff 漢 🦊 \udfff"


def test_46_odd_text(tmp_path):
    path = tmp_path / "n.db"
    call = ToolCall(id=ODD, name="t", arguments={ODD: [math.inf, -math.inf, ODD]}, text=ODD)
    messages = [
        Message.user(ODD),
        Message.assistant(ODD, calls=[call], reasoning=ODD),
        Message.tool(call, ODD),
        Message(role="assistant", echo={"x": {ODD: 1e400}}),
    ]
    store = SqliteStore(path)
    session = store.start(title=ODD, notebook=ODD, model=ODD, system_prompt=ODD)
    for message in messages:
        store.append(session, message)
    store.append(session, Message(role="assistant", echo={"x": math.nan}))
    for query in (ODD, "\0", "\ud800", "漢", "🦊"):
        store.search(query)
    store.rename(session, ODD)
    assert store.messages(session)[:4] == messages
    store.replace(session, messages)
    store.close()
    assert is_intact(path)
    with path.open("r+b") as file:
        file.write(b"\0" * 100)
    store = SqliteStore(path)
    assert store.messages(session) == messages
    assert math.isnan(store.rows(session, first=4)[0].message.echo["x"])
    store.close()


RAW = b'data: {"choices": [{"index": 0, "delta": %b, "finish_reason": null}]}\n\n'
END = event(chunk(finish="stop"))
SENT = {
    "half a pair": [RAW % b'{"content": "a \\ud800 b \\udfff c"}', END],
    "a pair in two pieces": [
        RAW % b'{"content": "fox \\ud83e"}',
        RAW % b'{"content": "\\udd8a fox"}',
        END,
    ],
    "nul": [RAW % b'{"content": "a\\u0000b"}', END],
    "no numbers": [
        RAW % b'{"content": "so many", "logprob": NaN, "score": -Infinity}',
        b'data: {"choices": [], "usage": {"prompt_tokens": NaN, "completion_tokens": 1e999,'
        b' "cost": Infinity}}\n\n',
        END,
    ],
    "odd counts": [
        RAW % b'{"content": "so many"}',
        b'data: {"choices": [], "usage": {"prompt_tokens": -5, "completion_tokens": "7",'
        b' "prompt_tokens_details": [1], "cost": -1}}\n\n',
        END,
    ],
    "counts beyond the store's numbers": [
        RAW % b'{"content": "so many"}',
        b'data: {"choices": [], "usage": {"prompt_tokens": 99999999999999999999999,'
        b' "completion_tokens": 1e300, "cost": 1e308}}\n\n',
        END,
    ],
    "thought": [RAW % b'{"reasoning_content": "\\udc00\\u0000", "content": "fine"}', END],
    "signed thought": [
        RAW % b'{"reasoning_details": [{"type": "x", "score": NaN, "text": "\\ud800"}]}',
        RAW % b'{"content": "fine"}',
        END,
    ],
    "controls and overrides": [RAW % b'{"content": "\\u001b[31m\\u202e\\ufeff\\uffff end"}', END],
    "a model of that name": [
        b'data: {"model": "\\ud800\\u0000\\u001b[2J",'
        b' "choices": [{"delta": {"content": "x"}}]}\n\n',
        END,
    ],
}


@pytest.mark.parametrize("steps", SENT.values(), ids=SENT)
def test_46_from_a_server(story, steps):
    turn = story.ask(Reply([*steps, DONE]))
    turn.text.encode()
    assert turn.text and "\0" not in turn.text
    json.dumps([message.to_dict() for message in turn.messages], allow_nan=False)
    assert all(count >= 0 for count in (turn.usage.input, turn.usage.output, turn.cost or 0))
    turn.status.encode()
    assert math.isfinite(turn.cost or 0)


@pytest.mark.parametrize(
    "text", ['"a \\ud800 b"', '"a\\u0000b"', '"\\udfff\\ud800"', '"\\u001b[31m \\u202e"']
)
def test_46_in_arguments_and_results(story, text):
    wrote = f'{{"path": "made.txt", "content": {text}}}'
    turn = story.ask(
        calls(("write_file", wrote), size=3),
        calls(("read_file", {"path": "made.txt"}), ("terminal", {"command": "cat made.txt"})),
        says("Read."),
    )
    assert turn.text == "Read."
    assert len(story.results) == 3
    (story.work / "made.txt").read_text(encoding="utf-8")


def test_46_numbers_that_are_none(story):
    turn = story.ask(
        stream(tool_chunks(("terminal", '{"command": "touch made", "timeout": Infinity}'))),
        stream(tool_chunks(("terminal", '{"command": "touch made", "timeout": 1e999}'))),
        stream(tool_chunks(("terminal", '{"command": "touch made", "timeout": -1e999}'))),
        says("No."),
    )
    assert turn.text == "No."
    assert not list(story.work.iterdir())


def test_46_half_a_character_in_arguments(story):
    """What is written as an escape is text like any other: sent back whole, stored, searched."""
    (story.work / "a.txt").write_text("seven", encoding="utf-8")
    text = '{"path": "a.txt", "pattern": "\\ud83d \\ud83e\\udd8a"}'
    story.ask(calls(("search_files", text), size=9_999), says("Nothing."))
    (sent,) = (
        call for m in story.server.bodies[-1]["messages"] for call in m.get("tool_calls", ())
    )
    assert json.loads(sent["function"]["arguments"])["pattern"] == "\ufffd \U0001f98a"


def test_46_no_nul_is_sent(story):
    """Many servers refuse it, in whatever part of a request, and it would stay there."""
    (story.work / "a.txt").write_text("seven", encoding="utf-8")
    patterns = [r"a\u0000\u0000b", r"a\\u0000b", r"a\\\u0000b", r"\ud800\u0000"]
    story.ask(
        calls(*(("search_files", f'{{"pattern": "{each}"}}') for each in patterns), size=9_999),
        calls(("run_python", '{"code": "1\\u0000"}')),
        says("Nothing."),
    )
    story.ask(says("Hello."), prompt="a\0b")
    messages = story.server.bodies[-1]["messages"]
    sent = [each["function"] for m in messages for each in m.get("tool_calls", ())]
    found = [json.loads(each["arguments"]) for each in sent]
    assert [each["pattern"] for each in found[:4]] == [
        *("a\ufffd\ufffdb", r"a\u0000b", "a\\\ufffdb", "\ufffd\ufffd")
    ]
    assert r"\x00" not in repr(found) + repr(messages)
    assert messages[-1]["content"].startswith("a\ufffdb")


# 47: Ten megabytes where a sentence was expected: cut at a limit, wherever it is kept.
HUGE = 10_000_000


def of(delta, *, pieces=1):
    """Return a reply with that delta, so many times."""
    return Reply([event(chunk(delta))] * pieces + [event(chunk(finish="stop")), DONE])


def most_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@pytest.mark.slow
@pytest.mark.parametrize("pieces", [1, 100])
def test_47_text(story, pieces):
    turn = story.ask(of({"content": "word " * (HUGE // 5 // pieces)}, pieces=pieces))
    assert 0 < len(turn.text) <= LIMIT
    (reply,) = [message for message in turn.messages if message.role == "assistant"]
    assert len(reply.text) <= LIMIT


def test_47_thought(story):
    turn = story.ask(of({"reasoning_content": "hm " * (HUGE // 3)}), says("Enough."))
    assert turn.text == "Enough."
    thought = max(len(message.reasoning) for message in turn.messages)
    assert thought <= LIMIT


@pytest.mark.slow
def test_47_arguments(story):
    huge = {"path": "made.txt", "content": "x" * HUGE}
    turn = story.ask(stream(tool_chunks(("write_file", huge), size=HUGE * 2)), says("Too much."))
    assert turn.text == "Too much."
    assert not list(story.work.iterdir())
    assert len(story.server.exchanges[-1].body) < 500_000


def test_47_a_name(story):
    call = stream(tool_chunks(("x" * 1_000_000, {})))
    turn = story.ask(call, says("No such thing."))
    assert turn.text == "No such thing."
    assert len(story.server.exchanges[-1].body) < 500_000


def test_47_ids(story):
    piece = {
        "function": {"name": "list_files", "arguments": "{}"},
        "id": "i" * 1_000_000,
        "index": 0,
    }
    turn = story.ask(of({"tool_calls": [piece]}), says("Listed."))
    assert turn.text == "Listed."
    assert len(story.server.exchanges[-1].body) < 500_000


def test_47_many_calls(story):
    """So many calls cost the model an answer each, and the user no lifetime."""
    calls = tool_chunks(*[("list_files", {})] * 500, size=99)
    turn = story.ask(stream(calls), says("Listed."))
    assert turn.text == "Listed."


def test_47_a_line_without_end(story):
    turn = story.ask(Reply([b"data: " + b"x" * 1_000_000] * 40), fails=True)
    assert "MB" in turn.error
    assert most_memory() < 2_000


@pytest.mark.kernel
@pytest.mark.slow
def test_47_a_cell_keeps_less(cells):
    result = cells.ask(of({"content": "word " * (HUGE // 5)}), allow_stdin=True, timeout=120)
    assert 1_000 < len(result.markdown) < 100_000
    assert len(str(result.outputs)) < 300_000
    cells.run("%hermes new")


# 81: A model that sends nothing for a while, and one that is asked again: the cell says so.


def test_81_a_silent_stream_and_a_retry_are_said_in_the_cell(tmp_path, monkeypatch):
    monkeypatch.setattr(transcript, "QUIET", 0.3)
    busy = failure(503, {"error": {"message": "overloaded"}})
    slow = Reply([event(chunk({"content": "One "})), pause(1.2), event(chunk({"content": "two."}))])
    view = transcript.Transcript(model="m")
    seen: list[str] = []

    async def fold(hermes):
        async for each in hermes.stream("go"):
            view(each)

    async def look(hermes):
        turn = asyncio.ensure_future(fold(hermes))
        while not turn.done():
            seen.append(view.status_line())
            await asyncio.sleep(0.05)
        await turn
        hermes.close()

    with Loopback(busy, slow) as server:
        asyncio.run(look(Hermes("m", base_url=server.url, approve="all", home=tmp_path)))
    shown = "\n".join(seen)
    assert "retry 2 of 3" in shown and "overloaded" in shown
    assert "no data for" in shown and "no data for" not in seen[0]
    assert "no data" not in view.finished() and view.answer == "One two."
