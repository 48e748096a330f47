"""What no family says: cut keys, messages, the quick way, time. The rest: `contract/safety`."""

from __future__ import annotations

import json

import pytest
from hermes_nb.core.messages import Image, Message, ToolCall
from hermes_nb.safety.redact import STUB, _redacted, redact, without_secrets
from hypothesis import example, given
from hypothesis import strategies as st

from tests.cpu import within
from tests.safety.test_redaction import PARTS

BODY = "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5"


def test_a_key_with_headers_goes_even_if_cut_off():
    body = "\n".join([BODY + BODY[:28]] * 4)
    for kind, headers in (
        ("PGP PRIVATE KEY BLOCK", "Version: GnuPG v2\n"),
        ("RSA PRIVATE KEY", "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00AA\n"),
    ):
        cut = f"-----BEGIN {kind}-----\n{headers}\n{body}"
        assert redact(cut) == STUB
        assert redact(f"{cut}\n-----END {kind}-----") == STUB


@given(PARTS | st.text(max_size=400))
@example("password = hunter2!x9")
@example("pa\u017fsword = hunter2!x9")
@example("to\u212aen: a1B2c3D4e5F6g7")
@example("postgres://ann:s3cret@db/x")
@example("curl -u ann:s3cret x")
@example("mysql -ps3cret")
@example("Cookie: a=a1-B2-c3-D4-e5-F6-g7")
@example("xoxb-" + "1234567890")
@example("SG." + "a1B2" * 5 + "." + "c3D4" * 5)
def test_the_quick_way_hides_as_much_as_the_slow_one(text):
    assert redact(text) == _redacted(text)


@pytest.mark.parametrize(
    "unit",
    [
        *("sk-", "eyJ", "eyJaaaaaaaaaa.", "-----BEGIN PRIVATE KEY-----", "a://", "a://b:"),
        *("password", "password=", "token: '", "Bearer ", "authorization:", "--token ", "xoxb-"),
        *("_key", "A", "a.", "-----BEGIN PRIVATE KEY-----" + "A" * 50, 'password: "', " "),
        *("key=\\", "github_pat_", "curl -u a", "mysql -p", "cookie: a="),
        *("hooks.slack.com/services/", "1234567890:", "machine a login ", "a:5432:"),
        *("me:x:1:1:1:1:1:1:", "Private-Lines: 1\nAAAA", "legal winner ", "\x1b[31m", "\x1b]8;;a"),
        *("auth=('a','", "://a:b/", ";PWD=", "\\nkey=a", "a.atlasv1."),
        *("Nzk5MjgxNDk0NDc2NDU1OTg3.YABS5g.", "eyJrIjoi", "$6$"),
        *("QUFB", "QUFB\n", "QUFB\n            ", "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFB ", "a+A"),
        *("\u200b", "a\u00ad", "key=\u200b", "0123456789abcdef-us", "-aQ~", "t1.a", "-live_A1"),
        *("\\u200b", "tskey-auth-a-", "sc_a.abcd.acc_", "1/1111111111111111:"),
    ],
)
def test_hostile_text_takes_linear_time(unit):
    within(1.2, redact, unit * (150_000 // len(unit)))


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


def test_what_has_to_stay_of_a_message_stays():
    arguments = {"path": "a.py", "env": {"DB_PASSWORD": PASSWORD}}
    signature = "ErUBCkYIAxgCIkD" + "aB3dE5fG7hJ9" * 8  # which a provider checks byte by byte
    named = ToolCall(id="1", name="t", arguments=arguments, text=json.dumps(arguments))
    unread = ToolCall(id="2", name="t", text=f'{{"key": {KEY}', problem=f"no JSON: {KEY}")
    echo = [{"thinking": f"the key {KEY}", "signature": signature}]
    message = Message(role="assistant", calls=(named, unread), echo={"thinking_blocks": echo})
    stored = without_secrets(message)
    named, unread = stored.calls
    assert PASSWORD not in named.arguments_json()
    assert named.arguments == {"path": "a.py", "env": {"DB_PASSWORD": "[redacted]"}}
    assert KEY not in unread.text + unread.problem
    assert unread.problem.startswith("no JSON")
    left = {"thinking": "the key [redacted]", "signature": signature}
    assert stored.echo == {"thinking_blocks": [left]}


def test_a_message_without_secrets_is_the_same_object():
    message = Message.user("how many rows?", images=[Image("aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5")])
    assert without_secrets(message) is message
