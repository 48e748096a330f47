"""What an agent and its user have said, and how big that is as a prompt.

A fold: `take` applies the events that change it, and nothing else does but a new system prompt.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hermes_nb.core.events import ContextCompressed, Event, MessageAdded
from hermes_nb.core.messages import Message, Usage
from hermes_nb.core.protocols import Request
from hermes_nb.core.text import estimate_tokens
from hermes_nb.core.tools import Toolset

ToolChoice = Literal["auto", "none"]


class Conversation:
    """The system prompt and the messages behind it."""

    def __init__(self, system: str, messages: Sequence[Message]) -> None:
        self._system = Message.system(system) if system else None
        self._messages = list(messages)
        self._measured = (0, 0)  # so many messages made a prompt of so many tokens

    @property
    def messages(self) -> list[Message]:
        """The messages without the system prompt, as a list of its own."""
        return list(self._messages)

    @property
    def last(self) -> Message:
        """The last message."""
        return self._messages[-1]

    @property
    def system(self) -> str:
        """The system prompt, "" for none."""
        return self._system.text if self._system else ""

    @system.setter
    def system(self, text: str) -> None:
        self._system = Message.system(text) if text else None
        self._measured = (0, 0)

    def take(self, event: Event) -> None:
        """Apply what an event changes."""
        if isinstance(event, MessageAdded):
            self._messages.append(event.message)
        elif isinstance(event, ContextCompressed):
            self._messages = list(event.messages)
            self._measured = (0, 0)
            if event.system and event.system != self.system:
                self._system = Message.system(event.system)

    def measure(self, usage: Usage) -> None:
        """Note what the provider counted for the request whose answer has just been taken."""
        if usage.input:
            self._measured = len(self._messages), usage.input + usage.output

    def tokens(self) -> int:
        """Return the size of the next prompt: what the provider last counted, plus an estimate."""
        count, tokens = self._measured
        head = [self._system] if self._system and not count else []
        return tokens + estimate_tokens([*head, *self._messages[count:]])

    def estimate(self, messages: Sequence[Message]) -> int:
        """Return the estimated size of the prompt that other messages would make."""
        return estimate_tokens([*([self._system] if self._system else []), *messages])

    def request(self, tools: Toolset, tool_choice: ToolChoice = "auto") -> Request:
        """Return the request that the conversation makes now."""
        head = (self._system,) if self._system else ()
        return Request(messages=(*head, *self._messages), tools=tools, tool_choice=tool_choice)
