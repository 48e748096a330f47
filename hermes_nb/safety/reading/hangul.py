"""Hangul that is written letter by letter, as syllables again.

A keyboard that does not compose leaves compatibility letters in a row. They are read by position: a
consonant before a vowel leads a syllable, one behind a vowel and before no other ends it.
"""

from __future__ import annotations

import re

_LEADS = "ㄱㄲㄴㄷㄸㄹㅁㅂㅃㅅㅆㅇㅈㅉㅊㅋㅌㅍㅎ"
_VOWELS = "ㅏㅐㅑㅒㅓㅔㅕㅖㅗㅘㅙㅚㅛㅜㅝㅞㅟㅠㅡㅢㅣ"
_TAILS = "ㄱㄲㄳㄴㄵㄶㄷㄹㄺㄻㄼㄽㄾㄿㅀㅁㅂㅄㅅㅆㅇㅈㅊㅋㅌㅍㅎ"
SINGLE = frozenset(_LEADS + _VOWELS + _TAILS)
SPELLED = re.compile(rf"([{_LEADS}{_VOWELS}{_TAILS}]{{4,}})")
"""Letters in a row that stand beside each other, as a keyboard without syllables writes them."""
_SYLLABLE = re.compile(
    f"([{_LEADS}])([{_VOWELS}])(?:([{_TAILS}])(?![{_VOWELS}]))?"  # a consonant before a vowel leads
)
_FIRST_SYLLABLE, _VOWELS_EACH, _TAILS_EACH = 0xAC00, len(_VOWELS), len(_TAILS) + 1
"""Unicode 15, section 3.12: how syllables are numbered."""


def syllables(letters: str) -> str:
    """Return single Hangul letters as the syllables that they spell."""
    return _SYLLABLE.sub(lambda match: _syllable(match[1], match[2], match[3] or ""), letters)


def _syllable(lead: str, vowel: str, tail: str) -> str:
    number = _LEADS.index(lead) * _VOWELS_EACH + _VOWELS.index(vowel)
    end = _TAILS.index(tail) + 1 if tail else 0
    return chr(_FIRST_SYLLABLE + number * _TAILS_EACH + end)
