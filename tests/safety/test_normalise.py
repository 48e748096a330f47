"""Unfolding changes what hides text and nothing else; what was encoded is read again."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hermes_nb.safety.encoded_text import decoded
from hermes_nb.safety.normalise import fold, normalise
from hermes_nb.safety.scan import scan
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
SENTENCES = st.text("abcdefghij klmnop", min_size=12, max_size=80).filter(lambda t: t.strip() == t)


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
        assert latest <= start <= end <= len(text)
        latest = start
    assert not set(view.text) & set("\u200b\u00ad\ufe0f\u0301\x1b")
    assert fold(view.text) == view.text


@given(st.text(PLAIN))
def test_plain_text_is_itself(text):
    view = normalise(text)
    assert view.text == text
    assert view.span(0, len(text)) == (0, len(text))


def said(text):
    return [run.text for run in decoded(text)]


@given(SENTENCES, st.sampled_from(["{}", "see {} there", "x={}", '"{}"', "({})\n"]))
def test_base64_and_hex_come_back(sentence, around):
    data = sentence.encode()
    assert sentence in said(around.format(base64.b64encode(data).decode()))
    assert sentence in said(around.format(data.hex()))


@given(st.binary(min_size=16, max_size=200))
def test_bytes_at_random_are_no_text(data):
    for text in said(base64.b64encode(data).decode()):
        assert text.replace("\n", "").replace("\t", "").isprintable()


@pytest.mark.parametrize(
    "text",
    [
        hashlib.sha256(b"x").hexdigest(),
        base64.b64encode(hashlib.sha512(b"y").digest()).decode(),
        "/usr/share/some/long/path/to/a/file_with_a_name.txt",
        "an-identifier-with-many-parts-and-a-number-42",
        "10 20 30 40 50 60 70 80",
    ],
)
def test_digests_and_names_are_not_decoded(text):
    assert said(text) == []


def test_spelled_out_words_keep_their_gaps():
    assert said("i g n o r e   a l l") == ["ignore all"]
    assert said("i.g.n.o.r.e") == ["ignore"]


def test_more_layers_than_anyone_needs_are_a_finding():
    text = "nothing of interest in this sentence"
    for _ in range(6):
        text = base64.b64encode(text.encode()).decode()
    result = scan(text)
    assert result.verdict == "suspicious"
    assert result.findings[0].category == "encoded"
