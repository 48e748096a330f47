"""The user's message: the prompt with values inserted, followed by notebook changes.

The changes are a block that begins with `[Notebook context]`. Under the line `Variables:`, each
variable has a line `- name: type shape (columns)`. The embedded model relies on this format, so no
other line starts with `- `.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_nb.agent.session.session import Session
from hermes_nb.agent.settings.endpoints import PROVIDERS
from hermes_nb.agent.settings.files import read_dotenv
from hermes_nb.core.messages import Message, Part, Text
from hermes_nb.core.protocols import Variable
from hermes_nb.core.text import one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.notebook.access import NotebookAccess
from hermes_nb.notebook.document.outline_updates import CellsNote, KnownOutline, cells_note
from hermes_nb.notebook.execute.network import kernel_origin
from hermes_nb.notebook.failed_cell import FailedCell, last_error
from hermes_nb.notebook.interpolate import interpolate
from hermes_nb.notebook.shell import Shell
from hermes_nb.notebook.variables import variables_of
from hermes_nb.safety.guard import Guard
from hermes_nb.safety.markup import code_span
from hermes_nb.skills.document import SkillError
from hermes_nb.skills.library import Library, unset_variables
from hermes_nb.tools.mcp_tools import McpTools
from hermes_nb.tools.skills import instructions

if TYPE_CHECKING:
    from hermes_nb.notebook.turn import TurnEnv

HEADING = "[Notebook context]"
WHAT_IF = (
    "[In this turn, run_python runs on a copy of the variables and can change no file. Other tools "
    "that change something are refused. The user then decides whether the same code runs in the "
    "kernel.]"
)
"""Tells the model what a turn with `--what-if` can do."""
LIMIT = 6_000
"""Maximum characters of the block, about 1,700 tokens."""
SHOWN_VARIABLES = 30
"""Maximum variables to list; list_variables returns the rest."""
_COLUMNS = 20
_VARIABLE = 700
_MARK = 60
"""Characters reserved for the line that counts omitted lines."""
_MODEL_KEYS = frozenset(each.key for each in PROVIDERS.values())
"""Variables that no skill gets, as code in the kernel could read them."""
SKILL = re.compile(r"/((?:[a-z0-9][\w.-]*/)?[a-z0-9][\w.-]*)(?=\s|\Z)")
"""The start of a prompt that runs a turn with a skill: `/NAME` or `/CATEGORY/NAME`."""


class UserMessageBuilder:
    """Builds each session's messages, including notebook changes since the last one."""

    def __init__(
        self,
        shell: Shell,
        access: NotebookAccess,
        *,
        guard: Guard,
        say: Callable[[str], None],
        mcp: McpTools,
    ) -> None:
        self._shell = shell
        self._guard = guard
        self._mcp = mcp
        self._say = say
        self._access = access
        self._sent = SentState()
        self.decided: dict[str, str] = {}
        """Whether the user kept what a session tried with `--what-if`, for its next message."""

    async def message(self, prompt: str, env: TurnEnv, library: Library) -> Message:
        """Return a turn's message for the prompt as typed, which may name a skill of `library`.

        A dry run does not mark the changes in the notebook as sent. Raises `ConfigError` if a value
        in the prompt does not exist.
        """
        filled = interpolate(prompt, self._shell)
        # Inserted values do not count as the user's words.
        parts: list[Part] = [Text(filled, "user" if filled == prompt else kernel_origin())]
        if env.pictures:
            names = "; ".join(f"{n}. {each.description}" for n, each in enumerate(env.pictures, 1))
            parts += [Text(f"[Pictures with this message: {names}]", "ours")]
            parts += [each.image for each in env.pictures]
        if named := SKILL.match(prompt):
            parts += await self._skill(named[1], env, library)
        if "@" in prompt:
            parts += await self._named(prompt, env)
        if (decided := self.decided.get(env.site.session)) and not env.options.dry_run:
            parts.append(Text(self.decided.pop(env.site.session, decided), "ours"))
        if env.options.what_if:
            parts.append(Text(WHAT_IF, "ours"))
        if env.options.context and (note := await self._news(env)).text:
            parts.append(note)
        return Message(role="user", parts=tuple(parts))

    async def _skill(self, name: str, env: TurnEnv, library: Library) -> list[Part]:
        """Return the skill with which a prompt starts, and tell the user what it lacks."""
        show, typed = self._say if env.view is None else env.view.note, code_span(f"/{name}")
        try:
            skill = library.get(name)
            saved = read_dotenv(env.settings.home)
            for variable in unset_variables(skill):
                if variable in saved and variable not in _MODEL_KEYS:
                    os.environ[variable] = saved[variable]
                    continue
                message = f"is not set; `%hermes key {variable}` asks for it"
                if variable in saved:
                    message = "is the key of a model, which a skill's code does not get"
                show(f"{typed} needs {code_span(variable)}, which {message}.")
            text = await in_thread(instructions, library, skill.name)
        except SkillError as error:
            show(f"{typed} is sent as typed: {one_line(str(error), 200)}")
            return []
        return [Text(f"[Follow this skill in this turn: {name}]\n{text}", "ours")]

    async def _named(self, prompt: str, env: TurnEnv) -> list[Part]:
        """Return a prompt's attachments, and show the user a list of them."""
        from hermes_nb.notebook.references import References

        failed = last_error(self._shell, earlier=True)
        error = "" if failed is None else "\n".join([failed.title, *failed.lines, failed.source])
        references = References(
            self._shell,
            self._access,
            self._guard,
            place=env.site,
            root=Path.cwd(),
            error=error,
            mcp=self._mcp,
        )
        attached, told = await references.of(prompt, env.spec.model.window or 0)
        if told:
            show = self._say if env.view is None else env.view.note
            show(told)
        return [each.part for each in attached]

    async def _news(self, env: TurnEnv) -> Text:
        """Return what has changed in the notebook since this session's last message."""
        sent = self._sent if self._sent.session == env.site.session else SentState(env.site.session)
        if not (isinstance(env.session, Session) and sent.is_in(env.session.messages)):
            sent = replace(sent, notebook="", outline=None, contexts=())
        now = {variable.name: variable for variable in variables_of(self._shell)}
        above = await self._access.above(env.site)
        note = CellsNote("", sent.outline) if above is None else cells_note(above, sent.outline)
        notebook = Path(self._access.path).name if note.known is not None else ""
        text = turn_context(
            notebook=notebook if notebook != sent.notebook else "",
            cells=note.text,
            variables=[v for name, v in now.items() if sent.variables.get(name) != v],
            gone=[name for name in sent.variables if name not in now],
            error=last_error(self._shell),
        )
        if above is not None and not env.options.dry_run:
            self._access.seen.learn(above.way, [*note.listed, above.here])
            for cell_id in note.deleted:  # an outline reports each deletion once
                self._access.seen.forget(above.way, cell_id)
        if not env.options.dry_run:
            self._sent = SentState(
                env.site.session,
                variables=now,
                notebook=notebook or sent.notebook,
                outline=note.known,
                contexts=(*sent.contexts, *([text] if text else [])),
            )
        foreign = any(self._access.foreign(cell.source) for cell in note.listed)
        return Text(text, "outside" if foreign else kernel_origin())


