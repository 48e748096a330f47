"""The parts of a session's next request, with estimated tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from hermes_nb.agent.session.session import Session
from hermes_nb.context.boundaries import cells_in
from hermes_nb.core.json_values import canonical_json
from hermes_nb.core.messages import Message
from hermes_nb.core.text import CHARACTERS_PER_TOKEN, JSON_CHARACTERS_PER_TOKEN, estimate_tokens
from hermes_nb.core.tools import Toolset
from hermes_nb.models.profiles import traits_of

Kind = Literal["prompt", "tools", "conversation"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """A part of the next request."""

    name: str
    """The part's name, for display."""
    kind: Kind
    """The group to which it belongs."""
    tokens: int
    """Estimated number of tokens."""
    text: str = ""
    """The text of a layer in the system prompt, or "" for other parts."""


def shares(session: Session) -> list[Share]:
    """Return the parts of a session's next request, in the order in which they are sent."""
    found = [
        Share(name=layer.name, kind="prompt", tokens=text_tokens(layer.text), text=layer.text)
        for layer in session.prompt.layers
    ]
    tools = traits_of(session.agent.model).offered(session.agent.tools)
    if len(tools):
        name = f"{len(tools)} tool schemas"
        found.append(Share(name=name, kind="tools", tokens=schema_tokens(tools)))
    return found + _conversation(session.agent.messages)


def size(session: Session) -> tuple[int, bool]:
    """Return the number of tokens in the next prompt, and whether the provider counted most of it.

    Before the first count, return the sum of the estimated parts, because the agent's own estimate
    leaves out the tools' schemas.
    """
    agent = session.agent
    head = [Message.system(agent.system)] if agent.system else []
    known = agent.prompt_tokens()
    if known != estimate_tokens([*head, *agent.messages]):
        return known, True
    return sum(share.tokens for share in shares(session)), False


def text_tokens(text: str) -> int:
    """Return the estimated number of tokens in a text."""
    return round(len(text) / CHARACTERS_PER_TOKEN)


def schema_tokens(tools: Toolset) -> int:
    """Return the estimated number of tokens in the tools' schemas."""
    parts = [
        {"name": t.name, "description": t.description, "parameters": t.parameters} for t in tools
    ]
    return round(len(canonical_json(parts)) / JSON_CHARACTERS_PER_TOKEN)


def _conversation(messages: Sequence[Message]) -> list[Share]:
    said = [m for m in messages if m.role == "user"]
    cells = sum(text_tokens(cells_in(message)) for message in said)
    sizes = {
        "your messages": estimate_tokens(said) - cells,
        "the notebook's cells": cells,
        "answers and calls": estimate_tokens([m for m in messages if m.role == "assistant"]),
        "tool results": estimate_tokens([m for m in messages if m.role == "tool"]),
    }
    return [
        Share(name=name, kind="conversation", tokens=tokens)
        for name, tokens in sizes.items()
        if tokens
    ]
