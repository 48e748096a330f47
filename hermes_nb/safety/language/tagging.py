"""A text as a row of tags, one for each word: the form in which rules read every language.

A tag is one character that stands for a set of word classes, those of the lexicon and of
`artefacts`; so a rule is a regular expression over tags (`rules`), and a 64 KB text is about ten
thousand characters long for it. What stands between two spaces (a chunk) is a word, a thing, or
several words; scripts without spaces are searched for the words that are known.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from functools import cache, cached_property, lru_cache
from itertools import accumulate

from hermes_nb.safety.language import artefacts
from hermes_nb.safety.language.artefacts import address, kinds
from hermes_nb.safety.language.lexicon import NONE, Classes, lexicon
from hermes_nb.safety.reading.patterns import Span, in_time, windows

SENTENCE = ";"
PARAGRAPH = "\n"
CONTINUED = "_"
"""The tag of the second word of a phrase; rules skip it."""
_OTHER = "."
"""The tag of a word that means nothing to any rule."""
_FIRST_TAG = 0xE000
_REMEMBERED = 20_000
"""Chunks whose tags are remembered from text to text."""
_OFTEN = 128
"""Chunks that are read between two looks at the clock."""
_LONGEST_CHUNK = 300
"""Longer runs without a space (data, minified code) are read in pieces of this size."""
_WORD_SIZE = 3
"""Letters between known words, in scripts without spaces, that count as a word."""

_UNSPACED = (
    "\u0e00-\u0e7f\u1100-\u11ff\u2e80-\u2fff\u3001-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_SCRIPT = re.compile(f"[{_UNSPACED}]")
_PIECE = re.compile(
    rf"\n[ \t]*\n\s*|[{_UNSPACED}]{{1,{_LONGEST_CHUNK}}}|[^\s{_UNSPACED}]{{1,{_LONGEST_CHUNK}}}"
)
_STOPS = frozenset(".!?;:。．！？")
_CLOSING = "\"'`)]}*_»”’"
_PATH = frozenset("./~$@`\"'(")
"""Signs before a plain word with which it may be a thing all the same."""
_AROUND = ".,:;?!\"'`()[]{}<>*_~#«»“”‘’…-/\\"
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]{1,2}(?![^\W_]))?")
_JOINT = re.compile(r"[<>/=()\[\]{}]")
_DRESSED = re.compile(r"[^\w@$!|+]+")
_JOINED = re.compile(r"_(?<=[^\W_].)_*(?=[^\W_])")

Part = tuple[int, int, str]


class Tagged:
    """A text's tags, the first one a paragraph's, and where they stand."""

    def __init__(self, text: str) -> None:
        """Tag a lower-case, normalised text."""
        self._text = text
        self._chunks = ["\n", *_PIECE.findall(text)]
        self._rows: list[str] = []
        for start, end in windows(len(self._chunks), _OFTEN):
            in_time()
            self._rows += [read(chunk)[0] for chunk in self._chunks[start:end]]
        self.tags = _with_phrases("".join(self._rows))

    @cached_property
    def _starts(self) -> list[int]:
        """Where each chunk begins in the text."""
        return [-1, *(match.start() for match in _PIECE.finditer(self._text))]

    @cached_property
    def _firsts(self) -> list[int]:
        """Which is the first tag of each chunk."""
        return [0, *accumulate(map(len, self._rows))][:-1]

    def present(self) -> int:
        """Return the classes that the text has words of, as a mask."""
        return present(self.tags)

    def span(self, first: int, last: int) -> Span:
        """Return the place in the text of `tags[first:last]`."""
        return self._place(first)[0], self._place(last - 1)[1]

    def before(self, start: int) -> int:
        """Return the index of the first tag that stands at `start` or after it."""
        index = bisect_left(self._starts, start) - 1
        if index <= 0:
            return index + 1
        inside = start - self._starts[index]  # the chunk before may reach beyond `start`
        return self._firsts[index] + sum(part[0] < inside for part in read(self._chunks[index])[1])

    def _place(self, index: int) -> Span:
        """Return the place in the text of one tag."""
        chunk = bisect_right(self._firsts, index) - 1
        if chunk == 0:
            return -1, -1  # the paragraph that every text begins with
        start, end, _ = read(self._chunks[chunk])[1][index - self._firsts[chunk]]
        return self._starts[chunk] + start, self._starts[chunk] + end


@cache
def alphabet() -> dict[Classes, str]:
    """Return the tag of every set of classes there is, one character each."""
    every = sorted(lexicon().sets() | artefacts.sets(), key=sorted)
    return {**{classes: chr(_FIRST_TAG + at) for at, classes in enumerate(every)}, NONE: _OTHER}


@cache
def class_bits() -> dict[str, int]:
    """Return a bit of its own for every class, and for the tag of a sentence's end."""
    names = sorted(frozenset[str]().union(*alphabet()))
    return {name: 1 << index for index, name in enumerate((*names, "SENTENCE"))}


