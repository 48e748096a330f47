"""What is stored of a message holds no secret, and everything else."""

from __future__ import annotations

import json

from hermes_nb.core.messages import Image, Message, ToolCall
from hermes_nb.safety.redact import without_secrets
from hypothesis import given
from hypothesis import strategies as st

KEY = "sk-ant-api03-aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5"
PASSWORD = "hunter2-Zq81"

VALUES = st.recursive(
    st.one_of(
        st.text('abcxyz "\\\n', max_size=30),
        st.integers(),
        st.booleans(),
        st.none(),
        st.just(f"the key is {KEY}"),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc"), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text("abc", min_size=1), VALUES, max_size=4))
def test_arguments_stay_valid_and_lose_their_secrets(arguments):
    written = json.dumps(arguments, ensure_ascii=False)
    call = ToolCall(id="1", name="t", arguments=arguments, text=written)
    message = Message.assistant(f"using {KEY}", calls=[call], reasoning=f"it is {KEY}")
    stored = without_secrets(message)
    assert KEY not in json.dumps(stored.to_dict())
    assert json.loads(stored.calls[0].arguments_json()).keys() == arguments.keys()
    assert without_secrets(stored) == stored
    if KEY not in written:
        assert stored.calls == message.calls


def test_a_name_tells_what_its_value_is():
    arguments = {"path": "a.py", "env": {"DB_PASSWORD": PASSWORD}}
    call = ToolCall(id="1", name="t", arguments=arguments, text=json.dumps(arguments))
    stored = without_secrets(Message.assistant(calls=[call])).calls[0]
    assert PASSWORD not in stored.arguments_json()
    assert stored.arguments == {"path": "a.py", "env": {"DB_PASSWORD": "[redacted]"}}


def test_arguments_that_could_not_be_read_keep_what_is_wrong_with_them():
    call = ToolCall(id="1", name="t", text=f'{{"key": {KEY}', problem=f"no JSON: {KEY}")
    stored = without_secrets(Message.assistant(calls=[call])).calls[0]
    assert KEY not in stored.text + stored.problem
    assert stored.problem.startswith("no JSON")


def test_what_a_provider_checks_byte_by_byte_stays():
    signature = "ErUBCkYIAxgCIkD" + "aB3dE5fG7hJ9" * 8
    echo = {"thinking_blocks": [{"thinking": f"the key {KEY}", "signature": signature}]}
    stored = without_secrets(Message(role="assistant", echo=echo)).echo
    assert stored == {
        "thinking_blocks": [{"thinking": "the key [redacted]", "signature": signature}]
    }


def test_a_message_without_secrets_is_the_same_object():
    message = Message.user("how many rows?", images=[Image("aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5")])
    assert without_secrets(message) is message
