"""The alphabet in which rules read a text: one character for every set of word classes there is.

The classes are those of the lexicon and of `artefacts`; a class has a bit of its own, so that a
set of them is a number.
"""

from __future__ import annotations

from functools import cache

from hermes_nb.safety.language import artefacts
from hermes_nb.safety.language.lexicon import NONE, Classes, lexicon

SENTENCE = ";"
PARAGRAPH = "\n"
CONTINUED = "_"
"""The tag of the second word of a phrase; rules skip it."""
OTHER = "."
"""The tag of a word that means nothing to any rule."""
_FIRST_TAG = 0xE000


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
def having(wanted: int) -> frozenset[str]:
    """Return the tags that have one of the classes of a mask."""
    tags: set[str] = set()
    while wanted:
        bit = wanted & -wanted
        tags.update(_by_bit()[bit])
        wanted ^= bit
    return frozenset(tags)


@cache
def _by_bit() -> dict[int, str]:
    """Return the tags of every class, by its bit."""
    bits = class_bits()
    found = dict.fromkeys(bits.values(), "")
    for classes, tag in alphabet().items():
        for name in classes:
            found[bits[name]] += tag
    found[bits["SENTENCE"]] = SENTENCE
    return found


def with_phrases(row: str) -> str:
    """Return a row of tags with those of a phrase's two words replaced by what it means.

    A word that would end one phrase and begin another belongs to the one whose first tag comes
    first: neither from the left nor from the right is right in all languages.
    """
    firsts, meant = _phrases()
    places = [at for at, tag in enumerate(row) if tag in firsts]
    found = [at for at in places if row[at : at + 2] in meant]
    taken: set[int] = set()
    for at in sorted(found, key=row.__getitem__):
        if taken.isdisjoint((at - 1, at + 1)):
            taken.add(at)
    pieces: list[str] = []
    done = 0
    for at in sorted(taken):
        pieces += row[done:at], meant[row[at : at + 2]]
        done = at + 2
    return "".join([*pieces, row[done:]])


@cache
def in_pairs() -> dict[str, str]:
    """Return the tags of the words that belong to a phrase."""
    words, tag = lexicon(), alphabet()
    return {word: tag[words.own_classes(word)] for word in words.in_pairs}


@cache
def _phrases() -> tuple[frozenset[str], dict[str, str]]:
    """Return the tags that begin a phrase, and what takes the place of the two of each phrase."""
    tag, own = alphabet(), in_pairs()
    found = {
        own[first] + own[second]: tag[classes] + CONTINUED
        for first, seconds in lexicon().pairs.items()
        for second, classes in seconds.items()
    }
    return frozenset(pair[0] for pair in found), found
