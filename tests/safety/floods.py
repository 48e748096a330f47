"""Texts that are dear to scan: near misses without number, and whatever sets off many patterns."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

from hermes_nb.safety.words import listed

Maker = Callable[[random.Random, int], str]
_TEXTS = json.loads(Path(__file__).with_name("data").joinpath("floods.json").read_text("utf-8"))
UNITS: tuple[str, ...] = tuple(_TEXTS["units"])
"""Repeated until the text is full; some of them once more with a number each (`numbered`)."""
TOGETHER: tuple[tuple[str, str], ...] = tuple(map(tuple, _TEXTS["together"]))
"""Beginnings of patterns without number, with the word that has them tried once at the end."""
EVERYTHING: tuple[str, ...] = tuple(_TEXTS["everything"])
"""What a search for dear texts found (`bench/dear.py`): many things at once, again and again."""


def repeated(unit: str, size: int) -> str:
    """Return a text of one unit."""
    return (unit * (size // len(unit) + 1))[:size]


def numbered(unit: str, size: int, first: int = 0) -> str:
    """Return a text of one unit with a number behind each, so that no two are alike."""
    parts: list[str] = []
    length = 0
    while length < size:
        number = (first + len(parts)) * 2_654_435_761 % 2**32
        parts.append(f"{unit}{number:x}\n")
        length += len(parts[-1])
    return "".join(parts)[:size]


def floods(size: int, seed: int = 7) -> Iterator[tuple[str, str]]:
    """Yield texts of a size with their names; another seed makes other texts where that matters."""
    for name in names():
        yield name, flood(name, size, seed)


def flood(name: str, size: int, seed: int = 7) -> str:
    """Return one of the texts."""
    return _makers()[name](random.Random(seed), size)


def names() -> list[str]:
    """Return what the texts are called."""
    return list(_makers())


@cache
def _makers() -> dict[str, Maker]:
    makers = {f"{unit!r:.40}": _repeated(unit) for unit in UNITS}
    makers |= {f"{unit + end!r:.60}": _repeated(unit, end) for unit, end in TOGETHER}
    for number, unit in enumerate(EVERYTHING):
        makers[f"everything {number}"] = _repeated(unit)
        makers[f"everything {number}, numbered"] = _numbered(unit)
    long = (unit for unit in UNITS if len(unit) > 6)  # short ones would mostly be numbers
    return makers | {f"{unit!r:.40}, numbered": _numbered(unit) for unit in long} | _RANDOM


def _repeated(unit: str, end: str = "") -> Maker:
    return lambda _chance, size: repeated(unit, size - len(end)) + end


def _numbered(unit: str) -> Maker:
    return lambda chance, size: numbered(unit, size, chance.randrange(2**32))


def _words(letters: str, length: int, between: str) -> Maker:
    def make(chance: random.Random, size: int) -> str:
        count = size // (length + len(between)) + 1
        return between.join("".join(chance.choices(letters, k=length)) for _ in range(count))[:size]

    return make


def _encoded(
    encode: Callable[[bytes], str], bytes_each: int
) -> Callable[[random.Random, int], str]:
    def make(chance: random.Random, size: int) -> str:
        parts: list[str] = []
        while sum(map(len, parts)) < size:
            some = [
                encode("".join(chance.choices(_ABC, k=bytes_each)).encode()) for _ in range(200)
            ]
            parts.append("\n".join(some))
        return "\n".join(parts)[:size]

    return make


def _nested(_chance: random.Random, size: int) -> str:
    text = "plain words in a text. " * (size // 50)
    for _ in range(3):
        text = base64.b64encode(text.encode()).decode()
    return text[:size]


def _characters(low: int, high: int) -> Maker:
    def make(chance: random.Random, size: int) -> str:
        return "".join(chr(chance.randrange(low, high)) for _ in range(size))

    return make


_THINGS = "https://a.b.com a@b.co ~/.ssh/id_rsa .env agents.md €50 $api_key --yolo evil.com".split()


def _known(chance: random.Random, size: int) -> str:
    """Return words of the lexicon, now and then a thing or a sentence's end: all rules apply."""
    classes = [words for language, _, words in listed() if language == "en"]
    parts: list[str] = []
    for _ in range(size // 4):
        word = chance.choice(chance.choice(classes)).rstrip("*").replace("_", " ")
        parts.append(f"{word}." if chance.random() < 0.1 else word)
        if chance.random() < 0.08:
            parts.append(chance.choice(_THINGS))
    return " ".join(parts)[:size]


_ABC = "abcdefghijklmnopqrstuvwxyz "
_RANDOM: dict[str, Maker] = {
    "words that never repeat": _words(_ABC[:26], 6, " "),
    "long words that never repeat": _words(_ABC[:26], 30, " "),
    "words with signs that never repeat": _words(_ABC[:26] + "0134-_.'$@|", 8, " "),
    "words of the lexicon": _known,
    "single letters": _words(_ABC[:26], 1, " "),
    "one line without a space": _words(_ABC[:26] + "/.-_=", 40, ""),
    "lookalikes that never repeat": _words("аеіорсухѕԁ" + _ABC[:20], 8, " "),
    "addresses that never repeat": _words(_ABC[:26] + ".-/", 20, " https://"),
    "comments that never repeat": _words(_ABC, 20, " --><!-- "),
    "base64, many runs": _encoded(lambda data: base64.b64encode(data).decode(), 12),
    "base64, long runs": _encoded(lambda data: base64.b64encode(data).decode(), 300),
    "hexadecimal, many runs": _encoded(bytes.hex, 9),
    "codes, many runs": _encoded(lambda data: data.hex(" "), 9),
    "percent signs, many runs": _encoded(lambda data: "".join(f"%{b:02x}" for b in data), 5),
    "base64, three times": _nested,
    "ideographs at random": _characters(0x4E00, 0x9FFF),
    "marks and letters at random": _characters(0x2C0, 0x370),
    "any characters": _characters(0x20, 0xD7FF),
    "Hangul letters at random": _characters(0x1100, 0x1200),
    "compatibility forms at random": _characters(0xF900, 0xFFF0),
    "control characters at random": _characters(0x00, 0x30),
}
