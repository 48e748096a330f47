"""Convert text to one tag per word, so that rules work in all languages.

`words.toml` has classes of words (verbs for ignoring, names for instructions) in twenty languages.
A word may be in several classes. *Things* are passages that are not words, such as URLs and names
of secret files. Their class comes from the patterns under `[things]` in `rules.toml`. A tag is a
single character that represents a set of classes, so a rule is a regular expression over tags.

A chunk, the text between two spaces, is a word, a thing or several words. Text in scripts without
spaces is searched for known words.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator
from functools import cache, cached_property, lru_cache
from itertools import combinations
from operator import ne
from pathlib import Path

from hermes_nb.safety import table
from hermes_nb.safety.normalise import LOOKALIKES, fold
from hermes_nb.safety.patterns import Span, in_time

SENTENCE = ";"
"""Tag for the end of a sentence."""
PARAGRAPH = "\n"
"""Tag for the end of a paragraph."""
CONTINUED = "_"
"""Tag for the second word of a phrase. Rules skip it: the first word has the phrase's tag."""
_OTHER = "."
"""Tag for a word without a class."""
_FIRST_TAG = 0x4E00
"""Code point of the first tag."""

_LISTS = re.compile(r'^([A-Z0-9]+) = "(.*)"$', re.MULTILINE)
_UNSPACED_LANGUAGES = ("zh", "ja", "ko", "th")
_RESPELT: dict[str, dict[int, str]] = {
    "de": str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss"}),
    "pl": str.maketrans({"ł": "l"}),
    "tr": str.maketrans({"ı": "i"}),
    "vi": str.maketrans({"đ": "d"}),
}
"""How users spell letters that are missing from their keyboard, by language.

Folding covers other letters.
"""
_SHORTEST_RESPELT = 4
"""Minimum length of a respelled word. Shorter ones collide with words in other languages."""
_DISGUISED = ("IGNORE", "PRIOR", "RULES", "SYSTEM", "PROMPT", "UNRESTRICTED", "REVEAL", "YOUR")
"""Classes whose English words are recognised with typos."""
_SHORTEST_STEM = 3
_SHORTEST_MISSPELT = 6
_JUMBLED = 6
"""Maximum misplaced letters in a jumbled word."""
_LONGEST_WORD = 40
_THINGS_AT_ONCE = 2
"""Maximum kinds of thing in a chunk. Each combination has its own tag."""

_CYRILLIC = str.maketrans("abceghikmnoprtuxy", "авседнікмпоргтиху")
"""Cyrillic lookalikes of Latin letters, for words that mix both scripts."""
_SIGNS = dict(zip("0345789@$!+€", "oeastbgasite", strict=True))
_SIGNS_FOR_LETTERS = tuple(str.maketrans({**_SIGNS, "1": one, "|": one}) for one in "il")
"""The two readings of "leet" (`pr3v10us`): `1` and `|` mean an i or an l."""
_LEET = re.compile("[01345789@$!+€|]")
_LETTER = re.compile(r"[^\W\d_]")
_MIXED = re.compile("[a-z].*[\u0400-\u04ff]|[\u0400-\u04ff].*[a-z]")
_PROCLITIC = re.compile(
    "^[\u0648\u0641]?[\u0628\u0643\u0644]?(?:\u0627\u0644)?(?:[\u064a\u062a\u0646\u0633](?=.{3}))?"
)
"""Arabic prefixes joined to the next word: and, with, for, the, a verb's person."""


def listed() -> Iterator[tuple[str, str, list[str]]]:
    """Yield language, class and words from each line of `words.toml`, folded like scanned text."""
    text = Path(__file__).with_name("words.toml").read_text(encoding="utf-8")
    for section in text.split("\n[")[1:]:
        language, _, body = section.partition("]")
        respelt = _RESPELT.get(language)
        for name, words in _LISTS.findall(body):
            if words.isascii():
                found = words.lower().split()
            else:
                found = fold(words).lower().split()
                more = fold(words.translate(respelt)).lower().split() if respelt else ()
                found += (word for word in more if len(word) >= _SHORTEST_RESPELT)
            yield language, name, found


