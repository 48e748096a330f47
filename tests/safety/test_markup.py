"""Nothing in a model's text runs or loads when a notebook shows it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import cmarkgfm
import mistune
import pytest
from cmarkgfm.cmark import Options
from hermes_nb.safety.markup import ORDERS, clean_html, code_block, code_span, escape, safe_markdown
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tests.cpu import within
from tests.safety.hostile import HARMLESS, PAYLOADS, numbered

SAFE_TAGS = set(
    "p em strong code pre a ul ol li blockquote hr br h1 h2 h3 h4 h5 h6 table thead tbody tr th"
    " td s del img span input sub sup kbd b i u ins small mark details summary section div".split()
)
SAFE_ATTRIBUTES = set(
    "href src alt title class start align open type disabled checked style lang".split()
)
SAFE_TARGET = re.compile(r"(?:https?://|mailto:|attachment:|(?![a-z][a-z0-9+.-]*:))", re.IGNORECASE)
OVERRIDES = re.compile("[\x00-\x08\x0b-\x1f\u200b\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")


class Audit(HTMLParser):
    """Collects what a browser would obey, and what MathJax would find in its text."""

    def __init__(self):
        super().__init__()
        self.bad = []
        self.texts = [""]
        self.code = 0

    def handle_starttag(self, tag, attributes):
        if tag not in SAFE_TAGS:
            self.bad.append(tag)
        self.code += tag in ("code", "pre")
        if tag != "br":
            self.texts.append("")
        for name, written in attributes:
            value = (written or "").strip()
            if name not in SAFE_ATTRIBUTES:
                self.bad.append((tag, name, value))
            if name == "href" and not SAFE_TARGET.match(value):
                self.bad.append((tag, name, value))
            if name == "src" and (value[:1] == "/" or not re.match(r"[^:]*$|attachment:", value)):
                self.bad.append((tag, name, value))

    def handle_endtag(self, tag):
        self.code -= tag in ("code", "pre")
        if tag != "br":
            self.texts.append("")

    def handle_data(self, data):
        if not self.code:
            self.texts[-1] += data

    def close(self):
        super().close()
        self.bad += [text for text in self.texts if ORDERS.search(text)]


RENDERERS = [
    MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render,
    MarkdownIt("js-default", {"html": True, "linkify": False}).render,
    lambda text: cmarkgfm.github_flavored_markdown_to_html(text, Options.CMARK_OPT_UNSAFE),
    mistune.create_markdown(escape=False, plugins=["table", "task_lists"]),
]
for permissive in RENDERERS[:2]:
    permissive.__self__.validateLink = lambda _: True


def obeyed(markdown):
    """Return what any of the parsers makes of a text that a browser would obey."""
    bad = []
    for render in RENDERERS:
        audit = Audit()
        audit.feed(render(markdown))
        audit.close()
        bad += audit.bad
    return bad + OVERRIDES.findall(markdown)


def tangled(markdown):
    """Return blocks whose formulas JupyterLab would not find where they are.

    It cuts out what stands between two dollars of a block, code or not, and puts it back into the
    finished HTML without a look at quotes.
    """
    bad = []
    for block in re.split(r"\n[ \t>]*\n", re.sub(r"(?ms)^(`{3,}).*?^\1$", "", markdown)):
        rest = re.sub(r"(\$\$?)([^$`\"]+)\1", "", block)
        if "$" in rest and block.count("$") > 1:
            bad.append(block)
        if re.search(r"\\begin\{(\w+\*?)\}(?![^`$\"]*\\end\{\1\})|\\\\[(\[]", rest):
            bad.append(block)
    return bad


@pytest.mark.parametrize("payload", PAYLOADS)
def test_hostile_text_is_shown_not_obeyed(payload):
    text = safe_markdown(numbered(payload, 1))
    name, span, block = escape(payload), code_span(payload), code_block(payload)
    for shown in (
        *(text, f"1. {text}", f"**Hermes:** {text} …", f"- a\n- {text}\n- b", name, span, block),
        f"| a | b |\n|---|---|\n| {span} | {name} |",
        f"> ✓ **{name}** {span} · 0.1 s",
        f"<details><summary>{name}</summary>\n\n{block}\n\n</details>",
    ):
        assert obeyed(shown) == []
        assert tangled(shown) == []
    audit = Audit()
    audit.feed(clean_html(f'<div class="hermes-row"><b>x</b>{payload}</div>'))
    assert [found for found in audit.bad if found != "svg"] == []


@pytest.mark.parametrize("text", HARMLESS)
def test_ordinary_answers_stay_as_they_are(text):
    assert safe_markdown(text).strip("\n") == text
    assert obeyed(text) == []


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (r"\(x^2\) and \[y\]", "$x^2$ and $$y$$"),
        ("$5 and $6", "<span>&#36;</span>5 and <span>&#36;</span>6"),
        ("$x<y$", r"$x\lt y$"),
        ("<https://example.org/a>", "https://example.org/a"),
        ("![p](https://example.org/p.png)", "[p](https://example.org/p.png)"),
        ("[x](<my file.png>)", "[x](my%20file.png)"),
        ("~~~ py\n```\n~~~", "````py\n```\n````"),
        ("a\n```\nb\n```\nc", "a\n\n```\nb\n```\n\nc"),
        ("<b>open", "&lt;b>open"),
        ("a\r\nb", "a\nb"),
    ],
)
def test_what_can_be_said_safely_is_said_so(said, shown):
    assert safe_markdown(said).strip("\n") == shown


pieces = st.sampled_from(
    [
        *"`|\\$\n!<>&[](){}:",
        *("``", "```", "~~~", "\n\n", " ", "- ", "> ", "<img src=x>", "<b>", "</b>", "<br>"),
        *("<details>", "</details>", "text", "    ", "\t", "1. ", "[a](javascript:x)", "[a]: "),
        *("javascript:x", "![a](b)", "![a](http://b)", "$$", "\\(", "\\)", "\\href{x}{y}"),
        *("\\begin{align}", "\\end{align}", "&#36;", "&bsol;", "<!--", "-->", "# ", "&lt;", "\r"),
        '"',
    ]
)


@given(st.lists(pieces, max_size=14).map("".join))
def test_no_mixture_of_markup_gets_anything_through(text):
    cleaned = safe_markdown(text)
    for shown in (cleaned, f"1. {cleaned} …"):
        assert obeyed(shown) == []
        assert tangled(shown) == []


@given(st.lists(pieces, max_size=14).map("".join))
def test_what_follows_a_text_is_not_swallowed_by_it(text):
    """A text leaves no fence, comment or `<details>` open."""
    whole = f"<details><summary>x</summary>\n\n{safe_markdown(text)}\n\n</details>\n\n*after*"
    rendered = RENDERERS[2](whole)
    assert rendered.rstrip().endswith("<p><em>after</em></p>")
    assert rendered.count("<details>") == rendered.count("</details>")


@given(st.lists(pieces, max_size=14).map("".join))
def test_the_helpers_hold_anything(text):
    rendered = MarkdownIt("commonmark", {"html": True}).parse(code_block(text))
    assert [token.type for token in rendered] == ["fence"]
    assert obeyed(code_span(text)) == []
    assert obeyed(f"<p>{escape(text)}</p>") == []
    assert "\n" not in code_span(text) + escape(text)


@pytest.mark.parametrize(
    "piece",
    [
        *("`", "$", "\\(", "\\[", "[", "](", "![", "<", "&#", "\\begin{a}", "```\n", "``` ", "<b>"),
        *("$ ", "!", "!!a", "\n", " \n"),
    ],
)
def test_time_is_linear(piece):
    within(4, safe_markdown, piece * (200_000 // len(piece)))


def test_our_own_drawings_and_text_pass():
    for text in (
        '<div class="hermes-two"><span>a</span><i style="background:#5c6bc0"></i></div>',
        '<svg class="c" width="100%" height="6" viewBox="0 0 3 6" preserveAspectRatio="none" '
        'role="img" aria-label="x"><rect class="r" width="3" height="6" rx="3"></rect></svg>',
    ):
        assert clean_html(text) == text
