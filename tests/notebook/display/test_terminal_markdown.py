"""Markdown in a terminal: nothing is lost, nothing is obeyed but our own, what is final stays."""

from __future__ import annotations

import io
import re

import pytest
from hermes_nb.agent.undo.changes import Change
from hermes_nb.core.escapes import readable
from hermes_nb.notebook.display.calls import folded
from hermes_nb.notebook.display.changes import diff_bundle
from hermes_nb.notebook.display.tables import facts, grid
from hermes_nb.notebook.display.tables import printed as as_text
from hermes_nb.notebook.display.terminal_markdown import (
    COLOURS,
    blocks,
    draw,
    finished,
    latest,
    rendered,
)
from hermes_nb.notebook.display.views import can_draw
from hermes_nb.safety.markup import code_block, code_span, escape, safe_markdown
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

PIECES = st.sampled_from(
    "\n|\n\n|# |- |1. |  |    |> |```\n|~~~py\n|| a | b |\n|---|---|\n||===\n|---\n|word |*|**|`|"
    "[x](http://a.b)|<b>|</b>|<br>|<!--|$|\\|&#27;|&#x202e;|![p](q)|[r]: http://c.d\n|[r]|"
    "\t|é|漢|🙂|[red]|:smile:|<http://e.f>|\\(|\\)|$$".split("|")
) | st.sampled_from(["| a | b |\n", "|---|---|\n", "| c | d |\n", "||"])
TEXTS = st.lists(PIECES | st.text(max_size=4), max_size=40).map("".join).map(readable)
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


FORMULAS = r"costs $5 and $6; $a*b*c$, \(x_1 \\ y\)"


def printed(source, *, width=80):
    """Return what a terminal is sent."""
    file = io.StringIO()
    console = Console(file=file, theme=COLOURS, force_terminal=True, width=width, highlight=False)
    for block in blocks(source):
        console.print(rendered(block))
    return file.getvalue()


def read(source, **options):
    return ESCAPES.sub("", printed(source, **options))


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("[the plot](https://a.example/x)", "the plot (https://a.example/x)"),
        ("[https://good.example](https://evil.example)", "https://good.example (https://evil.ex"),
        ("<https://a.example>", "https://a.example"),
        ("[a **b**](https://c.example)", "a b (https://c.example)"),
        ("[раypal.com](https://раypal.com)", "(https://xn--"),
        ("![p](https://a.example/p.png)", "[picture: p] (https://a.example/p.png)"),
        ("[r][1]\n\n[1]: https://a.example", "[r][1]\n[1]: https://a.example"),
        ("[x](javascript:alert)", "[x](javascript:alert)"),
        ("<div>one</div>\n\n<b>two</b>", "<div>one</div>\n<b>two</b>"),
        ("a<br>b", "a\nb"),
        ("[red]x[/red] [link=http://a]y[/link] :smile:", "[red]x[/red] [link=http://a]y[/link]"),
        ("a &#x202e;b &#27;[31m", "a \\u202eb \ufffd[31m"),
        (FORMULAS, FORMULAS),
        ("```nosuchlanguage\n[red]a\n```", " [red]a"),
        (">" * 30 + " deep", ">" * 30 + " deep"),
    ],
)
def test_what_is_shown(source, shown):
    assert shown in read(source)


def test_a_table_that_is_too_wide_becomes_lists():
    head = "|".join(f"name{i}" for i in range(30))
    row = "|".join(f"value{i}" for i in range(30))
    shown = read(f"|{head}|\n|{'---|' * 30}\n|{row}|")
    assert all(f"name{i}: value{i}\n" in shown for i in range(30))
    long = read(f"| a | b |\n|---|---|\n| {'x' * 300} | {'y' * 50} |")
    assert long.count("x") == 300 and long.count("y") == 50 and "…" not in long
    assert "\x1b]8" not in printed("[a](https://b.example) <https://c.example>")


@given(TEXTS)
def test_only_colours_reach_the_terminal_no_word_is_lost_and_every_line_fits(source):
    words = re.findall(r"[^\W\d_]{2,}", source)
    wide = re.sub(r"\s", "", read(source, width=200))
    if "---|" in source and any(line.count("|") > 3 for line in source.split("\n")):
        words = []  # Markdown has nothing of the cells behind the last column
    # But for a line break, and the language of a fence.
    assert not [word for word in words if word not in wide and word not in ("br", "py")]
    assert "".join("".join(blocks(source)).split()) == "".join(source.split())
    shown = read(source, width=40)
    assert all(cell_len(line) <= 40 for line in shown.split("\n"))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)


