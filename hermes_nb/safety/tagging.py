"""A text as a row of tags, one for each word: the form in which rules read every language.

A tag is one character that stands for a set of word classes, so a rule is a regular expression over
tags (`rules`), and a 64 KB text is about ten thousand characters long for it. The classes are those
of the lexicon and of `artefacts`.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from functools import cache, lru_cache
from itertools import accumulate

from hermes_nb.safety import artefacts
from hermes_nb.safety.artefacts import address, kinds
from hermes_nb.safety.lexicon import NONE, Classes, lexicon

SENTENCE = ";"
PARAGRAPH = "\n"
CONTINUED = "_"
"""The tag of the second word of a phrase; rules skip it."""
OTHER = "."
"""The tag of a word that means nothing to any rule."""

_FIRST_TAG = 0xE000
_MEMO = 20_000
_LONGEST_CHUNK = 300
"""Longer runs without a space (data, minified code) are read in pieces of this size."""

_UNSPACED = "\u0e00-\u0e7f\u1100-\u11ff\u2e80-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
_CHUNK = re.compile(
    rf"\n[ \t]*\n\s*|[{_UNSPACED}]{{1,{_LONGEST_CHUNK}}}|[^\s{_UNSPACED}]{{1,{_LONGEST_CHUNK}}}"
)
_EMPTY_LINE = re.compile(r"\n[ \t]*\n\s*")
_SCRIPT = re.compile(f"[{_UNSPACED}]")
_STOPS = frozenset(".!?;:。．！？")
_PATH = frozenset("./~$@`\"'(")
_CLOSING = "\"'`)]}*_»”’"
_AROUND = ".,:;?!\"'`()[]{}<>*_~#«»“”‘’…-/\\"
_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]{1,2}(?![^\W_]))?")
_JOINT = re.compile(r"[<>/=()\[\]{}]")
_DRESSED = re.compile(r"[^\w@$!|+]+|(?<=[^\W_])_+(?=[^\W_])")


@cache
def alphabet() -> dict[Classes, str]:
    """Return the tag of every set of classes there is, one character each."""
    every = sorted(lexicon().sets() | artefacts.sets(), key=sorted)
    tags = {classes: chr(_FIRST_TAG + index) for index, classes in enumerate(every)}
    return {**tags, NONE: OTHER}


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


@cache
def _phrases() -> tuple[tuple[str, str], ...]:
    """Return the tags of phrases' two words, each with what takes their place."""
    words, tag = lexicon(), alphabet()
    return tuple(
        (tag[words.own_classes(first)] + tag[words.own_classes(second)], tag[classes] + CONTINUED)
        for first, phrases in words.pairs.items()
        for second, classes in phrases.items()
    )


