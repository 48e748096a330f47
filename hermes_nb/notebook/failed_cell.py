"""Describe a cell's failure: its error message and the lines of the user's code that led to it.

Errors from Hermes and interrupts by the user do not count as failures of the cell's code.
"""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from dataclasses import dataclass
from types import TracebackType

from hermes_nb.core.errors import HermesError
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.notebook.document.outputs import LIBRARY, strip_ansi
from hermes_nb.notebook.execute.capture import text_of
from hermes_nb.notebook.shell import Shell, hermes_magics
from hermes_nb.safety.redact import redact

MESSAGE = 1_000
"""Maximum characters of an error's message."""
_OWN_FRAMES = 4
_FRAME = 200
_NOT_OURS_TO_MEND = (HermesError, KeyboardInterrupt, SystemExit, GeneratorExit)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCell:
    """A cell's failure."""

    ename: str
    """Name of the error's class."""
    evalue: str
    """The error's message, redacted and truncated to `MESSAGE` characters."""
    lines: tuple[str, ...] = ()
    """The relevant frames, one per line, outermost first."""
    source: str = ""
    """The cell's source, or "" if unknown."""
    cell_id: str = ""
    """The cell's id, or "" if unknown."""

    @property
    def title(self) -> str:
        """The error, formatted like the last line of a traceback."""
        return f"{self.ename}: {self.evalue}" if self.evalue else self.ename


def last_error(shell: Shell, *, earlier: bool = False) -> FailedCell | None:
    """Return the previous cell's failure, or None if it succeeded.

    `earlier` also accepts an older failure, if all later cells have succeeded or failed with errors
    from Hermes.
    """
    result = getattr(shell, "last_execution_result", None)
    if result is not None:
        error = result.error_before_exec or result.error_in_exec
        if error is not None and not isinstance(error, _NOT_OURS_TO_MEND):
            info = result.info
            source, cell_id = str(info.raw_cell or ""), str(info.cell_id or "")
            return _failed(shell, error, source=source, cell_id=cell_id)
    error = getattr(sys, "last_value", None) if earlier else None
    if isinstance(error, HermesError):  # such as a failed turn about that cell
        error = getattr(hermes_magics(shell), "failed", None)
    if not isinstance(error, BaseException) or isinstance(error, _NOT_OURS_TO_MEND):
        return None
    # Any code in this process may set `last_value`: accept only an error from a cell.
    name = _first_cell(shell, error)
    return _failed(shell, error, source="".join(linecache.getlines(name))) if name else None


def _failed(shell: Shell, error: BaseException, *, source: str, cell_id: str = "") -> FailedCell:
    lines = _syntax(error) if isinstance(error, SyntaxError) else _frames(shell, error)
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if cause is not None:
        lines.append(one_line(f"caused by {type(cause).__name__}: {text_of(cause)}", _FRAME))
    message = str(error.msg) if isinstance(error, SyntaxError) else text_of(error)
    return FailedCell(
        ename=type(error).__name__,
        evalue=head_tail(redact(strip_ansi(message)), MESSAGE),
        lines=tuple(redact(line) for line in lines),
        source=source,
        cell_id=cell_id,
    )


def _syntax(error: SyntaxError) -> list[str]:
    return [one_line(f"line {error.lineno}: {error.text or ''}", _FRAME)] if error.lineno else []


def _frames(shell: Shell, error: BaseException) -> list[str]:
    """Return the last frames in the user's own code, and the innermost frame."""
    frames = _places(error.__traceback__)
    first = next((i for i, place in enumerate(frames) if _cell(shell, place[0])), len(frames))
    frames = frames[first:]  # the frames above are IPython's
    own = [i for i, place in enumerate(frames) if not LIBRARY.search(place[0])]
    keep = sorted({*own[-_OWN_FRAMES:], len(frames) - 1}) if frames else []
    return [_line(shell, *frames[i]) for i in keep]


def _places(trace: TracebackType | None) -> list[tuple[str, int, str]]:
    return [
        (frame.f_code.co_filename, line, frame.f_code.co_name)
        for frame, line in traceback.walk_tb(trace)
    ]


def _line(shell: Shell, filename: str, line: int, function: str) -> str:
    where = _cell(shell, filename) or "/".join(re.split(r"[/\\]", filename)[-3:])
    inside = "" if function == "<module>" else f", in {function}"
    text = linecache.getline(filename, line).strip()
    return one_line(f"{where}, line {line}{inside}: {text}", _FRAME)


def _first_cell(shell: Shell, error: BaseException) -> str:
    """Return the file name of the outermost cell in an error's traceback, or ""."""
    names = [name for name, _, _ in _places(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        names.append(error.filename)
    return next((name for name in names if _cell(shell, name)), "")


def _cell(shell: Shell, filename: str) -> str:
    """Return IPython's name for the cell with this code file name, or "" if there is none."""
    named = shell.compile.format_code_name(filename)
    return " ".join(named) if named else ""
