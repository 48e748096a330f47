"""What is done to a cell's lines so that our magics run: awaited, and not taken for help."""

from __future__ import annotations

import re

from IPython.core.inputtransformer2 import make_tokens_by_line

CALL = re.compile(
    r"^(\s*(?:[\w.,\[\]'\" ]+=\s*)?)(get_ipython\(\)\.run_(?:cell|line)_magic\('hermes',)"
)


QUESTION = re.compile(r"^(\s*)%hermes[ \t]+(\S.*\?)\s*$")


def questions(lines: list[str]) -> list[str]:
    """Turn `%hermes … ?` into the call it stands for.

    IPython takes any line that ends with a question mark for a request for help, so a question to
    the agent would look up its last word. Lines inside a string are left alone.
    """
    rows = [row for row, line in enumerate(lines) if QUESTION.match(line)]
    if not rows:
        return lines
    starts = {
        tokens[0].start[0] - 1
        for group in make_tokens_by_line(lines)
        if (tokens := [token for token in group if token.string.strip()])
        and tokens[0].string == "%"
    }
    return [
        QUESTION.sub(_call, line) if row in starts and row in rows else line
        for row, line in enumerate(lines)
    ]


def _call(match: re.Match[str]) -> str:
    return f"{match[1]}get_ipython().run_line_magic('hermes', {match[2]!r})\n"


def awaited(lines: list[str]) -> list[str]:
    """Put `await` before every call of our magics that IPython generated."""
    return [CALL.sub(r"\1await \2", line) for line in lines]
