"""Days, as the marks of the index have them; local ones, as the people who spoke counted them."""

from __future__ import annotations

import datetime as dt
from functools import lru_cache


def day_of(at: float) -> dt.date | None:
    """Return the local day of a time in seconds since the epoch; None where there is no such."""
    try:
        return _day_of_quarter(int(at // _QUARTER)) or _local(at)
    except (OverflowError, OSError, ValueError):
        return None


def digits(day: dt.date) -> str:
    """Return a day as `20230508`."""
    return f"{day.year:04d}{day.month:02d}{day.day:02d}"


_QUARTER = 900


@lru_cache(maxsize=64)
def _day_of_quarter(number: int) -> dt.date | None:
    """Return the day of a quarter of an hour, counted from the epoch; None if it has two.

    Those who are asked for one after the other are mostly in one.
    """
    day = _local(number * _QUARTER)
    return day if day == _local(number * _QUARTER + _QUARTER - 1) else None


def _local(at: float) -> dt.date:
    return dt.datetime.fromtimestamp(at, tz=dt.UTC).astimezone().date()
