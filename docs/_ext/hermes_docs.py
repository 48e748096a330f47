"""What the build adds to Sphinx: Markdown in docstrings, cells that are prompts, dark pictures.

It also keeps pages for contributors out of the search.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from docutils import nodes
from pygments.lexer import Lexer
from pygments.lexers import Python3Lexer
from pygments.token import Comment, Text
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

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


class DarkTwins(SphinxTransform):
    """Puts `NAME-dark.png`, where there is one, into the place of `NAME.png` on a dark page.

    The Markdown names the light one alone, which is what other readers of it show.
    """

    default_priority = 400  # before the pictures are collected, which is at 500

    def apply(self, **_: Any) -> None:  # noqa: ANN401 - Sphinx's signature
        """Put the twins in, in place."""
        folder = Path(self.env.doc2path(self.env.docname)).parent
        for image in list(self.document.findall(nodes.image)):
            path = PurePosixPath(image["uri"])
            twin = path.with_name(f"{path.stem}-dark{path.suffix}")
            if not (folder / twin).is_file():
                continue
            dark = image.deepcopy()
            dark["uri"] = str(twin)
            image["classes"].append("only-light")
            dark["classes"].append("only-dark")
            image.parent.insert(image.parent.index(image) + 1, dark)


def mark_internal(app: Sphinx, _doctree: nodes.document) -> None:
    """Keep design decisions and the changelog out of the search; decisions need no toctree."""
    name = app.env.docname
    if name.startswith("docs/adr/0"):
        app.env.metadata[name] |= {"orphan": "", "nosearch": ""}
    elif name == "CHANGELOG":
        app.env.metadata[name] |= {"nosearch": ""}


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the parts with Sphinx."""
    app.connect("autodoc-process-docstring", fences_as_blocks, priority=1)
    app.connect("doctree-read", mark_internal)
    app.add_transform(DarkTwins)
    for language in ("python", "ipython3"):
        app.add_lexer(language, CellLexer)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
