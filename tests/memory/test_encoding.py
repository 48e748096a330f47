from __future__ import annotations

from hermes_nb.core.messages import Message, ToolCall
from hermes_nb.memory.rows import decode, encode, storable
from hypothesis import given
from hypothesis import strategies as st

anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(st.characters())),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    max_leaves=8,
)


@given(st.text(st.characters()), anything)
def test_what_is_written_reads_the_same_when_written_again(text, value):
    call = ToolCall(id="1", name="t", arguments={"x": value}, text=text)
    body = encode(Message.assistant(text, calls=[call]))
    body.encode("utf-8")
    assert "\0" not in body
    assert encode(decode(body)) == body


def test_text_takes_no_more_room_than_it_must():
    assert "漢字" in encode(Message.user("漢字"))
    assert len(encode(Message.user("x" * 1_000))) < 1_050


@given(st.text() | st.binary().map(lambda data: data.decode("utf-8", "replace")))
def test_what_is_no_message_is_none(text):
    assert decode(text) is None


def test_near_misses_are_none():
    for body in ('{"role": "user"', "[]", "{}", '{"role": "user", "parts": [1]}', "[" * 100_000):
        assert decode(body) is None


def test_storable_text_is_utf_8():
    assert storable("a\ud800\0漢") == "a?\0漢"
