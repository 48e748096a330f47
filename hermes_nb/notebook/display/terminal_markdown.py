"""Markdown as rich draws it in a terminal, and nothing of it obeyed.

What a model wrote is shown or formatted, never carried out: no escape sequence and no markup of
rich's comes through, HTML stands as text, and a link shows the address that it leads to. Nothing is
dropped either: link definitions, pictures and tables too wide for the screen become text.

A text that still grows is read by its top-level blocks. Markdown is parsed line by line, so of the
complete lines all blocks but the last one are final (`finished`).

What a command shows is Markdown that we wrote, with the few tags that our own have in them
(`details`, `sub`, `code`), and these are carried out (`draw`): what models and files said stands in
it cleaned and escaped, and is cleaned again of what terminals obey.
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
WHOLE_WORD = 40
"""Columns of a table that hold one word a row, ids and paths, are read whole up to this width."""
INDENT = 2
"""Columns by which what a fold holds stands further in."""
DEEPEST_FOLD = 8
"""Folds inside one another that stand further in."""
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
_OPENED = re.compile(r"<details(?: open)?>\s*<summary>(.*?)</summary>", re.DOTALL)
_SMALL = re.compile(r"<sub>(.*)</sub>", re.DOTALL)
_STYLES = {"b": "strong", "strong": "strong", "i": "em", "em": "em", "s": "s", "del": "s"}
_BARE = frozenset("details summary sub sup span small u ins mark".split())

Lines = list[list[Segment]]


def console(file: TextIO) -> Console:
    """Return what draws into a terminal."""
    return Console(file=file, theme=COLOURS, highlight=False, force_terminal=True)


def drawn(on: Console, shown: ConsoleRenderable, width: int) -> Lines:
    """Return the lines of something in so many columns, without what is empty around them."""
    lines = on.render_lines(shown, on.options.update(width=width, height=None), pad=False)
    for line in lines:
        while line and not line[-1].text.strip():
            line.pop()
        if line:
            line[-1] = Segment(line[-1].text.rstrip(), line[-1].style)
    full = [i for i, line in enumerate(lines) if line]
    return lines[full[0] : full[-1] + 1] if full else []


def draw(markdown: str, file: TextIO) -> None:
    """Draw Markdown that we wrote."""
    screen = console(file)
    for number, (part, depth, style) in enumerate(_page(readable(markdown))):
        if number:
            screen.print()
        indent = INDENT * min(depth, DEEPEST_FOLD)
        for line in drawn(screen, part, max(screen.width - indent, 1)):
            told = Text.assemble(*((each.text, each.style or "") for each in line), style=style)
            screen.print(Text(" " * indent).append_text(told), soft_wrap=True)


def _page(markdown: str) -> Iterator[tuple[ConsoleRenderable, int, str]]:
    """Yield the blocks of Markdown that we wrote, how deep in folds they are, and their style."""
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
    """Return Markdown, cleaned already of what terminals obey, as something rich can print.

    The tags in `ours` are carried out; text that is nested too deep to be drawn stays text.
    """
    tokens = _parser().parse(source)
    if any(token.level > DEEPEST for token in tokens):
        return Text(source)
    for token in tokens:
        if ours and token.children:
            token.children = list(_obeyed(token.children))
    return _Harmless(tokens)


def blocks(source: str) -> list[str]:
    """Return the top-level blocks of a text, as they are written."""
    lines = source.split("\n")
    return ["\n".join(lines[start:end]) for start, end in _places(source)]


def finished(source: str) -> int:
    """Return the index up to which a text consists of blocks that nothing to come can change."""
    complete = source[: source.rfind("\n") + 1]
    *before, last = _places(complete) or [(0, 0)]
    if not before:  # the last one may still grow
        return 0
    return sum(len(line) + 1 for line in complete.split("\n")[: last[0]])


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


class _Table(TableElement):
    """A table in columns, or a list for each row where they would be too narrow; none is cut."""

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
    """Return the width that a column needs: its longest word's, as far as words may not break."""
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
        self.code_theme = _CODE  # type: ignore[assignment]  # rich hands it on to what takes both
        self.parsed = [_harmless(token) for token in tokens]


def _harmless(token: Token) -> Token:
    """Return a token that holds text alone, without what entities may have brought in."""
    token.content = readable(token.content)
    name = token.info.partition(" ")[0].lower()
    token.info = name if name in LANGUAGES and len(token.content) <= HIGHLIGHTED else ""
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
                said += token.content
                yield token


def _obeyed(tokens: list[Token]) -> Iterator[Token]:
    """Yield the tokens of a line with the tags that we use carried out; others stay as they are."""
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
