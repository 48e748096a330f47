"""The conversation as a fold over events: its messages, its size and its next request.

It changes only through `Conversation.take`, or when its system prompt or preface is set.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from hermes_nb.core.events import ContextCompressed, Event, MessageAdded
from hermes_nb.core.messages import Message, Reply
from hermes_nb.core.protocols import Request
from hermes_nb.core.text import estimate_tokens
from hermes_nb.core.tools import Toolset

ToolChoice = Literal["auto", "none"]
UNVERIFIED = "no verified answer"
"""Note of a turn whose model says that it could not check its answer."""
CUT = {
    "unverified": UNVERIFIED,
    "length": "the model reached its limit for one answer",
    "filtered": "the provider withheld the rest of the answer",
}
"""Why an answer is incomplete or not verified, by the reply's `finish`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Preface:
    """Text and messages that are sent with every request but are never stored."""

    system: str = ""
    """Text appended to the system prompt."""
    prefill: tuple[Message, ...] = ()
    """Messages that precede the conversation."""

    def __add__(self, other: Preface) -> Preface:
        """Combine two prefaces, this one first."""
        system = "\n\n".join(filter(None, (self.system, other.system)))
        return Preface(system=system, prefill=(*self.prefill, *other.prefill))

    def head(self, system: str) -> tuple[Message, ...]:
        """Return the messages that start a request with this system prompt."""
        text = "\n\n".join(filter(None, (system, self.system)))
        return (*((Message.system(text),) if text else ()), *self.prefill)


class Conversation:
    """An agent's system prompt and messages."""

    def __init__(self, system: str, messages: Sequence[Message]) -> None:
        self._system = system
        self._preface = Preface()
        self._head = self._preface.head(system)
        self._messages = list(messages)
        self.ids = _ids(messages)  # ids of all tool calls so far
        self._measured = (0, 0)  # number of messages, and the provider's token count for them
        self.cut = ""  # why the last answer is incomplete

    @property
    def messages(self) -> list[Message]:
        """A copy of the messages, without the system prompt."""
        return list(self._messages)

    @property
    def last(self) -> Message:
        """The last message."""
        return self._messages[-1]

    @property
    def system(self) -> str:
        """The system prompt, or ""."""
        return self._system

    @system.setter
    def system(self, text: str) -> None:
        self._begin(text, self._preface)

    @property
    def preface(self) -> Preface:
        """Text and messages added to the next requests."""
        return self._preface

    @preface.setter
    def preface(self, preface: Preface) -> None:
        if preface != self._preface:  # keep the head's objects, which caches compare by identity
            self._begin(self._system, preface)

    def _begin(self, system: str, preface: Preface) -> None:
        self._system, self._preface = system, preface
        self._head = preface.head(system)
        self._measured = (0, 0)

    def take(self, event: Event) -> None:
        """Apply an event."""
        if isinstance(event, MessageAdded):
            self._messages.append(event.message)
            self.ids |= _ids([event.message])
        elif isinstance(event, ContextCompressed):
            self._messages = list(event.messages)
            self.ids = _ids(event.messages)
            self._measured = (0, 0)
            if event.system and event.system != self.system:
                self._begin(event.system, self._preface)

    def measure(self, reply: Reply) -> None:
        """Record why the last answer is incomplete, if it is, and the provider's token count."""
        self.cut = CUT.get(reply.finish, "")
        if reply.usage.input:
            self._measured = len(self._messages), reply.usage.input + reply.usage.output

    def tokens(self) -> int:
        """Return the size of the next prompt: the last reported size plus an estimate."""
        count, tokens = self._measured
        head = () if count else self._head
        return tokens + estimate_tokens([*head, *self._messages[count:]])

    def estimate(self, messages: Sequence[Message]) -> int:
        """Return the estimated prompt size with `messages` instead of the current ones."""
        return estimate_tokens([*self._head, *messages])

    def request(self, tools: Toolset, tool_choice: ToolChoice = "auto") -> Request:
        """Build the next request."""
        messages = (*self._head, *self._messages)
        return Request(messages=messages, tools=tools, tool_choice=tool_choice)


def _ids(messages: Iterable[Message]) -> set[str]:
    return {call.id for message in messages for call in message.calls}
