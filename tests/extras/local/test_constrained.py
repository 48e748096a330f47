"""The small model's profile: what it is sent, what it may answer, and how that is read."""

from __future__ import annotations

import json
from itertools import pairwise

import fastjsonschema
import pytest
from hermes_nb.core.json_values import clean_text
from hermes_nb.core.messages import Message, ToolCall
from hermes_nb.core.protocols import Request, Variable
from hermes_nb.core.steering import steered
from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.extras.local.object_reader import ObjectReader
from hermes_nb.extras.local.prompting import (
    CALLS,
    MOST_TOKENS,
    MOST_TOOLS,
    Constrained,
    plain,
    small_tools,
)
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu import within

TABLE = Variable(
    name="df",
    type="DataFrame",
    shape="344 x 3",
    columns={"species": "str", "mass": "float64", "length": "float64"},
)
LINE = "- df: DataFrame 344 x 3 (species str, mass float64, length float64)"
SYSTEM = Message.system("The agent's own long prompt. " * 100)


def tool(name: str, *arguments: str, required=None, kind="string") -> Tool:
    schema = {
        "type": "object",
        "properties": {argument: {"type": kind} for argument in arguments},
        "required": list(arguments) if required is None else required,
    }
    return Tool(name=name, description=name, parameters=schema, run=lambda *_: "")


TOOLS = Toolset(
    [
        tool("read_file", "path", "offset", required=["path"]),
        tool("terminal", "command"),
        tool("patch", "path", "old", "new"),
        tool("run_python", "code", "timeout", required=["code"]),
        tool("list_files", "path", required=[]),
    ]
)


def request(*messages: Message, tools: Toolset = TOOLS, system=SYSTEM, **options) -> Request:
    return Request(messages=(system, *messages), tools=tools, **options)


def exchange(name="run_python", value="len(df)", result="344", *, failed=False, number=1):
    call = ToolCall(id=f"c{number}", name=name, arguments={"code": value})
    return Message.assistant(calls=[call]), Message.tool(call, result, failed=failed)


def test_a_message_added_to_the_turn_is_a_plain_question():
    sent = Constrained(list).messages(
        request(Message.user("How many rows?"), *exchange(), steered(["And columns?"]))
    )
    assert sent[-1].text == "And columns?"


def names(fields) -> list[str]:
    schema = fields["response_format"]["json_schema"]["schema"]
    return [next(iter(one["properties"])) for one in schema.get("oneOf", [schema])]


def sent_for(*messages: Message, tables=(TABLE,), **options) -> list[Message]:
    """Return what a model with these tables is sent in a fresh conversation."""
    return list(Constrained(lambda: tables, **options).messages(request(*messages)))


def texts(messages) -> list[str]:
    return [message.text for message in messages]


def read(raw: str, cuts=()):
    reader = ObjectReader({"run_python": "code", "read_cell": "index"}, "call_1")
    edges = [0, *sorted(cuts), len(raw)]
    shown = [reader.feed(raw[a:b]) for a, b in pairwise(edges)]
    rest, reading = reader.finish()
    return shown, rest, reading


def test_the_prompt_is_short_and_about_the_users_own_table():
    sent = sent_for(Message.user("How many rows?"))
    said = "\n".join(texts(sent))
    assert "own long prompt" not in said and len(said) < 2_300
    assert [message.role for message in sent[:3]] == ["system", "user", "assistant"]
    assert sent[-1].text == "How many rows?"
    assert LINE in said and "df.groupby('species')['mass'].mean()" in said
    assert "Result: 344" in texts(sent)
    said = "\n".join(texts(sent_for(Message.user("q"), tables=())))
    assert "groupby" not in said and "df" not in said and "Variables" not in said
    columns = {f"c{n}": "int64" for n in range(900)}
    wide = Variable(name="wide", type="DataFrame", shape="5 x 900", columns=columns)
    many = [Variable(name=f"v{n}", type="int") for n in range(500)]
    sent = sent_for(Message.user("q"), tables=[*many, wide])
    assert sum(map(len, texts(sent))) < 3_000 and "- wide: DataFrame 5 x 900" in sent[0].text


