"""Streams are read as servers send them."""

from __future__ import annotations

import json

import pytest
from hermes_nb.core.errors import FailureKind, ModelError
from hermes_nb.models.chat.stream import LONGEST_LINE, StreamDecoder
from hypothesis import given
from hypothesis import strategies as st


def decode(body: bytes, size: int = 7):
    decoder = StreamDecoder()
    values = []
    for i in range(0, len(body), size):
        values += decoder.feed(body[i : i + size])
    return values + decoder.finish(), decoder


@given(st.lists(st.dictionaries(st.text(), st.text(), min_size=1), min_size=1), st.integers(1, 50))
def test_any_cutting_gives_the_same_values(values, size):
    body = b"".join(
        b"data: " + json.dumps(v, ensure_ascii=False).encode() + b"\n\n" for v in values
    )
    assert decode(body, size)[0] == values


@pytest.mark.parametrize(
    ("body", "values"),
    [
        (b'data: {"a":1}\r\n\r\ndata: [DONE]\r\n\r\n', [{"a": 1}]),
        (b'data:{"a":1}\ndata:{"a":2}\n', [{"a": 1}, {"a": 2}]),
        (b': keep-alive\n\n: OPENROUTER PROCESSING\n\ndata: {"a":1}\n\n', [{"a": 1}]),
        (b'event: x\nid: 3\nretry: 5\ndata: {"a":\ndata: 1}\n\n', [{"a": 1}]),
        (b'data: {"a":1}\n\ndata: {broken\n\ndata: {"a":2}\n\n', [{"a": 1}, {"a": 2}]),
        (b'error: {"error":{"message":"x"}}\n\n', [{"error": {"message": "x"}}]),
        (b'data: {"a":1}\n\n{"error":{"message":"x"}}\n', [{"a": 1}, {"error": {"message": "x"}}]),
        (b'data: {"a":1}', [{"a": 1}]),
        (b'\xef\xbb\xbf\n{"a":1}', [{"a": 1}]),
        (b'\xef\xbb\xbfdata: {"a":1}\n\ndata: {"a":2}\n\n', [{"a": 1}, {"a": 2}]),
        (b'{"a":1}\n{"a":2}\n', [{"a": 1}, {"a": 2}]),
        (b'data: [DONE]\n\ndata: {"late":1}\n\n', []),
        (b"data: 3\n\ndata: null\n\n", []),
        (b"", []),
    ],
)
def test_sloppy_streams_are_read(body, values):
    for size in (1, 3, 1000):
        assert decode(body, size)[0] == values


def test_what_cannot_be_read_is_counted():
    assert decode(b"data: nonsense\n\ndata: {x\n\n")[1].bad == 2
    assert decode(b"{not json")[1].bad == 1
    assert decode(b'data: {"a":1}\n\n')[1].bad == 0


def test_a_web_page_is_recognised():
    values, decoder = decode(b"\n <!DOCTYPE html><html></html>")
    assert decoder.page and not values


def test_a_line_without_end_is_refused():
    decoder = StreamDecoder()
    for _ in range(LONGEST_LINE // 2**20):
        decoder.feed(b"x" * 2**20)
    with pytest.raises(ModelError) as caught:
        decoder.feed(b"x")
    assert caught.value.kind is FailureKind.MALFORMED
