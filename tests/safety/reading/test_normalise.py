"""Unfolding changes what hides text and nothing else, and knows where everything came from."""

from __future__ import annotations

import re

import pytest
from hermes_nb.safety.reading.normalise import View, edited, fold, normalise
from hypothesis import given
from hypothesis import strategies as st

PIECES = st.sampled_from(
    [
        *"abc XYZ.\n\téﬁＡ𝐚İß和가ﷺ\u2028\u200b\u00ad\ufe0f\U000e0041",
        *("e\u0301", "\u1100\u1161", "\U000e0142\U000e0143\U000e0144", "🇩🇪", "नि", "\x1b[0m"),
        *("&#65;", "&amp;", "&amp;#66;", "%43", "%c3%a9", "\\u0044", "\\n", "**", '" + "'),
    ]
)
PLAIN = st.characters(codec="ascii", exclude_characters="&%\\*~`_\"'<\x7f", min_codepoint=32)
TEXTS = st.lists(PIECES, max_size=25).map("".join)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("na\u00efve", "naive"),
        ("ｆｕｌｌ 𝐛𝐨𝐥𝐝 ﬁne", "full bold fine"),
        ("i\u200bg\u00adn\u2060o\ufeffre", "ignore"),
        ("&#105;&#x67;n&amp;#111;re", "ignore"),
        ("%69gnore%20this", "ignore this"),
        ("\\u0069\\x67n\\157re", "ignore"),
        ("ig****no****re", "ignore"),
        ('"ig" + "nore"', '"ignore"'),
        ("\U000e0069\U000e0067", "ig"),
        ("Привет", "Привет"),
        ("한국어", "한국어"),
        ("\u1112\u1161\u11ab", "한"),
        ("a **bold** word and snake_case__name", "a **bold** word and snake_case__name"),
        ("\x1b[8mhidden\x1b[0m", "hidden"),
    ],
)
def test_what_hides_is_unfolded(text, plain):
    assert normalise(text).text == plain


@given(TEXTS)
def test_every_place_leads_back_into_the_text(text):
    view = normalise(text)
    latest = 0
    for index in range(len(view.text)):
        start, end = view.span(index, index + 1)
        assert 0 <= start <= end <= len(text)
        assert start >= latest
        latest = start


@given(st.text(PLAIN))
def test_plain_text_is_itself(text):
    view = normalise(text)
    assert view.text == text
    assert view.span(0, len(text)) == (0, len(text))


@given(TEXTS)
def test_nothing_invisible_is_left(text):
    plain = normalise(text).text
    assert not set(plain) & set("\u200b\u00ad\ufe0f\u0301\x1b")
    assert fold(plain) == plain


@given(
    st.text("abcdef", max_size=30),
    st.sampled_from(["[ab]", "b+", "cd?", "a.", "[a-f]{3}"]),
    st.functions(like=lambda found: "", returns=st.text("xyz", max_size=3), pure=True),
)
def test_edits_are_what_they_say(text, pattern, replacement):
    view = edited(View(text), re.compile(f"({pattern})"), replacement)
    assert view.text == re.sub(pattern, lambda match: replacement(match[0]), text)
    for index, letter in enumerate(view.text):
        start, end = view.span(index, index + 1)
        assert letter in "xyz" or text[start:end] == letter
