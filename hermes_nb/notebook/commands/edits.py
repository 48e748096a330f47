"""`%hermes undo`, `redo`, `retry` and `diff`: undo, redo, repeat or show a turn's changes."""

from __future__ import annotations

import os
import time
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from hermes_nb.agent.undo.undo import NothingToUndo, UndoLine, UndoReport, VariablesRestored
from hermes_nb.core.errors import ConfigError, ToolError
from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Text
from hermes_nb.core.text import number_of, one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.notebook.display.changes import diff_bundle
from hermes_nb.notebook.display.views import show
from hermes_nb.notebook.document.document import NotebookDocument
from hermes_nb.notebook.document.undo import DocumentRestorer, KeptDocument
from hermes_nb.notebook.execute.variable_changes import changes, not_saved
from hermes_nb.notebook.execute.variable_history import CELLS, VariableHistory, history_of
from hermes_nb.notebook.interpolate import literal
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.safety.markup import code_span, escape
from hermes_nb.safety.redact import redact

SHOWN_DIFF = 40_000
"""Maximum characters of a diff."""
SHOWN_LINES = 40
"""Maximum items of each kind in a report."""
NAMESPACE = "Variables keep their current values."
NO_SESSION = "Hermes has changed nothing in this notebook yet. Send a prompt in a `%%hermes` cell."


async def undo(agent: KernelAgent, given: Namespace) -> str:
    """Undo a turn's changes to files, cells and variables, and return a report in Markdown.

    The turn belongs to the current session, or to the session after the word `of`. With `--to`,
    undo all turns after that one. Without a number, undo the last change, even if another program
    made it.
    """
    if given.checkpoint:
        return _cell_undone(history_of(agent.shell), force=given.force)
    last = given.turn == "" and given.to is None
    if not (session := given.of or _session_id(agent, guests=last)):
        return NO_SESSION
    checkpoints, history = agent.access.checkpoints, history_of(agent.shell)
    turns: list[int | None] = [None if given.turn == "" else given.turn]
    if given.to is not None:
        if given.turn != "":
            raise ConfigError("give a turn, or `--to` and a turn, not both")
        turns = [n for n in await in_thread(checkpoints.since, session, 0.0) if n > given.to]
        if not turns:
            raise NothingToUndo(f"no turn after turn {given.to} has changes to undo")
    restorer = restorer_of(agent, variables=None if given.keep_variables else history)
    shown: list[str] = []
    unknown = given.keep_variables
    for turn in turns:
        known = history.turns(session)
        report = await checkpoints.undo(session, turn, restorer=restorer, force=given.force)
        whose = session if session in agent.guests else ""
        shown.append(_shown(report, force=given.force, whose=whose))
        unknown = unknown or report.turn not in known
    return "\n\n".join([*shown, *([NAMESPACE] if unknown else [])])


async def redo(agent: KernelAgent, given: Namespace) -> str:
    """Make the changes of an undone turn again, and return a report in Markdown.

    Without a number, redo the turn that the last undo is about.
    """
    if not (session := given.of or _session_id(agent, guests=False)):
        return NO_SESSION
    history = history_of(agent.shell)
    known = history.turns(session)
    report = await agent.access.checkpoints.undo(
        session,
        None if given.turn == "" else given.turn,
        restorer=restorer_of(agent, variables=history),
        force=given.force,
        redo=True,
    )
    shown = _shown(report, force=given.force, command="redo")
    return shown if report.turn in known else f"{shown}\n\n{NAMESPACE}"


def _cell_undone(history: VariableHistory, *, force: bool) -> str:
    """Restore the variables that the last cell with `%%checkpoint` changed."""
    cells = [count for count in history.turns(CELLS) if history.changes(CELLS, count)]
    if not cells:
        raise NothingToUndo("no cell with `%%checkpoint` has changed variables that are saved")
    report = history.undo(CELLS, cells[-1], force=force)
    return _blocks("**The last checkpoint**", report, "variables", "undo checkpoint", force=force)


def restorer_of(agent: KernelAgent, *, variables: VariableHistory | None) -> DocumentRestorer:
    """Return what `Checkpoints.undo` restores this notebook's cells and the variables with."""

    async def document_of(key: str) -> NotebookDocument:
        document = await agent.document()
        if key not in (agent.notebook, document.way):
            raise ToolError(
                f"it is another notebook; run `%hermes undo` in {Path(key).name} for its cells"
            )
        # Use the inner document, which does not record the undo itself as one of the turn's
        # changes.
        return document.inner if isinstance(document, KeptDocument) else document

    return DocumentRestorer(document_of, variables=variables.undo if variables else None)


