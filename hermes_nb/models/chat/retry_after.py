"""How long a provider asks to wait, from a response's headers or its text."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

LONGEST = 86_400.0
"""Seconds; what asks for more than a day is taken as a day."""

_IN_TEXT = re.compile(
    r"(?i)(?:try again in|retry in|retry after|retry_?delay\W{1,6})\s{0,2}"
    r"(?:(\d{1,4})m(?!s))?(\d{1,8}(?:\.\d{1,9})?)?(ms|s\b|seconds?\b)?"
)


def asked_delay(headers: Mapping[str, str], text: str = "") -> float | None:
    """Return the seconds from now, between 0 and a day, or None when nothing sensible was asked.

    Reads `retry-after-ms`, `retry-after` (seconds, or a date, which counts from the response's own
    `date`: the clock here may be wrong), then phrases such as "try again in 1m2.5s".
    """
    if milliseconds := headers.get("retry-after-ms"):
        delay = _seconds(milliseconds, scale=0.001)
        if delay is not None:
            return delay
    if value := headers.get("retry-after"):
        delay = _seconds(value)
        return delay if delay is not None else _until(value, headers.get("date", ""))
    found = _IN_TEXT.search(text)
    if found is None or not (found[1] or (found[2] and found[3])):
        return None
    seconds = float(found[2] or 0) * (0.001 if (found[3] or "").lower() == "ms" else 1)
    return min(float(found[1] or 0) * 60 + seconds, LONGEST)


def _seconds(value: str, *, scale: float = 1.0) -> float | None:
    try:
        seconds = float(value) * scale
    except ValueError:
        return None
    if math.isnan(seconds):
        return None
    return min(max(seconds, 0.0), LONGEST)


def _until(value: str, now: str) -> float | None:
    then = _date(value)
    if then is None:
        return None
    start = _date(now) or datetime.now(UTC)
    return min(max((then - start).total_seconds(), 0.0), LONGEST)


def _date(value: str) -> datetime | None:
    try:
        date = parsedate_to_datetime(value)
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)
