"""What no single family says: cut keys, the quick way, time. The rest: `contract/safety`."""

from __future__ import annotations

import string

import pytest
from hermes_nb.safety.redact import STUB, _redacted, redact
from hypothesis import example, given
from hypothesis import strategies as st

from tests.contract.safety.test_redaction import PARTS
from tests.cpu import within

LETTERS = string.ascii_letters + string.digits
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


def test_a_private_key_goes_whole():
    body = "\n".join(["MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7"] * 5)
    pem = f"-----BEGIN RSA PRIVATE KEY-----\n{body}\n-----END RSA PRIVATE KEY-----"
    assert redact(f"before\n{pem}\nafter") == f"before\n{STUB}\nafter"
    assert redact(pem.replace("\n", "\\n")) == STUB
    cut = pem[:-200]
    assert "MIIE" not in redact(cut)


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


@given(
    st.text(alphabet=" abcxyz.,;\n", max_size=40),
    st.text(alphabet=LETTERS, min_size=30, max_size=60),
    st.text(alphabet=" abcxyz.,;\n", max_size=40),
)
def test_a_key_never_survives(before, key, after):
    secret = f"sk-ant-{key}"
    assert secret not in redact(f"{before} {secret} {after}")


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
    ],
)
def test_hostile_text_takes_linear_time(unit):
    within(1.2, redact, unit * (150_000 // len(unit)))
