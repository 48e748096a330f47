r"""Text as a reader would take it, whatever characters it is made of, with a way back.

`normalise` unfolds what hides words from a pattern: compatibility forms (fullwidth, mathematical),
accents, invisible characters, tag characters and variation selectors that carry letters, HTML
entities, percent and backslash escapes, what mail encodes, emphasis marks and concatenations inside
words. The result keeps its case; each place in it leads back to where it stands in the original.

Scripts stay what they are: lookalike letters are a matter of single words (`lookalikes`), because
Russian is to remain Russian.
"""

from __future__ import annotations

import html
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate

from hermes_nb.safety.reading import hangul, mail
from hermes_nb.safety.reading.patterns import Span, characters, in_time, ranges

Pieces = tuple[list[int], list[int], list[int]]


@dataclass(slots=True)
class View:
    """A text and, piece by piece, where it came from in the view it was made of, its `parent`.

    `pieces` works the pieces out when somebody asks where something stands, which for most texts
    nobody does: their starts in the text, their origins in the parent, and their ends there. A
    piece was copied from its origin onward or, where its end is not 0, stands for everything from
    its origin to its end. A view without a parent is the original; one without pieces has the same
    places as its parent.
    """

    text: str
    parent: View | None = None
    pieces: Callable[[], Pieces] | None = None
    _known: Pieces | None = None

    def span(self, start: int, end: int) -> Span:
        """Return the part of the original that `text[start:end]` came from."""
        view = self
        while view.parent is not None:
            if view.pieces is not None:
                start, end = view.above(start, end)
            view = view.parent
        return start, max(start, end)

    def above(self, start: int, end: int) -> Span:
        """Return the part of the parent's text that `text[start:end]` came from."""
        if self._known is None:
            self._known = self.pieces() if self.pieces is not None else ([0], [0], [0])
        starts, origins, ends = self._known
        first = bisect_right(starts, start) - 1
        low = origins[first] + (0 if ends[first] else start - starts[first])
        last = bisect_right(starts, max(end - 1, start)) - 1
        return low, max(low, ends[last] or origins[last] + end - starts[last])


def edited(view: View, pattern: re.Pattern[str], replacement: Callable[[str], str]) -> View:
    """Return the view with what a pattern finds replaced; never something of no length.

    The pattern is one group, so that the text can be split at it, and what was found be exchanged
    and joined again: that takes a third of what `sub` does, which calls Python for every match.
    """
    old = pattern.split(view.text)
    if len(old) == 1:
        return view
    new = [*old]
    new[1::2] = map(replacement, old[1::2])
    text = "".join(new)
    return view if text == view.text else View(text, view, lambda: _pieces(old, new))


def _pieces(old: list[str], new: list[str]) -> Pieces:
    """Return the pieces of a text whose parts were `old`, some of which were exchanged."""
    starts: list[int] = []
    origins: list[int] = []
    ends: list[int] = []
    size = copied = end = 0
    for before, after in zip(old, new, strict=True):
        start, end = end, end + len(before)
        if before == after:
            continue
        if start > copied:
            starts.append(size)
            origins.append(copied)
            ends.append(0)
            size += start - copied
        if after:
            starts.append(size)
            origins.append(start)
            ends.append(end)
            size += len(after)
        copied = end
    starts.append(size)
    origins.append(copied)
    ends.append(0)
    return starts, origins, ends


def without(view: View, pattern: re.Pattern[str], *, least: int = 1) -> View:
    """Return the view without what a pattern finds, if it finds that often; never of no length."""
    parts = pattern.split(view.text)
    if len(parts) <= least:
        return view
    return View("".join(parts), view, lambda: _kept(view.text, pattern))


def _kept(text: str, cut: re.Pattern[str]) -> Pieces:
    """Return the pieces of a text that a pattern does not find."""
    origins = [0, *(match.end() for match in cut.finditer(text))]
    starts = [0, *accumulate(map(len, cut.split(text)))][:-1]
    return starts, origins, [0] * len(starts)


def normalise(text: str) -> View:
    """Return the text unfolded; linear in its length."""
    view = View(text)
    for _ in range(_ESCAPED_TWICE):
        after = _unescaped(view)
        if after is view:
            break
        view = after
    if not view.text.isascii() or _CONTROL.search(view.text):
        view = _folded(view)
    return _joined(view)


