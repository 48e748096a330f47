"""When to compress, down to what size, and where the originals are.

The trigger is the provider's own count. What an engine can measure beforehand is an estimate, so
its goals are given in estimated tokens: where the provider counts twice as many, they are halved.
Positions in the session store never change, whatever a compression made of the conversation: an id
made from them is good for as long as the session is.
"""

from __future__ import annotations

import logging
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from hermes_nb.context.boundaries import LEFT_OUT, is_ours, is_shortened, position_of
from hermes_nb.core.errors import ConfigError, StoreError
from hermes_nb.core.messages import Message, Usage
from hermes_nb.core.protocols import (
    ChatModel,
    ContextEngine,
    Hit,
    Request,
    SessionStore,
    StoredMessage,
)

UNKNOWN_WINDOW = 128_000
"""What is assumed of a model whose window nobody knows; an overflow teaches better."""
HYGIENE = 0.85
"""Share of the window over which a resumed conversation is compressed before its first turn."""
_HYGIENE_MESSAGES = 4
TARGET_RATIOS = (0.10, 0.80)
_ROOM = 0.30
"""Share of the threshold for what a compression leaves besides the tail: head, summary, ledger."""
_SURELY_SENT = 4_000
"""Tokens that no provider refuses, whatever it says."""
_SENDABLE = 0.8
"""Share of a known window that a prompt may take: the rest is for tools and the answer."""
_ENDLESS = 10**9
_FUTILE = 0.10
_FUTILE_TWICE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The settings that decide when and how much to compress.

    `threshold` is a share of the window, `max_prompt_tokens` an absolute cap on it, `target_ratio`
    (0.10 to 0.80) the tail's share of the threshold. The tail has at least `protect_last_n`
    messages where they fit, the head `protect_first` with the system message. Without `automatic`
    only an overflow or the user starts a compression. Raises `ConfigError`.
    """

    threshold: float = 0.5
    max_prompt_tokens: int = 100_000
    target_ratio: float = 0.20
    protect_last_n: int = 20
    protect_first: int = 3
    automatic: bool = True

    def __post_init__(self) -> None:
        low, high = TARGET_RATIOS
        rules = (
            (0 < self.threshold <= 1, "threshold", "a share of the window, up to 1"),
            (self.max_prompt_tokens > 0, "max_prompt_tokens", "a number of tokens"),
            (low <= self.target_ratio <= high, "target_ratio", f"between {low} and {high}"),
            (self.protect_last_n >= 1, "protect_last_n", "1 or more"),
            (self.protect_first >= 0, "protect_first", "0 or more"),
        )
        for holds, name, expected in rules:
            if not holds:
                message = f"compression.{name} is {getattr(self, name)!r}; it has to be {expected}"
                raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """What a compression works towards, in estimated tokens.

    `whole` is small enough for all that is left, `hard` is what it may not exceed, save for the
    last words of both sides: these stay whole up to `ceiling`, what can be sent at all. `tail` is
    for the tail, which may grow up to `most` while it has few messages. `scale` is how many tokens
    the provider counts for an estimated one.
    """

    whole: int
    hard: int
    ceiling: int
    tail: int
    most: int
    scale: float


class Gauge:
    """Watches the size of the prompt; the smaller of the model's window and the one that is set."""

    def __init__(self, model: ChatModel | None, window: int | None, limits: Limits) -> None:
        self._model = model
        self._set = window
        self.limits = limits
        self._prompt = 0
        self._state: Literal["answered", "due", "sent"] = "answered"
        self._futile = 0

    @property
    def known(self) -> int | None:
        """The context window in tokens, None if nobody knows."""
        learnt = self._model.window if self._model is not None else None
        return min((each for each in (self._set, learnt) if each), default=None)

    @property
    def window(self) -> int:
        """The model's context window in tokens, as known now or else assumed."""
        return self.known or UNKNOWN_WINDOW

    @property
    def threshold(self) -> int:
        """The prompt tokens from which on a conversation is compressed."""
        share = int(self.limits.threshold * self.window)
        return max(1, min(share, self.limits.max_prompt_tokens))

    def observe(self, usage: Usage) -> None:
        """Take note of what a request used: a prompt under the threshold rearms the trigger."""
        self._state = "answered"
        if 0 < usage.input < self.threshold:
            self._futile = 0

    def due(self, prompt_tokens: int) -> bool:
        """Say whether a prompt is to be compressed before it is sent."""
        self._prompt = prompt_tokens
        due = prompt_tokens >= self.threshold and self.limits.automatic
        due = due and self._futile < _FUTILE_TWICE
        self._state = "due" if due else "sent"
        return due

    def aim(self, estimated: int) -> Aim:
        """Return what a conversation of so many estimated tokens should become.

        One under the threshold becomes smaller by the same share. If it was sent and got no answer,
        the provider refused it as too long, and the share is all that may be left.
        """
        prompt = max(self._prompt, estimated, 1)
        scale = prompt / max(estimated, 1)
        start, limit = min(self.threshold, prompt) / scale, self.threshold / scale
        ceiling = self.known * _SENDABLE / scale if self.known else math.inf
        if self._state == "sent":
            limit = max(start, min(limit, _SURELY_SENT))
            ceiling = min(ceiling, limit)
        ratio = self.limits.target_ratio
        share = min(0.9, ratio + _ROOM)
        return Aim(
            whole=int(start * share),
            hard=int(limit * share),
            ceiling=int(min(ceiling, _ENDLESS)),
            tail=int(start * ratio),
            most=int(limit * ratio),
            scale=scale,
        )

    def settle(self, before: int, after: int) -> None:
        """Take note of what a compression achieved: two futile ones in a row stop the trigger."""
        self._futile = self._futile + 1 if after > before * (1 - _FUTILE) else 0
        self._prompt = 0
        if self._state == "due":
            self._state = "sent"


