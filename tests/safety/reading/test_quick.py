"""What is found by the words that patterns begin with is what `finditer` finds."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from hermes_nb.safety import scanning
from hermes_nb.safety.reading.needs import Needs
from hermes_nb.safety.reading.quick import compiled, forget, matches, spans, starts
from hermes_nb.safety.reading.vocabulary import vocabulary
from hypothesis import example, given, settings
from hypothesis import strategies as st


def patterns():
    """Return every pattern of the data files."""
    found = []
    for name in ("surface.toml", "threats.toml"):
        data = tomllib.loads((Path(scanning.__path__[0]) / name).read_text(encoding="utf-8"))
        rules = [rule for rows in data.values() if isinstance(rows, list) for rule in rows]
        for rule in rules:
            found += [p for p in (rule.get("pattern"), *rule.get("steps", ())) if p]
    return [p.replace("{secret_file}", r"~/\.ssh/id_\w+") for p in found]


PATTERNS = patterns()
LITERALS = sorted({word for p in PATTERNS for word in re.findall(r"[A-Za-z0-9_./-]{2,}", p)})
SIGNS = " \n\t|$({[<>\"'~@:;=*+/\\-_.0aZ\u017f\u212a\u0130"
PIECES = st.sampled_from([*LITERALS, *(word.upper() for word in LITERALS[::5]), *SIGNS])
TEXTS = st.lists(PIECES, max_size=40).map("".join) | st.text(max_size=60)


@settings(max_examples=60)
@given(TEXTS, st.sampled_from(["", ". " * 400]))
def test_every_pattern_finds_the_same(text, filler):
    whole = f"{filler}{text}{filler}"
    for pattern in PATTERNS:
        expected = [match.span() for match in re.finditer(pattern, whole)]
        assert list(spans(pattern, whole)) == expected


@given(
    st.sampled_from(
        [
            *(r"\bab?c", r"(?:ab|cd)\b", r"(?i)AB", r"(?i:\bab|cd)x?", r"\b(?:ab)?c", r"[ab]c|dd"),
            *(r"ab{2}", r"a\.b", r"(?<!\w)ab", r"aa", r"(?:(?:ab|b)c|d\$)e?", r"ab|abc", r"a\wb"),
        ]
    ),
    st.text("abcdABCx$. \u0130", max_size=30),
    st.sampled_from(["", " " * 5_000]),
)
@example(r"(?i)skip", "\u017fkip \u212a s\u212aip \u0130 skip", " " * 5_000)
def test_any_pattern_finds_the_same(pattern, text, filler):
    whole = f"{filler}{text}{filler}"
    assert list(spans(pattern, whole)) == [match.span() for match in re.finditer(pattern, whole)]
    forget()


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"\b(?:curl|wget)\b x", {"curl", "wget"}),
        (r"https?://", {"http"}),
        (r"(?i:\b(?:Send|post)[ \t])|GET x", {"send", "post", "get x"}),
        (r"\.ssh/(?:id_|\*)", {".ssh/"}),
        (r"(?:a|ab)c", {"a"}),
        (r"[ab]c", set()),
        (r"(?:ab)?c", set()),
        (r"(?m)^ab", set()),
        (r"x*ab", set()),
    ],
)
def test_the_words_that_a_pattern_begins_with(pattern, words):
    assert starts(pattern) == words


def test_most_patterns_have_words_to_begin_with():
    assert sum(bool(compiled(p)[1]) for p in PATTERNS) > len(PATTERNS) / 2


NEEDS = st.lists(st.lists(st.text("abe$|", min_size=1, max_size=3), max_size=3), max_size=8)


@given(NEEDS, st.text("abe$| ", max_size=12))
def test_needs_are_met_where_a_part_is_there(needs, text):
    expected = [n for n, parts in enumerate(needs) if not parts or any(p in text for p in parts)]
    assert Needs(needs).met(text.__contains__) == expected
    assert Needs(needs).met(vocabulary(text).has) == expected


@given(st.lists(st.sampled_from(["get", "GET", " ", "x", "put", "\n"])).map("".join))
def test_matches_are_those_of_finditer(text):
    pattern = r"(?i)\b(?:get|put)\s{1,3}(x+)"
    assert [m.span(1) for m in matches(pattern, text)] == [
        m.span(1) for m in re.finditer(pattern, text)
    ]
