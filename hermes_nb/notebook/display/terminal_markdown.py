"""Markdown as a terminal shows it: in columns, colours and bullets, and nothing of it obeyed.

What a model wrote is shown or formatted, never carried out: no escape sequence and no markup of
rich's comes through, HTML stands as text, and a link shows the address that it leads to. Nothing is
dropped either: link definitions, pictures and tables too wide for the screen become text.

A text that still grows is read by its top-level blocks. Markdown is parsed line by line, so of the
complete lines all blocks but the last one are final (`finished`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import ClassVar

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.markdown import CodeBlock, Heading, Markdown, MarkdownElement, TableElement
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.syntax import ANSISyntaxTheme, Syntax
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from hermes_nb.safety.visible import readable

DEEPEST = 16
"""Levels of nesting that are drawn (an item of a list has two): one more leaves no width to write
in, and the parser leaves out what is below 20."""
HIGHLIGHTED = 20_000
"""Characters of code that is highlighted; more takes longer than a look at it."""
LANGUAGES = frozenset(
    "bash c c++ console cpp css diff html ini ipython javascript js json julia latex markdown md "
    "py pycon python python3 r rust sh sql tex text toml ts typescript xml yaml yml".split()
)
"""Lexers that are used: well-worn ones. Of all that there are some take quadratic time."""
NARROWEST = 8
"""Characters that a column of a table keeps; where not all can, each row becomes a list."""
COLOURS = Theme(
    {
        "markdown.code": "cyan",
        "markdown.h1": "bold underline",
        "markdown.h2": "bold underline",
        "markdown.h3": "bold",
        "markdown.h4": "bold",
        "markdown.item.bullet": "bold",
        "markdown.item.number": "bold",
        "markdown.block_quote": "dim",
        "markdown.hr": "dim",
        "markdown.table.border": "dim",
        "markdown.table.header": "bold",
    }
)
"""Of the terminal's own sixteen, those that are read on light and on dark ground."""
_CODE = ANSISyntaxTheme(
    {
        ("Comment",): Style(dim=True, italic=True),
        ("Keyword",): Style(color="magenta"),
        ("Literal", "Number"): Style(color="cyan"),
        ("Literal", "String"): Style(color="green"),
        ("Name", "Function"): Style(bold=True),
        ("Name", "Class"): Style(bold=True),
        ("Operator", "Word"): Style(color="magenta"),
        ("Generic", "Deleted"): Style(color="red"),
        ("Generic", "Inserted"): Style(color="green"),
        ("Generic", "Heading"): Style(bold=True),
    }
)
_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_FORMULA = re.compile(
    r"\$\$.+?\$\$|\$(?!\s)[^$\n]+?(?<!\s)\$(?!\d)|\\\(.+?\\\)|\\\[.+?\\\]", re.DOTALL
)
_LONGEST_FORMULA = 2_000


def rendered(source: str) -> ConsoleRenderable:
    """Return Markdown, cleaned already of what terminals obey, as something rich can print."""
    return Text(source) if (tokens := parsed(source)) is None else Answer(tokens)


def parsed(source: str) -> list[Token] | None:
    """Return the tokens of a text, None where it is nested too deep to be drawn."""
    tokens = _parser().parse(source)
    return None if any(token.level > DEEPEST for token in tokens) else tokens


def blocks(source: str) -> list[str]:
    """Return the top-level blocks of a text, as they are written."""
    lines = source.split("\n")
    return ["\n".join(lines[start:end]) for start, end in _places(source)]


def finished(source: str) -> int:
    """Return the index up to which a text consists of blocks that nothing to come can change."""
    complete = source[: source.rfind("\n") + 1]
    places = _places(complete)
    if len(places) < 2:  # noqa: PLR2004 - the last one may still grow
        return 0
    lines = complete.split("\n")
    return sum(len(line) + 1 for line in lines[: places[-1][0]])


def latest(source: str, lines: int) -> str:
    """Return the end of a block as a block of its own, for a screen of so many lines."""
    written = source.split("\n")
    if len(written) <= lines:
        return source
    head = 0
    first = written[0].lstrip()
    if first.startswith(("```", "~~~")):
        head = 1
    elif first.startswith("|"):
        head = 2
    return "\n".join([*written[:head], *written[-lines:]])


def _places(source: str) -> list[tuple[int, int]]:
    """Return the lines of each top-level block: the first one, and the one after the last."""
    return [
        (token.map[0], token.map[1])
        for token in _parser(inside=False).parse(source)
        if token.level == 0 and token.nesting >= 0 and token.map
    ]


def _parser(*, inside: bool = True) -> MarkdownIt:
    """Return a parser to which HTML blocks and link definitions are text.

    A definition may come long after its link was printed; without them both show.
    """
    parser = MarkdownIt("commonmark", {"html": True, "maxNesting": 100})
    parser.enable(["table", "strikethrough"]).disable(["html_block", "reference"])
    parser.inline.ruler.before("escape", "formula", _formula)
    return parser if inside else parser.disable("inline")