class Lexicon:
    """All words with their classes as bit masks, and a tag for each mask. See `lexicon`."""

    def __init__(self) -> None:
        """Read the word lists and assign the tags."""
        self.bits: dict[str, int] = {}
        words, stems, phrases, unspaced = (defaultdict[str, int](int) for _ in range(4))
        plain: list[str] = []
        for language, name, found in listed():
            bit = self._bit(name)
            if language == "en" and name in _DISGUISED:
                plain += filter(str.isalpha, found)
            for word in found:
                if language in _UNSPACED_LANGUAGES:
                    unspaced[word] |= bit
                elif word[-1] == "*":
                    stems[word[:-1]] |= bit
                else:
                    (phrases if "_" in word else words)[word] |= bit
        # A word also has its stem's classes.
        self._stems = _longest_first(stems, _SHORTEST_STEM)
        self._words = {word: self._begun(word) | mask for word, mask in words.items()}
        self._inside = _longest_first({w: _beginnings(w, unspaced) for w in unspaced})
        self._first = re.compile(f"[{''.join(self._inside)}]")
        self._similar = defaultdict[tuple[str, str, int], list[str]](list)
        for word in sorted({word for word in plain if len(word) >= _SHORTEST_MISSPELT}):
            for size in range(len(word) - 1, len(word) + 2):
                self._similar[word[0], word[-1], size].append(word)
        self._tag_all({*self._words.values(), *map(self._begun, stems)}, phrases)

    def _bit(self, name: str) -> int:
        return self.bits.setdefault(name, 1 << len(self.bits))

    def _tag_all(self, every: set[int], phrases: dict[str, int]) -> None:
        """Assign a tag to each set of classes that a word, thing or phrase can have."""
        kinds = [self._bit(name) for name, _ in _things()]
        places = (0, self._bit("URL"), self._bit("EMAIL"))
        things = {
            sum(some) | place
            for size in range(_THINGS_AT_ONCE + 1)
            for some in combinations(kinds, size)
            for place in places
        }
        inside = (mask for _, found in self._inside.values() for mask in found.values())
        every |= {*inside, *things, *phrases.values()}
        tags = (chr(code) for code in range(_FIRST_TAG, 0xA000))
        self._tags = {0: _OTHER, **{mask: next(tags) for mask in sorted(every - {0})}}
        self.masks = {tag: mask for mask, tag in self._tags.items()}
        self.masks[SENTENCE] = self._bit("SENTENCE")
        # Words in phrases get their own tags, regardless of their classes.
        pairs = {tuple(phrase.split("_", 1)): mask for phrase, mask in phrases.items()}
        self._own = {word: next(tags) for word in sorted({w for pair in pairs for w in pair})}
        self.masks |= {tag: self.mask(word) for word, tag in self._own.items()}
        self.phrases = {
            self._own[one] + self._own[two]: self._tags[mask] + CONTINUED
            for (one, two), mask in pairs.items()
        }
        self.starts = frozenset(pair[0] for pair in self.phrases)

    def mask(self, word: str) -> int:
        """Return a plain lower-case word's classes as a bit mask, or 0 if unknown."""
        found = self._listed(word)
        if not found and "\u0621" <= word[:1] <= "\u064a" and len(word) > _SHORTEST_STEM:
            bare = _PROCLITIC.sub("", word)
            found = self._listed(bare) if len(bare) >= _SHORTEST_STEM else 0
        return found

    def _listed(self, word: str) -> int:
        return self._words.get(word) or self._begun(word)

    def _begun(self, word: str) -> int:
        """Return the classes of all stems that a word begins with."""
        sizes, stems = self._stems.get(word[:_SHORTEST_STEM], ((), {}))
        found = 0
        for size in sizes:
            found |= stems.get(word[:size], 0)
        return found

    def meant(self, word: str) -> int:
        """Return a word's classes, even if it contains lookalikes, "leet" signs or a typo."""
        found = self.mask(word)
        if found or len(word) > _LONGEST_WORD or word.isdigit():
            return found
        if not word.isascii():
            found = self.mask(word.translate(_CYRILLIC)) if _MIXED.search(word) else 0
            word = word.translate(LOOKALIKES)
            found = found or self.mask(word)
        if not (found or word.isalpha()) and _LEET.search(word) and _LETTER.search(word):
            for signs in _SIGNS_FOR_LETTERS:
                found = found or self.mask(word.translate(signs))
        if not found and len(word) >= _SHORTEST_MISSPELT - 1:
            similar = self._similar.get((word[0], word[-1], len(word)), ())
            found = next((self.mask(each) for each in similar if _misspelt(word, each)), 0)
        return found

    def tag(self, word: str) -> str:
        """Return the tag for a plain word."""
        return self._own.get(word) or self._tags[self.meant(word)]

    def of(self, mask: int) -> str:
        """Return the tag for a mask of classes."""
        return self._tags[mask]

    def inside(self, run: str) -> Iterator[tuple[int, int, str]]:
        """Yield the start, end and tag of each known word in text without spaces between words."""
        done = 0
        for first in self._first.finditer(run):
            start = first.start()
            if start < done:
                continue
            sizes, words = self._inside[first[0]]
            for size in sizes:
                word = run[start : start + size]  # may be shorter at the end
                if word in words:
                    done = start + len(word)
                    yield start, done, self._tags[words[word]]
                    break


