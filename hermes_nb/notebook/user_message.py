"""The user's message: the prompt with its values filled in, and behind it what is new here.

The notebook adds where we are, what changed and what went wrong. Its first line is
`[Notebook context]` and variables follow a line `Variables:`, each as
`- name: type shape (columns)`; the embedded model looks for exactly these, so no other line begins
with `- `. Of the error that a cell ended with it tells what it says, and the lines of the user's
own that led to it; errors of ours, and a stop by the user, are no failure of the cell's code.

In the prompt, a dollar sign and an expression in backticks stand for a value, by explicit request
only: braces, dollars and backslashes are just text. Two dollar signs before a backtick mean
nothing.
"""

from __future__ import annotations

import difflib
import linecache
import numbers
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.messages import Image, Message, Part, Text
from hermes_nb.core.protocols import Variable
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.notebook.access import NotebookAccess
from hermes_nb.notebook.document.outputs import LIBRARY, dimensions, strip_ansi
from hermes_nb.notebook.execute.capture import text_of
from hermes_nb.notebook.execute.network import kernel_origin
from hermes_nb.notebook.interrupt import user_code
from hermes_nb.notebook.previews import HIDDEN, names_a_secret, preview
from hermes_nb.notebook.shell import Shell, ours
from hermes_nb.notebook.variables import describe, user_variables
from hermes_nb.safety.guard import Guard
from hermes_nb.safety.redact import redact
from hermes_nb.tools.mcp_tools import McpTools

TEXT_BUDGET = 50_000
"""Characters of a string: whoever asks for one wants its text."""
BUDGET = 4_000
"""Characters of the description of anything else."""
_PLACE = re.compile(r"\$\$`|\$`([^`\n]+)`")


def interpolate(prompt: str, shell: Shell) -> str:
    """Return the prompt with each expression replaced by its value.

    Strings and numbers are put in as they are, everything else as `inspect_variable` shows it.
    Raises `ConfigError` when an expression cannot be evaluated; then nothing is sent.
    """

    def replaced(match: re.Match[str]) -> str:
        return "$`" if match[1] is None else _value(match[1].strip(), shell)

    return _PLACE.sub(replaced, prompt)


def literal(text: str) -> str:
    """Return text that `interpolate` gives back as it is: for what the user did not type."""
    return text.replace("$`", "$$`")


def _value(expression: str, shell: Shell) -> str:
    value = evaluate(expression, shell, shown=f"${one_line(expression, 60)!r} in the prompt")
    kind = type(value)  # a proxy's `__class__` would run its code
    if names_a_secret(expression, value):
        return HIDDEN
    if issubclass(kind, str):
        return redact(head_tail(str(value), TEXT_BUDGET))
    if issubclass(kind, int) and not issubclass(kind, bool):
        return preview(value)  # of thousands of digits it says so
    if value is None or issubclass(kind, numbers.Number):
        return str(value)
    return describe(expression, value, budget=BUDGET)


def evaluate(expression: str, shell: Shell, *, shown: str) -> object:
    """Return an expression's value in the user's namespace.

    `shown` is what the `ConfigError` calls it that is raised when it has none.
    """
    try:
        with user_code():
            return shell.ev(expression)
    except NameError as error:
        names = list(user_variables(shell.user_ns, shell.user_ns_hidden))
        missing = getattr(error, "name", None) or expression
        near = difflib.get_close_matches(str(missing), names, n=3)
        hint = f"near it: {', '.join(near)}" if near else "%whos lists the variables"
        message = f"{shown}: there is no variable {missing!r}; {hint}. Nothing was sent"
    except SyntaxError as error:
        message = f"{shown} is not a Python expression ({error.msg}). Nothing was sent"
    except Exception as error:  # noqa: BLE001 - the user's expression may raise anything
        text = redact(one_line(f"{type(error).__name__}: {text_of(error)}", 200))
        message = f"{shown} raised {text}. Nothing was sent"
    raise ConfigError(message)


@dataclass(frozen=True, slots=True)
class Attachment:
    """A picture, and what it is called in the conversation."""

    name: str
    image: Image

    @property
    def told(self) -> str:
        """Its name and size."""
        size = dimensions(self.image.mime, self.image.data)
        pixels = f" {size[0]}x{size[1]}" if size else ""
        return f"{self.name} ({self.image.mime}{pixels})"


MESSAGE = 1_000
"""Characters of an error's message."""
_OWN_FRAMES = 4
_FRAME = 200
_NOT_OURS_TO_MEND = (HermesError, KeyboardInterrupt, SystemExit, GeneratorExit)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedCell:
    """A cell's failure. `lines` are the frames worth reading, outermost first.

    `cell_id` is "" where it is not known, `source` where the cell is not.
    """

    ename: str
    evalue: str
    lines: tuple[str, ...] = ()
    source: str = ""
    cell_id: str = ""

    @property
    def title(self) -> str:
        """The error as Python prints it last."""
        return f"{self.ename}: {self.evalue}" if self.evalue else self.ename


