from __future__ import annotations

import re

import pytest
from hermes_nb.memory.entries import cleaned, has_separator, parse, render, size
from hypothesis import given
from hypothesis import strategies as st

entries = st.lists(
    st.text().map(cleaned).filter(lambda text: text and not has_separator(text)), max_size=6
)


@given(entries)
def test_what_is_rendered_is_read_back(items):
    data = render(items)
    parsed = parse(data, one_entry=len(items) == 1)
    assert list(parsed.entries) == items
    assert parsed.canonical
    assert size(items) == len(data.decode())
    assert not data.endswith(b"\n")


@given(st.binary())
def test_no_bytes_make_it_raise(data):
    parsed = parse(data)
    assert all(entry == cleaned(entry) and entry for entry in parsed.entries)
    assert parse(render(parsed.entries), one_entry=True).entries[:1] == parsed.entries[:1]


@given(st.text())
def test_cleaning_is_idempotent_and_storable(text):
    once = cleaned(text)
    assert cleaned(once) == once
    once.encode()
    assert "\0" not in once and "\r" not in once


MARKDOWN = ["# Head", "word", "- bullet", "  nested", "", "```", "1. one", "a *b* c"]
MARKDOWN += ["> quote", "| t |"]


@given(st.lists(st.sampled_from(MARKDOWN)))
def test_hand_written_markdown_loses_no_word(lines):
    text = "\n".join(lines)
    kept = "\n".join(parse(text.encode()).entries)
    assert re.findall(r"\S+", kept) == re.findall(r"\S+", text)


def test_hand_written_markdown_is_its_paragraphs_and_bullets():
    text = "# Notes\n\n- likes tea\n  - green\n- uses vim\n\nA text,\ntwo lines.\n\n## More\nx\n"
    found = "# Notes", "- likes tea\n  - green", "- uses vim", "A text,\ntwo lines.", "## More", "x"
    assert parse(text.encode()).entries == found
    assert not parse(text.encode()).canonical


def test_a_fenced_block_stays_in_one_piece():
    text = "```python\n- not a bullet\n\n# not a heading\n```\nbehind"
    assert parse(text.encode()).entries == (text,)


@pytest.mark.parametrize(
    ("data", "found", "odd"),
    [
        (b"\xef\xbb\xbfa\n\xc2\xa7\nb", ("a", "b"), "byte order mark"),
        ("a\n§\nb".encode("utf-16"), ("a", "b"), "UTF-16"),
        (b"a\xff\n\xc2\xa7\nb", ("a\ufffd", "b"), "not UTF-8"),
        (b"a\0b", ("a\ufffdb",), "NUL"),
        (b"a\r\n\xc2\xa7\r\nb", ("a", "b"), ""),
        (b"a\n\xc2\xa7\nb\n", ("a", "b"), ""),
        (b" a\n \xc2\xa7 \nb", ("a", "b"), ""),
    ],
)
def test_odd_forms_are_understood_and_odd_bytes_named(data, found, odd):
    parsed = parse(data)
    assert parsed.entries == found
    assert odd in "".join(parsed.oddities)
    assert not parsed.canonical


def test_a_section_sign_inside_a_line_separates_nothing():
    assert parse("see § 5\nand § 6".encode()).entries == ("see § 5\nand § 6",)
    assert not has_separator("see § 5")
    assert has_separator("a\n § \nb")
