"""Normalise text to what a reader would see, with positions in the original.

`normalise` reverses everything that hides words from a pattern: compatibility forms (fullwidth,
mathematical), accents, invisible characters, tag characters and variation selectors with encoded
letters, HTML entities, percent and backslash escapes, emphasis marks and concatenations inside
words. Case is preserved, and each position maps to one in the original. Scripts are not converted:
`words` replaces lookalike letters in single words, so that Russian text stays Russian.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial

from hermes_nb.safety.patterns import Span, in_time


@dataclass(frozen=True, slots=True)
class NormalisedText:
    """A normalised text with positions in the original."""

    text: str
    """The normalised text."""
    origins: Sequence[int]
    """The original index of each character, and of the end."""

    def span(self, start: int, end: int) -> Span:
        """Return the span of the original that corresponds to `text[start:end]`."""
        low = self.origins[start]
        return low, max(low, self.origins[end])


def edited(
    view: NormalisedText, pattern: re.Pattern[str], meaning: Callable[[str], str]
) -> NormalisedText:
    """Return `view` with each match of a pattern replaced by `meaning(match)`."""
    parts: list[str] = []
    origins: list[int] = []
    done = 0
    for match in pattern.finditer(view.text):
        start, end = match.span()
        said = meaning(match[0])
        if said != match[0]:
            parts += view.text[done:start], said
            origins.extend(view.origins[done:start])
            origins.extend([view.origins[start]] * len(said))
            done = end
    if not parts:
        return view
    origins.extend(view.origins[done:])
    return NormalisedText("".join(parts) + view.text[done:], origins)


def normalise(text: str) -> NormalisedText:
    """Return the normalised text, in linear time."""
    view = NormalisedText(text, range(len(text) + 1))
    for _ in range(_LAYERS):
        before = view
        if any(sign in view.text for sign in "&%\\\x1b"):
            view = edited(view, _ESCAPE, _unescaped)
        if view is before:
            break
    if not view.text.isascii() or _CONTROL.search(view.text):
        view = edited(view, _SELECTORS, _smuggled)
        view = edited(view, _JAMO, partial(unicodedata.normalize, "NFC"))
        if sized := "".join(c for c in set(view.text) if len(_FOLDING[ord(c)]) != 1):
            sizes = re.compile(f"[{re.escape(sized)}]")
            view = edited(view, sizes, lambda letter: _FOLDING[ord(letter)])
        view = NormalisedText(view.text.translate(_FOLDING), view.origins)
    for pattern, least in _INSIDE_WORDS:
        if len(pattern.findall(view.text)) >= least:
            view = edited(view, pattern, lambda _: "")
    return view


_LAYERS = 3
"""Maximum layers of escapes to decode. Decoding never makes the text longer."""
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_ESCAPE = re.compile(
    r"[&%\\\x1b](?:"
    r"(?<=&)(?:\#\d{1,7};?|\#[xX][0-9a-fA-F]{1,6};?|[A-Za-z]{2,24};)"
    r"|(?<=%)[0-9a-fA-F]{2}(?:%[0-9a-fA-F]{2})*"
    r"|(?<=\\)(?:u[0-9a-fA-F]{4}|u\{[0-9a-fA-F]{1,6}\}|U[0-9a-fA-F]{8}|x[0-9a-fA-F]{2}|[0-3][0-7]{2}"
    r"|[nrt](?![a-z]))"
    r"|(?<=\x1b)\[[0-9;]{0,12}[A-Za-z])"
)
_INSIDE_WORDS = (
    (re.compile(r"[*~`_](?<=[^\W_].)[*~`_]{1,3}(?=\w)"), 2),
    (re.compile(r"<(?<=[^\W_].)(?:/?[bisu]|!--[^<>]{0,20}--)>(?=\w)"), 1),
    (re.compile(r"""["'`](?<=[^\W_].)\s{0,3}(?:\+|\.\.?|&|\|\|)\s{0,3}["'`](?=[\w ])"""), 1),
)
"""Patterns for markup inside words, each with the number of matches needed to count: a single
`**x**y` is ordinary typography. The lookbehind after the first character makes them fast."""