@pytest.mark.parametrize(
    "table",
    [
        Variable(name="t", type="DataFrame", shape="0 x 0", columns={}),
        Variable(name="t", type="DataFrame", shape="", columns={"when": "datetime64[ns]"}),
        Variable(name="t", type="DataFrame", shape="9 x 1", columns={"a'b": "int64"}),
        Variable(name="t", type="DataFrame", shape="1,200 x 1", columns={"word": "category"}),
    ],
)
def test_any_table_gives_examples_that_are_valid_answers(table):
    strategy = Constrained(lambda: [table])
    asked = request(Message.user("q"))
    schema = strategy.fields(asked)["response_format"]["json_schema"]["schema"]
    for message in strategy.messages(asked):
        if message.role == "assistant":
            answer = json.loads(message.text)
            fastjsonschema.validate(schema, answer)
            compile(answer.get("run_python", "0"), "example", "exec")


def test_variables_are_asked_once_a_conversation():
    asked = []
    strategy = Constrained(lambda: asked.append(1) or [TABLE])
    first = request(Message.user("q"))
    strategy.messages(first)
    strategy.fields(first)
    strategy.messages(request(*first.messages[1:], Message.assistant("a"), Message.user("b")))
    assert len(asked) == 1
    strategy.messages(request(Message.user("q"), system=Message.system("another conversation")))
    assert len(asked) == 2


def test_a_table_that_comes_later_is_told_with_the_next_question():
    there = []
    strategy = Constrained(lambda: list(there))
    said = [Message.user("Hi"), Message.assistant("Hello!"), Message.user("How many?")]
    before = strategy.messages(request(said[0]))
    there.append(TABLE)
    running = strategy.messages(request(said[0], *exchange()))
    assert before[0] is running[0]  # never within a turn
    after = strategy.messages(request(*said))
    assert LINE in after[0].text
    there.append(Variable(name="more", type="DataFrame", shape="1 x 1", columns={"a": "int64"}))
    assert strategy.messages(request(*said, Message.assistant("3"), said[2]))[0] is after[0]


def test_which_tools_are_offered():
    more = [tool(f"t{n}", "x", kind="integer") for n in range(9)]
    offered = small_tools(Toolset([*more, tool("two", "a", "b")]))
    assert [small.name for small in offered] == ["t0", "t1", "t2", "t3"][:MOST_TOOLS]
    assert {small.type for small in offered} == {"integer"}
    strategy = Constrained(lambda: [TABLE])
    strategy.fields(request(Message.user("q")))
    fewer = strategy.fields(request(Message.user("q"), tools=TOOLS.without("list_files")))
    assert names(fewer) == ["run_python", "read_file", "reply"]


ALL = ["run_python", "list_files", "read_file", "reply"]


@pytest.mark.parametrize(
    ("said", "options", "may"),
    [
        ([], {}, ALL),
        ([], {"tool_choice": "none"}, ["reply"]),
        (exchange(), {}, ["reply"]),  # a value that was asked for has to be told
        (exchange("list_files", ".", "a.csv"), {}, ALL),
        (exchange("list_files", ".", "a.csv") * CALLS, {}, ["reply"]),
        (exchange(result="run_python was not run: you declined.", failed=True), {}, ["reply"]),
        # Errors of earlier questions are forgotten.
        ([*exchange(failed=True), Message.assistant("I gave up"), Message.user("r")], {}, ALL),
    ],
)
def test_what_the_next_answer_may_be(said, options, may):
    fields = Constrained().fields(request(Message.user("q"), *said, **options))
    assert names(fields) == may
    assert fields["temperature"] == 0 and fields["max_tokens"] == MOST_TOKENS


