"""Decide when to compress a conversation, and to what size.

The trigger is the token count that the provider reports. Before a request, only an estimate is
known, so targets are in estimated tokens: if the provider counts twice as many, the targets are
halved.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.messages import Usage
from hermes_nb.core.protocols import ChatModel, ContextEngine, Request

UNKNOWN_WINDOW = 128_000
"""Assumed context window of an unknown model, in tokens. An overflow error corrects it."""
HYGIENE = 0.85
"""Fraction of the context window above which a resumed conversation is compressed before its first
turn."""
_HYGIENE_MESSAGES = 4
TARGET_RATIOS = (0.10, 0.80)
"""Allowed range of `CompressionLimits.target_ratio`."""
_ROOM = 0.30
"""Fraction of the threshold for head, summary and ledger (all but the tail) after a compression."""
_LEDGER = 0.25
"""Maximum fraction of the threshold for the ledger."""
_SURELY_SENT = 4_000
"""Prompt size in tokens that every provider accepts, whatever it reports."""
_SENDABLE = 0.8
"""Maximum fraction of a known context window for the messages; the rest is for tools and the
answer."""
_ENDLESS = 10**9
_FUTILE = 0.10
_FUTILE_TWICE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressionLimits:
    """Settings that control when and how much to compress.

    Raises `ConfigError` for invalid values.
    """

    threshold: float = 0.5
    """Prompt size that triggers a compression, as a fraction of the context window (0 to 1)."""
    max_prompt_tokens: int = 100_000
    """Upper limit of that prompt size, in tokens."""
    target_ratio: float = 0.20
    """Size of the uncompressed tail, as a fraction of the threshold (0.10 to 0.80)."""
    protect_last_n: int = 20
    """Minimum number of messages in the tail, if they fit."""
    protect_first: int = 3
    """Number of protected messages at the start, including the system message."""
    automatic: bool = True
    """Whether to compress at the threshold; if not, only after an overflow or on request."""

    def __post_init__(self) -> None:
        low, high = TARGET_RATIOS
        rules = (
            (
                0 < self.threshold <= 1,
                "threshold",
                "a fraction of the context window, above 0 and at most 1",
            ),
            (self.max_prompt_tokens > 0, "max_prompt_tokens", "a positive number of tokens"),
            (low <= self.target_ratio <= high, "target_ratio", f"between {low} and {high}"),
            (self.protect_last_n >= 1, "protect_last_n", "1 or more"),
            (self.protect_first >= 0, "protect_first", "0 or more"),
        )
        for holds, name, expected in rules:
            if not holds:
                message = f"compression.{name} is {getattr(self, name)!r}; it must be {expected}"
                raise ConfigError(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Aim:
    """Target sizes for a compression, in estimated tokens."""

    whole: int
    """Desired size of the whole conversation."""
    hard: int
    """Maximum size; only the user's and the assistant's last messages may exceed it."""
    ceiling: int
    """Maximum size that can be sent. The user's and the assistant's last messages are kept whole up
    to this size."""
    ledger: int
    """Maximum size of the ledger."""
    tail: int
    """Size of the tail."""
    most: int
    """Maximum size of the tail while it has fewer than `protect_last_n` messages."""
    scale: float
    """Tokens counted by the provider per estimated token."""


class Gauge:
    """Tracks the prompt size relative to the smaller of the model's and the configured window."""

    def __init__(
        self, model: ChatModel | None, window: int | None, limits: CompressionLimits
    ) -> None:
        self._model = model
        self._set = window
        self.limits = limits
        self._prompt = 0
        self._state: Literal["answered", "due", "sent"] = "answered"
        self._futile = 0

    @property
    def known(self) -> int | None:
        """The context window in tokens; None if unknown."""
        learnt = self._model.window if self._model is not None else None
        return min((each for each in (self._set, learnt) if each), default=None)

    @property
    def window(self) -> int:
        """The context window in tokens, or UNKNOWN_WINDOW."""
        return self.known or UNKNOWN_WINDOW

    @property
    def threshold(self) -> int:
        """Prompt size that triggers a compression, in tokens."""
        share = int(self.limits.threshold * self.window)
        return max(1, min(share, self.limits.max_prompt_tokens))

    def observe(self, usage: Usage) -> None:
        """Record a request's usage; a prompt below the threshold re-enables the trigger."""
        self._state = "answered"
        if 0 < usage.input < self.threshold:
            self._futile = 0

    def due(self, prompt_tokens: int) -> bool:
        """Return whether to compress a prompt of this size before sending it."""
        self._prompt = prompt_tokens
        due = prompt_tokens >= self.threshold and self.limits.automatic
        due = due and self._futile < _FUTILE_TWICE
        self._state = "due" if due else "sent"
        return due

    def aim(self, estimated: int) -> Aim:
        """Return the target sizes for a conversation of `estimated` tokens.

        A conversation below the threshold shrinks by the same ratio as one above it. If it was sent
        but not answered, the provider rejected it as too long, and that fraction becomes the
        maximum size.
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
            ledger=int(limit * _LEDGER),
            tail=int(start * ratio),
            most=int(limit * ratio),
            scale=scale,
        )

    def settle(self, before: int, after: int) -> None:
        """Record the sizes before and after a compression; two useless ones disable the trigger."""
        self._futile = self._futile + 1 if after > before * (1 - _FUTILE) else 0
        self._prompt = 0
        if self._state == "due":
            self._state = "sent"


class Gauged(ContextEngine):
    """Base class for the built-in engines: tracks the prompt size and the live request."""

    def __init__(
        self, model: ChatModel | None, window: int | None, limits: CompressionLimits
    ) -> None:
        self.gauge = Gauge(model, window, limits)  # also read for display
        self.live: Callable[[], Request] | None = None

    def observe(self, usage: Usage) -> None:
        self.gauge.observe(usage)

    def should_compress(self, prompt_tokens: int) -> bool:
        return self.gauge.due(prompt_tokens)

    def session_started(self, session_id: str, live: Callable[[], Request]) -> None:  # noqa: ARG002 - the archive has it
        self.live = live

    def session_ended(self) -> None:
        self.live = None


def overdue(messages: int, prompt_tokens: int, window: int | None) -> bool:
    """Return whether to compress a resumed conversation before its next turn."""
    if messages < _HYGIENE_MESSAGES:
        return False
    return prompt_tokens > HYGIENE * (window or UNKNOWN_WINDOW)
