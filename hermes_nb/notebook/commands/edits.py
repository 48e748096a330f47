"""`%hermes undo`, `retry`, `diff`, `fix`, `explain`: what a turn changed, turns about errors."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from hermes_nb.agent.undo.undo import Line, NothingToUndo, UndoReport
from hermes_nb.core.errors import ConfigError, HermesError, ToolError
from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Text
from hermes_nb.core.text import head_tail, number_of, one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.notebook.display.changes import diff_bundle
from hermes_nb.notebook.display.views import show
from hermes_nb.notebook.document.document import Cell, NotebookDocument
from hermes_nb.notebook.document.outline import is_message
from hermes_nb.notebook.document.outputs import strip_ansi
from hermes_nb.notebook.document.undo import DocumentRestorer, KeptDocument
from hermes_nb.notebook.failed_cell import MESSAGE, FailedCell, last_error
from hermes_nb.notebook.interpolate import literal
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.notebook.shell import Shell
from hermes_nb.safety.markup import code_block, code_span, escape
from hermes_nb.safety.redact import redact

SHOWN_DIFF = 40_000
"""Characters of a diff that are shown."""
SHOWN_LINES = 40
"""Items of each kind that a report lists."""
USAGE = "`%hermes undo [TURN] [--force] [of SESSION]`; TURN is a number"
RETRY = "`%hermes retry [TURNS] [edit] [--force]`; TURNS says how many, 1 by default"
NAMESPACE = "Variables are not restored: the namespace is as the turn left it."


async def undo(agent: KernelAgent, words: str) -> str:
    """Undo a turn's files and cells and return what was done, as Markdown.

    The turn is one of the running session, or `of` the one that is named behind it.
    """
    words, _, named = words.partition(" of ")
    turn, given = _arguments(words, flags=("--force",))
    force, session = "--force" in given, named.strip() or _session_id(agent)
    report = await agent.access.checkpoints.undo(
        session, turn, restorer=_restorer(agent), force=force
    )
    return f"{_shown(report, force=force)}\n\n{NAMESPACE}"


def _restorer(agent: KernelAgent) -> DocumentRestorer:
    """Return what puts cells back into this kernel's notebook."""

    async def document_of(key: str) -> NotebookDocument:
        document = await agent.document()
        if key not in (agent.notebook, document.way):
            raise ToolError(
                f"it is another notebook; run `%hermes undo` in {Path(key).name} for its cells"
            )
        # What an undo changes is not the turn's doing, and must not be saved as if it were.
        return document.inner if isinstance(document, KeptDocument) else document

    return DocumentRestorer(document_of)


async def retry(agent: KernelAgent, words: str) -> str:
    """Take the last turns back, with their cells and files, and ask the first one's prompt again.

    With `edit` the prompt is offered as a cell below instead. Where something that somebody
    changed since would be overwritten, the turns stay in the conversation.
    """
    turns, given = _arguments(words, flags=("edit", "--force"), usage=RETRY)
    turns = 1 if turns is None else turns
    session = agent.session or agent.resume()
    asked = session.asked(turns)
    if asked.message.images and "edit" not in given:
        again = "`%hermes retry edit` takes it back and offers the prompt below"
        raise ConfigError(f"that prompt came with pictures, which are not kept; {again}")
    checkpoints, force = agent.access.checkpoints, "--force" in given
    reports = [
        await checkpoints.undo(session.id, turn, restorer=_restorer(agent), force=force)
        for turn in await in_thread(checkpoints.since, session.id, asked.at)
    ]
    told = [_shown(each, force=force, command="retry") for each in reports]
    if any(each.conflicts for each in reports) and not force:
        return "\n\n".join([*told, "The conversation stays as it is."])
    first = next(iter(session.rewind(turns).parts))
    prompt = first.text if isinstance(first, Text) else ""
    for line in told:
        agent.note(line)
    if "edit" not in given:
        await agent.ask(literal(prompt))
        return ""
    agent.shell.set_next_input(f"%%hermes\n{literal(prompt)}")
    return f"{number_of(turns, 'turn')} taken back; the prompt is offered below. {NAMESPACE}"


