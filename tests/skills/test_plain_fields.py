"""What is read without a parser is what the parser would have said."""

from __future__ import annotations

import pytest
from hermes_nb.skills.frontmatter import FrontmatterError, parsed
from hermes_nb.skills.plain_fields import plain_fields
from hypothesis import given, settings
from hypothesis import strategies as st

NASTY = (
    "name description metadata a-b_1 : :: - -- --- ... # ## \" ' \\ | > & * ! % @ ` [ ] { } , ? ~ ="
    " << null Null ~ yes 1 1.5 0x1F 2026-01-01 a:b a#b a: #a [a] [a,b] {a} é 中 \u2028 \u00a0"
    " \ufeff \t"
).split(" ")
PIECES = st.sampled_from([*NASTY, " ", "  ", "\n", "\n", "\n  ", "\n    ", ": ", ":\n  ", "[a, b]"])
HEADS = st.lists(PIECES, max_size=14).map("".join) | st.text(max_size=40)
VALUES = st.lists(st.sampled_from([*NASTY, " "]), max_size=5).map(" ".join) | st.text(max_size=20)
KEYS = st.from_regex(r"[A-Za-z_][\w-]{0,5}", fullmatch=True)
FIELDS = st.lists(st.tuples(st.sampled_from(["", "  ", "    "]), KEYS, VALUES), max_size=6).map(
    lambda fields: "\n".join(f"{indent}{key}: {value}" for indent, key, value in fields)
)


ITEMS = st.lists(
    st.tuples(
        st.sampled_from(["", "  ", "    "]), st.sampled_from(["- ", "-  ", "k: ", "k:"]), VALUES
    ),
    max_size=6,
).map(lambda items: "a:\n" + "\n".join(map("".join, items)))


@settings(max_examples=400)
@given(HEADS | FIELDS | FIELDS.map(lambda head: head.replace(": \n", ":\n")) | ITEMS)
def test_plain_fields_are_what_yaml_says(head):
    fields = plain_fields(head)
    if fields is None:
        return
    read = parsed(head)
    assert read.fields == fields
    assert not read.notes
    assert list(read.fields) == list(fields)


@pytest.mark.parametrize(
    ("head", "fields"),
    [
        (
            "name: a-b\ndescription: Does x (y), z.",
            {"name": "a-b", "description": "Does x (y), z."},
        ),
        ('name: "a"\nversion: 1.0', {"name": "a", "version": "1.0"}),
        ("a: 'b: c'\nempty:\nnone: null", {"a": "b: c", "empty": "", "none": ""}),
        (
            "m:\n  hermes:\n    tags: [x, y-z]\n  k: v\nn: w",
            {"m": {"hermes": {"tags": ["x", "y-z"]}, "k": "v"}, "n": "w"},
        ),
        ("a:\n- b", {"a": ["b"]}),
        (
            "m:\n  tags:\n    - x\n    - 'y z'\n    - null\n  k: v\nn: w",
            {"m": {"tags": ["x", "y z", ""], "k": "v"}, "n": "w"},
        ),
        ("u: see https://a.example/b", {"u": "see https://a.example/b"}),
        ("d: Zürich 東京", {"d": "Zürich 東京"}),
    ],
)
def test_what_most_documents_hold_is_plain(head, fields):
    assert plain_fields(head) == fields
    assert parsed(head).fields == fields


@pytest.mark.parametrize(
    "head",
    [
        *("a: b: c", "a: b #c", "a: &x b", "a: *x", "a: !!str b", "a: |\n  b", "a: >-\n  b"),
        *("a: [b, [c]]", "a: {b: c}", "- a", "a: b\n  c", "a: b\na: c", "a: 'it''s'", 'a: "\\n"'),
        *("? a", "a:\tb", "a: b\t", "a", "", "a: b:", "a: b \n", "--- a: b"),
        *("a:\n- b\n  c", "a:\n- b\n - c", "a:\n- b: c", "a:\n- - b", "a:\n- [b]", "a: b\n- c"),
        *("a:\n  - b\n  c: d", "m:\n  a:\n - b", "a:\n-"),
    ],
)
def test_the_rest_is_left_to_the_parser(head):
    assert plain_fields(head) is None


def test_it_never_raises_on_what_the_parser_refuses():
    for head in ("a: b\n c: d", "\x00: a", "a: \ud800"):
        with pytest.raises(FrontmatterError):
            parsed(head)
        assert plain_fields(head) is None