@pytest.mark.parametrize(
    ("result", "failed"),
    [("no such column", True), ("Traceback …\nKeyError: 'x'", False), ("pkg.SomeError: x", False)],
)
def test_an_error_wants_another_call_but_not_for_ever(result, failed):
    wrong = exchange(result=result, failed=failed)
    strategy = Constrained()
    assert "reply" not in names(strategy.fields(request(Message.user("q"), *wrong)))
    assert "reply" not in names(strategy.fields(request(Message.user("q"), *wrong, *wrong)))
    assert "reply" in names(strategy.fields(request(Message.user("q"), *wrong * 3)))


def test_the_conversation_takes_the_form_of_the_examples():
    said = (Message.user("How many?"), *exchange(), Message.assistant('344 "rows"\n'))
    sent = sent_for(*said, Message.user("more"))
    assert texts(sent)[-5:] == [
        *("How many?", '{"run_python": "len(df)"}', "Result: 344"),
        *('{"reply": "344 \\"rows\\"\\n"}', "more"),
    ]
    assert {message.role for message in sent} == {"system", "user", "assistant"}


def test_errors_are_cut_to_what_helps():
    trace = "Traceback (most recent call last):\n" + "  File …\n" * 200 + "KeyError: 'weight'"
    sent = sent_for(Message.user("q"), *exchange(result=trace, failed=True))
    assert sent[-1].text == f"Error: KeyError: 'weight'\n{LINE}"
    said = (Message.user("x" * 50_000), *exchange(result="y" * 50_000))
    assert all(len(text) < 3200 for text in texts(sent_for(*said, tables=())))


def test_of_the_notebooks_context_only_new_variables_stay():
    other = "- other: DataFrame 3 x 1 (a int64)"
    head, cells = "[Notebook context]\nNotebook: a.ipynb", "Cells:\n1 x"
    text = f"How many?\n{head}\nVariables:\n{LINE}\n{other}\n{cells}"
    assert sent_for(Message.user(text))[-1].text == f"How many?\n{other}"


def test_requests_without_tools_are_left_alone():
    messages = (Message.user("Summarise this."), Message.assistant("ok"), Message.user("go on"))
    strategy = Constrained(lambda: [TABLE])
    short = Message.system("You summarise.")
    asked = request(*messages, tools=Toolset(), system=short)
    assert list(strategy.messages(asked)) == [short, *messages]
    assert "response_format" not in strategy.fields(asked)


def conversation(turns: int, size: int = 40) -> list[Message]:
    said = []
    for number in range(turns):
        said += [Message.user(f"question {number} " + "word " * size)]
        said += exchange(result="1 " * size, number=number)
        said += [Message.assistant(f"answer {number}")]
    return said


def test_what_is_sent_only_grows_and_keeps_its_objects():
    strategy = Constrained(lambda: [TABLE], window=100_000)
    said, before = conversation(8), []
    for end in range(1, len(said) + 1):
        sent = list(strategy.messages(request(*said[:end])))
        assert len(sent) > len(before)
        assert all(a is b for a, b in zip(before, sent, strict=False))
        before = sent


@given(st.integers(1, 30), st.integers(0, 300))
def test_a_long_conversation_fits_and_keeps_its_question(turns, size):
    strategy = Constrained(lambda: [TABLE], window=2048)
    said = [*conversation(turns, size), Message.user("the last question")]
    sent = strategy.messages(request(*said))
    assert sent[-1].text == "the last question"
    assert sum(len(text) for text in texts(sent)) < 2048 * 5
    first = len(strategy.messages(request(Message.user("q")))) - 1
    assert not sent[first].text.startswith("Result")


