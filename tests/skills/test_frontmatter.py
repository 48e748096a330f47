from __future__ import annotations

import time

import pytest
import yaml
from hermes_nb.skills.document import (
    FRONTMATTER_LIMIT,
    SkillError,
    plain_text,
    read_fields,
    split,
    words,
)
from hypothesis import given, settings
from hypothesis import strategies as st


@pytest.mark.parametrize("fence", ["---", "---  ", "---\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_the_fences_are_found_whatever_the_line_ends(fence, end, mark):
    parts = split(mark + end.join([fence, "name: a", fence, "# T", "", "---", "more"]))
    assert (parts.head, parts.body, parts.closed) == ("name: a", "# T\n\n---\nmore", True)


def test_without_a_closing_fence_it_ends_where_the_prose_begins():
    parts = split("---\nname: a\ntags:\n  - x\nThis is prose.\nname: b")
    assert (parts.head, parts.body) == ("name: a\ntags:\n  - x", "This is prose.\nname: b")
    assert not parts.closed


@pytest.mark.parametrize(
    "text", ["", "# Title", "name: a\n---\n", "----\na: b\n----", " ---\na: b"]
)
def test_no_frontmatter_is_an_error(text):
    with pytest.raises(SkillError, match="does not begin"):
        split(text)


@pytest.mark.parametrize(
    ("head", "field", "value"),
    [
        ("d: Use when: the user asks", "d", "Use when: the user asks"),
        ("d: Use it: now\n  and: later", "d", "Use it: now and: later"),
        ("d: *.py, **/*.md", "d", "*.py, **/*.md"),
        *(("d: @mention `code`", "d", "@mention `code`"), ("d: 'it's fine'", "d", "it's fine")),
        *(('d: "say "hi" now"', "d", 'say "hi" now'), ("d: [draft] plots things: all", "d", None)),
        *(("d:\tone\n\tmore", "d", "one more"), ("d: bell\x07 rings", "d", "bell rings")),
        *(("d: 2024-01-31", "d", "2024-01-31"), ("d: 1.10", "d", "1.10"), ("d: yes", "d", "yes")),
        *(("d: ~", "d", ""), ("d: '~'", "d", "~"), ("d: null", "d", "")),
        *(("d: |\n  one\n  two", "d", "one\ntwo"), ("d: >-\n  one\n  two", "d", "one two")),
        *(("d: &x one\ne: *x", "e", "*x"), ("tags: [a, b]", "tags", ["a", "b"])),
        ("metadata:\n  hermes:\n    tags: [a]", "metadata", {"hermes": {"tags": ["a"]}}),
    ],
)
def test_what_people_write_is_understood(head, field, value):
    if value is None:
        with pytest.raises(SkillError, match="no valid YAML"):
            read_fields(head)
        return
    assert read_fields(head).fields[field] == value


def test_repairs_are_noted_and_can_be_switched_off():
    head = "d: Use when: asked"
    assert "quotes" in read_fields(head).notes[0]
    with pytest.raises(SkillError, match="line 2"):
        read_fields(head, repair=False)


def test_a_field_that_is_there_twice_is_noted():
    read = read_fields("a: 1\na: 2")
    assert read.fields == {"a": "2"}
    assert "twice" in read.notes[0]


@pytest.mark.parametrize("head", ["- a", "just text", "", "a: 1\n...\nb: 2"])
def test_what_is_no_mapping_is_refused(head):
    with pytest.raises(SkillError):
        read_fields(head)


@pytest.mark.parametrize(
    "head", ["- " * 30_000, "a: " + "[" * 30_000, "a: " + "{a: " * 10_000, "? " * 30_000]
)
def test_bombs_are_refused_quickly(head):
    started = time.process_time()
    with pytest.raises(SkillError):
        read_fields(head)
    assert time.process_time() - started < 1


def test_aliases_do_not_expand():
    laughs = "a: &a [x,x,x,x,x,x,x,x]\n" + "".join(
        f"{b}: &{b} [{','.join([f'*{a}'] * 8)}]\n"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    read = read_fields(laughs)
    assert read.fields["i"] == ["*h"] * 8


def test_the_size_is_bounded():
    with pytest.raises(SkillError, match="longer than"):
        read_fields("a: " + "x" * FRONTMATTER_LIMIT)


KEYS = st.from_regex(r"[a-z]{1,8}", fullmatch=True)
VALUES = st.text(st.characters(codec="utf-8", exclude_characters="\x85\u2028\u2029"), max_size=60)


@settings(max_examples=50)
@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_what_yaml_writes_is_read_back(fields):
    head = yaml.safe_dump(fields, allow_unicode=True)
    if not fields or "\n---" in f"\n{head}":
        return
    read = read_fields(head, repair=False)
    assert read.fields == fields
    assert read.notes == ()


PIECES = st.sampled_from(
    [
        *("\n", "\r\n", ": ", "\0", "\x07", "\ud800", "\ufeff", "---", "name", "..."),
        *"\t[]{}'\"|>*&!#%@`?,é- ",
    ]
)


@given(st.one_of(st.text(max_size=300), st.lists(PIECES, max_size=60).map("".join)))
def test_any_text_is_read_or_refused(text):
    try:
        parts = split(f"---\n{text}")
        read = read_fields(parts.head)
    except SkillError:
        return
    assert all(isinstance(key, str) for key in read.fields)


def test_values_as_text_and_words():
    assert plain_text([" a", {"b": "c"}, "d"]) == " a, d"
    assert plain_text({"a": "b"}) == ""
    assert words("a, b ,,c") == ("a", "b", "c")
    assert words(["a", [], "b"]) == ("a", "b")
    assert words(None) == ()
