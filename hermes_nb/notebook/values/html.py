"""HTML as plain text: tables keep their rows, everything that is not text goes.

Linear time on any input, which the standard library's parser is not; what is malformed is read as
text or dropped, never refused.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator

_SILENT = frozenset({"script", "style", "head", "template", "svg", "noscript", "title", "textarea"})
_LINES = frozenset(
    "p div br li tr table ul ol pre section article h1 h2 h3 h4 h5 h6 blockquote hr dt dd caption"
    " thead tbody".split()
)
_TAG = re.compile(r"</?([a-zA-Z][a-zA-Z0-9-]{0,40})")

_CLOSERS = {name: re.compile(f"</{name}", re.IGNORECASE) for name in _SILENT}


def html_to_text(markup: str) -> str:
    """Return the visible text of an HTML fragment; cells of a table row are joined by ` | `."""
    text = html.unescape("".join(_pieces(markup)))
    lines = (" ".join(line.split()) for line in text.split("\n"))
    return "\n".join(line.removesuffix(" |") for line in lines if line)


def _pieces(markup: str) -> Iterator[str]:
    """Yield text, with a newline or a bar for the tags that mean one."""
    at = 0
    while (start := markup.find("<", at)) >= 0:
        yield markup[at:start].replace("\n", " ")
        if markup.startswith("<!--", start):
            at = _after(markup, "-->", start)
            continue
        tag = _TAG.match(markup, start)
        if tag is None and not markup.startswith(("<!", "<?"), start):
            yield "<"
            at = start + 1
            continue
        at = _after(markup, ">", start)
        if tag is None:
            continue
        name, closing = tag[1].lower(), markup[start + 1] == "/"
        if name in _SILENT and not closing:
            end = _CLOSERS[name].search(markup, at)
            at = _after(markup, ">", end.end()) if end else len(markup)
        elif name in _LINES:
            yield "\n"
        elif closing and name in ("td", "th"):
            yield " | "
    yield markup[at:].replace("\n", " ")


def _after(text: str, mark: str, start: int) -> int:
    """Return the index behind the next `mark`, or the text's end: each search is paid for once."""
    found = text.find(mark, start)
    return len(text) if found < 0 else found + len(mark)
