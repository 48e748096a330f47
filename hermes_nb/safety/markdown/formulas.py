r"""Formulas that are safe to typeset: TeX as front ends run it is a language with links and styles.

JupyterLab cuts formulas out before it reads Markdown and puts them back into the finished HTML,
even into an attribute; its MathJax knows `\href{javascript:…}`, styles that load pictures, and
definitions that outlive the cell. So what is no plain formula stays text, and a dollar that opens
none is parted from its neighbours.
"""

from __future__ import annotations

import html
import re

DOLLAR = "<span>&#36;</span>"
"""A dollar in an element of its own begins no formula: GitHub's own advice, and MathJax agrees."""
BACKSLASH = "<span>&#92;</span>"
ORDERS = re.compile(
    r"\\(?:href|url|style|class|cssId|data|html\w*|require|autoload|includegraphics|unicode|bbox"
    r"|mmlToken|enclose|texttip|mathtip|toggle|tooltip|f?colorbox|[gex]?def|let|futurelet|csname"
    r"|(?:re|provide)?newcommand|providecommand|(?:re)?newenvironment|DeclareMathOperator"
    r"|DeclarePaired\w+|special|input|write|openin|catcode)(?![A-Za-z])",
    re.IGNORECASE,
)
"""Commands that link, style, load or define: of MathJax 3 with all its packages, and KaTeX."""
LONGEST = 4_000
"""Characters that a formula may have."""
_FOREIGN = re.compile(r"//|script\s*:|url\s*\(|data\s*:|&#|[\"`$]", re.IGNORECASE)
"""What stands in no formula: addresses, and signs that end an attribute, code or the formula."""
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_OPENING_TAG = re.compile(r"<(?=[A-Za-z/!?])")

FORMULA = (
    r"\$\$(?P<display>[^$`]+)\$\$"
    r"|\$(?!\s)(?P<inline>[^$`]*[^$`\s])\$(?!\d)"
    r"|\\\((?P<round>(?:[^$`\\]|\\(?![()\[\]]))+)\\\)"
    r"|\\\[(?P<square>(?:[^$`\\]|\\(?![()\[\]]))+)\\\]"
    r"|(?P<begin>\\begin\{(?P<env>[a-zA-Z]{1,20}\*?)\})"
)
"""What opens and closes a formula, as part of a larger expression; `begin` has its end to be found.

No alternative can run past the next sign that opens another one, so that time stays linear.
"""


def typeset(content: str, mark: str) -> str | None:
    """Return a formula between its marks as front ends may typeset it, None for what is no formula.

    `mark` is `$` or `$$`, or "" for an environment, which is its own mark.
    """
    formula = f"{mark}{content}{mark}"
    if len(content) > LONGEST or not content.strip() or not _balanced(content):
        return None
    if ORDERS.search(content) or _FOREIGN.search(content):
        return None
    # For readers that know no formulas: no tag, no picture and no link in it either.
    formula = _OPENING_TAG.sub(r"\\lt ", formula)
    return re.sub(r"([!\]])(?=[\[(:])", r"\1 ", formula)


def environment(text: str, start: int, name: str) -> int:
    """Return the index behind the environment that begins at `start`, -1 where it has no end."""
    closing = f"\\end{{{name}}}"
    end = text.find(closing, start, start + LONGEST)
    return end + len(closing) if end >= 0 else -1


def inert(text: str) -> str:
    """Return TeX as plain text for Markdown: nothing of it is typeset or taken for markup."""
    shown = "".join(f"&#{ord(c)};" if c in "*_[]!~|`" else c for c in html.escape(text))
    return shown.replace("\\", BACKSLASH).replace("$", DOLLAR)


def _balanced(content: str) -> bool:
    """Say whether the braces pair up; JupyterLab looks for the end behind an open one."""
    depth = 0
    for brace in _BRACES.findall(content):
        depth += {"{": 1, "}": -1}.get(brace, 0)
        if depth < 0:
            return False
    return depth == 0
