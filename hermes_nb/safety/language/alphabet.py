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


@cache
def phrases() -> dict[str, list[tuple[str, str]]]:
    """Return the tags of phrases' two words, each with what takes their place, by the first tag."""
    words, tag = lexicon(), alphabet()
    found: dict[str, list[tuple[str, str]]] = {}
    for first, seconds in words.pairs.items():
        one = tag[words.own_classes(first)]
        for second, classes in seconds.items():
            pair = one + tag[words.own_classes(second)]
            found.setdefault(one, []).append((pair, tag[classes] + CONTINUED))
    return found
