"""Days, and the words people use for them: "in May 2023", "8 May", "yesterday", "2023-05-08".

Days are local ones, as the people who spoke counted them.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

_MONTHS = (
    "january february march april may june july august september october november december"
).split()
_WEEKDAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
_NUMBERS = {
    word: number
    for number, word in enumerate("zero one two three four five six seven eight nine ten".split())
} | {"a": 1, "an": 1, "couple": 2, "few": 3}
_UNITS = {"day": 1, "week": 7, "month": 30, "year": 365}

_MONTH = "(?P<month>" + "|".join(f"{name}|{name[:3]}" for name in _MONTHS) + r"|sept)\b\.?"
_YEAR = r"(?P<year>(?:19|20)\d\d)\b"
_DAY = r"(?P<day>[12]\d|3[01]|0?[1-9])(?:st|nd|rd|th)?\b"
_PATTERNS = tuple(
    re.compile(rf"\b{pattern}", re.IGNORECASE)
    for pattern in (
        rf"{_YEAR}-(?P<number>0[1-9]|1[0-2])(?:-{_DAY})?",
        rf"{_DAY}\s+(?:of\s+)?{_MONTH},?(?:\s+{_YEAR})?",
        rf"{_MONTH}\s+{_DAY}(?!\s*:),?(?:\s+{_YEAR})?",
        rf"{_MONTH},?\s+{_YEAR}",
        rf"(?:in|during|since|of|by|until|early|late|mid)[ -]+{_MONTH}",
        rf"(?:in|during|since|of|by|until|summer|winter|spring|autumn|fall)\s+{_YEAR}",
    )
)
_RELATIVE = re.compile(
    r"\b(?:(?P<name>today|tonight|yesterday)|(?P<last>last|this|past)\s+(?P<unit>week|month|year|"
    r"weekend|night|"
    + "|".join(_WEEKDAYS)
    + r")|(?:(?P<count>\d{1,3}|"
    + "|".join(_NUMBERS)
    + r")(?:\s+of)?\s+(?P<span>day|week|month|year)s?\s+ago))\b",
    re.IGNORECASE,
)

_TIME_WORDS = frozenset(
    word.encode()
    for word in (
        "today tonight yesterday tomorrow ago weekend recently earlier since week weeks month "
        "months year years summer winter spring autumn"
    ).split()
    + _MONTHS
    + _WEEKDAYS
    if word not in ("may", "march")
)
_LETTERS = bytes(n if chr(n).isalpha() else 32 for n in range(128)) + bytes(128)
_TIME_NUMBER = re.compile(r"\b(?:(?:19|20)\d\d|\d{1,2}(?:st|nd|rd|th))\b")


def has_time(text: str) -> bool:
    """Say whether a text has what the answer to "when" contains."""
    # A third of the time that an expression takes for the words.
    words = text.lower().encode("ascii", "replace").translate(_LETTERS).split()
    return not _TIME_WORDS.isdisjoint(words) or _TIME_NUMBER.search(text) is not None


@dataclass(frozen=True, slots=True)
class Span:
    """The days from `first` to `last`, both included."""

    first: dt.date
    last: dt.date

    def days(self) -> Iterator[dt.date]:
        """Yield each day."""
        for number in range(self.first.toordinal(), self.last.toordinal() + 1):
            yield dt.date.fromordinal(number)

    def months(self) -> Iterator[str]:
        """Yield each month as `202305`."""
        year, month = self.first.year, self.first.month
        while (year, month) <= (self.last.year, self.last.month):
            yield f"{year:04d}{month:02d}"
            year, month = (year, month + 1) if month < 12 else (year + 1, 1)  # noqa: PLR2004


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


def spans(text: str, today: dt.date) -> list[Span]:
    """Return the days that a text speaks of; a month without a year is the last one before today.

    `today` is what "yesterday" is relative to.
    """
    found: list[Span | None] = []
    for pattern in _PATTERNS:
        found += (_absolute(match.groupdict(), today) for match in pattern.finditer(text))
        # What the earlier, longer forms took is not read again.
        text = pattern.sub(lambda match: " " * len(match[0]), text)
    found += (_relative(match, today) for match in _RELATIVE.finditer(text))
    return [span for span in found if span]


def _absolute(parts: dict[str, str | None], today: dt.date) -> Span | None:
    month = int(parts.get("number") or 0)
    if name := parts.get("month"):
        month = next(n for n, full in enumerate(_MONTHS, 1) if full.startswith(name[:3].lower()))
    year = int(parts.get("year") or 0)
    if not year:
        year = today.year if month <= today.month else today.year - 1
    try:
        if day := int(parts.get("day") or 0):
            return Span(dt.date(year, month, day), dt.date(year, month, day))
        if month:
            return Span(dt.date(year, month, 1), _last_of_month(year, month))
        return Span(dt.date(year, 1, 1), dt.date(year, 12, 31))
    except ValueError:
        return None


def _relative(match: re.Match[str], today: dt.date) -> Span | None:
    back, width = _distance(match, today)
    try:
        middle = today - dt.timedelta(days=back)
        return Span(middle - dt.timedelta(days=width), middle + dt.timedelta(days=width))
    except OverflowError:
        return None


def _distance(match: re.Match[str], today: dt.date) -> tuple[int, int]:
    """Return how many days ago a word means, and how many days it may be off."""
    if match["name"]:
        return int(match["name"].lower() == "yesterday"), 0
    if match["count"]:
        word = match["count"].lower()
        number = int(word) if word.isdigit() else _NUMBERS[word]
        unit = _UNITS[match["span"].lower()]
        return number * unit, unit // 2
    word = match["unit"].lower()
    if word in _WEEKDAYS:
        return (today.weekday() - _WEEKDAYS.index(word) - 1) % 7 + 1, 0
    size = {"night": 1, "weekend": 5}.get(word) or _UNITS[word]
    half = size // 2
    return (half if match["last"].lower() == "this" else size), half


def _last_of_month(year: int, month: int) -> dt.date:
    following = dt.date(year + month // 12, month % 12 + 1, 1)
    return following - dt.timedelta(days=1)