@dataclass(frozen=True, slots=True)
class SentState:
    """What a session knows about the notebook from its messages."""

    session: str = ""
    """The session's id."""
    _: KW_ONLY
    variables: Mapping[str, Variable] = field(default_factory=dict)
    """The variables by name."""
    notebook: str = ""
    """The notebook's name, or "" if it has not been sent."""
    outline: KnownOutline | None = None
    """The cells, or None if no outline has been sent."""
    contexts: tuple[str, ...] = ()
    """The blocks that gave the session the outline, and all later ones."""

    def is_in(self, messages: Iterable[Message]) -> bool:
        """Return whether a conversation ends with these blocks, none compressed or undone."""
        parts = (part for each in messages if each.role == "user" for part in each.parts[1:])
        texts = [part.text for part in parts if isinstance(part, Text)]
        found = [text for text in texts if text.startswith(HEADING)]
        return found[len(found) - len(self.contexts) :] == [*self.contexts]


def turn_context(
    *,
    notebook: str = "",
    cells: str = "",
    variables: Sequence[Variable] = (),
    gone: Iterable[str] = (),
    error: FailedCell | None = None,
    limit: int = LIMIT,
) -> str:
    """Return the block, or "" if nothing has changed. Variables that do not fit are omitted.

    Args:
        notebook: the notebook's name, or "" if already known
        cells: the section about cells, at most half of `limit`
        variables: new and changed variables
        gone: names of deleted variables
        error: the previous cell's failure
        limit: maximum characters, 100 or more
    """
    head = [HEADING]
    if notebook:
        head.append(one_line(f"Notebook: {notebook}", min(300, limit // 3)))
    room = limit - _size(head)
    middle = _fitting(_error_lines(error), room // 3)
    room -= _size(middle)
    below = _plain(cells.splitlines())
    most = min(room * 2 // 3, room - _size(below)) if below else room
    named = _fitting(_variable_lines(variables, gone), most)
    lines = [*head, *named, *middle, *below]
    return "\n".join(lines) if len(lines) > 1 else ""


def variable_line(variable: Variable) -> str:
    """Describe a variable in one line: `- name: type shape (column dtype, …)`."""
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


def _fitting(lines: Sequence[str], room: int) -> list[str]:
    """Return the lines that fit into `room` characters, followed by a count of the omitted ones."""
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
    return [*kept, f"… {len(lines) - len(kept)} lines left out"]


def _size(lines: Sequence[str]) -> int:
    """Return the number of characters in the lines, including a newline after each."""
    return sum(len(line) + 1 for line in lines)


def _plain(lines: Iterable[str]) -> list[str]:
    """Return the lines, indenting those that could be mistaken for a variable's line."""
    return [f" {line}" if line.startswith("- ") else line for line in lines]