def test_a_long_turn_keeps_its_question_and_its_last_result():
    said = [Message.user("the question")]
    for number in range(60):
        said += exchange(result=f"value {number} " + "1 " * 60, number=number)
    sent = texts(Constrained(window=2048).messages(request(*said)))
    assert "the question" in sent and sent[-1].startswith("Result: value 59")
    position = sent.index("the question")
    assert sent[position + 1].startswith('{"run_python"')
    strategy, said, cuts, before = Constrained(window=2048), conversation(40), 0, []
    for end in range(1, len(said) + 1):
        sent = list(strategy.messages(request(*said[:end])))
        cuts += any(a is not b for a, b in zip(before, sent, strict=False))
        before = sent
    assert 0 < cuts < 25, "what is left of it stays the same for a while"


@given(st.text(), st.booleans(), st.data())
def test_a_reply_is_shown_as_it_arrives_however_it_is_cut(text, ascii_only, data):
    text = clean_text(text)
    raw = json.dumps({"reply": text}, ensure_ascii=ascii_only)
    cuts = data.draw(st.lists(st.integers(0, len(raw))))
    shown, rest, reading = read(raw, cuts)
    assert "".join(shown) + rest == reading.text == text
    assert not reading.calls
    "".join(shown).encode("utf-8")  # never half a surrogate pair


@given(st.text(), st.data())
def test_a_call_is_never_shown(code, data):
    raw = json.dumps({"run_python": code})
    shown, rest, reading = read(raw, data.draw(st.lists(st.integers(0, len(raw)))))
    assert "".join(shown) + rest == reading.text == ""
    (call,) = reading.calls
    assert (call.name, call.arguments) == ("run_python", {"code": code})


@given(st.text(), st.sampled_from(["run_python", "reply", "read_cell"]), st.data())
def test_neither_a_cut_reply_nor_any_text_raises(text, name, data):
    raw = json.dumps({name: "é😀\n\\"})
    for said in (text, raw[: data.draw(st.integers(0, len(raw) - 1))]):
        shown, rest, reading = read(said, data.draw(st.lists(st.integers(0, len(said)))))
        assert "".join(shown) + rest == reading.text
        assert all(call.problem or call.arguments for call in reading.calls)


def test_what_an_object_is_read_as():
    (call,) = read('{"run_python": "len(d')[2].calls
    assert call.name == "run_python" and "cut off" in call.problem
    assert read('{"read_cell": 4}')[2].calls[0].arguments == {"index": 4}
    raw = '{"title": "Penguins"}'
    assert read(raw, (3, 12))[2].text == raw
    assert read('{"reply": "Hello there', (12, 16))[0] == ["H", "ello", " there"]
    strategy, ids = Constrained(), set()
    strategy.fields(request(Message.user("q")))
    for _ in range(3):
        reader = strategy.reader()
        reader.feed('{"run_python": "1"}')
        ids.add(reader.finish()[1].calls[0].id)
    assert len(ids) == 3


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ("np.float64(200.91520467836258)", "200.9152"),
        ("np.int64(11)", "11"),
        ("'Gentoo'", "'Gentoo'"),
        ("np.float64(nan)", "nothing, no row matches"),
        ("Empty DataFrame\nColumns: [a]\nIndex: []", "nothing, no row matches"),
        ("0.0012345678", "0.001235"),
        ("island\nBiscoe    168\nDream  4\nName: n, dtype: int64", "Biscoe: 168, Dream: 4"),
        ("a b    1.1234567\nc      2\ndtype: float64", "a b: 1.1235, c: 2"),
        ("two\nlines", "two\nlines"),
        ("a  b\nx  1  2\ndtype: int64", "a  b\nx  1  2\ndtype: int64"),
    ],
)
def test_values_are_put_plainly(shown, said):
    assert plain(shown) == said


@pytest.mark.parametrize("unit", ["0", "0.", "-", "np.a(", "a ", "nan", "Name: ", "a  b\n"])
def test_a_value_of_any_length_is_put_plainly_in_time(unit):
    within(4, plain, unit * (100_000 // len(unit)))