async def diff(agent: KernelAgent, words: str) -> str:
    """Show what a turn changed in files and cells; return a line where there is nothing to show."""
    turn, _ = _arguments(words, flags=(), usage="`%hermes diff [TURN]`; TURN is a number")
    session = _session_id(agent)
    try:
        changed = await in_thread(agent.access.checkpoints.changes, session, turn, root=_here())
    except NothingToUndo as nothing:
        return escape(str(nothing))
    if not changed:
        return "That turn left files and cells as they were."
    show(diff_bundle(changed, SHOWN_DIFF))
    return ""


def _arguments(
    words: str, *, flags: Sequence[str], usage: str = USAGE
) -> tuple[int | None, set[str]]:
    """Return the number and the flags that were given; raise `ConfigError`."""
    turn: int | None = None
    given = set()
    for word in words.split():
        if word in flags:
            given.add(word)
        elif word.isascii() and word.isdigit() and turn is None:
            turn = int(word[:9])
        else:
            raise ConfigError(f"{word!r} is not understood; {usage}")
    return turn, given


def _session_id(agent: KernelAgent) -> str:
    """Return the running session's id or, after a restart, that of the notebook's last one."""
    if agent.session is not None:
        return agent.session.id
    notebook = agent.notebook
    latest = agent.store.sessions(notebook=notebook, limit=1) if notebook else []
    if not latest:
        raise HermesError("this notebook has no session yet, so there is nothing to undo")
    return latest[0].id


def _shown(report: UndoReport, *, force: bool, command: str = "undo") -> str:
    when = time.strftime("%H:%M", time.localtime(report.when))
    title = f"**Turn {report.turn}** ({when})"
    blocks: list[str] = []
    if report.done:
        blocks.append(f"{title} is undone:\n\n{_listed(report.done)}")
    elif report.conflicts:
        blocks.append(f"{title}: nothing was undone.")
    else:
        blocks.append(f"{title}: nothing to undo, files and cells are as they were before it.")
    if report.conflicts:
        again = "" if force else f" `%hermes {command} --force` overwrites what was changed since."
        blocks.append(f"Left alone:{again}\n\n{_listed(report.conflicts)}")
    if report.notes:
        notes = "\n".join(f"- {escape(_clean(note))}" for note in report.notes[:SHOWN_LINES])
        blocks.append(f"Not covered:\n\n{notes}")
    return "\n\n".join(blocks)


def _listed(lines: Sequence[Line]) -> str:
    shown = [f"- {code_span(_name(line.name))} {escape(_clean(line.text))}" for line in lines]
    if len(shown) > SHOWN_LINES:
        shown[SHOWN_LINES:] = [f"- … and {len(lines) - SHOWN_LINES} more"]
    return "\n".join(shown)


def _name(path: str) -> str:
    """Return a path from the working directory where it is below it, nothing in it hidden."""
    inside = Path(path).is_relative_to(_here())
    return visible(Path(path).relative_to(_here()).as_posix() if inside else path)


def _here() -> Path:
    return Path(os.path.realpath(os.curdir))


def _clean(text: str) -> str:
    return visible(redact(one_line(text, 300)))


SOURCE = 6_000
"""Characters of a cell's source that a prompt quotes; read_cells has the rest."""


async def fix(agent: KernelAgent, words: str) -> str:
    """Take a turn that mends the cell which failed last, or the one that `--cell` names."""
    cell, wish = await _named(agent, words)
    await agent.ask(fix_prompt(agent.shell, wish, cell=cell))
    return ""


async def explain(agent: KernelAgent, words: str) -> str:
    """Take a turn that explains the last error, else the last cell, or what `--cell` names."""
    cell, wish = await _named(agent, words)
    above = await agent.access.cell_above() if cell is None else cell
    await agent.ask(explain_prompt(agent.shell, above=above, wish=wish, named=cell is not None))
    return ""


async def _named(agent: KernelAgent, words: str) -> tuple[Cell | None, str]:
    """Return the cell that `--cell ID` names in front of a wish, with its outputs, and the wish."""
    first, _, rest = words.strip().partition(" ")
    if first != "--cell":
        return None, words
    cell_id, _, wish = rest.strip().partition(" ")
    if not cell_id:
        raise ConfigError("`--cell` needs the id of a cell behind it")
    return await (await agent.document()).get(cell_id), wish.strip()