def _beginnings(word: str, masks: dict[str, int]) -> int:
    """Return the classes of a word and of all its prefixes."""
    found = 0
    for size in range(1, len(word) + 1):
        found |= masks.get(word[:size], 0)
    return found


def _longest_first(
    words: dict[str, int], letters: int = 1
) -> dict[str, tuple[list[int], dict[str, int]]]:
    """Return words grouped by first letters, with the lengths found in descending order."""
    found: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for word, mask in words.items():
        found[word[:letters]][word] = mask
    return {head: (sorted({*map(len, some)}, reverse=True), some) for head, some in found.items()}


def _misspelt(word: str, meant: str) -> bool:
    """Return whether `word` is a typo of `meant`.

    Typos are jumbled inner letters, or one wrong, missing or extra letter.
    """
    if len(word) == len(meant):
        wrong = sum(map(ne, word, meant))
        return wrong <= 1 or (wrong <= _JUMBLED and sorted(word) == sorted(meant))
    shorter, longer = sorted((word, meant), key=len)
    index = next(i for i, letter in enumerate(longer) if letter != shorter[i : i + 1])
    return shorter[index:] == longer[index + 1 :]


@cache
def lexicon() -> Lexicon:
    """Return the lexicon, read once."""
    return Lexicon()


# Reading a text.

_UNSPACED = (
    "\u0e00-\u0e7f\u1100-\u11ff\u2e80-\u2fff\u3001-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_LONGEST_CHUNK = 300
"""Longer runs without a space (data, minified code) are split into chunks of this size."""
_CHUNK = re.compile(
    rf"\n[ \t]*\n\s*|[{_UNSPACED}]{{1,{_LONGEST_CHUNK}}}|[^\s{_UNSPACED}]{{1,{_LONGEST_CHUNK}}}"
)
_WORD_SIZE = 3
"""In scripts without spaces, this many unknown characters count as a word."""
_OFTEN = 128
"""Number of chunks between two checks of the time limit."""
_REMEMBERED = 20_000
"""Number of chunks whose tags are cached."""
_STOPS = frozenset(".!?;:。．！？")
_CLOSING = "\"'`)]}*_»”’"
_PATH = frozenset("./~$@`\"'(")
"""Characters that, at the start of a chunk, can make even a plain word a thing."""
_AROUND = ".,:;?!\"'`()[]{}<>*_~#«»“”‘’…-/\\"
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]{1,2}(?![^\W_]))?")
_JOINT = re.compile(r"[<>/=()\[\]{}]")
_DRESSED = re.compile(r"[^\w@$!|+]+")
_JOINED = re.compile(r"_(?<=[^\W_].)_*(?=[^\W_])")
_SCHEME = re.compile(r"(?:https?|wss?|ftp)://[^\s\"'<>`)\]]{3,}")
_HERE = re.compile(r"\w+://(?:localhost|127\.\d|0\.0\.0\.0|\[::1\])")
_ADDRESS = re.compile(r"[\w.+-]{1,64}@[a-z0-9-]{1,63}(?:\.[a-z0-9-]{1,63}){1,4}")

_Part = tuple[int, int, str]


class Tagged:
    """A text's tags and their positions. The first tag is for a paragraph."""

    def __init__(self, text: str) -> None:
        """Tag a normalised lower-case text."""
        self.text = text
        rows = [PARAGRAPH]
        for number, chunk in enumerate(_CHUNK.findall(text)):
            if number % _OFTEN == 0:
                in_time()
            rows.append(_read(chunk)[0])
        self.tags = _with_phrases("".join(rows))

    @cached_property
    def _places(self) -> list[Span]:
        """The span of each tag, computed on first use, since most texts do not need them."""
        found = [(-1, -1)]  # the initial paragraph tag
        for match in _CHUNK.finditer(self.text):
            at = match.start()
            found += [(at + start, at + end) for start, end, _ in _read(match[0])[1]]
        return found

    def span(self, first: int, last: int) -> Span:
        """Return the span of the text for `tags[first:last]`."""
        return max(0, self._places[first][0]), max(0, self._places[last - 1][1])

    def before(self, start: int) -> int:
        """Return the index of the first tag at or after `start`."""
        return bisect_left(self._places, (start, -1))


@cache
def _things() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((name, re.compile(pattern)) for name, pattern in table("rules")["things"].items())


_ACCOUNT = re.compile(r"[0-9](?<=(?:at|be|ch|de|es|fr|gb|it|lt|nl|pl|pt).)")
"""Start of an IBAN from a common country. Matching its first digit is fast."""