@lru_cache(maxsize=4_096)
def _unescaped(escape: str) -> str:
    """Return the text of an escape, or the escape itself if it has none."""
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
    return chr(code) if 0 < code <= 0x10FFFF and not 0xD800 <= code < 0xE000 else escape


_SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]{2,}")
_JAMO = re.compile("[\u1100-\u115e\u1161-\u11ff]{2,}")


def _smuggled(selectors: str) -> str:
    """Return the text that a run of variation selectors encodes byte by byte, or ""."""
    data = bytes(ord(c) - 0xFE00 if c <= "\ufe0f" else ord(c) - 0xE0100 + 16 for c in selectors)
    text = data.decode("utf-8", "ignore")
    return f" {text} " if sum(c.isalpha() for c in text) * 2 > len(selectors) else ""


def fold(text: str) -> str:
    """Return `text` with every character in its plain form, without positions."""
    text = _JAMO.sub(lambda match: unicodedata.normalize("NFC", match[0]), text)
    return text.translate(_FOLDING)


_REMEMBERED = 50_000
"""Characters whose folded form is cached."""


class _Folding(dict[int, str]):
    """The folded form of each character, computed on first use."""

    def __missing__(self, code: int) -> str:
        in_time()
        if len(self) >= _REMEMBERED:
            self.clear()
        folded = _fold(chr(code))
        if len(folded) > 1:  # fold the parts of a decomposition too
            folded = "".join(map(_fold, folded))
        self[code] = folded
        return folded


_FOLDING = _Folding()
_TAGS = range(0xE0020, 0xE007F)
_NEGATIVE_LETTERS = (range(0x1F150, 0x1F16A), range(0x1F170, 0x1F18A), range(0x1F1E6, 0x1F200))
"""White-on-black letters and flag letters, which Unicode does not decompose."""
_BLANK = frozenset("\u115f\u1160\u3164\uffa0\u2800\u180e\u0640")
"""Invisible letters and symbols, and tatweel, which only lengthens a letter."""
_FOLDABLE = re.compile(r"[^\t\n\r -~\u3400-\u9fff\uac00-\ud7a3]")
"""All characters except ASCII, ideographs and Hangul syllables, which need no folding."""
_LONGEST_FORM = 6
"""Maximum length of a decomposition. Longer ones are phrases that make text grow (U+FDFA: 18
letters)."""


def _fold(character: str) -> str:
    """Return a character's plain form, or "" if it is invisible or decorative."""
    code = ord(character)
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


LOOKALIKES = {
    ord(letter): latin
    for latin, _, letters in (
        each.partition(":")
        for each in (
            "a:аαɑᴀ∂ӑӓɐⲁ b:вьβʙɓƅЬ c:сϲᴄᏟⅽҫϹ d:ԁɗᴅđժⅾ e:еεєҽҿᴇəɛ f:ƒꜰʄϝſ g:ɡցɢɠԍ h:һнհʜħћ "
            "i:іιɩıɪⅰӏ j:јϳᴊյʝ k:кκᴋқƙ l:ӏⅼʟłⲓɭ m:мᴍⅿϻ n:пηոɴռɳи o:оοσօᴏøөஂ૦ⲟ p:рρᴘթⲣ q:ԛգզǫ "
            "r:гʀᴦɾяꭇ s:ѕꜱʂտ t:тτᴛŧ u:υսᴜцʋμ v:νѵᴠⅴ w:ωԝᴡшɯ x:хχⅹ× y:уγүʏყ z:ᴢʐȥ ae:æ oe:œ "
        ).split()
    )
    for letter in letters
}
"""Cyrillic, Greek, Armenian, phonetic and small-capital letters, with the Latin letters they
resemble."""
