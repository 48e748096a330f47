"""What the index calls a word: text cut into folded, stemmed terms.

The same terms are made of a message and of a query, so that both meet whatever their case, accents
and endings. An identifier is the sequence of its parts (`src/app.py` is the phrase src-app-py);
scripts written without spaces, and Korean, give one term a character, so that a word of any length
is a phrase. A term has no white space and no ASCII punctuation, as the index's tokenizer expects.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator
from functools import lru_cache

from hermes_nb.memory.stems import stem

LONGEST_PIECE = 64
"""Characters of the longest word; a longer run (base64) is cut. A SHA-256 in hex has 64."""

ORDERED = 200_000
"""Characters of a message whose terms are indexed in order; what follows counts as a bag of words,
each once: it is found, but not by a phrase."""

MOST_OF_THE_TAIL = 50_000
"""Words of a message's rest that are indexed."""

_SPACELESS = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003134f"
)
_MARKS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05bd\u064b-\u065f\u0670\u06d6-\u06dc\u0900-\u0963"
    "\u0971-\u0dff\u0e31-\u0e4e\u0eb1-\u0ecd\u102b-\u103e\u17b4-\u17d3\u200c\u200d\u3099\u309a"
)
_PIECE = re.compile(
    f"[\\w{_MARKS}]{{1,{LONGEST_PIECE}}}(?:['\u2019][\\w{_MARKS}]{{1,{LONGEST_PIECE}}})?"
)
_ASCII = str.maketrans({chr(n): " " for n in range(128) if not chr(n).isalnum() and chr(n) != "'"})
_ACCENTS = re.compile("[\u0300-\u036f\u0483-\u0487\u200c\u200d]")
_RUNS = re.compile(f"[{_SPACELESS}]|[^{_SPACELESS}]+")
_POSSESSIVE = re.compile("['\u2019]s?$")
_CAMEL = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^A-Za-z0-9]+")
_COMPOUND = re.compile("[a-z][A-Z]|[A-Z]{2}[a-z]|[A-Za-z][0-9]|[0-9][A-Za-z]")
_MOST_PARTS = 5

BREAK = "\u00a6"
"""A term that stands between what was said and what was added, so that no phrase spans both."""


def pieces(text: str) -> list[str]:
    """Return the words of a text as they stand there."""
    if not text.isascii():
        return _PIECE.findall(text.replace("_", " "))
    # Four times as fast as an expression, and most of what a message costs.
    found = text.translate(_ASCII).split()
    if max(map(len, found), default=0) > LONGEST_PIECE:
        return [p[n : n + LONGEST_PIECE] for p in found for n in range(0, len(p), LONGEST_PIECE)]
    return found


def terms_of(piece: str) -> tuple[str, ...]:
    """Return the terms of one word: one, or one a character where a script has no spaces."""
    return _read(piece)[0]


@lru_cache(maxsize=1 << 15)
def _read(piece: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the terms of a word, and those that a compound such as `KeyError` has besides."""
    if piece.isalpha() and piece.isascii() and (piece.islower() or piece.istitle()):
        return (stem(piece.lower()),), ()  # most words, a third of the time
    word = _POSSESSIVE.sub("", fold(piece).strip("'")).replace("'", "").replace("\u2019", "")
    if not word.isascii():
        return tuple(run if len(run) == 1 else stem(run) for run in _RUNS.findall(word)), ()
    if not word:
        return (), ()
    parts = _CAMEL.findall(piece) if _COMPOUND.search(piece) else []
    if len(parts) > _MOST_PARTS:
        parts = []
    added = (stem(part.lower()) for part in parts if len(part) > 1)
    return (stem(word),), tuple(added)


def terms(text: str) -> list[str]:
    """Return a text's terms in order."""
    return [term for piece in pieces(text) for term in _read(piece)[0]]


def indexed(text: str) -> list[str]:
    """Return the terms a message is found by: those of its text in order, then the added ones."""
    read = [*map(_read, pieces(text[:ORDERED]))]
    out = [term for found, _ in read for term in found]
    added = [term for _, parts in read if parts for term in parts]
    # The shortest of a long tail: long ones are encoded data.
    for piece in sorted(set(pieces(text[ORDERED:])), key=len)[:MOST_OF_THE_TAIL]:
        found, parts = _read(piece)
        added += (*found, *parts)
    if added and (new := set(added) - set(out)):
        out.append(BREAK)
        out += sorted(new)
    return out


def fold(text: str) -> str:
    """Return text without case, accents and compatibility forms; every string folds."""
    if text.isascii():
        return text.lower()
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
    folded = unicodedata.normalize("NFC", plain).casefold()
    # Folding can bring accents back (Turkish dotted i) and lone surrogates cannot be stored.
    return _ACCENTS.sub("", folded).encode("utf-8", "ignore").decode("utf-8")


def spaced(text: str) -> tuple[str, ...]:
    """Return folded text as terms that are not stemmed, for the start of a word."""
    return tuple(_RUNS.findall(text))


def places(text: str, *, beginning: Collection[str] = ()) -> Iterator[tuple[int, str]]:
    """Yield where each word of a text begins, and the word.

    `beginning` leaves only words that begin like one of these terms, as their own forms do.
    """
    pattern = _PIECE
    if beginning:
        # A stem's last letters may be other ones in the word (happi, happy).
        starts = {re.escape(term[: max(3, len(term) - 2)]) for term in beginning}
        pattern = re.compile(f"(?<![a-zA-Z0-9])(?:{'|'.join(sorted(starts))})\\w*", re.IGNORECASE)
    for match in pattern.finditer(text.replace("_", " ")):
        yield match.start(), match[0]
