"""Which of many patterns a text can hold at all: those of which it has a needed part.

Asking for three hundred parts one by one is most of what looking at a short text costs. Nearly all
of them have a rare sign in them (`$`, `|`, `(`, a `w`), so the parts are asked for by their rarest
signs, and only those whose sign is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

_COMMON = " etaoinsrhdlucmfpgwybvkxqjz"
"""Signs by how common they are; those that are not in it are rarer."""


class Needs:
    """The parts that patterns need, one of several each; they are in lower case."""

    def __init__(self, needs: Sequence[Sequence[str]]) -> None:
        """Take what each pattern needs; one that needs nothing is always there."""
        self._always = [number for number, parts in enumerate(needs) if not parts]
        self._numbers: dict[str, list[int]] = {}
        for number, parts in enumerate(needs):
            for part in parts:
                self._numbers.setdefault(part, []).append(number)
        groups: dict[str, list[str]] = {}
        for part in self._numbers:
            groups.setdefault(max(part, key=_rarity), []).append(part)
        self._groups = list(groups.items())

    def met(self, has: Callable[[str], bool]) -> list[int]:
        """Return the numbers of the patterns that a text can hold, in order.

        `has` says whether a part is in it, as `text.__contains__` or `Vocabulary.has` does.
        """
        found = [part for sign, parts in self._groups if has(sign) for part in filter(has, parts)]
        if not found:
            return self._always
        return sorted({*self._always, *(n for part in found for n in self._numbers[part])})


def _rarity(sign: str) -> int:
    place = _COMMON.find(sign)
    return place if place >= 0 else len(_COMMON)
