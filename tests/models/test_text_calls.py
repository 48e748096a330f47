"""Calls in plain text: read in every format, never shown by half, sent back as written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hermes_nb.core.json_values import clean
from hermes_nb.core.messages import Image, Message, ToolCall
from hermes_nb.core.protocols import Request
from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.models.call_reader import CallReader, PlainReader
from hermes_nb.models.chat.stream import Assembly
from hermes_nb.models.chat.wire import WireConversation
from hermes_nb.models.profiles import Profile
from hermes_nb.models.text_calls import RESULT, TextCalls, render
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu import within
from tests.loopback import chunk

NAMES = frozenset({"read_file", "look", "f"})


def read(text, sizes=(None,), names=NAMES):
    """Return what is shown and the reading, after feeding pieces of these sizes in turn."""
    reader = CallReader(names)
    shown, position, turn = [], 0, 0
    while position < len(text):
        size = sizes[turn % len(sizes)] or len(text)
        shown.append(reader.feed(text[position : position + size]))
        position += size
        turn += 1
    rest, reading = reader.finish()
    return "".join([*shown, rest]), reading


def calls_in(text):
    return [(call.name, dict(call.arguments)) for call in read(text)[1].calls]


SAID = json.loads(Path(__file__).with_name("text_calls.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("text", "calls"), SAID["calls"])
def test_calls_in_every_format(text, calls):
    for said in (text, f"Let me see.\n\n{text}\n\nDone."):
        assert [list(call) for call in calls_in(said)] == calls


@pytest.mark.parametrize("text", SAID["prose"])
def test_prose_about_calls_is_shown_as_it_is(text):
    for sizes in ((None,), (1,), (3, 5)):
        shown, reading = read(text, sizes)
        assert (shown, reading.text, reading.calls) == (text, text, ())


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>{"name": "f", "arguments": {"a": "x',
        'call:f{"a": [1, 2',
        '```json\n{"name": "f", "arguments": {"a',
        '<tool_call>{"name": "f", "arguments": {"a": "say "hi" to"}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": "say "hi" to"}}',
        '```json\n{"name": "f", "arguments": {"a": "say "hi" to"}}\n```',
        "call:f{city: New York}",
        '<tool_call>{"name": "f", "arguments": {"x": NaN}}</tool_call>',
    ],
)
def test_a_call_that_cannot_be_read_is_a_problem_and_not_shown(text):
    shown, reading = read(text)
    (call,) = reading.calls
    assert call.name == "f" and call.problem and not call.arguments
    assert "arguments" not in shown


def test_a_call_is_held_back_and_prose_is_not():
    reader = CallReader(NAMES)
    assert reader.feed("Hello <") == "Hello "
    assert reader.feed("b> <tool_call") == "<b> "
    assert reader.feed("> is a tag") == "<tool_call> is a tag"
    assert reader.feed('<tool_call>{"name"') == ""
    assert reader.feed(': "f", "arguments": {}}</tool_call>') == ""
    assert reader.feed(" ok") == " ok"
    assert reader.finish()[1].text == "Hello <b> <tool_call> is a tag\n\nok"
    reader = CallReader(NAMES)  # JSON until it cannot be a call
    assert reader.feed('```json\n{"na') == ""
    assert reader.feed('me": "Ada"') == '```json\n{"name": "Ada"'
    assert reader.feed(', "age"') == ', "age"'


ARGUMENTS = st.dictionaries(
    st.sampled_from(["path", "n", "text"]),
    st.integers()
    | st.booleans()
    | st.none()
    | st.text(max_size=12)
    | st.lists(st.integers(), max_size=3)
    | st.sampled_from(["</tool_call>", '{"name": "f"}', "```", "<tool_call>{", "a\nb", '"', "\\"]),
    max_size=3,
)
MARK = "\u2603"
"""A character that only calls hold, so that its absence from what is shown proves the point."""


@st.composite
def written_calls(draw):
    name = draw(st.sampled_from(sorted(NAMES)))
    arguments = {f"{MARK}{key}": value for key, value in draw(ARGUMENTS).items()} | {MARK: MARK}
    body = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    forms = [
        f"<tool_call>{body}</tool_call>",
        f"<tool_call>\n{body}\n</tool_call>",
        f"\ncall:{name}{json.dumps(arguments, ensure_ascii=False)}",
        f"\n```json\n{body}\n```\n",
    ]
    return draw(st.sampled_from(forms)), (name, arguments)


PIECES = st.sampled_from(
    [
        *("Hello", " ", "\n", "a < b", "<tool_call> tag", "`<tool_call>`", "<", "<tool", "call:"),
        *("call:x", "{", "}", "é", "**bold**", "x = {1: 2}", "\n```python\nx = 1\n```\n"),
        *("recall:f", "I'd say"),
    ]
)
NAMED = re.compile(r"call:\s?[\w.-]+\s?\{")
PLAIN = st.lists(PIECES, max_size=4).map("".join).filter(lambda text: not NAMED.search(text))
SIZES = st.lists(st.integers(1, 9), min_size=1, max_size=5)


@given(st.lists(st.tuples(PLAIN, written_calls()), max_size=3), PLAIN, SIZES)
def test_calls_are_found_in_any_mix_and_never_shown(mix, ending, sizes):
    text, expected = "", []
    for prose, (call, meaning) in mix:
        text += f"{prose.rstrip('{<`')}\n\n{call}"
        expected.append((meaning[0], clean(meaning[1])))
    text += f"\n\n{ending}"
    shown, reading = read(text, sizes)
    assert MARK not in shown and MARK not in reading.text
    assert [(c.name, dict(c.arguments)) for c in reading.calls] == expected
    assert "".join(shown.split()) == "".join(reading.text.split())


ANYTHING = st.lists(
    PIECES
    | st.sampled_from(
        [
            *("<tool_call>", "</tool_call>", '{"name": "f", "arguments": {', "}}", '"', "'"),
            *("call:f{", ":", ",", "```json\n", "```", "[", "]", '"arguments"', "\\", "`", "f"),
            *('{"a"', "<|tool_call>", "\n"),
        ]
    )
    | written_calls().map(lambda pair: pair[0]),
    max_size=12,
).map("".join)


@given(ANYTHING, SIZES)
def test_the_reading_does_not_depend_on_the_cutting(text, sizes):
    whole, other = read(text), read(text, sizes)
    assert whole == other
    shown, reading = whole
    assert "".join(shown.split()) == "".join(reading.text.split())
    if not reading.calls:
        assert shown == reading.text == text


@pytest.mark.parametrize(
    "unit",
    [
        *("<tool_call", "<tool_call>", "<tool_call>{", '<tool_call>{"', '<tool_call>{"a":'),
        *("call:f{a:", "```json\n{", "\n```json\n[", "<", "`", "<tool_call>[", "{"),
        '<tool_call>{"name":"f","arguments":"" x',
        *('<tool_call>{"name":"f","arguments":"" x</tool_call>', '<tool_call>{"a":[\'', " "),
    ],
)
@pytest.mark.parametrize("size", [7, 60_000])
def test_hostile_text_takes_linear_time(unit, size):
    text = unit * (60_000 // len(unit))
    shown, _ = within(2, read, text, (size,))
    assert len(shown) <= len(text)


def tool(name="read_file", description="Read a\nfile."):
    properties = {
        "path": {"type": "string", "description": "where it is"},
        "limit": {"type": "integer"},
        "mode": {"enum": ["a", "b"]},
        "names": {"type": "array", "items": {"type": "string"}},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
    }
    schema = {"type": "object", "properties": properties, "required": ["path"]}
    return Tool(name=name, description=description, parameters=schema, run=lambda *_: "")


TOOLS = Toolset([tool(), tool("look")])
CALL = ToolCall(id="call_1", name="look", arguments={"a": 1}, text='{"a": 1}')


def test_tools_are_described_in_the_system_message():
    strategy = TextCalls()
    request = Request(messages=(Message.system("Be Hermes."), Message.user("hi")), tools=TOOLS)
    system, user = strategy.messages(request)
    assert system.text.startswith("Be Hermes.\n\n")
    arguments = 'path: string, limit?: integer, mode?: "a"|"b", names?: [string], '
    told = f"- read_file({arguments}either?: string|null): Read a file.\n    path: where it is"
    assert told in system.text
    assert user is request.messages[1]
    assert strategy.messages(request)[0] is system
    assert strategy.fields(request) == {"stop": [RESULT]}
    assert isinstance(strategy.reader(), CallReader)
    alone = Request(messages=(Message.user("hi"),), tools=TOOLS)
    first, second = strategy.messages(alone), strategy.messages(alone)
    assert [m.role for m in first] == ["system", "user"] and first[0] is second[0]
    without = Request(messages=request.messages)
    assert list(strategy.messages(without)) == list(request.messages)
    assert strategy.fields(without) == {} and isinstance(strategy.reader(), PlainReader)


def test_results_of_a_batch_are_one_user_message():
    other = ToolCall(id="call_2", name="read_file")
    messages = (
        Message.user("go"),
        Message.assistant("Looking.", calls=[CALL, other]),
        Message.tool(CALL, "one", images=[Image("QQ==")]),
        Message.tool(other, ""),
        Message.user("and sum up"),
    )
    out = TextCalls().messages(Request(messages=messages, tools=TOOLS))
    assert [m.role for m in out] == ["system", "user", "assistant", "user"]
    assert out[2].text == f"Looking.\n{render(CALL)}\n{render(other)}" and not out[2].calls
    assert out[3].text == (
        "[Tool Result: look] one\n[Tool Result: read_file] (no output)\n\nand sum up"
    )
    assert len(out[3].images) == 1


def test_an_answer_goes_back_as_it_was_written():
    raw = "Hm.\n<tool_call>{'name': 'look',  'arguments': {'a': 1}}</tool_call>\nDone."
    assembly = Assembly(CallReader(frozenset({"look"})))
    assembly.feed(chunk({"content": raw}, finish="stop"))
    _, reply = assembly.finish()
    assert reply.finish == "tool_calls"
    messages = (Message.user("x"), reply.message, Message.tool(reply.message.calls[0], "r"))
    strategy = TextCalls()
    out = strategy.messages(Request(messages=messages, tools=TOOLS))
    assert out[2].text == raw
    assert Message.from_dict(reply.message.to_dict()) == reply.message
    # One that was shortened since is written anew.
    short = ToolCall(id="call_1", name="look", arguments={"a": "…"})
    message = Message(role="assistant", calls=(short,), echo={"raw_text": raw})
    out = TextCalls().messages(Request(messages=(message,), tools=TOOLS))
    assert out[1].text == render(short)


def test_the_conversation_only_grows_and_keeps_its_objects():
    strategy, conversation = TextCalls(), WireConversation(Profile())
    messages = [Message.system("s"), Message.user("go")]
    before = conversation.items(strategy.messages(Request(messages=tuple(messages), tools=TOOLS)))
    for n in range(4):
        call = ToolCall(id=f"c{n}", name="look")
        messages += [Message.assistant("", calls=[call]), Message.tool(call, "r")]
        request = Request(messages=tuple(messages), tools=TOOLS)
        after = conversation.items(strategy.messages(request))
        assert all(old is new for old, new in zip(before, after, strict=False))
        assert len(after) == len(before) + 2
        before = after


@given(st.text(max_size=20), ARGUMENTS)
def test_what_is_rendered_is_read_back(name, arguments):
    name = name.strip() or "f"
    call = ToolCall(id="call_1", name=name, arguments=arguments, text=json.dumps(arguments))
    reader = CallReader(frozenset({name}))
    shown = reader.feed(render(call))
    rest, reading = reader.finish()
    if all(c >= " " for c in name):
        expected = [(name, clean(arguments))]
        assert [(c.name, dict(c.arguments)) for c in reading.calls] == expected
        assert shown + rest == ""
