"""A SKILL.md: what is read of it, what is written, and its frontmatter."""

from __future__ import annotations

import pytest
import yaml
from hermes_nb.skills.document import (
    DOCUMENT_LIMIT,
    FRONTMATTER_LIMIT,
    SkillError,
    name_problems,
    problems,
    read_document,
    read_fields,
    split,
    valid_category,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cpu import within
from tests.skills.support import text


def test_a_document_is_read():
    extra = (
        "platforms: [macos, linux]\nversion: 1.0\nmetadata:\n  hermes:\n    tags: [Plots, CSV]\n"
        "    category: data\n    requires_tools: [terminal]\n    fallback_for_toolsets: [web]\n"
    )
    document = read_document(text("draw", extra=extra), folder="draw")
    assert document.name == "draw"
    assert document.description == "Draws a chart from a table."
    assert document.body.startswith("# How")
    assert document.tags == ("Plots", "CSV")
    assert document.category == "data"
    assert document.gates.platforms == ("macos", "linux")
    assert document.gates.requires_tools == ("terminal",)
    assert document.gates.fallback_for_toolsets == ("web",)
    assert document.notes == ()


@pytest.mark.parametrize(
    ("given_name", "folder", "name"),
    [
        *(("draw", "draw", "draw"), ("draw", "other", "draw"), ("", "my-folder", "my-folder")),
        *(("Draw Charts!", "my-folder", "my-folder"), ("Draw Charts!", "", "draw-charts")),
        *(("../../etc", "ok", "ok"), ("x" * 80, "ok", "ok"), ("[a, b]", "Ok Folder", "ok-folder")),
        ("日本", "日本", "unnamed"),
    ],
)
def test_the_name_is_always_usable(given_name, folder, name):
    document = read_document(text(given_name), folder=folder)
    assert document.name == name
    assert name_problems(document.name) == []
    assert (document.notes == ()) == (given_name == folder == name)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "does not begin"),
        ("# Only a body", "does not begin"),
        *((odd, "does not begin") for odd in ("name: a\n---\n", "----\na: b\n----", " ---\na: b")),
        ("---\nname: a\n---\nbody", "no description"),
        ("---\nname: a\ndescription:\n---\nbody", "no description"),
        ("---\n- a\n---\n", "not a list of"),
        ("---\nname: [a\n---\n", "not valid YAML"),
    ],
)
def test_what_cannot_be_used_says_why(content, reason):
    with pytest.raises(SkillError, match=reason):
        read_document(content)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (text("a", "d" * 1_025), "1,025 characters"),
        (text("a", "''"), "0 characters"),
        (text("A"), "not a valid skill name"),
        (text(""), "no name"),
        (text("b"), "its name is 'b'"),
        (text("a", body=" \n"), "no text after the frontmatter"),
        (text("a", body="x" * DOCUMENT_LIMIT), "the limit is 100,000"),
        (text("a", "Use when: asked"), "not valid YAML"),
        (text("a", extra="a: 1\na: 2\n"), "twice"),
        (text("a", "one --- two"), "inside the frontmatter"),
        ("\n" + text("a"), "before the frontmatter"),
        (text("a")[:40], "not closed"),
        (text("a") + "\0", "NUL"),
        (text("a") + "\ud800", "surrogates"),
        ("no frontmatter", "begin with `---`"),
    ],
)
def test_what_is_written_is_strictly_valid(content, problem):
    assert any(problem in found for found in problems(content, name="a"))


def test_what_the_format_allows_is_written():
    extra = "license: MIT\nallowed-tools: [Read]\nmetadata:\n  hermes: {tags: [x]}\n"
    assert problems(text("a.b_c-9", extra=extra), name="a.b_c-9") == []
    assert problems("\ufeff" + text("a").replace("\n", "\r\n"), name="a") == []
    assert problems(text("a", "d" * 1_024), name="a") == []


@pytest.mark.parametrize("name", ["-a", ".a", "a/b", "a b", "ä", "a\n", "", "x" * 65, "A"])
def test_bad_names(name):
    assert name_problems(name)


@pytest.mark.parametrize(
    ("given_category", "category"),
    [
        ("data", "data"),
        ("Data Science", "data-science"),
        ("a/b", "a/b"),
        *((bad, "") for bad in ("a/b/c", "../x", "", "/", ".hidden")),
    ],
)
def test_categories(given_category, category):
    assert valid_category(given_category) == category


PIECES = st.sampled_from(
    [
        *("\n", "\r\n", ": ", "\0", "\x07", "\ud800", "\ufeff", "---", "name", "..."),
        *"\t[]{}'\"|>*&!#%@`?,é- ",
    ]
)


@given(
    st.binary(max_size=400).map(lambda data: data.decode("utf-8", "replace"))
    | st.text(max_size=300)
    | st.lists(PIECES, max_size=60).map("".join)
)
def test_any_text_is_read_or_refused(text):
    for content in (text, f"---\n{text}", f"---\nname: a\ndescription: b\n{text}"):
        problems(content, name="a")
        try:
            document = read_document(content, folder="a")
        except SkillError:
            continue
        assert name_problems(document.name) == []
        assert document.description


@given(st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True), st.text(max_size=200))
def test_what_is_valid_is_read_as_it_is_meant(name, body):
    content = text(name, body=f"# T\n{body}")
    if problems(content, name=name):
        return
    document = read_document(content, folder=name)
    assert (document.name, document.notes) == (name, ())
    unix = f"# T\n{body}".replace("\r\n", "\n").replace("\r", "\n")
    assert document.body == unix.strip("\n")


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
        ("a: 1\na: 2", "a", "2"),
    ],
)
def test_what_people_write_is_understood(head, field, value):
    if value is None:
        with pytest.raises(SkillError, match="not valid YAML"):
            read_fields(head)
        return
    assert read_fields(head).fields[field] == value


@pytest.mark.parametrize(
    "head",
    [
        *("- a", "just text", "", "a: 1\n...\nb: 2", "a: " + "x" * FRONTMATTER_LIMIT),
        *("- " * 30_000, "a: " + "[" * 30_000, "a: " + "{a: " * 10_000, "? " * 30_000),
    ],
)
def test_what_is_no_mapping_or_a_bomb_is_refused(head):
    with pytest.raises(SkillError):
        within(1, read_fields, head)


def test_repairs_are_noted_and_can_be_switched_off():
    assert "longer than" in read_document(text("a", "word " * 400), folder="a").notes[0]
    assert "twice" in read_fields("a: 1\na: 2").notes[0]
    head = "d: Use when: asked"
    assert "quotes" in read_fields(head).notes[0]
    with pytest.raises(SkillError, match="line 2"):
        read_fields(head, repair=False)


def test_aliases_do_not_expand():
    laughs = "a: &a [x,x,x,x,x,x,x,x]\n" + "".join(
        f"{b}: &{b} [{','.join([f'*{a}'] * 8)}]\n"
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    )
    read = read_fields(laughs)
    assert read.fields["i"] == ["*h"] * 8


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
