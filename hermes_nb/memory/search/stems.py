"""Word stems, so that "painting" finds "painted" and "went" finds "go".

The suffix rules are those of Porter, "An algorithm for suffix stripping" (1980); what they cannot
reach, irregular verbs and plurals, is a table. A stem is a key and nothing to show.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache

IRREGULAR = """
arise arose arisen;awake awoke awoken;be am is are was were been being;bear bore borne;
beat beaten;become became;begin began begun;bend bent;bind bound;bite bit bitten;blow blew blown;
break broke broken;bring brought;build built;burn burnt;buy bought;catch caught;choose chose chosen;
come came;creep crept;deal dealt;dig dug;do did done does doing;draw drew drawn;dream dreamt;
drink drank drunk;drive drove driven;eat ate eaten;fall fell fallen;feed fed;feel felt;
fight fought;find found;flee fled;fly flew flown;forbid forbade forbidden;forget forgot forgotten;
forgive forgave forgiven;freeze froze frozen;get got gotten;give gave given;go went gone goes;
grow grew grown;hang hung;have has had having;hear heard;hide hid hidden;hold held;keep kept;
kneel knelt;know knew known;lay laid;lead led;lean leant;leap leapt;learn learnt;leave left;
lend lent;light lit;lose lost;make made;mean meant;meet met;pay paid;ride rode ridden;
ring rang rung;rise rose risen;run ran;say said;see saw seen;seek sought;sell sold;send sent;
sew sewn;shake shook shaken;shine shone;shoot shot;show shown;shrink shrank shrunk;sing sang sung;
sink sank sunk;sit sat;sleep slept;slide slid;smell smelt;speak spoke spoken;spell spelt;
spend spent;spin spun;stand stood;steal stole stolen;stick stuck;strike struck;strive strove;
swear swore sworn;sweep swept;swim swam swum;swing swung;take took taken;teach taught;
tear tore torn;tell told;think thought;throw threw thrown;understand understood;wake woke woken;
wear wore worn;weave wove woven;weep wept;win won;wind wound;write wrote written;
child children kid kids;man men;woman women;person people;foot feet;tooth teeth;mouse mice;
goose geese;life lives;wife wives;knife knives;leaf leaves;shelf shelves;half halves;wolf wolves;
loaf loaves;thief thieves;calf calves;mum mom mummy mommy mother;dad daddy father;
bike bicycle;photo photograph;tv television;fridge refrigerator;phone telephone;
app application;repo repository;config configuration;db database;dir directory;env environment;
auth authentication;param parameter;arg argument;doc document;info information;
datum data;index indices indexes;matrix matrices;vertex vertices;analysis analyses;axis axes
"""
"""A base form and the forms that mean it, a line of the language's own; a form stands once."""

LONGEST = 40
"""Characters of the longest word that is stemmed; longer ones are names, hashes or noise."""


@lru_cache(maxsize=1)
def _irregular() -> dict[str, str]:
    table = {}
    for line in IRREGULAR.replace("\n", "").split(";"):
        base, *forms = line.split()
        table.update(dict.fromkeys(forms, base))
    return table


def stem(word: str) -> str:
    """Return the stem of a lower-case word; what is not plain a-z comes back as it is."""
    word = _irregular().get(word, word)
    if not 2 < len(word) <= LONGEST or not word.isascii() or not word.isalpha():  # noqa: PLR2004
        return word
    number = 0
    while (number := _NEXT[number].get(word[-1:], _NONE)) < _NONE:
        endings, step = _STEPS[number]
        if word.endswith(endings):  # a tenth of what the step would take to find that out
            word = step(word)
        number += 1
    return word


# A y behind a consonant is a vowel, and the next y behind such a one none; nobody writes five.
_Y = "(?:(?<=[^aeiouy])|(?<=^y)|(?<=[aeiou]y)|(?<=[^aeiouy]yy)|(?<=^yyy)|(?<=[aeiou]yyy))y"
_C = f"(?:[^aeiouy]|(?!{_Y})y)"
_V = f"(?:[aeiou]|{_Y})"
_MEASURED = re.compile(f"^{_C}*(?:{_V}+{_C}+)")
_MEASURED_TWICE = re.compile(f"^{_C}*(?:{_V}+{_C}+){{2}}")
_MEASURED_ONCE = re.compile(f"^{_C}*{_V}+{_C}+{_V}*$")
_HAS_VOWEL = re.compile(_V)
_SHORT_END = re.compile(f"{_C}{_V}(?![wxy]){_C}$")
_DOUBLED = re.compile(r"([^aeioulsz])\1$")

