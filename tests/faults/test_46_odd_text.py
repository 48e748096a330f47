"""Lone surrogates, NUL, NaN and infinities get into the file and out again, also after damage."""

from __future__ import annotations

import json
import math

import pytest
from hermes_nb.core.messages import Message, ToolCall
from hermes_nb.memory.sessions import SqliteStore

from tests.faults.cells import calls, says
from tests.faults.stores import is_intact
from tests.loopback import DONE, Reply, chunk, event, stream, tool_chunks

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
    story.goes_on()


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
    story.goes_on()


def test_46_numbers_that_are_none(story):
    turn = story.ask(
        stream(tool_chunks(("terminal", '{"command": "touch made", "timeout": Infinity}'))),
        stream(tool_chunks(("terminal", '{"command": "touch made", "timeout": 1e999}'))),
        stream(tool_chunks(("terminal", '{"command": "touch made", "timeout": -1e999}'))),
        says("No."),
    )
    assert turn.text == "No."
    assert not list(story.work.iterdir())
    story.goes_on()


def test_46_half_a_character_in_arguments(story):
    """What is written as an escape is text like any other: sent back whole, stored, searched."""
    (story.work / "a.txt").write_text("seven", encoding="utf-8")
    text = '{"path": "a.txt", "pattern": "\\ud83d \\ud83e\\udd8a"}'
    story.ask(calls(("search_files", text), size=9_999), says("Nothing."))
    (sent,) = (
        call for m in story.server.bodies[-1]["messages"] for call in m.get("tool_calls", ())
    )
    assert json.loads(sent["function"]["arguments"])["pattern"] == "\ufffd \U0001f98a"
    story.goes_on()
