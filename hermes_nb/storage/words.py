"""Split text into folded, stemmed search terms.

Messages and queries are split into the same terms, so that they match regardless of case, accents
and endings. An identifier becomes the sequence of its parts (`src/app.py` is the phrase
src-app-py). In scripts without spaces, and in Korean, each character is a term, so that words of
any length are phrases. Terms contain neither white space nor ASCII punctuation, as the index's
tokenizer requires. A word's *form* is the string of its terms, as cached.

Stemming makes "painting" find "painted", and "went" find "go". The suffix rules come from Porter,
"An algorithm for suffix stripping" (1980), as implemented in SQLite. Irregular verbs and plurals
come from a table (`words.toml`). Stems are keys, not for display. They must never change, because
indexes on users' disks contain them, and removing an entry requires the stem it was added with.
(snowballstemmer takes ten times as long per word, 0.1 s to import, and differs in a few stems.)
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

from hermes_nb.core.messages import Json

LONGEST_PIECE = 64
"""Maximum length of a word in characters; longer runs (base64) are split. A SHA-256 in hex has
64."""

ORDERED = 200_000
"""Number of characters of a message that are indexed in order. Words after that are indexed once
each, so a search finds them, but not as part of a phrase."""

MOST_OF_THE_TAIL = 50_000
"""Maximum number of words that are indexed after the first `ORDERED` characters."""

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
_REST = re.compile(r"\w*")
_NO_WORD = re.compile(f"[^\0-\x7f\\w{_MARKS}]+")
_ASCII = bytes(n if chr(n).isalnum() or chr(n) == "'" else 32 for n in range(128)) + bytes(128)
_ACCENTS = re.compile("[\u0300-\u036f\u0483-\u0487\u200c\u200d]")
_RUNS = re.compile(f"[{_SPACELESS}]|[^{_SPACELESS}]+")
_PUNCTUATION = re.compile(r"[\0-/:-@\[-`{-\x7f]")
_POSSESSIVE = re.compile("['\u2019]s?$")
_CAMEL = re.compile("[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+|[^A-Za-z0-9]+")
_COMPOUND = re.compile("[a-z][A-Z]|[A-Z]{2}[a-z]|[A-Za-z][0-9]|[0-9][A-Za-z]")
_MOST_PARTS = 5

BREAK = "\u00a6"
"""Term between the terms of the text and the added ones, so that no phrase spans both."""


SHORTEST_STEMMED, LONGEST_STEMMED = 3, 40
"""Length, in characters, of the words that are stemmed; longer ones are names, hashes or noise."""


@cache
def _listed() -> dict[str, Json]:
    return tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))


@cache
def _irregular() -> dict[str, str]:
    table = {}
    for line in _listed()["irregular"].replace("\n", "").split(";"):
        base, *forms = line.split()
        table.update(dict.fromkeys(forms, base))
    return table


@cache
def _stop_words_by_language() -> dict[str, frozenset[str]]:
    listed = _listed()["stop_words"].items()
    return {language: frozenset(fold(text).split()) for language, text in listed}


def stop_words(words: Collection[str]) -> frozenset[str]:
    """Return the stop words of the language with the most stop words among the folded `words`.

    The default is English, since words such as "die" and "was" occur in several languages.
    """
    known = _stop_words_by_language()
    votes = {language: sum(map(stop.__contains__, words)) for language, stop in known.items()}
    return known[max(votes, key=lambda language: (votes[language], language == "en"))]


def stem(word: str) -> str:
    """Return the stem of a lower-case word; a word with characters other than a-z is unchanged."""
    word = _irregular().get(word, word)
    stemmed = SHORTEST_STEMMED <= len(word) <= LONGEST_STEMMED
    if not stemmed or not word.isascii() or not word.isalpha():
        return word
    number = 0
    while (number := _NEXT[number].get(word[-1:], len(_STEPS))) < len(_STEPS):
        endings, step = _STEPS[number]
        if word.endswith(endings):  # ten times faster than calling the step
            word = step(word)
        number += 1
    return word


# A y after a consonant is a vowel, and a y after a vowel y is a consonant; up to four in a row.
_Y = "(?:(?<=[^aeiouy])|(?<=^y)|(?<=[aeiou]y)|(?<=[^aeiouy]yy)|(?<=^yyy)|(?<=[aeiou]yyy))y"
_C = f"(?:[^aeiouy]|(?!{_Y})y)"
_V = f"(?:[aeiou]|{_Y})"
_MEASURED = re.compile(f"^{_C}*(?:{_V}+{_C}+)")
_MEASURED_TWICE = re.compile(f"^{_C}*(?:{_V}+{_C}+){{2}}")
_MEASURED_ONCE = re.compile(f"^{_C}*{_V}+{_C}+{_V}*$")
_HAS_VOWEL = re.compile(_V)
_SHORT_END = re.compile(f"{_C}{_V}(?![wxy]){_C}$")
_DOUBLED = re.compile(r"([^aeioulsz])\1$")


def _without_plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _without_past(word: str) -> str:
    if word.endswith("eed") and word != "eed":  # SQLite requires a letter before it
        return word[:-1] if _MEASURED.match(word[:-3]) else word
    for ending in ("ed", "ing"):
        rest = word[: -len(ending)]
        if word.endswith(ending) and _HAS_VOWEL.search(rest):
            if not rest.endswith(("at", "bl", "iz")) and _DOUBLED.search(rest):
                return rest[:-1]
            return rest + "e" if rest.endswith(("at", "bl", "iz")) or _is_short(rest) else rest
    return word


def _without_y(word: str) -> str:
    return word[:-1] + "i" if _HAS_VOWEL.search(word[:-1]) else word


def _without_e(word: str) -> str:
    if word.endswith("e"):
        rest = word[:-1]
        once = _MEASURED.match(rest) and not _is_short(rest)
        word = rest if once or _MEASURED_TWICE.match(rest) else word
    return word[:-1] if word.endswith("ll") and _MEASURED_TWICE.match(word) else word


def _is_short(word: str) -> bool:
    return bool(_MEASURED_ONCE.match(word) and _SHORT_END.search(word))


class _Endings(dict[str, str]):
    """A stemming step that replaces endings if the rest of the word is long enough."""

    def __init__(self, pairs: str, long_enough: re.Pattern[str]) -> None:
        super().__init__(pair.split(":") for pair in pairs.split())
        self._long_enough = long_enough
        either = "|".join(sorted(self, key=len, reverse=True))
        self._end = re.compile("(?:" + re.sub(r"\bion\b", "(?<=[st])ion", either) + ")$")

    def __call__(self, word: str) -> str:
        found = self._end.search(word)
        if found and self._long_enough.match(word[: found.start()]):
            return word[: found.start()] + self[found[0]]
        return word


_DOUBLE = _Endings(
    "ational:ate tional:tion enci:ence anci:ance izer:ize bli:ble alli:al entli:ent eli:e ousli:ous"
    " ization:ize ation:ate ator:ate alism:al iveness:ive fulness:ful ousness:ous aliti:al"
    " iviti:ive biliti:ble logi:log",
    _MEASURED,
)
_SINGLE = _Endings("icate:ic ative: alize:al iciti:ic ical:ic ful: ness:", _MEASURED)
_LAST = _Endings(
    "ement: ance: ence: able: ible: ment: ant: ent: ism: ate: iti: ous: ive: ize: ion: al: er: ic:"
    " ou:",
    _MEASURED_TWICE,
)
_STEPS = (
    (("s",), _without_plural),
    (("ed", "ing"), _without_past),
    (("y",), _without_y),
    (tuple(_DOUBLE), _DOUBLE),
    (tuple(_SINGLE), _SINGLE),
    (tuple(_LAST), _LAST),
    (("e", "ll"), _without_e),
)
"""The stemming steps in order, each with the endings of the words that it may change."""
_NEXT = tuple(
    {ending[-1]: n for n in reversed(range(first, len(_STEPS))) for ending in _STEPS[n][0]}
    for first in range(len(_STEPS) + 1)
)
"""For each step and last letter, the next step, this one included, that may change such a word."""


def pieces(text: str) -> list[str]:
    """Return the words in a text, unchanged."""
    found = _runs(text)
    if max(map(len, found), default=0) > LONGEST_PIECE:
        return [piece for run in found for piece in _cut(run)]
    return found


def _runs(text: str) -> list[str]:
    if not text.isascii():
        # Remove dashes, bullets and emoji first: most texts are ASCII without them.
        text = _NO_WORD.sub(" ", text.replace("\u2019", "'"))
        if not text.isascii():
            return _PIECE.findall(text.replace("_", " "))
    # 7 times faster than `str.translate`, which is 4 times faster than a regular expression.
    return text.encode().translate(_ASCII).decode().split()


def _cut(run: str) -> list[str]:
    return [run[n : n + LONGEST_PIECE] for n in range(0, len(run), LONGEST_PIECE)]


def terms_of(piece: str) -> tuple[str, ...]:
    """Return a word's terms: one, or one per character in scripts without spaces."""
    return tuple(_FORMS[piece].partition(_FENCE)[0].split())


