"""Tokens and money as a person reads them."""

from __future__ import annotations

from hermes_nb.core.budget import dollars
from hermes_nb.core.messages import Usage
from hermes_nb.core.text import number_of

ROUNDS_UP = 0.99995
"""999,950 tokens are 1.0M, not 1000.0k."""


def amount(tokens: int) -> str:
    """Return a token count: 640, 14.7k, 1.2M."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if tokens >= size * ROUNDS_UP:
            return f"{tokens / size:.1f}{unit}"
    return str(tokens)


def used(usage: Usage) -> list[str]:
    """Return what requests used, part by part; a price that is not known is left out."""
    if not usage.requests:
        return []
    told = [number_of(usage.requests, "request")]
    if usage.input:
        share = f" ({round(100 * usage.cached / usage.input)} % cached)" if usage.cached else ""
        told += [f"{amount(usage.input)} in{share}", f"{amount(usage.output)} out"]
    if usage.cost is not None:
        told.append(dollars(usage.cost))
    return told
