"""The tags of all chunks of a text at once, each taken for the words it is written as.

Says the same as `chunks.parts` when that does not look closely. Words are rewritten, compared and
tagged all together: one by one, that is most of what a scan costs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache

from hermes_nb.safety.alphabet import OTHER, PARAGRAPH, SENTENCE, alphabet
from hermes_nb.safety.chunks import (
    AROUND,
    ENDING,
    SCRIPT,
    SIZE_OF_A_WORD,
    WORD,
    forms,
    meaning,
    single,
    stops,
)
from hermes_nb.safety.lexicon import lexicon
from hermes_nb.safety.lookalikes import CYRILLIC, LOOKALIKES, SIGNS_FOR_LETTERS


def skim(some: list[str]) -> dict[str, str]:
    """Return the tags of chunks, taken for words: what `parts` says when not looking closely."""
    found: dict[str, str] = {}
    words: dict[str, str] = {}
    runs: list[str] = []
    others: list[str] = []
    bares: list[str] = []
    for chunk in some:
        bare = chunk if chunk.isalpha() else chunk.strip(AROUND)
        if not chunk.isascii() and SCRIPT.match(chunk):
            runs.append(chunk)
        elif bare.isalpha():
            words[chunk] = bare
        elif chunk.isspace():
            found[chunk] = PARAGRAPH
        else:
            others.append(chunk)
            bares.append(bare)
    tokens = _TOKEN.findall("\n".join(others))
    guises = [form.split("\n") for form in forms("\n".join(bares))] if others else []
    known = _known({*words.values(), *tokens})
    meant = _meanings(known.union(*guises))
    tags = _words(known, meant)
    found |= {chunk: tags.get(bare, OTHER) for chunk, bare in words.items()}
    rows = "".join([tags.get(token, OTHER) for token in tokens]).split("\n")
    found |= zip(others, rows, strict=True) if others else ()
    if meant:
        for chunk, bare, *whole in zip(others, bares, *guises, strict=True):
            tag = next((meant[word] for word in whole if word in meant), None)
            if tag is not None and single(bare):
                found[chunk] = tag
    for chunk in found:
        if chunk[-1] in ENDING and stops(chunk):
            found[chunk] += SENTENCE
    return found | _unspaced(runs)


_TOKEN = re.compile(rf"\n|{WORD.pattern}")


def _known(some: set[str]) -> set[str]:
    """Return the words of which it is not certain that they mean nothing; one in ten."""
    unknown = lexicon().unknown
    return {word for word in some if not (word.isascii() and unknown(word))}


def _words(known: set[str], meant: dict[str, str]) -> dict[str, str]:
    """Return the tags of words, and of a line's end."""
    words, tag = lexicon(), alphabet()
    pairs = {word: tag[words.own_classes(word)] for word in known.intersection(words.in_pairs)}
    return {word: meant[word] for word in known.intersection(meant)} | pairs | {"\n": "\n"}


_HEAD = 3


def _meanings(some: set[str]) -> dict[str, str]:
    """Return the tags of words that mean something, some of them in disguise.

    They are rewritten all at once by every table of disguises. Only those that then are a word that
    is known, or begin and end like one that is often misspelt, are looked at one by one.
    """
    plain = [word for word in some if word]
    latin = _rewritten(plain, LOOKALIKES)
    known, stems, shapes = _beginnings()
    likely: list[str] = []
    signs: list[tuple[str, str]] = []
    arabic: list[str] = []
    for word, one in zip(plain, latin, strict=True):
        if (
            one in known
            or (one[0], one[-1], len(one)) in shapes
            or one.startswith(stems.get(one[:_HEAD], ()))
            or (one != word and (word in known or word.startswith(stems.get(word[:_HEAD], ()))))
        ):
            likely.append(word)
        elif _LEET.search(one):
            signs.append((word, one))
        elif _ARABIC[0] <= word[0] <= _ARABIC[1]:
            arabic.append(word)
    for table in SIGNS_FOR_LETTERS:
        for (word, _), two in zip(signs, _rewritten([o for _, o in signs], table), strict=True):
            if two in known or two.startswith(stems.get(two[:_HEAD], ())):
                likely.append(word)
    mixed = [word for word in plain if not word.isascii()]
    for word, two in zip(mixed, _rewritten(mixed, CYRILLIC), strict=True):
        if two != word and (two in known or two.startswith(stems.get(two[:_HEAD], ()))):
            likely.append(word)
    classes = lexicon().classes
    found = {word: meaning(word) for word in likely} | {word: classes(word) for word in arabic}
    tag = alphabet()
    return {word: tag[each] for word, each in found.items() if each}


_LEET = re.compile("[" + re.escape("".join(map(chr, SIGNS_FOR_LETTERS[0]))) + "]")


def _rewritten(words: list[str], table: Mapping[int, int | str]) -> list[str]:
    """Return words with their letters exchanged, all at once.

    Letter by letter: `translate` takes several times as long for what is not ASCII.
    """
    together = "\n".join(words)
    if not words or (table is LOOKALIKES and together.isascii()):
        return words
    for sign in set(together):
        if ord(sign) in table:
            together = together.replace(sign, sign.translate(table))
    return together.split("\n")


_ARABIC = "\u0621\u064a"
"""First and last letter of a script in which other words may stand before the one that is known."""

Shape = tuple[str, str, int]


@cache
def _beginnings() -> tuple[frozenset[str], dict[str, tuple[str, ...]], frozenset[Shape]]:
    """Return the words that are known, stems by how they begin, and the shapes of misspelt words.

    A shape is first letter, last letter and length.
    """
    words = lexicon()
    stems: dict[str, list[str]] = {}
    for stem in words.stems:
        stems.setdefault(stem[:_HEAD], []).append(stem)
    heads = {head: tuple(found) for head, found in stems.items()}
    return frozenset(words.listed), heads, frozenset(words.similar)


def _unspaced(runs: list[str]) -> dict[str, str]:
    """Return the tags of runs of a script without spaces."""
    if not runs:
        return {}
    together = "\n".join(runs)
    tag = alphabet()
    row: list[str] = []
    done = 0
    for start, end, classes in lexicon().inside(together):
        row.append(_between(together[done:start]))
        row.append(tag[classes])
        done = end
    row.append(_between(together[done:]))
    return dict(zip(runs, "".join(row).split("\n"), strict=True))


def _between(text: str) -> str:
    """Return the tags of what stands between the words of runs, one run a line."""
    size = SIZE_OF_A_WORD
    if "。" not in text:
        return "\n".join([OTHER * -(-len(line) // size) for line in text.split("\n")])
    return "\n".join(
        "".join(
            SENTENCE if "。" in line[at : at + size] else OTHER for at in range(0, len(line), size)
        )
        for line in text.split("\n")
    )
