"""Render answers from Markdown to HTML, for the web page, chats and email clients.

The output uses only tags that Matrix allows in messages, or the fewer that Telegram allows. Images
are removed, because loading them would reveal the reader to a server.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from html import escape
from typing import TYPE_CHECKING

from hermes_nb.core.json_values import clean_text

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

_TAGS = (
    "a b blockquote br caption code del div em h1 h2 h3 h4 h5 h6 hr i li ol p pre s span strong"
    " sub sup table tbody td th thead tr u ul"
)

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})([^`\n]*)$", re.MULTILINE)


def closed(pieces: Sequence[str]) -> Iterator[str]:
    """Yield pieces of text, closing and reopening a code block that spans several pieces."""
    fence = mark = ""
    for piece in pieces:
        whole = f"{fence}\n{piece}" if fence else piece
        fence = mark = ""
        for found in _FENCE.finditer(whole):
            if not fence:
                fence, mark = found[0][:20], found[1]
            elif found[1].startswith(mark) and not found[2].strip():
                fence = ""
        yield f"{whole.rstrip()}\n{mark}" if fence and len(pieces) > 1 else whole


def html_of(text: str) -> str:
    """Convert Markdown to an HTML fragment; HTML tags in the text are escaped."""
    return _renderer()(clean_text(text))


def telegram_html_of(text: str) -> str:
    """Convert Markdown to Telegram's few HTML tags, which include neither lists nor tables.

    Headings become bold, and tables remain Markdown in a monospaced block.
    """
    from markdown_it.renderer import RendererHTML

    text, out, in_table = clean_text(text), list[str](), False
    parser, inline = _parser(), RendererHTML().renderInline
    for token in parser.parse(text):
        in_table = (in_table or token.type == "table_open") and token.type != "table_close"
        if token.type == "inline" and not in_table:
            out.append(inline(token.children or [], parser.options, {}))
        elif token.type != "inline":
            out.append(_in_telegram(token, text))
    whole = "".join(out).replace("<br />\n", "\n")
    return whole.replace("\n\n</blockquote>", "</blockquote>\n").strip()


def _in_telegram(token: Token, text: str) -> str:
    """Return the text that starts or ends a block; Telegram does not allow nested quotes."""
    nested = token.level > 0
    written = "\n".join(text.split("\n")[slice(*token.map or (0, 0))])
    block = written if token.type == "table_open" else token.content.rstrip()
    mark = f"{token.info}. " if token.info else "• "
    return {
        "heading_open": "<b>",
        "heading_close": "</b>\n\n",
        "paragraph_close": "\n" if token.hidden else "\n\n",
        "list_item_open": "    " * (token.level // 2) + mark,
        "bullet_list_close": "" if nested else "\n",
        "ordered_list_close": "" if nested else "\n",
        "blockquote_open": "" if nested else "<blockquote>",
        "blockquote_close": "" if nested else "</blockquote>\n",
        "hr": "———\n\n",
    }.get(token.type, "") or (f"<pre>{escape(block, quote=False)}</pre>\n\n" if block else "")


@cache
def _parser() -> MarkdownIt:
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True, "maxNesting": 50})
    return parser.enable(["table", "strikethrough"]).disable("image")


@cache
def _renderer() -> Callable[[str], str]:
    import nh3

    cleaner = nh3.Cleaner(
        tags=set(_TAGS.split()),
        attributes={"a": {"href"}, "code": {"class"}, "ol": {"start"}},
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer",
    )

    def render(text: str) -> str:
        return cleaner.clean(str(_parser().render(text))).strip()

    return render