def terms(text: str) -> list[str]:
    """Return the terms in a text, in order."""
    return [term for piece in pieces(text) for term in terms_of(piece)]


def indexed(text: str) -> str:
    """Return the terms under which a message is indexed, separated by spaces.

    The text's terms come first, in order. Additional terms follow: the parts of compounds, and the
    words at the end of a very long text.
    """
    return in_forms(text)[0]


def in_forms(text: str) -> tuple[str, list[str]]:
    """Return the result of `indexed`, and the forms of the text's words in any order.

    A form is the string of a word's terms, which `of_form` splits. The same forms recur in many
    texts, so callers can cache what they compute from one.
    """
    # Twice as fast as a loop over the words.
    forms = list(filter(None, map(_FORMS.__getitem__, _runs(text[:ORDERED]))))
    line = " ".join(forms)
    added: list[str] = []
    if _FENCE in line:
        added = " ".join(_FENCED.findall(line)).split()
        line = _FENCED.sub("", line)
    if len(text) > ORDERED:
        # Prefer the shortest words of a long tail: long ones are encoded data.
        tail = sorted(set(pieces(text[ORDERED:])), key=len)[:MOST_OF_THE_TAIL]
        forms += map(_FORMS.__getitem__, tail)
        added += (term for piece in tail for term in of_form(_FORMS[piece]))
    if added and (new := set(added).difference(line.split())):
        line = " ".join((line, BREAK, *sorted(new)))
    return line, forms