class Tagged:
    """A text's tags, the first one a paragraph's; where they stand is only worked out if asked."""

    def __init__(self, text: str) -> None:
        """Tag a lower-case, normalised text."""
        self._text = text
        self._chunks = ["", *_chunks(text)]
        self._pieces = [PARAGRAPH, *map(_tags, self._chunks[1:])]
        tags = "".join(self._pieces)
        for words, phrase in _phrases():
            if words in tags:
                tags = tags.replace(words, phrase)
        self.tags = tags
        self._places: tuple[list[int], list[int]] | None = None

    def present(self) -> int:
        """Return the classes that the text has words of, as a mask."""
        known = masks()
        found = 0
        for tag in set(self.tags):
            found |= known.get(tag, 0)
        return found

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the place in the text of `tags[first:last]`."""
        return self._place(first)[0], self._place(last - 1)[1]

    def before(self, start: int) -> int:
        """Return the index of the first tag that stands at `start` or after it."""
        chunks, tags = self._placed()
        index = bisect_left(chunks, start) - 1
        if index < 0:
            return 0
        if index == 0:
            return 1
        parts = _parts(self._chunks[index])  # the chunk before may reach beyond `start`
        inside = start - chunks[index]
        return tags[index] + sum(1 for part in parts if part[0] < inside)

    def _place(self, index: int) -> tuple[int, int]:
        """Return the place in the text of one tag."""
        chunks, tags = self._placed()
        chunk = bisect_right(tags, index) - 1
        if chunk == 0:
            return -1, -1  # the paragraph that every text begins with
        start, end, _ = _parts(self._chunks[chunk])[index - tags[chunk]]
        return chunks[chunk] + start, chunks[chunk] + end

    def _placed(self) -> tuple[list[int], list[int]]:
        """Return where each chunk begins, in the text and among the tags."""
        if self._places is None:
            chunks = [-1, *(match.start() for match in _CHUNK.finditer(self._text))]
            tags = [0, *accumulate(map(len, self._pieces))][:-1]
            self._places = chunks, tags
        return self._places


def _chunks(text: str) -> list[str]:
    """Return what `_CHUNK` finds; most texts need no more than to be split at their spaces."""
    if not text.isascii():
        return _CHUNK.findall(text)
    first, *rest = _EMPTY_LINE.split(text) if _EMPTY_LINE.search(text) else (text,)
    chunks = first.split()
    for paragraph in rest:
        chunks.append("\n")
        chunks += paragraph.split()
    return chunks if max(map(len, chunks), default=0) <= _LONGEST_CHUNK else _CHUNK.findall(text)


Part = tuple[int, int, str]


@lru_cache(maxsize=_MEMO)
def _tags(chunk: str) -> str:
    if chunk.isascii() and chunk[0] not in _PATH:
        bare = chunk if chunk.isalpha() else chunk.strip(_AROUND)
        if bare.isalpha() and lexicon().unknown(bare):  # nine words of ten
            return OTHER + SENTENCE if _stops(chunk) else OTHER
    return "".join([part[2] for part in _parts(chunk)])


@lru_cache(maxsize=_MEMO)
def _parts(chunk: str) -> tuple[Part, ...]:
    """Return the parts of a chunk: start, end and tag."""
    if chunk.isascii():
        return ((0, 0, PARAGRAPH),) if chunk[0] == "\n" else _spaced(chunk)
    return _unspaced(chunk) if _SCRIPT.match(chunk) else _spaced(chunk)


def _unspaced(run: str) -> tuple[Part, ...]:
    """Return the parts of a run of a script without spaces; what is between words is one tag."""
    parts: list[Part] = []
    tag = alphabet()
    done = 0
    for start, end, classes in lexicon().inside(run):
        parts.extend(_between(run, done, start))
        parts.append((start, end, tag[classes]))
        done = end
    parts.extend(_between(run, done, len(run)))
    return tuple(parts)


_SIZE_OF_A_WORD = 3


def _between(run: str, start: int, end: int) -> list[Part]:
    size = _SIZE_OF_A_WORD
    places = range(start, end, size)
    if "。" not in run:
        return [(at, min(at + size, end), OTHER) for at in places]
    return [
        (at, min(at + size, end), SENTENCE if "。" in run[at : min(at + size, end)] else OTHER)
        for at in places
    ]


def _spaced(chunk: str) -> tuple[Part, ...]:
    """Return the parts of what stands between two spaces."""
    if chunk.isalpha():
        return _word(chunk)
    bare = chunk.strip(_AROUND)
    if bare.isalpha() and not (chunk[0] in _PATH and kinds(chunk)):
        parts = _moved(_word(bare), chunk.find(bare))
    else:
        parts = _things(chunk) or _one_word(chunk) or _many_words(chunk)
    if _stops(chunk):
        size = len(chunk)
        parts = (*parts, (size, size, SENTENCE))
    return parts


def _stops(chunk: str) -> bool:
    """Say whether a sentence ends with a chunk."""
    return chunk[-1] in _STOPS or chunk.rstrip(_CLOSING)[-1:] in _STOPS


def _things(chunk: str) -> tuple[Part, ...]:
    """Return the part of a chunk that is a thing (see `artefacts`), with any words before it."""
    found, place = kinds(chunk), address(chunk)
    if place is not None:
        start, end, name = place
        return (*_many_words(chunk[:start]), (start, end, alphabet()[found | {name}]))
    return ((0, len(chunk), alphabet()[found]),) if found else ()


@lru_cache(maxsize=_MEMO)
def _word(word: str) -> tuple[Part, ...]:
    """Return the part that a plain word is, or those of the words it is glued from."""
    words, tag = lexicon(), alphabet()
    if word.isascii() and words.unknown(word):
        return ((0, len(word), OTHER),)
    if word in words.in_pairs:
        return ((0, len(word), tag[words.own_classes(word)]),)
    glued = words.unglued(word)
    if glued:
        return tuple((start, end, tag[found]) for start, end, found in glued)
    return ((0, len(word), tag[words.classes(word) or words.undisguised(word)]),)


def _moved(parts: tuple[Part, ...], at: int) -> tuple[Part, ...]:
    return tuple((at + start, at + end, tag) for start, end, tag in parts)


def _one_word(chunk: str) -> tuple[Part, ...]:
    """Return the chunk as one word if it is one in disguise: `i.g-n*ore`, `pr3v10us`, `don't`."""
    words = lexicon()
    stripped = chunk.strip(_AROUND)
    if _JOINT.search(stripped):
        return ()
    if stripped.isdigit() and stripped.isascii():
        return ()
    whole = stripped.replace("’", "'").removesuffix("'s")
    bare = whole if whole.isalnum() else _DRESSED.sub("", whole.replace("'", ""))
    for word in dict.fromkeys((whole, bare, bare.rstrip("!+|"))):
        classes = words.classes(word) or words.undisguised(word)
        if classes:
            start = chunk.find(stripped)
            return ((start, start + len(stripped), alphabet()[classes]),)
    return ()


def _many_words(chunk: str) -> tuple[Part, ...]:
    found = _WORD.finditer(chunk)
    return tuple(part for m in found for part in _moved(_word(m[0]), m.start()))