@cache
def masks() -> dict[str, int]:
    """Return the classes that each tag stands for, as a mask."""
    bits = class_bits()
    found = {tag: sum(bits[name] for name in classes) for classes, tag in alphabet().items()}
    return {**found, SENTENCE: bits["SENTENCE"]}


def present(tags: str) -> int:
    """Return the classes that tags stand for, as a mask."""
    known, found = masks(), 0
    for tag in set(tags):
        found |= known.get(tag, 0)
    return found


@lru_cache(maxsize=_REMEMBERED)
def read(chunk: str) -> tuple[str, tuple[Part, ...]]:
    """Return the tags of a chunk, and its parts: start, end and tag."""
    if chunk[0] == "\n":
        found: tuple[Part, ...] = ((0, 0, PARAGRAPH),)
    else:
        found = _unspaced(chunk) if _SCRIPT.match(chunk) else _spaced(chunk)
    return "".join([part[2] for part in found]), found


def _unspaced(run: str) -> tuple[Part, ...]:
    """Return the parts of a run of a script without spaces; what is between words is some tags."""
    found: list[Part] = []
    done = 0
    for start, end, classes in (*lexicon().inside(run), (len(run), len(run), NONE)):
        for at in range(done, start, _WORD_SIZE):
            stop = min(at + _WORD_SIZE, start)
            found.append((at, stop, SENTENCE if "。" in run[at:stop] else _OTHER))
        if start < end:
            found.append((start, end, alphabet()[classes]))
        done = end
    return tuple(found)


def _spaced(chunk: str) -> tuple[Part, ...]:
    """Return the parts of what stands between two spaces."""
    if chunk.isalpha():
        return _word(chunk, 0)
    bare = chunk.strip(_AROUND)
    if bare.isalpha() and not (chunk[0] in _PATH and kinds(chunk)):
        found = _word(bare, chunk.find(bare))
    else:
        found = _things(chunk) or _one_word(chunk, bare) or _many_words(chunk)
    if chunk[-1] in _STOPS or chunk.rstrip(_CLOSING)[-1:] in _STOPS:
        size = len(chunk)
        found = (*found, (size, size, SENTENCE))
    return found


def _things(chunk: str) -> tuple[Part, ...]:
    """Return the part of a chunk that is a thing (see `artefacts`), with any words before it."""
    found, place = kinds(chunk), address(chunk)
    if place is not None:
        start, end, name = place
        return (*_many_words(chunk[:start]), (start, end, alphabet()[found | {name}]))
    return ((0, len(chunk), alphabet()[found]),) if found else ()


def _word(word: str, at: int) -> tuple[Part, ...]:
    """Return the part that a plain word is, or those of the words it is glued from."""
    if glued := lexicon().unglued(word):
        return tuple((at + start, at + end, alphabet()[found]) for start, end, found in glued)
    return ((at, at + len(word), _tag(word)),)


@lru_cache(maxsize=_REMEMBERED)
def _tag(word: str) -> str:
    """Return the tag of a plain word."""
    words = lexicon()
    return alphabet()[words.own_classes(word) if word in words.in_pairs else words.meaning(word)]


def _one_word(chunk: str, bare: str) -> tuple[Part, ...]:
    """Return the chunk as one word if it is one in disguise: `i.g-n*ore`, `pr3v10us`, `don't`."""
    if _JOINT.search(bare) or (bare.isdigit() and bare.isascii()):
        return ()
    whole = bare.replace("’", "'").removesuffix("'s")
    plain = _DRESSED.sub("", _JOINED.sub("", whole.replace("'", "")))
    for word in dict.fromkeys((whole, plain, plain.rstrip("!+|"))):
        if classes := lexicon().meaning(word):
            start = chunk.find(bare)
            return ((start, start + len(bare), alphabet()[classes]),)
    return ()


def _many_words(chunk: str) -> tuple[Part, ...]:
    return tuple(part for m in _WORD.finditer(chunk) for part in _word(m[0], m.start()))


def _with_phrases(row: str) -> str:
    """Return a row of tags with those of a phrase's two words replaced by what it means.

    A word that would end one phrase and begin another belongs to the one whose first tag comes
    first: neither from the left nor from the right is right in all languages.
    """
    firsts, meant = _phrases()
    found = [at for at, tag in enumerate(row) if tag in firsts and row[at : at + 2] in meant]
    taken: set[int] = set()
    for at in sorted(found, key=row.__getitem__):
        if taken.isdisjoint((at - 1, at + 1)):
            taken.add(at)
    tags = [*row]
    for at in taken:
        tags[at : at + 2] = meant[row[at : at + 2]]
    return "".join(tags)


@cache
def _phrases() -> tuple[frozenset[str], dict[str, str]]:
    """Return the tags that begin a phrase, and what takes the place of the two of each phrase."""
    words, tag = lexicon(), alphabet()
    found = {
        tag[words.own_classes(first)] + tag[words.own_classes(second)]: tag[classes] + CONTINUED
        for first, seconds in words.pairs.items()
        for second, classes in seconds.items()
    }
    return frozenset(pair[0] for pair in found), found
