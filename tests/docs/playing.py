"""A provider on 127.0.0.1 that says what a page's directives tell it to say."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from tests.loopback import (
    Exchange,
    Loopback,
    Reply,
    chunk,
    document,
    stream,
    text_chunks,
    tool_chunks,
)

ANSWER = "Done."
"""What it says when nothing is told."""


class Playing(Loopback):
    """Answers each request with the next thing to say, and with `ANSWER` from then on."""

    def __init__(self) -> None:
        super().__init__(listing=document({"object": "list", "data": [{"id": "playing"}]}))
        self._waiting: deque[Any] = deque()

    def say(self, steps: Iterable[Any]) -> None:
        """Take these steps, in place of what is left of earlier ones."""
        self._waiting = deque(steps)

    @property
    def left(self) -> int:
        """How many steps nobody asked for."""
        return len(self._waiting)

    def take(self, exchange: Exchange) -> Reply:
        """Return the reply to a request."""
        self.exchanges.append(exchange)
        step = self._waiting.popleft() if self._waiting else ANSWER
        return stream(_chunks(step, len(self.exchanges)))


def _chunks(step: Any, number: int) -> list[dict]:
    if isinstance(step, str):
        return text_chunks(step, size=20)
    calls = step if isinstance(step, list) else [step]
    told = [
        ({**each}.pop("call"), {k: v for k, v in each.items() if k != "call"}) for each in calls
    ]
    return [chunk({"role": "assistant", "content": ""}), *tool_chunks(*told, ids=f"c{number}_")]
