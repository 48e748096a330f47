"""The user's message: the prompt with its values filled in, then changes in the notebook."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_nb.core.messages import Message, Part, Text
from hermes_nb.core.protocols import Variable
from hermes_nb.notebook.access import NotebookAccess
from hermes_nb.notebook.execute.network import kernel_origin
from hermes_nb.notebook.failed_cell import last_error
from hermes_nb.notebook.interpolate import interpolate
from hermes_nb.notebook.shell import Shell
from hermes_nb.notebook.turn_context import turn_context
from hermes_nb.notebook.variables import variables_of
from hermes_nb.safety.guard import Guard
from hermes_nb.tools.mcp_tools import McpTools

if TYPE_CHECKING:
    from hermes_nb.notebook.turn import TurnEnv


class UserMessageBuilder:
    """Builds the messages of each session, with changes in the notebook since the last one.

    It remembers which variables the model has been sent, for one session at a time.
    """

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
        self._told: dict[str, Variable] = {}
        self._told_to = ""

    async def message(self, prompt: str, env: TurnEnv) -> Message:
        """Return the message of a turn for the prompt as typed.

        A dry run does not mark the changes in the notebook as sent. Raises `ConfigError` for a
        value in the prompt that does not exist.
        """
        before = self._told, self._told_to
        try:
            return await self._built(prompt, env)
        finally:
            if env.options.dry_run:
                self._told, self._told_to = before

    async def _built(self, prompt: str, env: TurnEnv) -> Message:
        filled = interpolate(prompt, self._shell)
        # Values that are filled in do not count as the user's words.
        parts: list[Part] = [Text(filled, "user" if filled == prompt else kernel_origin())]
        if env.pictures:
            names = "; ".join(f"{n}. {each.told}" for n, each in enumerate(env.pictures, 1))
            parts += [Text(f"[Pictures with this message: {names}]", "ours")]
            parts += [each.image for each in env.pictures]
        if "@" in prompt:
            parts += await self._named(prompt, env)
        if env.options.context and (note := await self._news(env)).text:
            parts.append(note)
        return Message(role="user", parts=tuple(parts))

    async def _named(self, prompt: str, env: TurnEnv) -> list[Part]:
        """Return the attachments of a prompt, and show the user a list of them."""
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
        """Return the notebook above the running cell, and the variables that are new or changed."""
        if env.site.session != self._told_to:  # this session was not sent any variables yet
            self._told, self._told_to = {}, env.site.session
        now = {variable.name: variable for variable in variables_of(self._shell)}
        fresh = [v for name, v in now.items() if self._told.get(name) != v]
        gone = [name for name in self._told if name not in now]
        self._told = now
        outline, running, foreign = await self._access.above(env.site)
        text = turn_context(
            notebook=Path(self._access.path).name if outline else "",
            outline=outline,
            running_cell=running or None,
            variables=fresh,
            gone=gone,
            error=last_error(self._shell),
        )
        return Text(text, "outside" if foreign else kernel_origin())
