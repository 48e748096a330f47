"""What a stored message is found by, read the short way as the long one reads it."""

from __future__ import annotations

import json

import pytest
from hermes_nb.core.messages import Image, Message, Text, ToolCall
from hermes_nb.memory.rows import decode, encode
from hermes_nb.memory.search import documents
from hermes_nb.storage import words
from hypothesis import given
from hypothesis import strategies as st

CALL = ToolCall(id="1", name="read_file", arguments={"path": "a.csv"})
PARTS = st.lists(
    st.one_of(st.builds(Text, st.text(max_size=30)), st.just(Image("aGk="))), max_size=3
).map(tuple)
MESSAGES = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    parts=PARTS,
    calls=st.sampled_from([(), (CALL,), (CALL, CALL)]),
    name=st.sampled_from(["", "read_file"]),
    reasoning=st.sampled_from(["", "hm"]),
)


@given(MESSAGES)
def test_text_and_role_are_those_of_the_message(message):
    stored = decode(encode(message))
    calls = (f"{call.name} {call.arguments_json()}" for call in stored.calls)
    expected = "\n".join((*filter(None, (stored.name, stored.text)), *calls))
    assert documents.text_of(encode(message)) == expected
    found = documents.document(encode(message), at=0.0, began=None)
    assert found.role == message.role
    assert found.terms.split(f" {words.BREAK} ")[0].strip() or not words.indexed(expected)


@pytest.mark.parametrize(
    "body",
    [
        *("", "{", "[]", "null", "7", '"text"', '{"parts":[{"text":"no role"}]}'),
        *('{"role":"king","parts":[{"text":"odd role"}]}', '{"role":"user","parts":[{"text":5}]}'),
        *('{"role":"user","parts":7}', '{"role":"user","parts":[{}]}', '{"role":"user","name":5}'),
        *('{"role":["user"]}', '{"role":"user","calls":[{"id":"1"}]}', "[" * 100_000),
    ],
)
def test_what_is_no_message_is_found_by_what_lies_there(body):
    assert documents.text_of(body) == body
    assert documents.document(body, at=0.0, began=None).role == "system"


@given(st.text(max_size=80))
def test_terms_are_made_of_forms(text):
    body = json.dumps({"role": "user", "parts": [{"text": text}]})
    found = documents.document(body, at=1_683_540_000.0, began=1_600_000_000.0)
    made = {term for form in found.forms for term in words.of_form(form)}
    assert set(found.terms.split()) - {words.BREAK} == made
