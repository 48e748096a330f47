"""The fenced blocks of the pages, with what the comments in front of them say about running them.

A comment right before a block is a directive, invisible to readers:

| comment | means |
|---|---|
| `<!-- model: [...] -->` | the model's answers, JSON: texts and `{"call": NAME, ...}` |
| `<!-- before: CODE -->` | Python that runs first, for what a reader has and the test has not |
| `<!-- file: PATH -->` | the block is a file; it is written there |
| `<!-- output -->` | the block is what the one before it printed; `...` stands for anything |
| `<!-- fails: TEXT -->` | the block ends with an error that says this |
| `<!-- not run: REASON -->` | the block is left out, for this reason |
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
DIRECTIVE = re.compile(
    r"<!-- *(model|before|file|output|fails|not run)(?:: *(.*?))? *-->", re.DOTALL
)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, its text, the line it starts at, and its directives."""

    page: Path
    line: int
    language: str
    text: str
    directives: dict[str, str] = field(default_factory=dict)

    @property
    def where(self) -> str:
        """The page and line, as a test names them."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def is_cell(self) -> bool:
        """Whether this is a notebook cell with magics."""
        return self.language in ("", "text", "ipython") and self.text.lstrip().startswith("%")


def pages() -> list[Path]:
    """Return every page that people read: the README, CONTRIBUTING, and the guide."""
    found = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [page for page in found if page.is_file()]


def blocks(page: Path) -> list[Block]:
    """Return a page's fenced blocks in order."""
    parser = MarkdownIt("commonmark")
    found: list[Block] = []
    waiting: dict[str, str] = {}
    for token in parser.parse(page.read_text(encoding="utf-8")):
        if token.type == "html_block":
            waiting |= {name: said or "" for name, said in DIRECTIVE.findall(token.content)}
        elif token.type == "fence" and not token.info.startswith("{"):  # not the site's own
            language = token.info.strip().partition(" ")[0]
            line = (token.map or [0])[0] + 1
            found.append(Block(page, line, language, token.content, waiting))
            waiting = {}
        elif token.type in ("heading_open", "paragraph_open"):
            waiting = {}
    return found
