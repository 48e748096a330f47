"""Handle failed model requests: wait and retry, or ask another model.

Both are models themselves, so the agent loop does not notice. `errors` classifies the failures.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

from hermes_nb.core.errors import FailureKind, ModelError
from hermes_nb.core.events import Delta, RequestRetried
from hermes_nb.core.messages import Reply
from hermes_nb.core.protocols import MOST_WAITED, ChatModel, Request, Waited, body_of

ELSEWHERE = frozenset(FailureKind) - {FailureKind.BAD_REQUEST, FailureKind.CONTEXT_OVERFLOW}
"""Failures for which another provider may succeed; a bad request fails everywhere."""
RETRIED = ELSEWHERE - {FailureKind.AUTH, FailureKind.QUOTA, FailureKind.NOT_FOUND}
"""Failures after which the same request may soon succeed."""

_HOUR = 3600


class Retrying:
    """A model that retries requests after temporary failures.

    A request that failed in the middle of its reply is sent again; `RequestRetried` voids the
    deltas that have already been shown. If the provider requests a delay, it is respected.

    Args:
        model: The model to ask.
        tries: Maximum number of requests, including the first.
        base: Initial wait in seconds; doubled each time, with full jitter.
        before: Called before each request; may raise an error to prevent it.
        cap: Maximum total wait per turn in seconds.
        sleep: Replaces `asyncio.sleep`.
        random: Replaces `random.random`.
    """

    def __init__(
        self,
        model: ChatModel,
        *,
        tries: int = 3,
        base: float = 1.0,
        before: Callable[[], None] | None = None,
        cap: float = MOST_WAITED,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        random: Callable[[], float] = random.random,
    ) -> None:
        self._model = model
        self._tries = max(1, tries)
        self._base = base
        self._before = before
        self._cap = cap
        self._sleep = sleep
        self._random = random

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def window(self) -> int | None:
        return self._model.window

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Reply, None]:
        waited = request.waited or Waited()
        for attempt in range(1, self._tries + 1):
            try:
                if self._before is not None:
                    self._before()
                async with aclosing(self._model.stream(request)) as items:
                    async for item in items:
                        yield item
            except ModelError as error:
                left = self._cap - waited.seconds
                if error.kind not in RETRIED:
                    raise
                if attempt == self._tries or left <= 0:
                    raise self._with_requested_wait(error) from None
                delay = min(self._delay(error, attempt), left)
                reason = str(self._with_requested_wait(error))
            else:
                return
            yield RequestRetried(reason, delay, attempt, self._model.name, self._tries)
            waited.seconds += delay
            await self._sleep(delay)

    async def aclose(self) -> None:
        await self._model.aclose()

    def body(self, request: Request) -> bytes:
        return body_of(self._model, request)

    def _with_requested_wait(self, error: ModelError) -> ModelError:
        """Return the error, with the wait that the provider asked for if it exceeds the cap."""
        asked = error.retry_after or 0.0
        if asked <= self._cap:
            return error
        wait = f"{asked / 3600:.3g} h" if asked >= _HOUR else f"{asked / 60:.3g} min"
        message = (
            f"{error}; it asks to wait {wait}, and a turn waits at most {self._cap:g} s "
            "(`max_wait`)"
        )
        return ModelError(message, kind=error.kind, retry_after=asked, window=error.window)

    def _delay(self, error: ModelError, attempt: int) -> float:
        # The exponent is bounded because a float overflows at 2**1024.
        jitter = self._random() * min(self._cap, self._base * 2.0 ** min(attempt - 1, 60))
        if error.retry_after is None:
            return jitter
        # Add some jitter, so that clients given the same wait do not all return at once.
        return min(self._cap, error.retry_after + self._random() * self._base)


class Fallback:
    """Models in order of preference: if one fails permanently, the next one is asked.

    A model that failed is asked last for some time, so that a turn with many requests does not hit
    the same failure each time. If a conversation is too long for a model, it is compressed first;
    if it is still too long, the next model may have a larger window. `window` is the context window
    of the next model to ask.

    Args:
        models: At least one model.
        rest: Seconds for which a failed model is asked last.
        clock: Monotonic clock in seconds.
        own: Number of models, from the first, to close in `aclose`; None for all.
    """

    def __init__(
        self,
        models: Sequence[ChatModel],
        *,
        rest: float = 120.0,
        clock: Callable[[], float] = time.monotonic,
        own: int | None = None,
    ) -> None:
        if not models:
            raise ValueError("a fallback needs at least one model")
        self._models = tuple(models)
        self._own = own
        self._rest = rest
        self._clock = clock
        self._resting: dict[int, float] = {}
        self._too_long: set[int] = set()

    @property
    def name(self) -> str:
        return self._order()[0].name

    @property
    def window(self) -> int | None:
        return self._order()[0].window

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Reply, None]:
        models = self._order()
        for attempt, model in enumerate(models, start=1):
            try:
                async with aclosing(model.stream(request)) as items:
                    async for item in items:
                        yield item
            except ModelError as error:
                if not self._goes_on(model, error) or attempt == len(models):
                    raise
                reason = str(error)
            else:
                self._too_long.discard(id(model))
                return
            yield RequestRetried(reason, 0.0, attempt, models[attempt].name)

    async def aclose(self) -> None:
        for model in self._models[: self._own]:
            await model.aclose()

    def body(self, request: Request) -> bytes:
        return body_of(self._order()[0], request)

    def _goes_on(self, model: ChatModel, error: ModelError) -> bool:
        """Record a failure and return whether to ask another model."""
        if error.kind is FailureKind.CONTEXT_OVERFLOW:
            again = id(model) in self._too_long
            self._too_long.add(id(model))
            return again
        if error.kind not in ELSEWHERE:
            return False
        self._resting[id(model)] = self._clock() + self._rest
        return True

    def _order(self) -> list[ChatModel]:
        """Return the models in the order in which to ask them, recently failed ones last."""
        now = self._clock()
        return sorted(self._models, key=lambda model: self._resting.get(id(model), now) > now)