_ESCAPED_TWICE = 3
"""How many layers of escapes are undone; each layer only shortens the text."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_ESCAPE = re.compile(
    r"([&%\\\x1b](?:"
    r"(?<=&)(?:\#\d{1,7};?|\#[xX][0-9a-fA-F]{1,6};?|[A-Za-z]{2,24};)"
    r"|(?<=%)[0-9a-fA-F]{2}(?:%[0-9a-fA-F]{2})*"
    r"|(?<=\\)(?:u[0-9a-fA-F]{4}|u\{[0-9a-fA-F]{1,6}\}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|[0-3][0-7]{2}"
    r"|[nrt](?![a-z]))"
    r"|(?<=\x1b)\[[0-9;]{0,12}[A-Za-z]))"
)
"""It begins with one set of signs: those are found ten times as fast as a choice of beginnings."""
_SELECTORS = re.compile("([\ufe00-\ufe0f\U000e0100-\U000e01ef]{2,})")
_SELECTING = ranges(("\ufe00", "\ufe0f"), ("\U000e0100", "\U000e01ef"))


def _unescaped(view: View) -> View:
    if "=" in view.text:
        view = edited(view, mail.encoded_in(view.text), mail.meaning)
    text = view.text
    if not ("&" in text or "%" in text or "\\" in text or "\x1b" in text):
        return view
    return edited(view, _ESCAPE, _meaning)


@lru_cache(maxsize=4_096)
def _meaning(escape: str) -> str:
    """Return what an escape stands for; the escape itself if it stands for no text."""
    if escape[0] == "&":
        return html.unescape(escape)
    if escape[0] == "%":
        return bytes.fromhex(escape.replace("%", "")).decode("utf-8", "replace")
    if escape[0] == "\x1b":
        return ""
    short = {"n": "\n", "r": "\n", "t": "\t"}.get(escape[1:])
    if short is not None:
        return short
    digits = escape[1:].strip("uUx{}")
    code = int(digits, 8 if escape[1].isdigit() else 16)
    return chr(code) if 0 < code <= 0x10FFFF and not 0xD800 <= code < 0xE000 else escape  # noqa: PLR2004


_REMEMBERED = 50_000
"""Characters whose folded form is remembered."""


class _Folding(dict[int, str]):
    """What each character is folded to, worked out when it first appears."""

    def __missing__(self, code: int) -> str:
        in_time()
        if len(self) >= _REMEMBERED:
            self.clear()
        folded = _fold(chr(code))
        if len(folded) > 1:  # a decomposition may have lookalikes of its own
            folded = "".join(map(_fold, folded))
        self[code] = folded
        return folded


_FOLDING = _Folding()
_TAGS = range(0xE0020, 0xE007F)
_NEGATIVE_LETTERS = (range(0x1F150, 0x1F16A), range(0x1F170, 0x1F18A), range(0x1F1E6, 0x1F200))
"""White-on-black letters and those of flags, which Unicode does not decompose."""
_BLANK = frozenset("\u115f\u1160\u3164\uffa0\u2800\u180e\u0640")
"""Letters and symbols that show nothing, or only lengthen a letter (tatweel)."""
_FOLDABLE = re.compile(r"[^\t\n\r -~\u3400-\u9fff\uac00-\ud7a3]+")
"""Everything but ASCII, ideographs and syllables, which are what they are."""


def _fold(character: str) -> str:
    """Return the plain form of one character: "" for what is invisible or only decorates."""
    code = ord(character)
    if character in "\t\n\r":
        return character
    if not _FOLDABLE.match(character):
        return character
    if code in _TAGS:
        return chr(code - 0xE0000)
    for letters in _NEGATIVE_LETTERS:
        if code in letters:
            return chr(ord("a") + code - letters.start)
    category = unicodedata.category(character)
    if category in {"Zl", "Zp"} or character == "\x85":
        return "\n"
    if category[0] == "M" or category in {"Cc", "Cf", "Cs"} or character in _BLANK:
        return ""
    if category == "Zs":
        return " "
    plain = unicodedata.normalize("NFKD", character)
    plain = "".join(c for c in plain if unicodedata.category(c)[0] != "M")
    return unicodedata.normalize("NFC", plain) if len(plain) <= _LONGEST_FORM else character


_LONGEST_FORM = 6
"""Decompositions longer than this are phrases (U+FDFA has 18 letters) that make text grow."""


def fold(text: str) -> str:
    """Return `text` with every character in its plain form, without a way back."""
    text = _FOLDING_JAMO.sub(lambda m: _composed(m[0]), text)
    return text.translate(_FOLDING)


_FOLDING_JAMO = re.compile("([\u1100-\u115e\u1161-\u11ff]{2,})")
_JAMO = ranges(("\u1100", "\u115e"), ("\u1161", "\u11ff"))


def _folded(view: View) -> View:
    """Fold every character; where each came from is worked out for those whose form is longer."""
    odd = characters(view.text)
    if not _SELECTING.isdisjoint(odd):
        view = edited(view, _SELECTORS, _smuggled)
        odd = characters(view.text)
    if not hangul.SINGLE.isdisjoint(odd):
        view = edited(view, hangul.SPELLED, hangul.syllables)
        odd = characters(view.text)
    if not _JAMO.isdisjoint(odd):
        view = edited(view, _FOLDING_JAMO, _composed)
        odd = characters(view.text)
    folded = _exchanged(view.text, [c for c in odd if _FOLDING[ord(c)] != c])
    if folded == view.text:
        return view
    sized = "".join(c for c in odd if len(_FOLDING[ord(c)]) != 1)
    if not sized:
        return View(folded, view)
    return View(folded, view, lambda: _unlike(view.text, sized))


def _unlike(text: str, sized: str) -> Pieces:
    """Return the pieces of a text folded, in which some characters have forms of another size."""
    if not any(_FOLDING[ord(character)] for character in sized):
        parts = re.split(f"[{re.escape(sized)}]", text)
        starts = [0, *accumulate(map(len, parts))][:-1]
        return starts, [start + cut for cut, start in enumerate(starts)], [0] * len(starts)
    old = re.split(f"([{re.escape(sized)}])", text)
    new = [*old]
    new[1::2] = [_FOLDING[ord(character)] for character in old[1::2]]
    return _pieces(old, new)


_FEW = 100
"""Characters that are replaced one by one sooner than by a table, which asks for each in a text."""


def _exchanged(text: str, changing: list[str]) -> str:
    """Return a text with the characters folded that folding changes; no folded form holds one."""
    if len(changing) > _FEW:
        return text.translate(_FOLDING)
    for character in changing:
        text = text.replace(character, _FOLDING[ord(character)])
    return text


def _composed(letters: str) -> str:
    """Return Hangul letters as syllables."""
    return unicodedata.normalize("NFC", letters)


def _smuggled(selectors: str) -> str:
    """Return the text that a run of variation selectors spells byte by byte, or ""."""
    data = bytes(ord(c) - 0xFE00 if c <= "\ufe0f" else ord(c) - 0xE0100 + 16 for c in selectors)
    text = data.decode("utf-8", "ignore")
    return f" {text} " if sum(c.isalpha() for c in text) * 2 > len(selectors) else ""


_EMPHASIS = re.compile(r"[*~`_](?<=[^\W_].)[*~`_]{1,3}(?=\w)")
_ELEMENT = re.compile(r"<(?<=[^\W_].)(?:/?[bisu]|!--[^<>]{0,20}--)>(?=\w)")
_CONCATENATION = re.compile(r"""["'`](?<=[^\W_].)\s{0,3}(?:\+|\.\.?|&|\|\|)\s{0,3}["'`](?=[\w ])""")
"""These look back behind their first character: a pattern that begins with one is found faster."""
_SPLIT_WORDS = 2
"""Bold inside words is a disguise from the second time on: `**x**y` alone is typography."""
_INSIDE_WORDS = (
    (_EMPHASIS, [one + other for one in "*~`_" for other in "*~`_"], _SPLIT_WORDS),
    (_ELEMENT, ["<"], 1),
    (_CONCATENATION, ["+", ".", "&", "|"], 1),
)
"""What stands inside words, the signs one of which it has, and how often it has to be there."""


def _joined(view: View) -> View:
    """Take out what stands inside words without being part of them."""
    for pattern, signs, least in _INSIDE_WORDS:
        if any(map(view.text.__contains__, signs)):
            view = without(view, pattern, least=least)
    return view
