"""What a request costs, where the provider does not say it.

The prices are those of the package `genai-prices` (the extra `[prices]`), as they were when it was
installed: its data file alone is read, and its updater, which would fetch newer ones, is never
started. A price is looked up for a model *at an address*: the same name on this machine, or at a
gateway that nobody has listed, has none. What is not known is None, never 0.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace
from functools import cache
from typing import Any

from hermes_nb.core.events import Delta
from hermes_nb.core.messages import Reply, Usage
from hermes_nb.core.protocols import ChatModel, Request, body_of
from hermes_nb.models.chat.openai_chat import OPENAI

SHORT = 1_000
"""Tokens of a prompt that every provider prices at its lowest tier."""


def price(usage: Usage, model: str, base_url: str = "", *, ttl: str = "5m") -> float | None:
    """Return what a request cost in US dollars, None where that is not known.

    `base_url` is where it was sent, "" for OpenAI. `ttl` is how long what was written to the cache
    stays there, which has its price.
    """
    counts = {
        "input_tokens": usage.input,
        "output_tokens": usage.output,
        "cache_read_tokens": usage.cached,
        "cache_write_tokens": usage.written,
        "cache_write_1h_tokens": usage.written if ttl == "1h" else 0,
    }
    return _calculated({name: count for name, count in counts.items() if count}, model, base_url)


def rates(model: str, base_url: str = "") -> tuple[float, float] | None:
    """Return a model's dollars a million tokens of prompt and of answer, None if not known.

    Some charge more for long prompts; these are for short ones.
    """
    sent = _calculated({"input_tokens": SHORT}, model, base_url)
    said = _calculated({"output_tokens": SHORT}, model, base_url)
    if sent is None or said is None:
        return None
    return round(sent * 1e6 / SHORT, 6), round(said * 1e6 / SHORT, 6)


def installed() -> bool:
    """Say whether there are prices on this machine; nothing is imported for that."""
    return _found()


class Priced:
    """A model whose replies say what they cost, if the provider has not said it itself.

    The prices are read in a thread of their own while the first answer is on its way: that takes a
    third of a second.
    """

    def __init__(self, model: ChatModel, *, base_url: str = "", ttl: str = "5m") -> None:
        self._model = model
        self._base_url = base_url
        self._ttl = ttl

    @property
    def name(self) -> str:
        """The model's own name."""
        return self._model.name

    @property
    def window(self) -> int | None:
        """The model's own window."""
        return self._model.window

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Reply, None]:
        """Yield what the model yields, the reply with its cost."""
        if _found():
            _warm()
        async with aclosing(self._model.stream(request)) as items:
            async for item in items:
                yield self._with_cost(item) if isinstance(item, Reply) else item

    async def aclose(self) -> None:
        """Close the model."""
        await self._model.aclose()

    def body(self, request: Request) -> bytes:
        """Return the JSON that the model would send."""
        return body_of(self._model, request)

    def _with_cost(self, reply: Reply) -> Reply:
        if reply.usage.cost is not None:
            return reply
        for name in dict.fromkeys((reply.model, self.name)):
            cost = price(reply.usage, name, self._base_url, ttl=self._ttl) if name else None
            if cost is not None:
                return replace(reply, usage=replace(reply.usage, cost=cost))
        return reply


@cache
def _found() -> bool:
    return importlib.util.find_spec("genai_prices") is not None


@cache
def _warm() -> None:
    threading.Thread(target=_calculator, name="hermes-prices", daemon=True).start()


def _calculator() -> Any:  # noqa: ANN401 - the library is optional
    import genai_prices

    return genai_prices


def _calculated(counts: dict[str, int], model: str, base_url: str) -> float | None:
    if not _found() or not counts:
        return None
    library = _calculator()
    try:
        usage = library.Usage(**counts)
        found = library.calc_price(usage, model, provider_api_url=base_url or OPENAI)
    except (LookupError, ValueError):  # a model, an address or a kind of token without a price
        return None
    total = float(found.total_price)
    return total if total > 0 else None