@lru_cache(maxsize=_REMEMBERED)
def _read(chunk: str) -> tuple[str, tuple[_Part, ...]]:
    """Return a chunk's tags, and its parts as start, end and tag."""
    if chunk[0] == "\n":
        found: tuple[_Part, ...] = ((0, 0, PARAGRAPH),)
    else:
        # A chunk is in a script without spaces if it does not join with a letter before it.
        alone = chunk.isascii() or _CHUNK.findall(f"a{chunk}")[0] != "a"
        found = _spaced(chunk) if alone else tuple(_unspaced(chunk))
    return "".join([part[2] for part in found]), found


def forget() -> None:
    """Clear the caches in order to measure a first scan."""
    _read.cache_clear()
    _tag.cache_clear()


@lru_cache(maxsize=_REMEMBERED)
def _tag(word: str) -> str:
    return lexicon().tag(word)


def _unspaced(run: str) -> Iterator[_Part]:
    """Yield the parts of text in a script without spaces; split unknown text by length."""
    done = 0
    for start, end, tag in (*lexicon().inside(run), (len(run), len(run), "")):
        for at in range(done, start, _WORD_SIZE):
            stop = min(at + _WORD_SIZE, start)
            yield at, stop, SENTENCE if "。" in run[at:stop] else _OTHER
        if tag:
            yield start, end, tag
        done = end


def _spaced(chunk: str) -> tuple[_Part, ...]:
    """Return a chunk's parts."""
    if chunk.isalpha():
        return ((0, len(chunk), _tag(chunk)),)
    bare = chunk.strip(_AROUND)
    if bare.isalpha() and not (chunk[0] in _PATH and _kinds(chunk)):
        start = chunk.find(bare)
        found: tuple[_Part, ...] = ((start, start + len(bare), _tag(bare)),)
    else:
        found = _thing(chunk) or _one_word(chunk, bare) or tuple(_many_words(chunk))
    if chunk[-1] in _STOPS or chunk.rstrip(_CLOSING)[-1:] in _STOPS:
        found = (*found, (len(chunk), len(chunk), SENTENCE))
    return found


def _kinds(chunk: str) -> int:
    """Return the classes of the things in a chunk, or 0 if there are none."""
    if not (any(map(chunk.__contains__, table("rules")["thing_signs"])) or _ACCOUNT.search(chunk)):
        return 0
    bits = [lexicon().bits[name] for name, pattern in _things() if pattern.search(chunk)]
    return sum(bits[:_THINGS_AT_ONCE])


def _thing(chunk: str) -> tuple[_Part, ...]:
    """Return the thing in a chunk, with any words before it."""
    words, kinds, start, end = lexicon(), _kinds(chunk), 0, len(chunk)
    if "://" in chunk and (found := _SCHEME.search(chunk)) and not _HERE.match(found[0]):
        start, kinds = found.start(), kinds | words.bits["URL"]
    elif "@" in chunk and (found := _ADDRESS.search(chunk)):
        (start, end), kinds = found.span(), kinds | words.bits["EMAIL"]
    return (*_many_words(chunk[:start]), (start, end, words.of(kinds))) if kinds else ()


def _one_word(chunk: str, bare: str) -> tuple[_Part, ...]:
    """Return a chunk as one word if it is a disguised word: `i.g-n*ore`, `pr3v10us`, `don't`."""
    if _JOINT.search(bare) or (bare.isdigit() and bare.isascii()):
        return ()
    whole = bare.replace("’", "'").removesuffix("'s")
    plain = _DRESSED.sub("", _JOINED.sub("", whole.replace("'", "")))
    for word in dict.fromkeys((whole, plain, plain.rstrip("!+|"))):
        if word and (mask := lexicon().meant(word)):
            start = chunk.find(bare)
            return ((start, start + len(bare), lexicon().of(mask)),)
    return ()


def _many_words(chunk: str) -> Iterator[_Part]:
    for match in _WORD.finditer(chunk):
        yield match.start(), match.end(), _tag(match[0])


def _with_phrases(row: str) -> str:
    """Return a sequence of tags in which each two-word phrase has the phrase's tags.

    If a word could end one phrase and start another, the phrase with the lower first tag wins,
    because neither reading direction is correct in all languages.
    """
    starts, meant = lexicon().starts, lexicon().phrases
    found = [at for at, tag in enumerate(row) if tag in starts and row[at : at + 2] in meant]
    taken: set[int] = set()
    for at in sorted(found, key=row.__getitem__):
        if taken.isdisjoint((at - 1, at + 1)):
            taken.add(at)
    tags = [*row]
    for at in taken:
        tags[at : at + 2] = meant[row[at : at + 2]]
    return "".join(tags)
