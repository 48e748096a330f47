"""Read token counts from the usage objects that providers send.

Fields: OpenAI and compatible (`prompt_tokens`, `prompt_tokens_details.cached_tokens`), Anthropic
(`cache_read_input_tokens`, `cache_creation_input_tokens`, by lifetime in `cache_creation`),
DeepSeek (`prompt_cache_hit_tokens`), Moonshot (`cached_tokens`), Qwen (Anthropic's names among the
details), OpenRouter (`cache_write_tokens` among the details, `cost` in US dollars), as of 2026-11.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hermes_nb.core.messages import Usage

_APART = ("cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation")


_MOST = 10**12
"""No request has more tokens, or costs more; a store could not keep just any number."""


def read_usage(usage: Mapping[str, Any]) -> Usage:
    """Return one request's usage; what is missing or no sensible number counts as 0."""
    prompt = _details(usage, "prompt_tokens_details", "input_tokens_details")
    output = _details(usage, "completion_tokens_details", "output_tokens_details")
    cached = max(
        _count(prompt, "cached_tokens", "cache_read_tokens"),
        _count(usage, "cache_read_input_tokens", "prompt_cache_hit_tokens", "cached_tokens"),
    )
    written = max(
        _count(
            prompt, "cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens"
        ),
        _count(usage, "cache_creation_input_tokens"),
        _sum(usage.get("cache_creation")),
    )
    prompted = _count(usage, "prompt_tokens")
    total = prompted or _count(usage, "input_tokens")
    # Anthropic's own form counts what is neither read from the cache nor written to it. A gateway
    # that hands that on under OpenAI's names shows when the parts are more than the whole.
    own = not prompted and any(name in usage for name in _APART)
    if own or cached + written > total:
        total += cached + written
    return Usage(
        input=total,
        output=_count(usage, "completion_tokens", "output_tokens"),
        cached=cached,
        written=written,
        reasoning=_count(output, "reasoning_tokens") or _count(usage, "reasoning_tokens"),
        requests=1,
        cost=_price(usage.get("cost")),
    )


def _details(usage: Mapping[str, Any], *names: str) -> Mapping[str, Any]:
    found = (usage.get(name) for name in names)
    return next((value for value in found if isinstance(value, Mapping)), {})


def _count(usage: Mapping[str, Any], *names: str) -> int:
    for name in names:
        value = usage.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return min(max(0, value), _MOST)
        if isinstance(value, float):
            return int(min(max(0.0, value), _MOST)) if math.isfinite(value) else 0
    return 0


def _sum(parts: object) -> int:
    """Return the sum of an object's counts, as of cache entries by lifetime."""
    return sum(_count(parts, name) for name in parts) if isinstance(parts, Mapping) else 0


def _price(value: object) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value <= _MOST else None
