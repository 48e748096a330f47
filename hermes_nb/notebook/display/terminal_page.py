"""What a command shows, as a terminal draws it: tables as tables, diffs and code in colours.

Only Markdown that we wrote is drawn so, with the few tags that our own have in them (`details`,
`sub`, `code`): what models and files said stands in it cleaned and escaped, and is cleaned again of
what terminals obey. Where a terminal does not draw, and outside of one, IPython shows the bundle.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import ClassVar, TextIO

from markdown_it.token import Token
from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderResult
from rich.markdown import MarkdownElement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from hermes_nb.notebook.display.terminal_markdown import (
    COLOURS,
    Answer,
    AnyTable,
    blocks,
    columns,
    parsed,
)
from hermes_nb.safety.visible import readable

INDENT = 2
"""Columns by which what a fold holds stands further in."""
DEEPEST_FOLD = 8
"""Folds inside one another that stand further in."""
WHOLE_WORD = 40
"""Columns that a word may take before it is broken; ids and paths are read whole or not at all."""
PROSE = 28
"""Columns below which a cell of prose is hard to read."""
BROKEN = 16
"""Columns that are left to the one whose words are broken."""
GAP = 3
"""Columns between two of a table."""
_OPENED = re.compile(r"<details(?: open)?>\s*<summary>(.*?)</summary>", re.DOTALL)
_SMALL = re.compile(r"<sub>(.*)</sub>", re.DOTALL)
_STYLES = {"b": "strong", "strong": "strong", "i": "em", "em": "em", "s": "s", "del": "s"}
_BARE = frozenset("details summary sub sup span small u ins mark".split())


def draw(markdown: str, file: TextIO) -> None:
    """Draw Markdown that we wrote."""
    console = Console(file=file, theme=COLOURS, highlight=False, force_terminal=True)
    for number, (part, depth, style) in enumerate(page(readable(markdown))):
        if number:
            console.print()
        indent = INDENT * min(depth, DEEPEST_FOLD)
        width = max(console.width - indent, 1)
        lines = console.render_lines(part, console.options.update(width=width), pad=False)
        full = [i for i, line in enumerate(lines) if any(each.text.strip() for each in line)]
        for line in lines[full[0] : full[-1] + 1] if full else []:
            told = Text.assemble(*((each.text, each.style or "") for each in line), style=style)
            console.print(Text(" " * indent).append_text(told), soft_wrap=True)


def page(markdown: str) -> Iterator[tuple[ConsoleRenderable, int, str]]:
    """Yield the blocks of Markdown that we wrote, how deep in folds they are, and their style."""
    depth = 0
    for block in blocks(markdown):
        source = block.strip()
        if source == "</details>":
            depth = max(depth - 1, 0)
        elif opened := _OPENED.fullmatch(source):
            yield _drawn(f"▾ {opened[1]}"), depth, ""
            depth += 1
        elif small := _SMALL.fullmatch(source):
            yield _drawn(small[1]), depth, "dim"
        else:
            yield _drawn(block.strip("\n")), depth, ""


def _drawn(source: str) -> ConsoleRenderable:
    tokens = parsed(source)
    return Text(source) if tokens is None else _Page(tokens)


class _OwnTable(AnyTable):
    """A table in columns as long as words stay whole and prose can be read, else a list."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names, rows = self.cells()
        if not any(name.plain for name in names):
            yield _facts(rows)
        elif widths := _widths(list(zip(names, *rows, strict=True)), options.max_width):
            yield columns(names, rows, widths=widths)
        else:
            yield from _listed(names, rows)


def _widths(table: list[tuple[Text, ...]], screen: int) -> list[int]:
    """Return how wide each column is drawn, [] where they do not fit.

    Below its least width a column is not read with ease; one, not the first, may break its words.
    """
    room = screen - GAP * (len(table) - 1)
    wanted = [max(cell_len(line) for cell in col for line in _lines(cell)) for col in table]
    least = [_least(column, most) for column, most in zip(table, wanted, strict=True)]
    if (missing := sum(least) - room) > 0:
        widest = max(range(1, len(least)), key=least.__getitem__, default=0)
        if not widest or least[widest] - missing < BROKEN:
            return []
        least[widest] -= missing
    short = [most - width for most, width in zip(wanted, least, strict=True)]
    spare = min(room - sum(least), sum(short))
    return [
        max(width + lack * spare // (sum(short) or 1), 1)
        for width, lack in zip(least, short, strict=True)
    ]


def _least(column: Sequence[Text], wanted: int) -> int:
    words = max((cell_len(word) for cell in column for word in cell.plain.split()), default=1)
    return max(min(words, WHOLE_WORD), min(wanted, PROSE), 1)


def _lines(cell: Text) -> list[str]:
    return cell.plain.split("\n")


def _facts(rows: list[list[Text]]) -> Table:
    """Return names and values, without a head and without a line."""
    table = Table(box=box.SIMPLE, show_header=False, show_edge=False, pad_edge=False)
    for number in range(len(rows[0]) if rows else 0):
        table.add_column(overflow="fold", no_wrap=number == 0)
    for row in rows:
        table.add_row(*row)
    return table


def _listed(names: list[Text], rows: list[list[Text]]) -> Iterator[ConsoleRenderable]:
    """Yield a line for each row's first cell, and below it the others behind their names."""
    for row in rows:
        yield Text.assemble(("• ", "markdown.item.bullet"), row[0])
        rest = [(n, cell) for n, cell in zip(names[1:], row[1:], strict=True) if _says(cell)]
        told = [_named(name.plain).append_text(cell) for name, cell in rest]
        if told:
            yield Padding(Text.assemble((" · ", "dim")).join(told), (0, 0, 0, INDENT), expand=False)


def _named(name: str) -> Text:
    return Text.assemble((f"{name}: " if name else "", "dim"))


def _says(cell: Text) -> bool:
    return cell.plain.strip() not in ("", "–")


class _Page(Answer):
    """Markdown of ours, its tags obeyed as far as a terminal has what they ask for."""

    elements: ClassVar[dict[str, type[MarkdownElement]]] = Answer.elements | {
        "table_open": _OwnTable
    }

    def __init__(self, tokens: list[Token]) -> None:
        for token in tokens:
            if token.children:
                token.children = list(_obeyed(token.children))
        super().__init__(tokens)


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
