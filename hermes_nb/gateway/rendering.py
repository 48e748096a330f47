"""Answers, which are Markdown, as HTML for programs that show some: chat clients, mail readers.

Only what Matrix allows in a message comes out, without pictures: what a reader's program loads
tells a server who reads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from hermes_nb.core.text import clean_text

_TAGS = (
    "a b blockquote br caption code del div em h1 h2 h3 h4 h5 h6 hr i li ol p pre s span strong"
    " sub sup table tbody td th thead tr u ul"
)


def html_of(text: str) -> str:
    """Return Markdown as a fragment of HTML; tags that stand in it are shown as text."""
    return _renderer()(clean_text(text))


@cache
def _renderer() -> Callable[[str], str]:
    import nh3
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"html": False, "breaks": True, "maxNesting": 50})
    parser.enable(["table", "strikethrough"]).disable("image")
    cleaner = nh3.Cleaner(
        tags=set(_TAGS.split()),
        attributes={"a": {"href"}, "code": {"class"}, "ol": {"start"}},
        url_schemes={"http", "https", "mailto"},
        link_rel="noopener noreferrer",
    )

    def render(text: str) -> str:
        return cleaner.clean(str(parser.render(text))).strip()

    return render
