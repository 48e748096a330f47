"""Arguments are read whole or not at all; the fault tests have more ways to break them."""

from __future__ import annotations

import json

import pytest
from hermes_nb.models.arguments import parse_arguments
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu import within

LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=8), VALUES, max_size=4)


@given(OBJECTS, st.booleans(), st.data())
def test_valid_json_is_kept_byte_for_byte_and_a_piece_of_it_is_never_taken(value, cut, data):
    text = json.dumps(value, indent=1)
    read = parse_arguments(text, cut=cut)
    assert (read.text, read.problem) == (text, "")
    if value:
        part = parse_arguments(text[: data.draw(st.integers(1, len(text) - 1))], cut=cut)
        assert part.problem and not part.value


@pytest.mark.parametrize("text", ["", "  \n", "null", "None", "{}"])
def test_no_arguments_are_an_empty_object(text):
    read = parse_arguments(text)
    assert (dict(read.value), read.text, read.problem) == ({}, "{}", "")
    assert text == "{}" or "cut off" in parse_arguments(text, cut=True).problem


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{'a': True, 'b': None, 'c': \"it's\"}", {"a": True, "b": None, "c": "it's"}),
        ('{}{"a": 1}', {"a": 1}),
        ('{a: 1, b: "x"}', {"a": 1, "b": "x"}),
        ('{"a": "x\ny\tz"}', {"a": "x\ny\tz"}),
        ('{"path": "a.txt" // the file\n}', {"path": "a.txt"}),
        ('{"a": [1, 2,], "b": {c: yes}}', {"a": [1, 2], "b": {"c": "yes"}}),
    ],
)
def test_what_can_mean_one_thing_is_repaired(text, value):
    read = parse_arguments(text)
    assert (dict(read.value), read.problem) == (value, "")
    assert json.loads(read.text) == value


@pytest.mark.parametrize(
    "text",
    [
        *('{"a": "print("x", y)"}', "{'t': 'don't'}", '{"a": 1 "b": 2}'),
        *('{"a": "\\d+"}', '{"a": hello world}', '{"a": NaN}', "{'a': -1e999}"),
    ],
)
def test_what_can_mean_more_is_a_problem(text):
    read = parse_arguments(text)
    assert read.problem and not read.value
    assert "\n" not in read.problem and len(read.problem) < 300


def test_lone_surrogates_do_not_reach_a_tool():
    read = parse_arguments('{"a": "\\ud800", "b": "\\ud83d\\ude00", "c": "\\u0000"}')
    assert read.value == {"a": "\ufffd", "b": "😀", "c": "\ufffd"}
    assert "\\ud800" in read.text


@pytest.mark.parametrize("unit", ["{", '{"a":', '"', "'", "/*", "//", "[", "\\", "a ", '"a": /* '])
def test_hostile_arguments_take_linear_time(unit):
    text = "{" + unit * (500_000 // len(unit))
    for end in ("", "}"):
        assert within(3, parse_arguments, text + end).problem


@pytest.mark.parametrize("levels", [150, 900, 100_000])
@pytest.mark.parametrize(("begin", "end"), [('{"a":', "}"), ("[", "]"), ('{"a":[', "]}")])
@pytest.mark.parametrize("tail", ["", ","])
def test_nesting_without_end_is_a_problem_and_no_exception(levels, begin, end, tail):
    read = parse_arguments(f'{{"x":{begin * levels}1{end * levels}{tail}}}')
    assert read.problem and not read.value