def _failure(shell: Shell, cell: Cell) -> tuple[FailedCell | None, bool]:
    """Return how a cell failed, None if it did not, and whether the context says it anyway."""
    output = next((o for o in cell.outputs or () if o.get("output_type") == "error"), None)
    if output is None:
        return None, False
    last = last_error(shell)
    if last is not None and last.cell_id == cell.id:
        return last, True
    trace = output.get("traceback")
    lines = [str(line) for line in trace] if isinstance(trace, list) else []
    told = FailedCell(
        ename=one_line(str(output.get("ename", "")), 300),
        evalue=head_tail(redact(strip_ansi(str(output.get("evalue", "")))), MESSAGE),
        lines=(head_tail(redact(strip_ansi("\n".join(lines))), SOURCE),) if lines else (),
        source=cell.source,
        cell_id=cell.id,
    )
    return told, False


def fix_prompt(shell: Shell, wish: str = "", *, cell: Cell | None = None) -> str:
    """Return the request to mend the cell that failed last, or `cell`.

    `wish` is what the user adds. Raises `ConfigError` when nothing failed.
    """
    if cell is not None:
        failed, told = _failure(shell, cell)
        if failed is None:
            raise ConfigError(f"cell {cell.id} shows no error; run it first, or say what is wrong")
    else:
        failed, told = last_error(shell, earlier=True), last_error(shell) is not None
    if failed is None:
        message = "no cell has failed; run the cell to be fixed first, or say what is wrong"
        raise ConfigError(message)
    if failed.cell_id:
        task = f"Change cell {failed.cell_id} itself with edit_cell, then run it with run_cell"
    else:
        task = (
            "Find that cell with notebook_outline, change it with edit_cell, run it with run_cell"
        )
    parts = [
        "A cell failed. Mend it.",
        *_evidence(failed, told=told),
        f"{task} to see that it works. Change as little as the cause asks for, and nothing that "
        "only hides the error. If the cause is in an earlier cell or in the data, say so and mend "
        "it there. End with one or two sentences: what was wrong, what you changed.",
        wish,
    ]
    return "\n\n".join(part for part in parts if part)


def explain_prompt(
    shell: Shell, *, above: Cell | None = None, wish: str = "", named: bool = False
) -> str:
    """Return the request to explain the last error or, if there is none, the cell above.

    `above` is that cell where the notebook can be read, else the last input stands for it; where it
    is `named`, its own error counts instead. Raises `ConfigError` when there is neither.
    """
    told = True
    if named and above is not None:
        failed, told = _failure(shell, above)
    else:
        failed = last_error(shell)
    if failed is not None:
        parts = [
            "A cell failed. Explain the error: what it means, which line caused it and why, and "
            "how to mend it. Look at the variables involved if that helps; change nothing.",
            *_evidence(failed, told=told),
            wish,
        ]
        return "\n\n".join(part for part in parts if part)
    source = above.source if above is not None else _last_input(shell)
    if not source.strip():
        raise ConfigError("there is no error and no cell above to explain")
    where = f" {above.id}" if above is not None else ""
    language = "python" if above is None or above.type == "code" else "markdown"
    parts = [
        f"Explain cell{where}: what it does, step by step where it is not plain, and what one "
        "should know before relying on it. Change nothing.",
        _quoted(source, language),
        wish,
    ]
    return "\n\n".join(part for part in parts if part)


def _evidence(failed: FailedCell, *, told: bool) -> list[str]:
    """Return the failing cell and its error as quotes; `told` is what the context says anyway."""
    where = f" {failed.cell_id}" if failed.cell_id else ""
    cell = [f"Cell{where}:\n{_quoted(failed.source, 'python')}"] if failed.source.strip() else []
    if told:
        return [*cell, "The error is in the notebook context below."]
    error = "\n".join([failed.title, *failed.lines])
    return [*cell, literal(f"Error:\n{code_block(error, 'text')}")]


def _quoted(source: str, language: str) -> str:
    return literal(code_block(redact(head_tail(source.strip("\n"), SOURCE)), language))


def _last_input(shell: Shell) -> str:
    """Return the last input before the running one that was not a message to the agent."""
    history = getattr(shell.history_manager, "input_hist_raw", [])
    earlier = (source for source in reversed(history[:-1]) if source.strip())
    return next((source for source in earlier if not is_message(source)), "")
