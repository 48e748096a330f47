"""Markdown in a terminal: nothing is lost, nothing is obeyed, and what is final stays."""

from __future__ import annotations

import io
import re

import pytest
from hermes_nb.notebook.display.terminal_markdown import COLOURS, blocks, finished, latest, rendered
from hermes_nb.safety.visible import readable
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

PIECES = st.sampled_from(
    "\n|\n\n|# |- |1. |  |    |> |```\n|~~~py\n|| a | b |\n|---|---|\n||===\n|---\n|word |*|**|`|"
    "[x](http://a.b)|<b>|</b>|<br>|<!--|$|\\|&#27;|&#x202e;|![p](q)|[r]: http://c.d\n|[r]|"
    "\t|é|漢|🙂|[red]|:smile:|<http://e.f>|\\(|\\)|$$".split("|")
) | st.sampled_from(["| a | b |\n", "|---|---|\n", "| c | d |\n", "||"])
TEXTS = st.lists(PIECES | st.text(max_size=4), max_size=40).map("".join).map(readable)
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


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
        (
            "costs $5 and $6; $a*b*c$, \\(x_1 \\\\ y\\)",
            "costs $5 and $6; $a*b*c$, \\(x_1 \\\\ y\\)",
        ),
        ("```nosuchlanguage\n[red]a\n```", "  [red]a"),
        (">" * 30 + " deep", ">" * 30 + " deep"),
    ],
)
def test_what_is_shown(source, shown):
    assert shown in read(source)


def test_links_are_no_hyperlinks_of_the_terminal():
    assert "\x1b]8" not in printed("[a](https://b.example) <https://c.example>")


def test_a_table_has_columns_while_they_fit():
    table = "| a | long name |\n|---|---:|\n| 1 | 2 |"
    head, _, row = read(table).strip().split("\n")
    assert head.split() == ["a", "long", "name"]
    assert row.split() == ["1", "2"]


def test_a_table_that_is_too_wide_becomes_lists():
    head = "|".join(f"name{i}" for i in range(30))
    row = "|".join(f"value{i}" for i in range(30))
    shown = read(f"|{head}|\n|{'---|' * 30}\n|{row}|")
    assert all(f"name{i}: value{i}\n" in shown for i in range(30))


def test_a_long_cell_is_broken_and_not_cut():
    shown = read(f"| a | b |\n|---|---|\n| {'x' * 300} | {'y' * 50} |")
    assert shown.count("x") == 300 and shown.count("y") == 50 and "…" not in shown


@given(TEXTS)
def test_only_colours_reach_the_terminal(source):
    shown = read(source, width=40)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", shown)


@given(TEXTS)
def test_no_word_is_lost(source):
    words = re.findall(r"[^\W\d_]{2,}", source)
    shown = re.sub(r"\s", "", read(source, width=200))
    for word in words:
        if word not in ("br", "py"):  # a line break, and the language of a fence
            assert word in shown


@given(TEXTS, st.integers(1, 200))
def test_every_line_fits(source, width):
    from rich.cells import cell_len

    for line in read(source, width=max(width, 40)).split("\n"):
        assert cell_len(line) <= max(width, 40)


@given(TEXTS)
def test_blocks_are_what_the_text_consists_of(source):
    assert "".join("".join(blocks(source)).split()) == "".join(source.split())


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
