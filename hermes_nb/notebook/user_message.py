"""The user's message: the prompt with its values filled in, then changes in the notebook."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hermes_nb.core.messages import Image, Message, Part, Text
from hermes_nb.core.protocols import Variable
from hermes_nb.notebook.access import NotebookAccess
from hermes_nb.notebook.document.outputs import dimensions
from hermes_nb.notebook.execute.network import kernel_origin
from hermes_nb.notebook.failed_cell import last_error
from hermes_nb.notebook.interpolate import interpolate
from hermes_nb.notebook.shell import Shell
from hermes_nb.notebook.turn_context import turn_context
from hermes_nb.safety.guard import Guard
from hermes_nb.tools.mcp_tools import McpTools


@dataclass(frozen=True, slots=True)
class Attachment:
    """An image of a message."""

    name: str
    """Its name in the conversation: the expression that it was made from."""
    image: Image
    """The encoded image."""

    @property
    def told(self) -> str:
        """Its name, type and size in pixels."""
        size = dimensions(self.image.mime, self.image.data)
        pixels = f" {size[0]}x{size[1]}" if size else ""
        return f"{self.name} ({self.image.mime}{pixels})"


class UserMessageBuilder:
    """Builds the messages of each session, with changes in the notebook since the last one.

    It remembers which variables the model has been sent, for one session at a time.
    """

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
        """Return the message for a session.

        Raises `ConfigError` for a value in the prompt that does not exist.

        Args:
            prompt: the text as typed
            told_to: id of the session; None leaves out the changes in the notebook
            pictures: images to attach
            window: the model's context window in tokens, which limits what `@` references attach;
                None
                if unknown
        """
        filled = interpolate(prompt, self._shell)
        # Values that are filled in do not count as the user's words.
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
        """Return the attachments of a prompt, and show the user a list of them."""
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
        """Return what `message` would, without marking the changes as sent."""
        before = self._told, self._told_to
        try:
            return await self.message(prompt, told_to, pictures, window)
        finally:
            self._told, self._told_to = before

    async def _news(self, session_id: str) -> Text:
        """Return the notebook above the running cell, and the variables that are new or changed."""
        if session_id != self._told_to:  # this session has not been sent any variables yet
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
