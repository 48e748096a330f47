"""What the user adds to a prompt while its turn is running."""

from __future__ import annotations

import threading

from hermes_nb.core.messages import Message

ADDED = "[The user adds, while you work:]\n"
"""Start of such a message in the conversation."""


class Steering:
    """The texts that a turn has yet to pass to its model; any thread may add some."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._texts: list[str] = []
        self._closed = False

    def add(self, text: str) -> bool:
        """Add a text; return False if the turn makes no more requests."""
        with self._lock:
            if not self._closed:
                self._texts.append(text)
            return not self._closed

    def take(self) -> list[str]:
        """Return the texts added so far, and forget them."""
        with self._lock:
            taken, self._texts = self._texts, []
        return taken

    def finished(self) -> bool:
        """Accept no more texts, unless some are left; return whether none are."""
        with self._lock:
            self._closed = not self._texts
            return self._closed

    def close(self) -> list[str]:
        """Accept no more texts; return those that are left."""
        with self._lock:
            self._closed = True
        return self.take()


def steered(texts: list[str]) -> Message:
    """Return the user's message with the texts that were added."""
    return Message.user(ADDED + "\n\n".join(texts))


def added_by(message: Message) -> str | None:
    """Return the text that such a message adds; None for any other message."""
    if message.role != "user" or not message.text.startswith(ADDED):
        return None
    return message.text.removeprefix(ADDED)