class Gauged(ContextEngine):
    """What our engines do alike: they watch the prompt's size and know the live request.

    `gauge` is there for whoever shows it, too.
    """

    def __init__(self, model: ChatModel | None, window: int | None, limits: Limits) -> None:
        self.gauge = Gauge(model, window, limits)
        self.live: Callable[[], Request] | None = None

    def observe(self, usage: Usage) -> None:
        self.gauge.observe(usage)

    def should_compress(self, prompt_tokens: int) -> bool:
        return self.gauge.due(prompt_tokens)

    def session_started(self, session_id: str, live: Callable[[], Request]) -> None:  # noqa: ARG002 - the archive knows it
        self.live = live

    def session_ended(self) -> None:
        self.live = None


def overdue(messages: int, prompt_tokens: int, window: int | None) -> bool:
    """Say whether a resumed conversation has to be compressed before its next turn."""
    if messages < _HYGIENE_MESSAGES:
        return False
    return prompt_tokens > HYGIENE * (window or UNKNOWN_WINDOW)


logger = logging.getLogger(__name__)

Located = Mapping[int, int]
"""Positions by the `id()` of the message objects that were looked for."""


class Archive:
    """One session's rows. What cannot be read is treated as not stored."""

    def __init__(self, store: SessionStore, session_id: str) -> None:
        self.session_id = session_id
        self._store = store
        self._positions: dict[Hashable, list[int]] = defaultdict(list)
        self._copies: set[int] = set()  # rows that hold what is left of a shortened message
        self._next = 0

    def locate(self, messages: Sequence[Message]) -> dict[int, int]:
        """Return where messages are stored; those that are not stored are left out.

        The messages are a conversation, in order: of several rows that say the same, a message's
        is the first behind the row of the message before it.
        """
        self._read_on()
        found: dict[int, int] = {}
        last = -1
        for message in messages:
            rows = self._positions.get(_key(message), ())
            if not rows:
                continue
            position = position_of(message.text)
            if position not in rows:  # it is whole, or only looks as if it were not
                place = bisect_right(rows, last)
                position = rows[place] if place < len(rows) else rows[0]
            found[id(message)] = position
            last = max(last, position)
        return found

    def originals(self, messages: Sequence[Message], located: Located) -> list[Message]:
        """Return the messages as they were before anything of them was shortened."""
        wanted = {located[id(m)] for m in messages if id(m) in located and is_cut(m)}
        rows = self._rows(min(wanted), max(wanted)) if wanted else []
        whole = {row.position: row.message for row in rows if row.position in wanted}
        pairs = ((message, whole.get(located.get(id(message), -1))) for message in messages)
        return [row if row is not None and _key(row) == _key(m) else m for m, row in pairs]

    def span(self, first: int, last: int) -> list[StoredMessage]:
        """Return the rows from one position to another, without what compression put there."""
        self._read_on()
        return [
            row
            for row in self._rows(first, last)
            if not is_ours(row.message) and row.position not in self._copies
        ]

    def search(self, query: str, *, limit: int) -> list[Hit]:
        """Return where in the session a query is found, best first; raise `StoreError`."""
        return self._store.search(query, limit=limit, session_id=self.session_id)

    def containing(
        self, text: str, *, limit: int, without: Collection[int] = ()
    ) -> list[StoredMessage]:
        """Return the first rows that contain a text as it is, whatever its case.

        Those at the positions in `without` are passed over.
        """
        wanted = text.casefold()
        found: list[StoredMessage] = []
        for row in self.span(0, self._next + 1_000_000):
            if row.position not in without and wanted in everything(row.message).casefold():
                found.append(row)
                if len(found) >= limit:
                    break
        return found

    def _read_on(self) -> None:
        for row in self._rows(self._next, None):
            self._next = max(self._next, row.position + 1)
            message = row.message
            key = _key(message)
            if message.role == "tool" and is_shortened(message.text) and key in self._positions:
                self._copies.add(row.position)
            elif not is_ours(message):
                self._positions[key].append(row.position)

    def _rows(self, first: int, last: int | None) -> list[StoredMessage]:
        try:
            return self._store.rows(self.session_id, first=first, last=last)
        except StoreError:
            logger.warning("the session's rows cannot be read", exc_info=True)
            return []


def is_cut(message: Message) -> bool:
    """Say whether compression may have taken something out of a message."""
    if message.role == "tool":
        return is_shortened(message.text) or LEFT_OUT in message.text
    return LEFT_OUT in message.text or any(LEFT_OUT in c.arguments_json() for c in message.calls)


def common_size(sizes: Collection[int], room: int, low: int, high: int) -> int:
    """Return the size, from `low` to `high`, to which all are cut so that they fit into `room`."""
    while low < high:
        middle = (low + high + 1) // 2
        if sum(min(each, middle) for each in sizes) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def everything(message: Message) -> str:
    """Return all of a message's text, calls included."""
    calls = (f"{call.name} {call.arguments_json()}" for call in message.calls)
    return "\n".join([message.text, *calls] if message.text else [*calls])


def first_and_last(located: Located, messages: Iterable[Message]) -> tuple[int, int] | None:
    """Return the lowest and the highest position of messages, None where one is not stored."""
    positions = [located.get(id(message), -1) for message in messages]
    return (min(positions), max(positions)) if positions and min(positions) >= 0 else None


def _key(message: Message) -> Hashable:
    if message.role == "tool":
        return "tool", message.call_id, message.name
    if message.calls:
        return "calls", message.calls[0].id, message.calls[0].name
    return message.role, message.text, len(message.images)
