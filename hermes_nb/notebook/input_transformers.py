"""Input transformers for IPython: `await` calls to our magics, and do not treat them as help.

A turn cannot run if the call cannot be awaited, for example under `%%capture` or `%%time`, or in a
plain function. Such a cell fails with a one-line error, and nothing is sent.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from typing import TYPE_CHECKING

from IPython.core.getipython import get_ipython
from IPython.core.inputtransformer2 import make_tokens_by_line
from IPython.core.interactiveshell import InteractiveShell

from hermes_nb.core.errors import HermesError
from hermes_nb.notebook.shell import other_provider

if TYPE_CHECKING:
    from hermes_nb.notebook.shell import Foreign


CALL = re.compile(
    r"^(\s*(?:[\w.,\[\]'\" ]+=\s*)?)(get_ipython\(\)\.run_(?:cell|line)_magic\('hermes',)"
)
"""The call that IPython generates for one of our magics, with any assignment before it."""


EMPTY = re.compile(r"(run_cell_magic\('hermes', .*), ''\)$")
"""The call for a cell without a body, which IPython rejects without calling our magic."""
QUESTION = re.compile(r"^(\s*)%hermes[ \t]+(\S.*\?)\s*$")
"""A line magic that ends with a question mark."""


def questions(lines: list[str]) -> list[str]:
    """Turn `%hermes … ?` into the call that IPython would generate without the question mark.

    IPython reads any line that ends with a question mark as a request for help, so it would look up
    the last word of a question. Lines inside a string are not changed.
    """
    rows = [row for row, line in enumerate(lines) if QUESTION.match(line)]
    if not rows or _magics_replaced():
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


CHECKPOINT = "%%checkpoint"
"""First line of a cell whose variables are saved before it runs."""


def checkpointed(lines: list[str]) -> list[str]:
    """Remove a first line `%%checkpoint`: the rest of the cell runs as it would without it."""
    return (
        lines[1:] if lines and lines[0].strip() == CHECKPOINT and not _magics_replaced() else lines
    )


def _magics_replaced() -> bool:
    """Return whether another package has replaced the magics, so they must not be awaited."""
    shell: Foreign = get_ipython()
    return shell is not None and bool(other_provider(shell))


def _call(match: re.Match[str]) -> str:
    return f"{match[1]}get_ipython().run_line_magic('hermes', {match[2]!r})\n"


_MAGICS = (InteractiveShell.run_cell_magic.__code__, InteractiveShell.run_line_magic.__code__)
_WHAT = "{} cannot wait for a turn of Hermes; nothing was sent. Instead, {}"
_INSTEAD = (
    "`%%hermes --into NAME --quiet` keeps the answer and shows only a status line, which has the "
    "time"
)


class NotAwaitedError(HermesError):
    """A cell cannot await a turn; it fails, and nothing is sent."""


class _UnheardError(BaseException):
    """Like NotAwaitedError, for a magic that runs its cell and ignores the result.

    Not an `Exception`, because `InteractiveShell.run_cell` catches those.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"{NotAwaitedError.__name__}: {self}"]


def awaited(lines: list[str]) -> list[str]:
    """Put `await` before every IPython-generated call to our magics.

    Raises `NotAwaitedError` or `_UnheardError` if a call cannot be awaited, so that the cell fails.
    """
    out = [EMPTY.sub(r"\1, '\\n')", CALL.sub(r"\1await \2", line)) for line in lines]
    if out == lines or _magics_replaced():
        return lines
    if (around := _around()) is not None:
        magic, unheard = around
        raise (_UnheardError if unheard else NotAwaitedError)(_WHAT.format(f"`{magic}`", _INSTEAD))
    try:
        compile("".join(out), "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except (SyntaxError, ValueError) as error:
        if "'await' outside" in str(error):
            message = _WHAT.format("a plain function", "call `Hermes().ask(PROMPT)` there")
            raise NotAwaitedError(message) from None
    return out


def _around() -> tuple[str, bool] | None:
    """Return the magic or function that runs these lines without `await`, or None.

    The second value is True if it ignores errors. In a terminal, no event loop is running yet, so a
    nested cell may start one.
    """
    frame, unheard = inspect.currentframe(), False
    while frame is not None:
        if frame.f_code is InteractiveShell.run_cell.__code__:
            unheard = True
            if asyncio._get_running_loop() is None:  # noqa: SLF001
                return None
        elif unheard and frame.f_code is InteractiveShell.run_code.__code__:
            return "run_cell", True
        elif frame.f_code in _MAGICS:
            return f"%{frame.f_locals['magic_name']}", unheard
        frame = frame.f_back
    return None
