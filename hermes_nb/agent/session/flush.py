"""Saves facts to memory before messages are dropped: one request with only the memory tool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import aclosing

from hermes_nb.agent.session.transcript import without_other_texts
from hermes_nb.context.summary import entries
from hermes_nb.core.calls import execute
from hermes_nb.core.events import UsageReported
from hermes_nb.core.messages import Message, Reply
from hermes_nb.core.protocols import ChatModel, Request
from hermes_nb.core.tools import Place, ToolContext, Toolset

Memory = Callable[[Sequence[Message]], Toolset]
"""Makes the memory tool for saving facts from these messages; the tool never asks the user."""
FLUSH = (
    "The conversation below is about to be shortened to a summary. Save with the memory tool what "
    "must outlive it and is not in memory yet: the user's wishes and corrections, lasting facts "
    "that had to be found out. No progress reports, no secrets. If there is nothing, answer "
    "`Nothing to save.`"
)
"""System prompt for the request."""
MOST_TOKENS = 24_000
"""Maximum tokens of the messages sent; longer conversations lose their less relevant parts."""
SHARE = 0.5
"""Maximum fraction of the model's context window, if the window is known."""


async def flush(
    messages: Sequence[Message], *, model: ChatModel, memory: Memory, place: Place
) -> list[UsageReported]:
    """Let the model save facts from messages that are about to be dropped; return the usage.

    The request does not become part of the conversation. Model errors are raised.

    Args:
        messages: the messages; they also decide which writes require approval
        model: the model to ask
        memory: makes the memory tool
        place: the session and notebook
    """
    tools = memory(messages).only("memory") if messages else Toolset()
    if not len(tools):
        return []
    room = MOST_TOKENS if model.window is None else min(MOST_TOKENS, int(model.window * SHARE))
    text = "\n\n".join(entries(without_other_texts(messages), (), tokens=room))
    request = Request(messages=(Message.system(FLUSH), Message.user(text)), tools=tools)
    used: list[UsageReported] = []
    async with aclosing(model.stream(request)) as stream:
        async for item in stream:
            if isinstance(item, Reply):
                used.append(UsageReported(item.usage, item.model or model.name, "memory"))
                for call in item.message.calls:
                    await execute(call, tools, ToolContext(call=call, place=place))
    return used