def of_form(form: str) -> list[str]:
    """Return the terms that make up a word's form, including additional ones."""
    return form.replace(_FENCE, " ").split()


class _Forms(dict[str, str]):
    """Cache of forms by word: the word's terms and, between two `_FENCE`s, a compound's added ones.

    A plain dictionary, because an LRU cache costs more time than splitting the words.
    """

    def __missing__(self, piece: str) -> str:
        if len(piece) > LONGEST_PIECE:  # encoded data, which won't repeat: not cached
            return " ".join(self[each] for each in _cut(piece))
        if len(self) >= _REMEMBERED:
            self.clear()
        if piece.isalpha() and piece.isascii() and (piece.islower() or piece.istitle()):
            form = stem(piece.lower())  # fast path for most words, in a third of the time
        else:
            whole, parts = _read(piece)
            form = " ".join(whole) + (f"{_FENCE}{' '.join(parts)}{_FENCE}" if parts else "")
        if form == piece:
            form = piece  # reuse the object: memory access dominates the time of a look-up
        self[piece] = form
        return form


_FENCE = "\x1f"
_FENCED = re.compile(f"{_FENCE}([^{_FENCE}]*){_FENCE}")
_REMEMBERED = 1 << 16
_FORMS = _Forms()


def _read(piece: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return a word's terms, and the additional ones for a compound such as `KeyError`."""
    word = _POSSESSIVE.sub("", fold(piece).strip("'")).replace("\u2019", "")
    word = _PUNCTUATION.sub("", word)  # apostrophes, and punctuation from folding (\u2474)
    if not word.isascii():
        return tuple(run if len(run) == 1 else stem(run) for run in _RUNS.findall(word)), ()
    if not word:
        return (), ()
    parts = _CAMEL.findall(piece) if _COMPOUND.search(piece) else []
    if len(parts) > _MOST_PARTS:
        parts = []
    added = (stem(part.lower()) for part in parts if len(part) > 1)
    return (stem(word),), tuple(added)


def fold(text: str) -> str:
    """Return text in lower case, without accents and compatibility forms; accepts any string."""
    if text.isascii():
        return text.lower()
    plain = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
    folded = unicodedata.normalize("NFC", plain).casefold()
    # Folding can restore accents (Turkish dotted i), and lone surrogates can't be stored.
    return _ACCENTS.sub("", folded).encode("utf-8", "ignore").decode("utf-8")


def spaced(text: str) -> tuple[str, ...]:
    """Split folded text into unstemmed terms, for finding words by how they begin."""
    return tuple(_RUNS.findall(text))


def places(text: str, *, beginning: Collection[str] = ()) -> Iterator[tuple[int, str]]:
    """Yield the position and text of each word.

    With `beginning`, yields only words that start like one of these stemmed terms.
    """
    text = text.replace("_", " ")
    if not beginning:
        yield from ((match.start(), match[0]) for match in _PIECE.finditer(text))
        return
    # The last letters of a stem may differ from the word's (happi, happy).
    starts = {term[: max(3, len(term) - 2)] for term in beginning}
    lower = text.lower()
    if len(lower) == len(text):  # 5 times faster than the regular expression below
        ends = {at: at + len(start) for start in starts for at in _word_starts(lower, start)}
        for at in sorted(ends):
            rest = _REST.match(text, ends[at])
            yield at, text[at : rest.end() if rest else ends[at]]
        return
    either = "|".join(sorted(map(re.escape, starts)))
    for match in re.finditer(f"(?<![a-zA-Z0-9])(?:{either})\\w*", text, re.IGNORECASE):
        yield match.start(), match[0]


def _word_starts(text: str, start: str) -> Iterator[int]:
    """Yield the positions of `start` that don't follow an ASCII letter or digit."""
    at = text.find(start)
    while at >= 0:
        if at == 0 or not (text[at - 1].isascii() and text[at - 1].isalnum()):
            yield at
        at = text.find(start, at + 1)