def last_error(shell: Shell, *, earlier: bool = False) -> FailedCell | None:
    """Return how the cell before the running one failed, None if it did not.

    `earlier` also takes that of a cell further up which only success, or Hermes' errors, followed.
    """
    result = getattr(shell, "last_execution_result", None)
    if result is not None:
        error = result.error_before_exec or result.error_in_exec
        if error is not None and not isinstance(error, _NOT_OURS_TO_MEND):
            info = result.info
            source, cell_id = str(info.raw_cell or ""), str(info.cell_id or "")
            return _failed(shell, error, source=source, cell_id=cell_id)
    error = getattr(sys, "last_value", None) if earlier else None
    if isinstance(error, HermesError):  # such as that of a turn about the cell that failed
        error = getattr(ours(shell), "failed", None)
    if not isinstance(error, BaseException) or isinstance(error, _NOT_OURS_TO_MEND):
        return None
    # Any code of this process may have left an error there: only one of a cell's is the user's.
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
    """Return the last frames in the user's own code, and the last one of all."""
    frames = _places(error.__traceback__)
    first = next((i for i, place in enumerate(frames) if _cell(shell, place[0])), len(frames))
    frames = frames[first:]  # what is above is IPython's
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
    """Return the file name of the outermost cell in an error's traceback, "" if there is none."""
    names = [name for name, _, _ in _places(error.__traceback__)]
    if isinstance(error, SyntaxError) and error.filename:
        names.append(error.filename)
    return next((name for name in names if _cell(shell, name)), "")


def _cell(shell: Shell, filename: str) -> str:
    """Return what IPython calls a cell by its code's file name, "" for what is no cell."""
    named = shell.compile.format_code_name(filename)
    return " ".join(named) if named else ""


__all__ = ["FailedCell", "last_error", "turn_context", "variable_line"]

HEADING = "[Notebook context]"
LIMIT = 6_000
"""Characters in all: about 1,700 tokens."""
SHOWN_VARIABLES = 30
"""At most this many variables are listed; list_variables has the rest."""
_COLUMNS = 20
_VARIABLE = 700
_MARK = 60
"""Characters kept free for the line that says how much was left out."""


