"""The toolset `mixture`: lets the conversation's model ask several models a question."""

from __future__ import annotations

from contextlib import aclosing

from hermes_nb.core.errors import HermesError, ToolError
from hermes_nb.core.events import ReasoningDelta, UsageReported
from hermes_nb.core.messages import Message, Reply
from hermes_nb.core.protocols import Request, Waited
from hermes_nb.core.tools import ToolContext, Toolset
from hermes_nb.extras.mixture.settings import PREFIX
from hermes_nb.models.consulting import heading
from hermes_nb.tools.installed import ToolsetSetup
from hermes_nb.tools.schema import tool


def mixture_tools(setup: ToolsetSetup) -> Toolset:
    """Return the tool that asks several models; empty if the settings have no mixture."""
    names = [name for name in setup.composed if name.startswith(PREFIX)]
    if not names:
        return Toolset()

    async def ask_models(context: ToolContext, question: str, mixture: str = "") -> str:
        """Have several models answer a hard question side by side, and one weigh what they say.

        Args:
            question: with all they need to know; they see nothing else and have no tools
            mixture: which group of them, the usual one if not said
        """
        name = f"{PREFIX}{mixture.removeprefix(PREFIX)}" if mixture else names[0]
        asked = Message.user(question)
        request = Request(messages=(asked,), waited=Waited())
        lines: list[str] = []
        answer = ""
        try:
            async with aclosing(setup.model(name).stream(request)) as items:
                async for item in items:
                    if isinstance(item, UsageReported):
                        context.emit(item)
                    elif isinstance(item, ReasoningDelta) and (line := heading(item.text)):
                        lines.append(line)
                        context.progress("\n".join(lines))
                    elif isinstance(item, Reply):
                        context.emit(UsageReported(item.usage, item.model, "mixture"))
                        answer = item.message.text
        except HermesError as error:
            raise ToolError(f"the models cannot be asked: {error}") from error
        return "\n\n".join([answer or "(no answer)", "\n".join(lines)]).strip()

    return Toolset([tool(toolset="mixture")(ask_models)])