def _formula(state: StateInline, silent: bool) -> bool:  # noqa: FBT001 - markdown-it's signature
    """Take a formula as it is written: its signs are no emphasis, its backslashes no escapes."""
    if state.src[state.pos] not in "$\\":
        return False
    end = min(state.pos + _LONGEST_FORMULA, state.posMax)
    found = _FORMULA.match(state.src, state.pos, end)
    if not found:
        return False
    if not silent:
        state.push("text", "", 0).content = found[0]
    state.pos = found.end()
    return True


class _Code(CodeBlock):
    """Code in colours of the terminal's own; two spaces before it, which IPython takes away."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        code = str(self.text).rstrip()
        text = Text(code)
        name = self.lexer_name.lower()
        if name in LANGUAGES and len(code) <= HIGHLIGHTED:
            text = Syntax("", name, theme=_CODE).highlight(code)
            text.rstrip()
        width = max(options.max_width - 2, 1)
        for line in text.wrap(console, width, overflow="fold", tab_size=4, no_wrap=False):
            yield Segment("  ")
            yield from line.render(console)
            yield Segment("\n")


class _Heading(Heading):
    LEVEL_ALIGN: ClassVar = dict.fromkeys(Heading.LEVEL_ALIGN, "default")


class AnyTable(TableElement):
    """A table whose names and rows are texts."""

    def cells(self) -> tuple[list[Text], list[list[Text]]]:
        """Return the names of the columns, and the rows."""
        head = self.header.row if self.header else None
        body = self.body.rows if self.body else []
        names = [cell.content for cell in head.cells] if head else []
        return names, [[cell.content for cell in row.cells] for row in body]


class _Table(AnyTable):
    """A table in columns, or a list for each row where the columns would be too narrow."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names, rows = self.cells()
        room = [_least(column) for column in zip(names, *rows, strict=True)]
        if sum(room) + 2 * len(room) <= options.max_width:
            yield columns(names, rows)
        else:
            yield from _listed(names, rows)


def columns(
    names: Sequence[Text], rows: Iterable[Sequence[Text]], *, widths: Sequence[int] | None = None
) -> Table:
    """Return a table in columns, as wide as rich makes them or of these widths."""
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, style="markdown.table.border"
    )
    sizes: Sequence[int | None] = widths or [None] * len(names)
    for name, width in zip(names, sizes, strict=True):
        head = name.copy()
        head.stylize("markdown.table.header")
        table.add_column(head, overflow="fold", width=width)
    for row in rows:
        table.add_row(*row)
    return table


def _least(column: Iterable[Text]) -> int:
    """Return the width that a column needs: its longest word's, as far as words may not break."""
    words = (word for cell in column for word in cell.plain.split())
    return min(max(map(cell_len, words), default=1), NARROWEST)


def _listed(names: list[Text], rows: list[list[Text]]) -> Iterator[ConsoleRenderable]:
    for row in rows:
        yield Text("•", style="markdown.item.bullet")
        for name, cell in zip(names, row, strict=True):
            line = Text(name.plain, style="")
            line.stylize("markdown.table.header")
            yield Padding(line.append(": ").append_text(cell), (0, 0, 0, 2), expand=False)


class Answer(Markdown):
    """A parsed answer, its tokens made harmless."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = Markdown.elements | {
        "fence": _Code,
        "code_block": _Code,
        "heading_open": _Heading,
        "table_open": _Table,
    }

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__("", hyperlinks=False, justify="default")
        self.parsed = [_harmless(token) for token in tokens]


def _harmless(token: Token) -> Token:
    """Return a token that holds text alone, without what entities may have brought in."""
    token.content = readable(token.content)
    token.info = token.info if token.info.isascii() and token.info.isprintable() else ""
    if token.children:
        token.children = [_harmless(each) for each in _as_text(token.children)]
    return token


def _as_text(tokens: list[Token]) -> Iterator[Token]:
    """Yield the tokens of a line with links, pictures and tags as text."""
    links: list[tuple[str, int]] = []
    said = ""
    for token in tokens:
        match token.type:
            case "link_open":
                links.append((str(token.attrs.get("href", "")), len(said)))
            case "link_close":
                address, start = links.pop() if links else ("", 0)
                if address and said[start:] != address:
                    yield _text(f" ({address})")
            case "image":
                yield _text(f"[picture: {token.content}] ({token.attrs.get('src', '')})")
            case "html_inline" if _BREAK.fullmatch(token.content):
                yield Token("hardbreak", "br", 0)
            case "html_inline":
                yield _text(token.content)
            case _:
                said += token.content
                yield token


def _text(content: str) -> Token:
    token = Token("text", "", 0)
    token.content = content
    return token