def turn_context(
    *,
    notebook: str = "",
    outline: str = "",
    running_cell: str | None = None,
    variables: Sequence[Variable] = (),
    gone: Iterable[str] = (),
    error: FailedCell | None = None,
    limit: int = LIMIT,
) -> str:
    """Return the block, of at most `limit` characters (100 or more), "" when there is no news.

    `outline` has a line a cell, of the cells above the running one; `running_cell` is its id, None
    where no cell is, and the outline ends with the selected one.
    `variables` are those that are new or different, `gone` the names that went. What does not fit
    is left out from the far end of the outline, then from the variables.
    """
    head = [HEADING]
    if notebook:
        head.append(one_line(f"Notebook: {notebook}", min(300, limit // 3)))
    room = limit - _size(head)
    middle = _fitting(_error_lines(error), room // 3)
    room -= _size(middle)
    named = _fitting(_variable_lines(variables, gone), room * 2 // 3 if outline else room)
    room -= _size(named)
    cells = _cell_lines(outline, running_cell, room)
    lines = [*head, *named, *middle, *cells]
    return "\n".join(lines) if len(lines) > 1 else ""


def variable_line(variable: Variable) -> str:
    """Return a variable in one line: `- name: type shape (column dtype, …)`."""
    shape = f" {variable.shape}" if variable.shape else ""
    columns = list((variable.columns or {}).items())
    listed = ", ".join(f"{name} {dtype}" for name, dtype in columns[:_COLUMNS])
    more = ", …" if len(columns) > _COLUMNS else ""
    described = f" ({listed}{more})" if listed else ""
    return one_line(f"- {variable.name}: {variable.type}{shape}{described}", _VARIABLE)


def _variable_lines(variables: Sequence[Variable], gone: Iterable[str]) -> list[str]:
    lines = [variable_line(variable) for variable in variables[:SHOWN_VARIABLES]]
    if (more := len(variables) - SHOWN_VARIABLES) > 0:
        lines.append(f"… and {more} more; list_variables shows them")
    if names := list(gone)[:SHOWN_VARIABLES]:
        lines.append(one_line(f"deleted: {', '.join(names)}", _VARIABLE))
    return ["Variables:", *lines] if lines else []


def _error_lines(error: FailedCell | None) -> list[str]:
    if error is None:
        return []
    where = f" (cell {error.cell_id})" if error.cell_id else ""
    title = _plain(error.title.splitlines())
    return [f"The last cell failed{where}:", *title, *_plain(error.lines)]


def _cell_lines(outline: str, running_cell: str | None, room: int) -> list[str]:
    """Return the outline's last lines, the ones next to the running cell."""
    lines = _plain(redact(outline).splitlines())
    selected = ", the last one is selected"
    here = f" this one ({one_line(running_cell, 40)})" if running_cell else selected
    title = f"Cells above{here}:"
    if not lines or len(title) + _MARK > room:
        return []
    kept = _fitting(lines[::-1], room - len(title) - 1, "notebook_outline shows all")
    return [title, *kept[::-1]]


def _fitting(lines: Sequence[str], room: int, hint: str = "") -> list[str]:
    """Return the lines that fit from the first one on, and how many were left out."""
    if _size(lines) <= room:
        return list(lines)
    kept: list[str] = []
    left = room - _MARK
    for line in lines:
        left -= len(line) + 1
        if left < 0:
            break
        kept.append(line)
    if room < _MARK:
        return []
    more = f"… {len(lines) - len(kept)} lines left out"
    return [*kept, f"{more}; {hint}" if hint else more]


def _size(lines: Sequence[str]) -> int:
    """Return the characters that lines take in a text, each with a line end."""
    return sum(len(line) + 1 for line in lines)


def _plain(lines: Iterable[str]) -> list[str]:
    """Return lines of somebody else's, none of which looks like a variable's."""
    return [f" {line}" if line.startswith("- ") else line for line in lines]


class UserMessageBuilder:
    """Tells each conversation about the notebook and what changed since it was told last."""

    def __init__(
        self,
        shell: Shell,
        access: NotebookAccess,
        variables: Callable[[], Sequence[Variable]],
        *,
        guard: Guard,
        note: Callable[[str], None],
        mcp: McpTools,
    ) -> None:
        self._shell = shell
        self._guard = guard
        self._mcp = mcp
        self._note = note
        self._access = access
        self._variables = variables
        self._told: dict[str, Variable] = {}
        self._told_to = ""

    async def message(
        self,
        prompt: str,
        told_to: str | None,
        pictures: Sequence[Attachment] = (),
        window: int | None = None,
    ) -> Message:
        """Return the message for a session; None as its id leaves out what is new here.

        What the prompt names by `@` is attached as far as it fits a `window` of so many tokens.

        Raises `ConfigError` for a value in the prompt that does not exist.
        """
        filled = interpolate(prompt, self._shell)
        # A value that is filled in is no word of the user's.
        parts: list[Part] = [Text(filled, "user" if filled == prompt else kernel_origin())]
        if pictures:
            names = "; ".join(f"{n}. {each.told}" for n, each in enumerate(pictures, 1))
            parts += [Text(f"[Pictures with this message: {names}]", "ours")]
            parts += [each.image for each in pictures]
        if "@" in prompt:
            parts += await self._named(prompt, window or 0)
        if told_to is not None and (note := await self._news(told_to)).text:
            parts.append(note)
        return Message(role="user", parts=tuple(parts))

    async def _named(self, prompt: str, window: int) -> list[Part]:
        """Return what a prompt names, and tell what that is."""
        from hermes_nb.notebook.references import References

        failed = last_error(self._shell, earlier=True)
        error = "" if failed is None else "\n".join([failed.title, *failed.lines, failed.source])
        references = References(
            self._shell, self._access, self._guard, root=Path.cwd(), error=error, mcp=self._mcp
        )
        attached, told = await references.of(prompt, window)
        if told:
            self._note(told)
        return [each.part for each in attached]

    async def draft(
        self,
        prompt: str,
        told_to: str | None,
        pictures: Sequence[Attachment] = (),
        window: int | None = None,
    ) -> Message:
        """Return the message as `message` would; nobody counts as told."""
        before = self._told, self._told_to
        try:
            return await self.message(prompt, told_to, pictures, window)
        finally:
            self._told, self._told_to = before

    async def _news(self, session_id: str) -> Text:
        """Return the notebook above the running cell, and the variables that are new or other."""
        if session_id != self._told_to:  # another conversation has not been told anything yet
            self._told, self._told_to = {}, session_id
        now = {variable.name: variable for variable in self._variables()}
        fresh = [v for name, v in now.items() if self._told.get(name) != v]
        gone = [name for name in self._told if name not in now]
        self._told = now
        outline, running, foreign = await self._access.above()
        text = turn_context(
            notebook=Path(self._access.path).name if outline else "",
            outline=outline,
            running_cell=running or None,
            variables=fresh,
            gone=gone,
            error=last_error(self._shell),
        )
        return Text(text, "outside" if foreign else kernel_origin())
