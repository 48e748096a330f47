"""How messages lie in the store, and which of them make up a conversation."""

from __future__ import annotations

from hermes_nb.core.messages import Message, ToolCall
from hermes_nb.memory.rows import Arrangement, decode, encode, matched
from hypothesis import example, given
from hypothesis import strategies as st

anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.floats(), st.integers(), st.text(st.characters())),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters()), inner),
    max_leaves=8,
)
texts = st.lists(st.sampled_from("abc"), max_size=8)


@given(st.text(st.characters()), anything)
def test_what_is_written_reads_the_same_when_written_again(text, value):
    call = ToolCall(id="1", name="t", arguments={"x": value}, text=text)
    body = encode(Message.assistant(text, calls=[call]))
    body.encode("utf-8")
    assert "\0" not in body
    assert "漢字" in encode(Message.user("漢字"))  # no more room than it must take
    assert encode(decode(body)) == body


@given(st.text() | st.binary().map(lambda data: data.decode("utf-8", "replace")))
@example("[]")
@example("{}")
@example('{"role": "user", "parts": [1]}')
@example("[" * 100_000)
def test_what_is_no_message_is_none(text):
    assert decode(text) is None


@given(before=texts, after=texts)
def test_each_text_is_matched_as_often_as_it_can_be(before, after):
    found = matched(before, after)
    used = [index for index in found if index is not None]
    assert len(found) == len(after)
    assert len(set(used)) == len(used)
    for text, index in zip(after, found, strict=True):
        assert index is None or before[index] == text
    for text in "abc":
        assert sum(before[index] == text for index in used) == min(
            before.count(text), after.count(text)
        )


@given(head=texts, middle=texts, tail=texts)
def test_a_common_beginning_and_a_common_end_stay_in_place(head, middle, tail):
    before = [*head, *middle, *tail]
    found = matched(before, [*head, "summary", *tail])
    start = len(before) - len(tail)
    assert found[: len(head)] == list(range(len(head)))
    expected = list(range(start, len(before)))
    at_the_end = found[len(head) + 1 :]
    # Where head and tail meet in equal texts, either reading of the same conversation is right.
    assert at_the_end == expected or [before[i] for i in at_the_end] == tail


def test_what_is_no_longer_in_a_conversation_keeps_no_place_in_it():
    arrangement = Arrangement(start=5, stop=6, order=(0, 5, 3, 4))
    assert arrangement.following([0, 3, 4, 5, 6, 7]) == [0, 5, 3, 4, 6, 7]
    assert arrangement.following([0, 4, 7]) == [0, 4, 7]
