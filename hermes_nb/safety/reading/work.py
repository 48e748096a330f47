"""How much dear work a text may cause, counted and not timed: the same text gets as far everywhere.

Most of a scan is a few fast passes over the text. What is dear are words that may be disguised,
chunks that may be things, signs whose surroundings are read, what is decoded: an honest text takes
half of what is allowed for at most, a flood any number. What a text has beyond that is read by the
fast passes alone, and `too_dense` in the findings says from where on.
"""

from __future__ import annotations

from contextvars import ContextVar

from hermes_nb.safety.reading.characters import characters, counted, ideograph

CHUNK = 65_536
"""Characters for which the following are allowed; a shorter text is allowed them as well."""
UNITS = 24_000
"""Units of about 1 µs of CPU."""
LETTERS = 500
"""Characters that differ from each other, other than ASCII, ideographs and syllables."""
IDEOGRAPHS = 5_000
"""Ideographs and syllables that differ from each other."""


class Work:
    """What one scan has left, and where the first thing stands that nothing was left for."""

    def __init__(self, size: int, *, part: int = 1) -> None:
        """Allow for a text of a size in characters; `part` is what all of it is divided by."""
        chunks = max(1, -(-size // CHUNK))
        self.allowed = UNITS * chunks // part
        self.letters = LETTERS * chunks // part
        self.ideographs = IDEOGRAPHS * chunks // part
        self.spent = 0
        self._skipped: int | None = None

    def spend(self, units: int) -> bool:
        """Take units for a piece of work; say False, and take none, where they are not left."""
        if self.spent + units > self.allowed:
            return False
        self.spent += units
        return True

    def skip(self, place: int) -> None:
        """Note that what stands at a place of the text in hand is not read closely."""
        self._skipped = place if self._skipped is None else min(place, self._skipped)

    def skipped(self) -> int | None:
        """Return the first place that was skipped since this was last asked."""
        place, self._skipped = self._skipped, None
        return place


WORK: ContextVar[Work | None] = ContextVar("WORK", default=None)
"""What the scan in progress has left; without one nothing is counted."""
_BLOCK = 1_024
_FEW, _SAMPLE = 100, 4_096
"""Characters that are replaced one by one, and how much is looked at first for whether there are
more of them."""


def bounded(text: str, work: Work) -> str:
    """Return a text with blanks for what it has too many different characters of.

    What is kept stays in its place. Of a text that goes on with ever new characters, only ASCII is
    kept from there on, its question marks as full stops.
    """
    if text.isascii() or len(characters(text)) <= min(work.letters, work.ideographs):
        return text
    known: set[str] = set()
    letters, ideographs = work.letters, work.ideographs
    for start in range(0, len(text), _BLOCK):
        block = text[start : start + _BLOCK]
        new = set(block) - known
        more = counted(new)
        if more[0] > letters or more[1] > ideographs:
            end = start + _within(block, known, letters, ideographs)
            work.skip(end)
            return text[:end] + _blanked(text[end:], known.union(block[: end - start]))
        letters, ideographs = letters - more[0], ideographs - more[1]
        known |= new
    return text


def _within(block: str, known: set[str], letters: int, ideographs: int) -> int:
    """Return where the first character stands that is one too many."""
    seen = set(known)
    for place, sign in enumerate(block):
        if sign in seen:
            continue
        seen.add(sign)
        if ideograph(sign):
            ideographs -= 1
        elif sign > "\x7f":
            letters -= 1
        if letters < 0 or ideographs < 0:
            return place
    return len(block)


def _blanked(text: str, known: set[str]) -> str:
    """Return a text with a blank for each character that is neither ASCII nor a known one."""
    others = set(text[:_SAMPLE]) - known
    if len(others) <= _FEW:
        others = set(text) - known
    if len(others) > _FEW:
        plain = text.replace("?", ".").encode("ascii", "replace")
        return plain.replace(b"?", b" ").decode("ascii")
    for sign in others:
        text = text if sign < "\x80" else text.replace(sign, " ")
    return text
