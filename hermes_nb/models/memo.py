"""Remember what was made from a message object for as long as the object lives."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from hermes_nb.core.messages import Message

Made = TypeVar("Made")


class Memo(Generic[Made]):
    """Maps a message, by identity, and a variant to a value that is made once."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, Hashable], tuple[weakref.ref[Message], Made]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, message: Message, make: Callable[[], Made], variant: Hashable = None) -> Made:
        """Return the value for `message`, made by `make` the first time."""
        key = id(message), variant
        kept = self._kept.get(key)
        if kept is not None and kept[0]() is message:
            return kept[1]
        value = make()
        # An id is used again once its object is gone; by then the callback has dropped the entry.
        self._kept[key] = weakref.ref(message, lambda _: self._kept.pop(key, None)), value
        return value
