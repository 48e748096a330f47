"""The tags of all chunks of a text at once, each taken for the words it is written as.

Says the same as `chunks.parts` when that does not look closely. Words are rewritten, compared and
tagged all together: one by one, that is most of what a scan costs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache

from hermes_nb.safety.language.alphabet import OTHER, PARAGRAPH, SENTENCE, alphabet, in_pairs
from hermes_nb.safety.language.chunks import (
    AROUND,
    ENDING,
    SIZE_OF_A_WORD,
    WORD,
    forms,
    meaning,
    stops,
)
from hermes_nb.safety.language.lexicon import LONGEST_WORD, Classes, lexicon
from hermes_nb.safety.reading.lookalikes import CYRILLIC, LOOKALIKES, SIGNS_FOR_LETTERS
from hermes_nb.safety.reading.vocabulary import SCRIPT, UNSPACED


def skim(some: Sequence[str]) -> dict[str, str]:
    """Return the tags of chunks, taken for words: what `parts` says when not looking closely."""
    found: dict[str, str] = {}
    alone = [chunk for chunk in some if chunk < UNSPACED or not SCRIPT.match(chunk)]
    words = {chunk: chunk for chunk in alone if chunk.isalpha()}
    dressed = [chunk for chunk in alone if chunk not in words]
    others: dict[str, str] = {}
    for chunk in dressed:
        bare = chunk.strip(AROUND)
        if bare.isalpha():
            words[chunk] = bare
        elif chunk.isspace():
            found[chunk] = PARAGRAPH
        else:
            others[chunk] = bare
    tokens = _TOKEN.findall("\n".join(others))
    single = list(dict.fromkeys(_SINGLE.findall("\n".join(others.values()))))
    guises = [form.split("\n") for form in forms("\n".join(single))] if single else []
    known = lexicon().perhaps({*words.values(), *tokens})
    meant = _meanings(known.union(*guises))
    tags = _words(known, meant)
    found |= {chunk: tags.get(bare, OTHER) for chunk, bare in words.items()}
    rows = "".join([tags.get(token, OTHER) for token in tokens]).split("\n")
    found |= zip(others, rows, strict=True) if others else ()
    if meant:
        whole: dict[str, str] = {}
        for guise in reversed(guises):  # the first one counts
            whole |= {
                bare: meant[form] for bare, form in zip(single, guise, strict=True) if form in meant
            }
        found |= {chunk: whole[bare] for chunk, bare in others.items() if bare in whole}
    for chunk in dressed:
        if chunk[-1] in ENDING and stops(chunk):
            found[chunk] += SENTENCE
    runs = [chunk for chunk in some if chunk not in found] if len(alone) < len(some) else []
    return found | _unspaced(runs)


_TOKEN = re.compile(rf"\n|{WORD.pattern}")
_SINGLE = re.compile(r"^(?![0-9]+$)[^<>/=()\[\]{}\n]+$", re.MULTILINE)
"""Chunks that may be one word (`chunks.single`), of some that are given one a line."""


def _words(known: set[str], meant: dict[str, str]) -> dict[str, str]:
    """Return the tags of words, and of a line's end."""
    pairs = in_pairs()
    own = {word: pairs[word] for word in known & pairs.keys()}
    return {word: meant[word] for word in known & meant.keys()} | own | {"\n": "\n"}


_HEAD = 3


def _meanings(words: set[str]) -> dict[str, str]:
    """Return the tags of words that mean something, some of them in disguise.

    Those that are not listed are rewritten all at once by every table of disguises. Only those that
    then are a word that is known, or begin and end like one that is often misspelt, are looked at
    one by one.
    """
    words.discard("")
    listed = _listed()
    known = {word: listed[word] for word in words & listed.keys()}
    unlisted = words - listed.keys()
    plain = {word for word in unlisted if word.isascii()}
    odd = list(unlisted - plain)
    likely = _promising(plain, misspelt=True)
    signs = {word: word for word in _with_signs(plain - likely)}
    arabic: list[str] = []
    latin = _rewritten(odd, LOOKALIKES)
    promising = _promising({*latin, *odd}, misspelt=True)
    for word, one in zip(odd, latin, strict=True):
        if one in promising or (word in promising and one != word):
            likely.add(word)
        elif _LEET.search(one) and any(map(str.isalpha, one)):
            signs[word] = one
        elif _ARABIC[0] <= word[0] <= _ARABIC[1]:
            arabic.append(word)
    classes = lexicon().classes
    found: dict[str, Classes] = {}
    strokes = {word: one for word, one in signs.items() if "1" in one or "|" in one}
    for some, table in zip((signs, strokes), SIGNS_FOR_LETTERS, strict=True):
        rewritten = _rewritten(list(some.values()), table)
        promising = _promising(set(rewritten))
        pairs = zip(some, rewritten, strict=True)
        for word, two in [pair for pair in pairs if pair[1] in promising]:
            if word != signs[word]:
                likely.add(word)  # which of its disguises comes first is for `meaning` to say
            elif len(word) <= LONGEST_WORD:
                found.setdefault(word, classes(two))
    mixed = _rewritten(odd, CYRILLIC)
    promising = _promising({two for word, two in zip(odd, mixed, strict=True) if word != two})
    likely.update(word for word, two in zip(odd, mixed, strict=True) if two in promising)
    found |= {word: meaning(word) for word in likely} | {word: classes(word) for word in arabic}
    tag = alphabet()
    return known | {word: tag[each] for word, each in found.items() if each}


@cache
def _listed() -> dict[str, str]:
    """Return the tags of all words that are listed as they are written."""
    return lexicon().in_terms_of(alphabet())


def _promising(some: set[str], *, misspelt: bool = False) -> set[str]:
    """Return those of some words that are known or begin like a stem that is.

    With `misspelt` also those that have the shape of a word that is often misspelt.
    """
    known, stems, shapes, ends = _beginnings()
    found = some & known
    rest = some - known
    begun = [word for word in rest if word[:_HEAD] in stems]
    found.update([word for word in begun if word.startswith(stems[word[:_HEAD]])])
    if misspelt:
        shaped = [word for word in rest if word[0] + word[-1] in ends]
        found.update([word for word in shaped if (word[0], word[-1], len(word)) in shapes])
    return found


_SIGNS = re.escape("".join(map(chr, SIGNS_FOR_LETTERS[0])))
_LEET = re.compile(f"[{_SIGNS}]")
_LEET_LINE = re.compile(rf"^(?=[^a-z\n]*+[a-z])[^{_SIGNS}\n]*+[{_SIGNS}].*$", re.MULTILINE)


def _with_signs(some: Iterable[str]) -> list[str]:
    """Return those of some plain words that have letters, and signs that may stand for others."""
    return _LEET_LINE.findall("\n".join([word for word in some if not word.isalpha()]))


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
def _beginnings() -> tuple[
    frozenset[str], dict[str, tuple[str, ...]], frozenset[Shape], frozenset[str]
]:
    """Return the words that are known, stems by how they begin, and the shapes of misspelt words.

    A shape is first letter, last letter and length; the last of what is returned are their ends.
    """
    words = lexicon()
    stems: dict[str, list[str]] = {}
    for stem in words.stems:
        stems.setdefault(stem[:_HEAD], []).append(stem)
    heads = {head: tuple(found) for head, found in stems.items()}
    return frozenset(words.listed), heads, frozenset(words.similar), frozenset(words.ends)


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
