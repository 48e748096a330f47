"""What commands show in a terminal: drawn from our own Markdown, and nothing of it obeyed."""

from __future__ import annotations

import io
import re

import pytest
from hermes_nb.notebook.commands.edits import diff_bundle
from hermes_nb.notebook.display.calls import folded
from hermes_nb.notebook.display.terminal_page import draw
from hermes_nb.notebook.display.transcript import facts, grid, printed
from hermes_nb.notebook.display.views import can_draw
from hermes_nb.safety.markup import code_block, code_span, escape, safe_markdown
from hypothesis import given
from hypothesis import strategies as st

SGR = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE = st.text(max_size=60) | st.sampled_from(
    [
        *("\x1b[2J\x1b]0;title\x07", "</details>", "<details><summary>", "<code>", "</code></b>"),
        *("| a |\n|---|", "```", "&#27;[31m", "[red]x[/red]", "\u202egnp"),
    ]
)


class Screen(io.StringIO):
    """A terminal of some width, as far as rich asks."""

    def __init__(self, monkeypatch, width):
        super().__init__()
        monkeypatch.setenv("COLUMNS", str(width))


@pytest.fixture
def drawn(monkeypatch):
    """Return a function that draws Markdown and returns what is sent to the terminal."""

    def draw_it(markdown, *, width=80):
        screen = Screen(monkeypatch, width)
        draw(markdown, screen)
        return screen.getvalue()

    return draw_it


@pytest.fixture
def read(drawn):
    """Return a function that draws Markdown and returns the lines that are read."""

    def lines(markdown, **options):
        return [line.rstrip() for line in SGR.sub("", drawn(markdown, **options)).split("\n")][:-1]

    return lines


def test_facts_have_no_head(read):
    table = facts([("model", "a|b & <c> $d"), ("home", "/tmp")])
    assert read(table) == ["model   a|b & <c> $d", "home    /tmp"]


def test_a_table_that_fits_has_columns(read):
    rows = [(code_span("20261122-144504-cac0b4"), escape("a *title*"))]
    assert read(grid(("session", "title"), rows)) == [
        "session                  title",
        "──────────────────────────────────",
        "20261122-144504-cac0b4   a *title*",
    ]


def test_a_table_too_wide_keeps_its_ids_whole(read):
    rows = [(code_span("20261122-144504-cac0b4"), "–", "word " * 30, "x" * 30, "end")]
    lines = read(grid(("session", "none", "said", "long", "last"), rows), width=60)
    assert lines[0] == "• 20261122-144504-cac0b4"
    assert lines[1].startswith("  said: word word")
    assert " ".join(lines).endswith("last: end")
    assert "none" not in " ".join(lines)


def test_one_column_gives_way_before_a_table_becomes_a_list(read):
    address = "http://127.0.0.1:40000/v1"
    lines = read(grid(("setting", "value"), [("k" * 30, address)]), width=50)
    assert lines[2].startswith("k" * 30) and "•" not in "".join(lines)
    assert "".join(line[30:].strip() for line in lines[2:]) == address


def test_folds_are_open_and_indented(read):
    inner = folded("inside", code_block("x = 1", "python"))
    assert read(f"Before.\n\n{folded('2 *calls*', inner)}\n\n<sub>✓ 1.0 s</sub>") == [
        *("Before.", "", "▾ 2 *calls*", "", "  ▾ inside", "", "      x = 1", "", "✓ 1.0 s")
    ]


def test_our_tags_are_styles_and_others_are_text(drawn, read):
    markdown = f"<b>bold</b> {code_span('a | b `c`')} {escape('<i>no</i> $5')} <blink>x</blink>"
    assert read(markdown) == ["bold a | b `c` <i>no</i> $5 <blink>x</blink>"]
    assert "\x1b[1mbold" in drawn(markdown) and "\x1b[36ma | b" in drawn(markdown)


def test_a_diff_is_in_colours(drawn):
    shown = drawn(diff_bundle(" one\n-two\n+three")["text/markdown"])
    assert "\x1b[31m-two" in shown and "\x1b[32m+three" in shown


@given(texts=st.lists(HOSTILE, min_size=1, max_size=6), width=st.integers(5, 130))
def test_what_others_wrote_is_never_obeyed(texts, width):
    markdown = "\n\n".join(
        [
            grid(("a", "b"), [(escape(text), code_span(text)) for text in texts]),
            *(safe_markdown(text) for text in texts),
            *(folded(text, code_block(text, "diff")) for text in texts),
        ]
    )
    with pytest.MonkeyPatch.context() as patch:
        screen = Screen(patch, width)
        draw(markdown, screen)
    left = SGR.sub("", screen.getvalue())
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", left)


@given(words=st.lists(st.text("abcXYZ0123", min_size=1, max_size=50), min_size=1, max_size=30))
def test_no_word_is_lost(words):
    half = len(words) // 2 or 1
    rows = [(escape(" ".join(words[:half])), escape(" ".join(words[half:])))]
    for width in (20, 80):
        with pytest.MonkeyPatch.context() as patch:
            screen = Screen(patch, width)
            draw(grid(("q", "q"), rows), screen)
        left = SGR.sub("", screen.getvalue())
        assert sorted(re.sub(r"[\s•─q:·]", "", left)) == sorted("".join(words))


def test_what_is_printed_has_code_without_its_fence():
    markdown = f"See `x`:\n\n{code_block('a `b` **c** <d>', 'python')}\n\n**End**"
    assert printed(markdown) == "See x:\n\na `b` **c** <d>\n\nEnd"


@pytest.mark.parametrize("environment", [{"NO_COLOR": "1", "TERM": "xterm"}, {"TERM": "dumb"}, {}])
def test_who_wants_no_colours_gets_none(environment):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    assert can_draw(Terminal(), {"TERM": "xterm"})
    assert not can_draw(Terminal(), environment)
    assert not can_draw(io.StringIO(), {"TERM": "xterm"})
