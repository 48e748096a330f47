"""Render Markdown in a terminal with rich, without interpreting escape sequences or HTML.

Text from a model is only displayed: escape sequences and rich markup have no effect, HTML is shown
as text, and a link shows its address. Nothing is lost, though: link definitions, images and tables
that are too wide become text.

Streaming text is split into top-level blocks. Markdown is parsed line by line, so all blocks of the
complete lines except the last are final (`finished`).

A command's output is trusted Markdown, written by this package. Its few tags (`details`, `sub`,
`code`) are interpreted (`draw`). Any text in it that comes from models or files has already been
escaped, and escape sequences are removed again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import ClassVar, TextIO

from markdown_it import MarkdownIt
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.markdown import Markdown, MarkdownElement, TableElement
from rich.padding import Padding
from rich.segment import Segment
from rich.style import Style
from rich.syntax import ANSISyntaxTheme
from rich.table import Table
from rich.text import Text
from rich.theme import Theme

from hermes_nb.core.escapes import readable

DEEPEST = 16
"""Maximum nesting level that is rendered (a list item counts as two). Deeper levels would leave no
width, and the parser drops everything below level 20."""
HIGHLIGHTED = 20_000
"""Maximum characters of code to highlight; highlighting more takes too long."""
LANGUAGES = frozenset(
    "bash c c++ console cpp css diff html ini ipython javascript js json julia latex markdown md "
    "py pycon python python3 r rust sh sql tex text toml ts typescript xml yaml yml".split()
)
"""The Pygments lexers in use, all well-tested; some others take quadratic time."""
NARROWEST = 8
"""Minimum width of a table column in characters; if space is short, each row becomes a list."""
WHOLE_WORD = 40
"""Maximum width for single-word columns, such as ids and paths, to remain unwrapped."""
INDENT = 2
"""Columns of indentation inside a fold."""
DEEPEST_FOLD = 8
"""Maximum number of nested folds that are indented."""
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
"""Styles from the terminal's 16 colours that are readable on light and dark backgrounds."""
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
_OPENED = re.compile(r"<details(?: open)?>\s*<summary>(.*?)</summary>", re.DOTALL)
_SMALL = re.compile(r"<sub>(.*)</sub>", re.DOTALL)
_STYLES = {"b": "strong", "strong": "strong", "i": "em", "em": "em", "s": "s", "del": "s"}
_BARE = frozenset("details summary sub sup span small u ins mark".split())

Lines = list[list[Segment]]


def console(file: TextIO) -> Console:
    """Return a rich console for a terminal."""
    return Console(file=file, theme=COLOURS, highlight=False, force_terminal=True)


def drawn(on: Console, shown: ConsoleRenderable, width: int) -> Lines:
    """Render something to lines of `width` columns, without surrounding empty space."""
    lines = on.render_lines(shown, on.options.update(width=width, height=None), pad=False)
    for line in lines:
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
    full = [i for i, line in enumerate(lines) if line]
    return lines[full[0] : full[-1] + 1] if full else []


def draw(markdown: str, file: TextIO) -> None:
    """Print trusted Markdown to a terminal."""
    screen = console(file)
    for number, (part, depth, style) in enumerate(_page(readable(markdown))):
        if number:
            screen.print()
        indent = INDENT * min(depth, DEEPEST_FOLD)
        for line in drawn(screen, part, max(screen.width - indent, 1)):
            told = Text.assemble(*((each.text, each.style or "") for each in line), style=style)
            screen.print(Text(" " * indent).append_text(told), soft_wrap=True)


def _page(markdown: str) -> Iterator[tuple[ConsoleRenderable, int, str]]:
    """Yield the blocks of trusted Markdown, with their fold depth and style."""
    depth = 0
    for block in blocks(markdown):
        source = block.strip()
        if source == "</details>":
            depth = max(depth - 1, 0)
        elif opened := _OPENED.fullmatch(source):
            yield rendered(f"▾ {opened[1]}", ours=True), depth, ""
            depth += 1
        elif small := _SMALL.fullmatch(source):
            yield rendered(small[1], ours=True), depth, "dim"
        else:
            yield rendered(block.strip("\n"), ours=True), depth, ""


def rendered(source: str, *, ours: bool = False) -> ConsoleRenderable:
    """Parse Markdown, already free of escape sequences, into an object that rich can print.

    With `ours`, the tags of trusted Markdown are interpreted. Markdown that is nested too deeply
    remains text.
    """
    tokens = _parser().parse(source)
    if any(token.level > DEEPEST for token in tokens):
        return Text(source)
    for token in tokens:
        if ours and token.children:
            token.children = list(_obeyed(token.children))
    return _Harmless(tokens)


def blocks(source: str) -> list[str]:
    """Return the source of each top-level block in a text."""
    lines = source.split("\n")
    return ["\n".join(lines[start:end]) for start, end in _places(source)]


def finished(source: str) -> int:
    """Return the length of the leading blocks that later text cannot change."""
    complete = source[: source.rfind("\n") + 1]
    *before, last = _places(complete) or [(0, 0)]
    if not before:  # the last block may still grow
        return 0
    return sum(len(line) + 1 for line in complete.split("\n")[: last[0]])


def latest(source: str, lines: int) -> str:
    """Return the end of a block as a valid block, for a screen of `lines` lines."""
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
    """Return each top-level block's line range: its first line, and the line after its last."""
    return [
        (token.map[0], token.map[1])
        for token in _parser(inside=False).parse(source)
        if token.level == 0 and token.nesting >= 0 and token.map
    ]


