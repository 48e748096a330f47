"""Nothing in a model's text runs or loads when a notebook shows it."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest
from hermes_nb.safety.markup import code_block, code_span, escape, safe_markdown
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

SAFE_TAGS = set(
    "p em strong code pre a ul ol li blockquote hr br h1 h2 h3 h4 h5 h6 table thead tbody tr th"
    " td s".split()
)


class Audit(HTMLParser):
    """Collects what a browser would obey."""

    def __init__(self):
        super().__init__()
        self.bad = []

    def handle_starttag(self, tag, attributes):
        if tag not in SAFE_TAGS:
            self.bad.append(tag)
        for name, value in attributes:
            target = (value or "").strip().lower()
            if name.startswith("on") or target.startswith(("javascript", "data", "vbscript")):
                self.bad.append((tag, name, value))


def obeyed(markdown):
    parser = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    parser.validateLink = lambda _: True
    audit = Audit()
    audit.feed(parser.render(markdown))
    return audit.bad


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "a <b onclick=x>b</b>",
    "[x](javascript:alert(1))",
    "[x](JaVaScRiPt:alert(1))",
    "[x](java&#10;script:alert(1))",
    "[x](&#106;avascript:alert(1))",
    "[x](<javascript:alert(1)>)",
    "[x]( data:text/html,boo)",
    "[x]\n\n[x]: javascript:alert(1)",
    "![p](http://spy.example/p.png)",
    "<javascript:alert(1)>",
    "- `a\n- <img src=x onerror=y> `",
    "| `a | <img src=x onerror=y> | ` |\n|---|---|---|\n",
    "`` ` <img src=x> `",
    "\\`<img src=x>\\`",
    "```\n<b>\n``` x\n<img src=x>",
    "> ```\n<img src=x onerror=y>\n",
    "    ```\n<img src=x>\n    ```",
    "<!-- <img src=x> -->",
    "``` `\n<img src=x>",
    "~~~ <img src=x>\n",
    "- ```\n<img src=x>\n- ```",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_shown_not_obeyed(text):
    assert obeyed(safe_markdown(text)) == []


pieces = st.sampled_from(
    [
        "`",
        "``",
        "```",
        "~~~",
        "\n",
        "\n\n",
        " ",
        "- ",
        "> ",
        "|",
        "\\",
        "<img src=x>",
        "<b>",
        "text",
        "    ",
        "\t",
        "1. ",
        "[a](javascript:x)",
        "![a](b)",
        "<!--",
        "-->",
        "# ",
        "&lt;",
        "\r",
    ]
)


@given(st.lists(pieces, max_size=14).map("".join))
def test_no_mixture_of_markup_gets_a_tag_through(text):
    assert obeyed(safe_markdown(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "plain *prose* with `code`, a < b and [a link](https://example.org/x?y=1#z).",
        "```python\nif a < b: print('<b>')\n```",
        "use `List<int>` here",
        "| a | b |\n|---|---|\n| 1 | 2 |",
        "$x < y$ and $$\\frac{1}{2}$$",
        "[anchor](#here) [file](data/x.csv)",
    ],
)
def test_ordinary_answers_stay_as_they_are(text):
    assert safe_markdown(text) == text


@given(st.text(alphabet="`ab<|\n ", max_size=30))
def test_code_helpers_hold_anything(text):
    rendered = MarkdownIt("commonmark", {"html": True}).parse(code_block(text))
    assert [token.type for token in rendered] == ["fence"]
    assert rendered[0].content == text + "\n"
    assert obeyed(code_span(text)) == []
    assert obeyed(f"<p>{escape(text)}</p>") == []
