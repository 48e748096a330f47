"""When to compress, and down to what size.

The trigger is the provider's own count. What an engine can measure beforehand is an estimate, so
its goals are given in estimated tokens: where the provider counts twice as many, they are halved.
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
class CompressionLimits:
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

    def __init__(
        self, model: ChatModel | None, window: int | None, limits: CompressionLimits
    ) -> None:
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