def _parser(*, inside: bool = True) -> MarkdownIt:
    """Return a parser that treats HTML blocks and link definitions as text.

    A definition may arrive after its link has been printed, so both are displayed as text.
    """
    parser = MarkdownIt("commonmark", {"html": True, "maxNesting": 100})
    parser.enable(["table", "strikethrough"]).disable(["html_block", "reference"])
    parser.inline.ruler.before("escape", "formula", _formula)
    return parser if inside else parser.disable("inline")


def _formula(state: StateInline, silent: bool) -> bool:  # noqa: FBT001 - markdown-it's signature
    """Keep a formula unchanged, without emphasis or escapes inside."""
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


class _Table(TableElement):
    """A table in columns, or a list for each row if they would be too narrow; never truncated."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        head = self.header.row if self.header else None
        names = [cell.content for cell in head.cells] if head else []
        rows = [
            [cell.content for cell in row.cells] for row in (self.body.rows if self.body else [])
        ]
        table = [(name, *cells) for name, *cells in zip(names, *rows, strict=True)]
        headed = any(name.plain for name in names)
        if headed and sum(map(_least, table)) + 3 * len(names) > options.max_width:
            yield from _listed(names, rows)
            return
        shown = Table(
            box=box.SIMPLE_HEAD if headed else box.SIMPLE,
            show_header=headed,
            show_edge=False,
            pad_edge=False,
            style="markdown.table.border",
        )
        for name, column in zip(names, table, strict=True):
            name.stylize("markdown.table.header")
            shown.add_column(
                name,
                overflow="fold",
                no_wrap=_is_whole(column) or (not shown.columns and not headed),
            )
        for row in rows:
            shown.add_row(*row)
        yield shown


def _is_whole(column: Iterable[Text]) -> bool:
    texts = [cell.plain.strip() for cell in column]
    return not any(re.search(r"\s", text) or cell_len(text) > WHOLE_WORD for text in texts)


def _least(column: tuple[Text, ...]) -> int:
    """Return the minimum width of a column: its longest word, if words must not break."""
    longest = max((cell_len(word) for cell in column for word in cell.plain.split()), default=1)
    return longest if _is_whole(column) else min(longest, NARROWEST)


def _listed(names: list[Text], rows: list[list[Text]]) -> Iterator[ConsoleRenderable]:
    for row in rows:
        said = [
            both for both in zip(names, row, strict=True) if both[1].plain.strip() not in ("", "–")
        ]
        for number, (name, cell) in enumerate(said):
            line = Text.assemble((f"{name.plain}: ", "markdown.table.header")).append_text(cell)
            yield Padding(line, (0, 0, 0, INDENT), expand=False) if number else Text("• ") + line


class _Harmless(Markdown):
    elements: ClassVar[dict[str, type[MarkdownElement]]] = Markdown.elements | {
        "table_open": _Table
    }

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__("", hyperlinks=False, justify="default")
        self.code_theme = _CODE  # type: ignore[assignment]  # rich passes it to code for both types
        self.parsed = [_harmless(token) for token in tokens]


def _harmless(token: Token) -> Token:
    """Return a token as plain text, without control characters that HTML entities may produce."""
    token.content = readable(token.content)
    name = token.info.partition(" ")[0].lower()
    token.info = name if name in LANGUAGES and len(token.content) <= HIGHLIGHTED else ""
    if token.children:
        token.children = [_harmless(each) for each in _as_text(token.children)]
    return token


def _as_text(tokens: list[Token]) -> Iterator[Token]:
    """Yield a line's tokens, with links, images and tags as text."""
    links: list[tuple[str, int]] = []
    text = ""
    for token in tokens:
        match token.type:
            case "link_open":
                links.append((str(token.attrs.get("href", "")), len(text)))
            case "link_close":
                address, start = links.pop() if links else ("", 0)
                if address and text[start:] != address:
                    yield _token("text", "", 0, f" ({address})")
            case "image":
                yield _token(
                    "text", "", 0, f"[picture: {token.content}] ({token.attrs.get('src', '')})"
                )
            case "html_inline" if _BREAK.fullmatch(token.content):
                yield Token("hardbreak", "br", 0)
            case "html_inline":
                yield _token("text", "", 0, token.content)
            case _:
                text += token.content
                yield token


def _obeyed(tokens: list[Token]) -> Iterator[Token]:
    """Yield a line's tokens, interpreting only the tags of trusted Markdown."""
    styles: list[str] = []
    code: list[str] | None = None
    for token in tokens:
        tag = token.content if token.type == "html_inline" else ""
        name = tag.strip("</>").lower()
        if tag == "<code>" and code is None:
            code = []
        elif tag == "</code>" and code is not None:
            yield _token("code_inline", "code", 0, "".join(code))
            code = None
        elif code is not None:
            code.append(token.content)
        elif name in _STYLES and not tag.startswith("</"):
            styles.append(_STYLES[name])
            yield _token(f"{styles[-1]}_open", styles[-1], 1)
        elif name in _STYLES and styles:
            yield _token(f"{styles[-1]}_close", styles.pop(), -1)
        elif name not in _BARE or not tag:
            yield token
    if code:
        yield _token("text", "", 0, "".join(code))
    for style in reversed(styles):
        yield _token(f"{style}_close", style, -1)


def _token(kind: str, tag: str, nesting: int, content: str = "") -> Token:
    token = Token(kind, tag, nesting)  # type: ignore[arg-type]
    token.content = content
    return token