_DOUBLE_SUFFIXES = {
    "ational": "ate",
    "tional": "tion",
    "enci": "ence",
    "anci": "ance",
    "izer": "ize",
    "bli": "ble",
    "alli": "al",
    "entli": "ent",
    "eli": "e",
    "ousli": "ous",
    "ization": "ize",
    "ation": "ate",
    "ator": "ate",
    "alism": "al",
    "iveness": "ive",
    "fulness": "ful",
    "ousness": "ous",
    "aliti": "al",
    "iviti": "ive",
    "biliti": "ble",
    "logi": "log",
}
_SUFFIXES = {
    "icate": "ic",
    "ative": "",
    "alize": "al",
    "iciti": "ic",
    "ical": "ic",
    "ful": "",
    "ness": "",
}
_LAST_SUFFIXES = (
    "ement ance ence able ible ment ant ent ism ate iti ous ive ize ion al er ic ou".split()
)
_LAST = re.compile(f"(?:{'|'.join(_LAST_SUFFIXES).replace('ion', '(?<=[st])ion')})$")
_DOUBLE_END = re.compile("(?:" + "|".join(sorted(_DOUBLE_SUFFIXES, key=len, reverse=True)) + ")$")
_SUFFIX_END = re.compile("(?:" + "|".join(sorted(_SUFFIXES, key=len, reverse=True)) + ")$")


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past(word: str) -> str:
    if word.endswith("eed") and word != "eed":  # SQLite wants a letter before it
        return word[:-1] if _MEASURED.match(word[:-3]) else word
    for ending in ("ed", "ing"):
        rest = word[: -len(ending)]
        if word.endswith(ending) and _HAS_VOWEL.search(rest):
            if rest.endswith(("at", "bl", "iz")):
                return rest + "e"
            if _DOUBLED.search(rest):
                return rest[:-1]
            if _MEASURED_ONCE.match(rest) and _SHORT_END.search(rest):
                return rest + "e"
            return rest
    return word


def _final_y(word: str) -> str:
    return word[:-1] + "i" if word.endswith("y") and _HAS_VOWEL.search(word[:-1]) else word


def _double_suffix(word: str) -> str:
    found = _DOUBLE_END.search(word)
    if found and _MEASURED.match(word[: found.start()]):
        return word[: found.start()] + _DOUBLE_SUFFIXES[found[0]]
    return word


def _suffix(word: str) -> str:
    found = _SUFFIX_END.search(word)
    if found and _MEASURED.match(word[: found.start()]):
        return word[: found.start()] + _SUFFIXES[found[0]]
    return word


def _last_suffix(word: str) -> str:
    found = _LAST.search(word)
    return word[: found.start()] if found and _MEASURED_TWICE.match(word[: found.start()]) else word


def _tidy(word: str) -> str:
    if word.endswith("e"):
        rest = word[:-1]
        if _MEASURED_TWICE.match(rest) or (
            _MEASURED.match(rest) and not (_MEASURED_ONCE.match(rest) and _SHORT_END.search(rest))
        ):
            word = rest
    return word[:-1] if word.endswith("ll") and _MEASURED_TWICE.match(word) else word


_STEPS: tuple[tuple[tuple[str, ...], Callable[[str], str]], ...] = (
    (("s",), _plural),
    (("ed", "ing"), _past),
    (("y",), _final_y),
    (tuple(_DOUBLE_SUFFIXES), _double_suffix),
    (tuple(_SUFFIXES), _suffix),
    (tuple(_LAST_SUFFIXES), _last_suffix),
    (("e", "ll"), _tidy),
)
"""The steps in their order, and how words end that they may change."""
_NONE = len(_STEPS)
_NEXT: tuple[dict[str, int], ...] = tuple(
    {
        ending[-1]: number
        for number in range(_NONE - 1, first - 1, -1)
        for ending in _STEPS[number][0]
    }
    for first in range(_NONE + 1)
)
"""From each step on, the first one that may change words with a last letter."""
