"""Undoes a session's last turn, for front ends without cells."""

from __future__ import annotations

from hermes_nb.agent.session.session import Session
from hermes_nb.agent.undo.checkpoints import Checkpoints, NothingToUndo
from hermes_nb.core.text import one_line
from hermes_nb.core.threads import in_thread


async def undo_turn(session: Session, checkpoints: Checkpoints) -> str:
    """Undo the last prompt, its answer and its file changes; return a report for the user.

    If a file has changed since, the conversation stays as it is. Raises `ConfigError` if there is
    no turn, and `SessionBusy`.
    """
    asked = session.asked()
    try:
        reports = [
            await checkpoints.undo(session.id, turn)
            for turn in await in_thread(checkpoints.since, session.id, asked.at)
        ]
    except NothingToUndo as nothing:
        return str(nothing)
    if stay := [f"{c.name} {c.text}" for report in reports for c in report.conflicts]:
        return "\n".join([*stay, "The conversation was not changed."])
    session.rewind()
    done = [f"{line.name} {line.text}" for report in reports for line in report.done]
    return "\n".join([f"Undone: {one_line(asked.message.text, 60)!r}, and its answer.", *done])
