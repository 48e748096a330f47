"""Count sentences that a reader stumbles over: documents, docstrings, error texts, help texts.

Run with `make prose`; `--list PATH` prints the marked sentences of a file or folder. A sentence is
marked if it matches a pattern of `prose.txt`: phrases that the documentation of llm, uv,
pydantic-ai and jupyter-ai (143,000 words) hardly uses. The patterns find symptoms. A text that
avoids them and is still unclear is still unclear: read it aloud.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIMITS = {"docs": 0.05, "docstrings": 0.06, "errors": 0.05, "help": 0.05}
MARKERS = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines()
MARKED = re.compile(r"\b(?:" + "|".join(MARKERS) + ")", re.IGNORECASE)
ERRORS = re.compile(r"Error$|^Refus|^Tool|Denied$|Failed$|Needed$")
NOT_PROSE = (
    re.compile(r"(`{3,}|~{3,}).*?\1", re.DOTALL),
    re.compile(r"<!--.*?-->", re.DOTALL),
    re.compile(r"^[|#].*$", re.MULTILINE),
)
"""Code, comments, tables and headings in Markdown."""
SMALLEST = 12
"""Sentences that a file must have to be listed among the worst."""


def running_text(markdown: str) -> str:
    """Return the running text of Markdown: no code, tables, headings, comments or link targets."""
    for pattern in NOT_PROSE:
        markdown = pattern.sub("\n\n", markdown)
    markdown = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", markdown)
    markdown = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", markdown)
    markdown = re.sub(r"^\s*(?:[-*]|\d+\.)\s+", "\n\n", markdown, flags=re.MULTILINE)
    return re.sub(r"[*_]", "", _without_code(markdown))


def _without_code(text: str) -> str:
    return re.sub(r"`[^`]*`", "CODE", text)


def sentences(text: str, least: int = 3) -> Iterator[str]:
    """Yield the sentences of a text that have at least `least` words."""
    for paragraph in re.split(r"\n\s*\n", text):
        for sentence in re.split(r"(?<=[.!?:;])\s+(?=[A-Z“\"(])", " ".join(paragraph.split())):
            if len(sentence.split()) >= least:
                yield sentence


def python_texts(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (kind, text) for the docstrings, raised messages and help texts of a module."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield "docstrings", _without_code(text)
            case ast.Raise(
                exc=ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name), args=[first, *_])
            ):
                if ERRORS.search(name) and isinstance(first, ast.Constant | ast.JoinedStr):
                    yield "errors", _message(first)
            case ast.keyword(arg="help" | "description", value=ast.Constant(value=text)):
                yield "help", str(text)


def _message(node: ast.Constant | ast.JoinedStr) -> str:
    """Return a message with an X for each value in it."""
    parts = [node] if isinstance(node, ast.Constant) else node.values
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in parts)


def texts(root: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield (kind, path, sentence) of a checkout."""
    pages = [root / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")]
    for page in [*pages, *sorted((root / "docs").rglob("*.md"))]:
        if "adr" not in page.parts:
            for sentence in sentences(running_text(page.read_text(encoding="utf-8"))):
                yield "docs", page, sentence
    for module in sorted((root / "hermes_nb").rglob("*.py")):
        for kind, text in python_texts(module):
            for sentence in sentences(text):
                yield kind, module, sentence
    for table in sorted((root / "hermes_nb").rglob("commands.toml")):
        for text in _strings(tomllib.loads(table.read_text(encoding="utf-8"))):
            for sentence in sentences(text, least=2):
                yield "help", table, sentence


def _strings(value: object) -> Iterator[str]:
    """Yield the strings within tables and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _strings(each)


def main() -> int:
    """Print the share of marked sentences by kind; return 1 if one is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--list", type=Path, metavar="PATH", help="print the marked sentences below PATH"
    )
    listed: Path | None = parser.parse_args().list
    counts: dict[tuple[str, Path], list[int]] = defaultdict(lambda: [0, 0])
    for kind, path, sentence in texts(ROOT):
        match = MARKED.search(sentence)
        counts[kind, path][0] += 1
        counts[kind, path][1] += match is not None
        if match and listed and path.is_relative_to(ROOT / listed):
            print(f"{path.relative_to(ROOT)}: [{match[0]}] {sentence}")
    over = False
    for kind, limit in LIMITS.items():
        rows = [count for (each, _), count in counts.items() if each == kind]
        total, marked = (sum(column) for column in zip(*rows, strict=True))
        over |= marked > limit * total
        print(f"{kind}: {marked / total:.1%} of {total} sentences marked (limit {limit:.0%})")
    if over and not listed:
        shares = [(marked / n, n, *key) for key, (n, marked) in counts.items() if n >= SMALLEST]
        for share, n, kind, path in sorted(shares, reverse=True)[:15]:
            print(f"  {share:4.0%} of {n:4} {kind:10} {path.relative_to(ROOT)}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