async def retry(agent: KernelAgent, given: Namespace) -> str:
    """Undo the last turns and their changes, and resend the first of their prompts.

    With `edit`, the prompt is inserted into a new cell below instead. If undoing would overwrite
    later changes, the turns stay in the conversation.
    """
    turns = 1 if given.turns == "" else given.turns
    session = agent.session or agent.resume()
    asked = session.asked(turns)
    if asked.message.images and not given.edit:
        again = "`%hermes retry edit` undoes the turn and puts the prompt into a new cell"
        raise ConfigError(f"the images of that prompt are not saved; {again}")
    checkpoints, force = agent.access.checkpoints, given.force
    restorer = restorer_of(agent, variables=history_of(agent.shell))
    reports = [
        await checkpoints.undo(session.id, turn, restorer=restorer, force=force)
        for turn in await in_thread(checkpoints.since, session.id, asked.at)
    ]
    parts = [_shown(each, force=force, command="retry") for each in reports]
    if any(each.conflicts for each in reports) and not force:
        return "\n\n".join([*parts, "The conversation stays as it is."])
    first = next(iter(session.rewind(turns).parts))
    prompt = first.text if isinstance(first, Text) else ""
    for line in parts:
        agent.note(line)
    if not given.edit:
        await agent.ask(literal(prompt))
        return ""
    agent.shell.set_next_input(f"%%hermes\n{literal(prompt)}")
    return f"{number_of(turns, 'turn')} taken back; the prompt is offered below."


async def diff(agent: KernelAgent, given: Namespace) -> str:
    """Show a turn's changes to files, cells and variables; return a message if it made none."""
    turn = None if given.turn == "" else given.turn
    if not (session := _session_id(agent, guests=turn is None)):
        return NO_SESSION
    checkpoints = agent.access.checkpoints
    try:
        changed = await in_thread(checkpoints.changes, session, turn, root=_here())
        number: int = await in_thread(checkpoints.latest, session) if turn is None else turn
    except NothingToUndo as nothing:
        return escape(str(nothing))
    changed += [each.as_change() for each in changes(agent.shell, session, number)]
    changed += not_saved(agent.shell, session, number)
    if not changed:
        return "That turn left files, cells and variables as they were."
    show(diff_bundle(changed, SHOWN_DIFF))
    return ""


def _session_id(agent: KernelAgent, *, guests: bool) -> str:
    """Return the id of the current session, or of the notebook's last one; "" if it has none.

    With `guests`, return that of another program if it made the last change.
    """
    if agent.session is not None:
        own = agent.session.id
    else:
        notebook = agent.notebook
        latest = agent.store.sessions(notebook=notebook, limit=1) if notebook else []
        own = latest[0].id if latest else ""
    if not (guests and agent.guests):
        return own
    return max([own, *agent.guests], key=agent.access.checkpoints.newest)


def _shown(report: UndoReport, *, force: bool, command: str = "undo", whose: str = "") -> str:
    when = time.strftime("%H:%M", time.localtime(report.when))
    title = f"**Turn {report.turn}**{f' of {code_span(whose)}' if whose else ''} ({when})"
    return _blocks(title, report, "files and cells", command, force=force)


def _blocks(
    title: str, report: UndoReport | VariablesRestored, what: str, command: str, *, force: bool
) -> str:
    blocks: list[str] = []
    done = "redone" if command == "redo" else "undone"
    if report.done:
        blocks.append(f"{title} is {done}:\n\n{_listed(report.done)}")
    elif report.conflicts:
        blocks.append(f"{title}: nothing was {done}.")
    else:
        side = "after" if done == "redone" else "before"
        verb = command.partition(" ")[0]
        blocks.append(f"{title}: nothing to {verb}, {what} are as they were {side} it.")
    if report.conflicts:
        again = "" if force else f" `%hermes {command} --force` overwrites what was changed since."
        blocks.append(f"Left alone:{again}\n\n{_listed(report.conflicts)}")
    if report.notes:
        notes = "\n".join(f"- {escape(_clean(note))}" for note in report.notes[:SHOWN_LINES])
        blocks.append(f"Not covered:\n\n{notes}")
    return "\n\n".join(blocks)


def _listed(lines: Sequence[UndoLine]) -> str:
    shown = [f"- {code_span(_name(line.name))} {escape(_clean(line.text))}" for line in lines]
    if len(shown) > SHOWN_LINES:
        shown[SHOWN_LINES:] = [f"- … and {len(lines) - SHOWN_LINES} more"]
    return "\n".join(shown)


def _name(path: str) -> str:
    """Return a path for display, relative to the working directory if inside it."""
    inside = Path(path).is_relative_to(_here())
    return visible(Path(path).relative_to(_here()).as_posix() if inside else path)


def _here() -> Path:
    return Path(os.path.realpath(os.curdir))


def _clean(text: str) -> str:
    return visible(redact(one_line(text, 300)))
