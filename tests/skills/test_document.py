from __future__ import annotations

import pytest
from hermes_nb.skills.document import (
    DOCUMENT_LIMIT,
    SkillError,
    name_problems,
    problems,
    read_document,
    valid_category,
)
from hypothesis import given
from hypothesis import strategies as st

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
        ("---\nname: a\n---\nbody", "no description"),
        ("---\nname: a\ndescription:\n---\nbody", "no description"),
        ("---\n- a\n---\n", "not a list of"),
        ("---\nname: [a\n---\n", "no valid YAML"),
    ],
)
def test_what_cannot_be_used_says_why(content, reason):
    with pytest.raises(SkillError, match=reason):
        read_document(content)


def test_long_descriptions_are_kept_and_noted():
    document = read_document(text("a", "word " * 400), folder="a")
    assert len(document.description) > 1_024
    assert "longer than" in document.notes[0]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (text("a", "d" * 1_025), "1,025 characters"),
        (text("a", "''"), "0 characters"),
        (text("A"), "no name for a skill"),
        (text(""), "no name"),
        (text("b"), "its name is 'b'"),
        (text("a", body=" \n"), "nothing below"),
        (text("a", body="x" * DOCUMENT_LIMIT), "100,000 is the limit"),
        (text("a", "Use when: asked"), "no valid YAML"),
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


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(data):
    for content in (data, b"---\n" + data, b"---\nname: a\ndescription: b\n" + data):
        decoded = content.decode("utf-8", "replace")
        problems(decoded, name="a")
        try:
            document = read_document(decoded, folder="a")
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


def test_the_reference_validator_agrees(tmp_path):
    validate = pytest.importorskip("skills_ref").validate
    folder = tmp_path / "draw-charts"
    folder.mkdir()
    content = text("draw-charts", extra="license: MIT\nmetadata:\n  author: me\n")
    (folder / "SKILL.md").write_text(content, encoding="utf-8")
    assert problems(content, name="draw-charts") == []
    assert validate(folder) == []
