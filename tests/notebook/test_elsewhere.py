"""A finished turn where others draw it: parsed as GitHub and VS Code parse Markdown, and sanitised.

Neither keeps styles or classes. What remains must be all of it: the answer, every call with its
arguments and its result, folded, and the status line below.
"""

from __future__ import annotations

from html.parser import HTMLParser

import nh3
import pytest
from hermes_nb.core.escapes import visible
from hermes_nb.core.events import (
    MessageAdded,
    ReasoningDelta,
    ToolFinished,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    UsageReported,
)
from hermes_nb.core.messages import REPLACEMENT, Message, ToolCall, Usage
from hermes_nb.notebook.display.transcript import Transcript
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

GITHUB = set(
    "h1 h2 h3 h4 h5 h6 br b i strong em a pre code img tt div ins del sup sub p ol ul table thead"
    " tbody tfoot blockquote dl dt dd kbd q samp var hr ruby rt rp li tr td th s strike summary"
    " details caption figure figcaption abbr bdo cite dfn mark small span time wbr".split()
)
"""The elements that GitHub's published sanitiser (html-pipeline) lets pass."""
ATTRIBUTES = {"a": {"href"}, "img": {"src", "alt"}, "details": {"open"}, "ol": {"start"}}
PARSERS = {
    "github": MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]),
    "vscode": MarkdownIt("js-default", {"html": True, "linkify": False}),
}
PIECES = st.sampled_from(
    [
        *("</details>", "<details>", "</summary>", "<summary>x</summary>", "<pre>", "</pre>"),
        "<sub>",
        *("```", "````", "~~~", "`", "\n", "\n\n", "    ", "\t", "- ", "1. ", "> ", "# ", "| a |"),
        *("|---|", "<!--", "-->", "<![CDATA[", "<?", "$$", "$", "\\", "[x](http://a.b)"),
        "<script>",
        *("![p](http://a.b/c.png)", "word", "&lt;", "&#96;", "*", "_", "***\n", "===\n", "\\("),
        "<b>",
    ]
)
HOSTILE = st.lists(PIECES | st.text(max_size=3), max_size=14).map("".join)


class Page(HTMLParser):
    """What a page says, and what is folded in what."""

    def __init__(self, markup):
        super().__init__()
        self.path = []
        self.text = ""
        self.outside = ""
        self.folds = []
        self.titled = set()
        self.inside = []
        self.title = None
        self.codes = []
        self.tags = set()
        self.links = []
        self.feed(markup)

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.links += [value for name, value in attrs if name == "href"]
        if tag in ("br", "img", "hr"):
            return
        if tag == "details":
            self.inside.append(len(self.folds))
            self.folds.append((self.path.count("details"), ""))
        if tag == "summary" and self.path[-1:] == ["details"]:
            # The first one of a fold is its title; anywhere else it is text.
            fold = self.inside[-1]
            self.title = None if fold in self.titled else fold
            self.titled.add(fold)
        if tag == "pre":
            self.codes.append("")
        self.path.append(tag)

    def handle_endtag(self, tag):
        if tag in self.path:
            closed = ""
            while closed != tag:
                closed = self.path.pop()
                if closed == "details":
                    self.inside.pop()
                if closed == "summary":
                    self.title = None

    def handle_data(self, data):
        self.text += data
        self.outside += "" if "details" in self.path else data
        if self.title is not None:
            depth, said = self.folds[self.title]
            self.folds[self.title] = (depth, said + data)
        if "pre" in self.path:
            self.codes[-1] += data


def drawn(markdown, parser):
    """Return the page that is left, which must be all of the page that was written."""
    html = PARSERS[parser].render(markdown)
    page = Page(nh3.clean(html, tags=GITHUB, attributes=ATTRIBUTES, link_rel=None))
    assert page.text.split() == Page(html).text.split()
    assert Page(html).tags <= GITHUB
    return page


