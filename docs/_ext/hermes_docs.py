"""What the build adds to Sphinx: Markdown in docstrings, and cells that are prompts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from pygments.lexer import Lexer
from pygments.lexers import Python3Lexer
from pygments.token import Comment, Text
from sphinx.application import Sphinx

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\s*$")


def fences_as_blocks(
    _app: Sphinx, _what: str, _name: str, _obj: object, _options: object, lines: list[str]
) -> None:
    """Rewrite a docstring's fenced blocks as reStructuredText, in place."""
    out: list[str] = []
    inside = False
    for line in lines:
        match = _FENCE.match(line)
        if match is None:
            out.append(f"   {line}" if inside and line else line)
            continue
        inside = not inside
        if inside:
            language = match["language"] or "text"
            out += ["", f"{match['indent']}.. code-block:: {language}", ""]
        else:
            out.append("")
    lines[:] = out


class CellLexer(Lexer):
    """Python, but for cells that are a prompt: their first line is a magic, the rest is text."""

    name = "Notebook cell"

    def get_tokens_unprocessed(self, text: str) -> Iterator[tuple[int, Any, str]]:
        """Yield the tokens of a cell."""
        if not text.lstrip().startswith("%"):
            yield from Python3Lexer().get_tokens_unprocessed(text)
            return
        head, newline, body = text.partition("\n")
        yield 0, Comment.Preproc, head + newline
        yield len(head + newline), Text, body


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the parts with Sphinx."""
    app.connect("autodoc-process-docstring", fences_as_blocks, priority=1)
    for language in ("python", "ipython3"):
        app.add_lexer(language, CellLexer)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
