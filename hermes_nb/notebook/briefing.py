"""The user's message: the prompt with its values filled in, and behind it what is new here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hermes_nb.core.messages import Message, Part, Text
from hermes_nb.core.protocols import Variable
from hermes_nb.notebook.context import turn_context
from hermes_nb.notebook.desk import Desk
from hermes_nb.notebook.failed import last_error
from hermes_nb.notebook.input.attachments import Attachment
from hermes_nb.notebook.input.interpolate import interpolate


class Briefing:
    """Tells each conversation about the notebook and what changed since it was told last."""

    def __init__(
        self,
        shell: Any,  # noqa: ANN401 - IPython's shell
        desk: Desk,
        variables: Callable[[], Sequence[Variable]],
    ) -> None:
        self._shell = shell
        self._desk = desk
        self._variables = variables
        self._told: dict[str, Variable] = {}
        self._told_to = ""

    async def message(
        self, prompt: str, told_to: str | None, *, pictures: Sequence[Attachment] = ()
    ) -> Message:
        """Return the message for a session; None as its id leaves out what is new here.

        Raises `ConfigError` for a value in the prompt that does not exist.
        """
        filled = interpolate(prompt, self._shell)
        # A value that is filled in is no word of the user's.
        parts: list[Part] = [Text(filled, "user" if filled == prompt else "workspace")]
        if pictures:
            names = "; ".join(f"{n}. {each.told}" for n, each in enumerate(pictures, 1))
            parts += [Text(f"[Pictures with this message: {names}]", "ours")]
            parts += [each.image for each in pictures]
        if told_to is not None and (note := await self._news(told_to)):
            parts.append(Text(note, "workspace"))
        return Message(role="user", parts=tuple(parts))

    async def draft(
        self, prompt: str, told_to: str | None, *, pictures: Sequence[Attachment] = ()
    ) -> Message:
        """Return the message as `message` would; nobody counts as told."""
        before = self._told, self._told_to
        try:
            return await self.message(prompt, told_to, pictures=pictures)
        finally:
            self._told, self._told_to = before

    async def _news(self, session_id: str) -> str:
        """Return the notebook above the running cell, and the variables that are new or other."""
        if session_id != self._told_to:  # another conversation has not been told anything yet
            self._told, self._told_to = {}, session_id
        now = {variable.name: variable for variable in self._variables()}
        fresh = [v for name, v in now.items() if self._told.get(name) != v]
        gone = [name for name in self._told if name not in now]
        self._told = now
        outline, running = await self._desk.above()
        return turn_context(
            notebook=Path(self._desk.path).name if outline else "",
            outline=outline,
            running_cell=running or None,
            variables=fresh,
            gone=gone,
            error=last_error(self._shell),
        )