def turn(answer, *calls, thought="", said="Let me see."):
    """Return the view of a turn, and of each call what it is about, was given and returned."""
    transcript = Transcript(model="qwen3-coder")
    transcript(TurnStarted(1))
    if thought:
        transcript(ReasoningDelta(thought))
    for number, (name, arguments, result) in enumerate(calls):
        call = ToolCall(id=str(number), name=name, arguments=arguments)
        transcript(MessageAdded(Message.assistant(said, calls=[call])))
        transcript(UsageReported(Usage(input=1_000, output=10, requests=1)))
        transcript(ToolStarted(call))
        transcript(ToolFinished(call, "ok", 0.4))
        transcript(MessageAdded(Message.tool(call, result)))
    transcript(MessageAdded(Message.assistant(answer)))
    transcript(TurnEnded("answered"))
    return transcript.finished()


@pytest.mark.parametrize("parser", PARSERS)
def test_a_turn_with_everything_in_it_is_whole(parser):
    answer = (
        "# Result\n\n**Gentoo** leads: [the plot](plot.png), ![it](https://a.example/p.png)\n\n"
        "| a | b |\n|---|--:|\n| 1 | 2 |\n\n```python\nx < 1  # &\n```\n\n"
        "- one\n  1. deep\n\n> said"
    )
    calls = (
        ("run_python", {"code": "import a\nb | c"}, "<b>bold</b>\n\n   x"),
        ("terminal", {"command": "ls | wc"}, "</details> 3"),
        ("list_variables", {}, ""),
    )
    page = drawn(turn(answer, *calls, thought="First *look*."), parser)
    assert [depth for depth, _ in page.folds] == [0, 0, 1, 1]
    assert page.folds[0][1] == "reasoning"
    assert page.folds[1][1] == "3 tool calls"
    assert page.folds[2][1] == "✓ run_python import a b | c · 0.4 s"
    assert page.folds[3][1] == "✓ terminal ls | wc · 0.4 s"
    assert "✓ list_variables · 0.4 s" in page.text
    assert page.codes == [
        *("x < 1  # &\n", "import a\nb | c\n", "<b>bold</b>\n\n   x\n", "</details> 3\n"),
    ]
    assert "✓ 0.0 s · qwen3-coder · 3 requests · 3.0k in · 30 out" in page.outside
    assert {"h1", "table", "ol", "blockquote", "sub"} <= page.tags
    assert "img" not in page.tags and page.links == ["plot.png", "https://a.example/p.png"]


@pytest.mark.parametrize("parser", PARSERS)
@given(result=HOSTILE, code=HOSTILE, command=HOSTILE)
@example(result="\0", code="x", command="ls")
def test_whatever_a_call_takes_and_returns_is_folded_and_whole(parser, result, code, command):
    calls = [
        ("run_python", {"code": code}, result),
        ("terminal", {"command": command, "timeout": 5}, result),
    ]
    page = drawn(turn("The end.", *calls), parser)
    assert page.outside.split()[:2] == ["The", "end."]
    assert page.outside.split()[-1] == "out" and "qwen3-coder" in page.outside
    assert page.folds[0] == (0, "2 tool calls")
    assert all(depth == 1 for depth, _ in page.folds[1:])
    shown = visible(result.replace("\0", REPLACEMENT), lines=True).replace("\r", "\n")
    if shown.strip():
        assert page.codes.count(f"{shown}\n") >= 2


@pytest.mark.parametrize("parser", PARSERS)
@given(answer=HOSTILE, said=HOSTILE, thought=HOSTILE)
def test_no_text_of_the_model_swallows_what_comes_after_it(parser, answer, said, thought):
    calls = [("run_python", {"code": "1 + 1"}, "two")]
    page = drawn(turn(answer, *calls, thought=thought, said=said), parser)
    assert "two\n" in page.codes
    assert page.outside.split()[-1] == "out" and "qwen3-coder · 1 request" in page.outside
    assert (0, "1 tool call") in page.folds
    assert any(depth == 1 and said.startswith("✓ run_python") for depth, said in page.folds)