@given(st.lists(TEXTS, min_size=1, max_size=6))
def test_what_is_finished_stays_as_it_is(pieces):
    whole = "".join(pieces)
    said, pending = [], ""
    for piece in pieces:
        pending += piece
        end = finished(pending)
        said += blocks(pending[:end])
        pending = pending[end:]
    assert said + blocks(pending) == blocks(whole)


def test_the_latest_lines_of_a_block_keep_what_makes_them_one():
    code = "```python\n" + "\n".join(f"line{i}" for i in range(100))
    assert latest(code, 3).split("\n") == ["```python", "line97", "line98", "line99"]
    table = "| a |\n|---|\n" + "\n".join(f"| {i} |" for i in range(100))
    assert latest(table, 2).split("\n") == ["| a |", "|---|", "| 98 |", "| 99 |"]
    assert latest("one\ntwo", 5) == "one\ntwo"


HOSTILE = st.text(max_size=60) | st.sampled_from(
    [
        *("\x1b[2J\x1b]0;title\x07", "</details>", "<details><summary>", "<code>", "</code></b>"),
        *("| a |\n|---|", "```", "&#27;[31m", "[red]x[/red]", "\u202egnp"),
    ]
)


def drawn(markdown, *, width=80):
    """Return what a terminal of some width is sent of a command's Markdown."""
    screen = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        draw(markdown, screen)
    return screen.getvalue()


def lines(markdown, **options):
    return [line.rstrip() for line in ESCAPES.sub("", drawn(markdown, **options)).splitlines()]


def test_a_table_that_fits_has_columns():
    rows = [(code_span("20261122-144504-cac0b4"), escape("a *title*"))]
    assert lines(grid(("session", "title"), rows)) == [
        "session                  title",
        "──────────────────────────────────",
        "20261122-144504-cac0b4   a *title*",
    ]
    table = facts([("model", "a|b & <c> $d"), ("home", "/tmp")])
    assert lines(table) == ["model   a|b & <c> $d", "home    /tmp"]


def test_a_table_too_wide_keeps_its_ids_whole():
    rows = [(code_span("20261122-144504-cac0b4"), "–", "word " * 30, "x" * 30, "end")]
    shown = lines(grid(("session", "none", "said", "long", "last"), rows), width=60)
    assert shown[0] == "• session: 20261122-144504-cac0b4"
    assert shown[1].startswith("  said: word word")
    assert shown[-1] == "  last: end"


def test_folds_are_open_and_indented():
    inner = folded("inside", code_block("x = 1", "python"))
    assert lines(f"Before.\n\n{folded('2 *calls*', inner)}\n\n<sub>✓ 1.0 s</sub>") == [
        *("Before.", "", "▾ 2 *calls*", "", "  ▾ inside", "", "     x = 1", "", "✓ 1.0 s")
    ]


def test_our_tags_are_styles_and_others_are_text():
    markdown = f"<b>bold</b> {code_span('a | b `c`')} {escape('<i>no</i> $5')} <blink>x</blink>"
    assert lines(markdown) == ["bold a | b `c` <i>no</i> $5 <blink>x</blink>"]
    assert "\x1b[1mbold" in drawn(markdown) and "\x1b[36ma | b" in drawn(markdown)
    change = Change(name="a.py", kind="edited", before="one\ntwo", after="one\nthree")
    diff = drawn(diff_bundle([change], 1_000)["text/markdown"])
    assert "\x1b[31m- two" in diff and "\x1b[32m+ three" in diff


@given(texts=st.lists(HOSTILE, min_size=1, max_size=6), width=st.integers(5, 130))
def test_what_others_wrote_is_never_obeyed(texts, width):
    markdown = "\n\n".join(
        [
            grid(("a", "b"), [(escape(text), code_span(text)) for text in texts]),
            *(safe_markdown(text) for text in texts),
            *(folded(text, code_block(text, "diff")) for text in texts),
        ]
    )
    left = ESCAPES.sub("", drawn(markdown, width=width))
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202a-\u202e]", left)


@given(words=st.lists(st.text("abcXYZ0123", min_size=1, max_size=50), min_size=1, max_size=30))
def test_no_word_of_a_table_is_lost(words):
    half = len(words) // 2 or 1
    rows = [(escape(" ".join(words[:half])), escape(" ".join(words[half:])))]
    for width in (20, 80):
        left = ESCAPES.sub("", drawn(grid(("q", "q"), rows), width=width))
        assert sorted(re.sub(r"[\s•─q:]", "", left)) == sorted("".join(words))


def test_what_is_printed_has_code_without_its_fence():
    markdown = f"See `x`:\n\n{code_block('a `b` **c** <d>', 'python')}\n\n**End**"
    assert as_text(markdown) == "See x:\n\na `b` **c** <d>\n\nEnd"


def test_what_is_no_terminal_is_not_drawn_on():
    assert not can_draw(io.StringIO(), {"TERM": "xterm"})
