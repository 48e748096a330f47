"""What stands between two spaces, taken apart: words, things, and where a sentence ends.

`parts` is what a chunk means and where in it. Read closely, it is looked at for things
(`artefacts`) and for words glued together. That is dear: `tagging`, which works out the tags of all
chunks of a text at once, has only few of them looked at like that.
"""

from __future__ import annotations

import re
from functools import lru_cache

from hermes_nb.safety.language.alphabet import OTHER, PARAGRAPH, SENTENCE, alphabet
from hermes_nb.safety.language.artefacts import address, kinds
from hermes_nb.safety.language.lexicon import Classes, lexicon
from hermes_nb.safety.reading.vocabulary import SCRIPT

_MEMO = 20_000
_STOPS = frozenset(".!?;:。．！？")
PATH = frozenset("./~$@`\"'(")
"""Signs before a plain word with which it may be a thing all the same."""
_CLOSING = "\"'`)]}*_»”’"
ENDING = _STOPS.union(_CLOSING)
"""What a chunk with which a sentence ends has at its end."""
AROUND = ".,:;?!\"'`()[]{}<>*_~#«»“”‘’…-/\\"
WORD = re.compile(r"[^\W_]+(?:['’][^\W_]{1,2}(?![^\W_]))?")
_JOINT = re.compile(r"[<>/=()\[\]{}]")
_DRESSED = re.compile(r"[^\w@$!|+\n]+")
_JOINED = re.compile(r"_(?<=[^\W_].)_*(?=[^\W_])")
_POSSESSIVE = re.compile(r"'s$", re.MULTILINE)
_BEHIND = re.compile(r"[!+|]+$", re.MULTILINE)

Part = tuple[int, int, str]


@lru_cache(maxsize=_MEMO)
def parts(chunk: str, *, closely: bool = True) -> tuple[Part, ...]:
    """Return the parts of a chunk: start, end and tag."""
    if chunk[0] == "\n" and chunk.isspace():
        return ((0, 0, PARAGRAPH),)
    return _unspaced(chunk) if SCRIPT.match(chunk) else _spaced(chunk, closely)


def _unspaced(run: str) -> tuple[Part, ...]:
    """Return the parts of a run of a script without spaces; what is between words is one tag."""
    found: list[Part] = []
    tag = alphabet()
    done = 0
    for start, end, classes in lexicon().inside(run):
        found.extend(_between(run, done, start))
        found.append((start, end, tag[classes]))
        done = end
    found.extend(_between(run, done, len(run)))
    return tuple(found)


SIZE_OF_A_WORD = 3


def _between(run: str, start: int, end: int) -> list[Part]:
    size = SIZE_OF_A_WORD
    places = range(start, end, size)
    if "。" not in run:
        return [(at, min(at + size, end), OTHER) for at in places]
    return [
        (at, min(at + size, end), SENTENCE if "。" in run[at : min(at + size, end)] else OTHER)
        for at in places
    ]


def _spaced(chunk: str, closely: bool) -> tuple[Part, ...]:  # noqa: FBT001 - handed on
    """Return the parts of what stands between two spaces."""
    if chunk.isalpha():
        return _word(chunk, closely)
    bare = chunk.strip(AROUND)
    if bare.isalpha() and not (closely and chunk[0] in PATH and kinds(chunk)):
        found = _moved(_word(bare, closely), chunk.find(bare))
    else:
        found = things(chunk) if closely else ()
        found = found or _one_word(chunk) or _many_words(chunk, closely)
    if stops(chunk):
        size = len(chunk)
        found = (*found, (size, size, SENTENCE))
    return found


def stops(chunk: str) -> bool:
    """Say whether a sentence ends with a chunk."""
    return chunk[-1] in _STOPS or chunk.rstrip(_CLOSING)[-1:] in _STOPS


def things(chunk: str, needs: set[str] | None = None) -> tuple[Part, ...]:
    """Return the part of a chunk that is a thing (see `artefacts`), with any words before it.

    `needs` are the parts it has of what things have, where that is known (`artefacts.suspects`).
    """
    found, place = kinds(chunk, needs), address(chunk)
    if place is not None:
        start, end, name = place
        return (*_many_words(chunk[:start], closely=True), (start, end, alphabet()[found | {name}]))
    return ((0, len(chunk), alphabet()[found]),) if found else ()


def _word(word: str, closely: bool) -> tuple[Part, ...]:  # noqa: FBT001 - handed on
    """Return the part that a plain word is, or those of the words it is glued from."""
    words, tag = lexicon(), alphabet()
    if word.isascii() and words.unknown(word):
        return ((0, len(word), OTHER),)
    if word in words.in_pairs:
        return ((0, len(word), tag[words.own_classes(word)]),)
    if closely and (glued := words.unglued(word)):
        return tuple((start, end, tag[found]) for start, end, found in glued)
    return ((0, len(word), tag[meaning(word)]),)


def meaning(word: str) -> Classes:
    """Return the classes of a word, whatever it is disguised as."""
    words = lexicon()
    return words.classes(word) or words.undisguised(word)


def _moved(some: tuple[Part, ...], at: int) -> tuple[Part, ...]:
    return tuple((at + start, at + end, tag) for start, end, tag in some)


def forms(bare: str) -> tuple[str, str, str]:
    """Return the words that chunks may be in disguise: `i.g-n*ore`, `pr3v10us`, `don't`.

    They are given one a line, without what stands around them, and returned like that.
    """
    whole = _POSSESSIVE.sub("", bare.replace("’", "'"))
    plain = whole.replace("'", "")
    plain = _DRESSED.sub("", _JOINED.sub("", plain) if "_" in plain else plain)
    return whole, plain, _BEHIND.sub("", plain)


def single(bare: str) -> bool:
    """Say whether a chunk without what stands around it may be one word at all."""
    return not (_JOINT.search(bare) or (bare.isdigit() and bare.isascii()))


def _one_word(chunk: str) -> tuple[Part, ...]:
    """Return the chunk as one word if it is one in disguise."""
    bare = chunk.strip(AROUND)
    if single(bare):
        for word in dict.fromkeys(forms(bare)):
            if classes := meaning(word):
                start = chunk.find(bare)
                return ((start, start + len(bare), alphabet()[classes]),)
    return ()


def _many_words(chunk: str, closely: bool) -> tuple[Part, ...]:  # noqa: FBT001 - handed on
    found = WORD.finditer(chunk)
    return tuple(part for m in found for part in _moved(_word(m[0], closely), m.start()))
