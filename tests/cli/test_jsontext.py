"""A value goes into somebody's JSON and out again; nothing else changes by a byte."""

from __future__ import annotations

import json

import pytest
from hermes_nb.cli.jsontext import with_items, with_member, without_items, without_member
from hermes_nb.core.errors import ConfigError
from hypothesis import given
from hypothesis import strategies as st

PATH, VALUE = ("MagicsManager", "lazy_magics", "hermes"), "hermes_nb"
KEYS = st.sampled_from(["MagicsManager", "lazy_magics", "other", 'é\\"\n', ""])
SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.floats(width=16)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
STYLES = st.sampled_from(
    [{}, {"indent": 2}, {"indent": "\t"}, {"separators": (",", ":")}, {"ensure_ascii": False}]
)


def objects_at(path):
    """Return objects that have, or lack, objects along a path."""
    inner = st.dictionaries(KEYS, VALUES, max_size=3)
    if len(path) == 1:
        return inner
    return st.builds(
        lambda rest, below, has: {**rest, path[0]: below} if has else rest,
        inner.map(lambda rest: {k: v for k, v in rest.items() if k != path[0]}),
        objects_at(path[1:]),
        st.booleans(),
    )


@given(objects_at(PATH), STYLES, st.sampled_from(["", "\n", "\r\n", "  \n"]))
def test_in_and_out_again_changes_nothing(document, style, around):
    text = around + json.dumps(document, **style) + around
    changed = with_member(text, PATH, VALUE)
    expected = json.loads(text)
    expected.setdefault(PATH[0], {}).setdefault(PATH[1], {})[PATH[2]] = VALUE
    assert repr(json.loads(changed)) == repr(expected)  # repr: a nan is not equal to itself
    assert with_member(changed, PATH, VALUE) == changed
    assert without_member(changed, PATH, VALUE) == text
    assert without_member(text, PATH, VALUE) == text


@pytest.mark.parametrize(
    "text",
    [
        "{}", "{ }", "{\n}", '{"MagicsManager": {}}', '{"MagicsManager":{"lazy_magics":{}}}',
        '{"MagicsManager": {"lazy_magics": {"a": "b"}}}', '{"MagicsManager": {}, "x": 1}',
        '{"MagicsManager": {"lazy_magics": {"a": "b"}}, "MagicsManager": {}}', '{"a" : 1 , "b":2 }',
    ],
)  # fmt: skip
def test_empty_objects_of_others_stay(text):
    changed = with_member(text, PATH, VALUE)
    assert json.loads(changed)["MagicsManager"]["lazy_magics"]["hermes"] == "hermes_nb"
    assert without_member(changed, PATH, VALUE) == text


def test_the_style_of_the_file_is_kept():
    text = '{\n    "A": {"b": 1},\n    "C": 2\n}\n'
    added = '    "MagicsManager": {"lazy_magics": {"hermes": "hermes_nb"}}'
    assert with_member(text, PATH, VALUE) == text.replace("2\n", "2,\n" + added + "\n")


def test_what_was_added_behind_ours_stays():
    text = with_member('{"a": 1}', PATH, VALUE).removesuffix("}") + ', "z": 2}'
    assert without_member(text, PATH, VALUE) == '{"a": 1, "z": 2}'
    first = '{"MagicsManager": {"lazy_magics": {"hermes": "hermes_nb", "x": "y"}}}'
    left = without_member(first, PATH, VALUE)
    assert left == '{"MagicsManager": {"lazy_magics": {"x": "y"}}}'


def test_what_is_not_ours_is_refused_or_left():
    other = '{"MagicsManager": {"lazy_magics": {"hermes": "other"}}}'
    with pytest.raises(ConfigError, match="is 'other' there"):
        with_member(other, PATH, VALUE)
    assert without_member(other, PATH, VALUE) == other
    for text, gist in [
        ("", "not valid JSON"), ("{'a': 1}", "in line 1"), ("[]", "top level"), ("3", "top level"),
        ('{"MagicsManager": []}', "MagicsManager is no object"), ("[" * 100_000, "cannot be read"),
        ("\ufeff{}", "BOM"),
    ]:  # fmt: skip
        with pytest.raises(ConfigError, match=gist):
            with_member(text, PATH, VALUE)


@given(st.lists(st.text(max_size=5), max_size=5), STYLES)
def test_items_in_and_out(argv, style):
    text = json.dumps({"a": 1, "argv": argv, "env": {}}, **style)
    ours = ["--hermes-one", "--hermes-two"]
    changed = with_items(text, "argv", ours)
    assert json.loads(changed)["argv"] == argv + ours
    assert with_items(changed, "argv", ours) == changed
    assert without_items(changed, "argv", ours) == text


def test_there_has_to_be_a_list():
    with pytest.raises(ConfigError, match="no list 'argv'"):
        with_items('{"argv": "x"}', "argv", ["a"])
