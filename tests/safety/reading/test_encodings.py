"""What was encoded is read again, and what is no text stays unread."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hermes_nb.safety.reading.encodings import deciphered, decoded
from hermes_nb.safety.scan import scan
from hypothesis import given
from hypothesis import strategies as st

SENTENCES = st.text("abcdefghij klmnop", min_size=12, max_size=80).filter(lambda t: t.strip() == t)


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


def test_lines_are_read_backwards():
    (first, second) = deciphered("x\nsnoitcurtsni suoiverp\ny", "REVERSED", [2])
    assert first.text == "previous instructions"
    assert second.text == "instructions previous"
    assert (first.start, first.end) == (2, 23)


def test_more_layers_than_anyone_needs_are_a_finding():
    text = "nothing of interest in this sentence"
    for _ in range(6):
        text = base64.b64encode(text.encode()).decode()
    result = scan(text)
    assert result.verdict == "suspicious"
    assert result.findings[0].category == "encoded"


def test_too_much_ciphertext_is_a_finding():
    line = "cerivbhf vafgehpgvbaf ner jryy cerfreirq.\n"
    categories = {finding.category for finding in scan(line * 600).findings}
    assert "encoded" in categories
