"""Secrets go, everything else stays as it is."""

from __future__ import annotations

import base64
import hashlib
import string
import time

import pytest
from hermes_nb.safety.redact import STUB, _redacted, redact
from hypothesis import example, given
from hypothesis import strategies as st

LETTERS = string.ascii_letters + string.digits
BODY = "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5"

KEYS = {
    "openai": f"sk-{BODY}",
    "openai project": f"sk-proj-{BODY}",
    "anthropic": f"sk-ant-api03-{BODY}-{BODY}",
    "openrouter": f"sk-or-v1-{'0a1b2c3d' * 8}",
    "google": f"AIzaSy{BODY[:33]}",
    "github": f"ghp_{BODY}",
    "github fine-grained": f"github_pat_11ABCDEFG0{BODY}_{BODY}",
    "slack": "xoxb-123456789012-123456789012-abcdefGHIJKL",
    "hugging face": f"hf_{BODY}",
    "aws": "AKIAIOSFODNN7EXAMPLE",
    "groq": f"gsk_{BODY}",
    "gitlab": "glpat-abcDEF123456_7890xyz",
    "gitlab runner": "glrt-abcDEF123456_7890xyz",
    "google oauth": f"GOCSPX-{BODY[:28]}",
    "twilio": "SK" + "0a1b2c3d" * 4,
    "sendgrid": f"SG.{BODY[:22]}.{BODY}{BODY[:7]}",
    "stripe": f"sk_live_{BODY[:24]}",
    "npm": f"npm_{BODY}",
    "pypi": f"pypi-AgEIcHlwaS5vcmc{BODY}",
    "databricks": "dapi" + "0a1b2c3d" * 4,
    "telegram": f"123456789:AA{BODY[:33]}",
    "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P",
}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("around", ["{}", "the key is {}.", 'x = "{}"', "?k={}&b=1", "({})"])
def test_a_known_format_goes_wherever_it_stands(key, around):
    text = around.format(key)
    assert redact(text) == around.format(STUB) or (key not in redact(text) and STUB in redact(text))
    assert key[-12:] not in redact(text)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Authorization: Bearer abc.def-123456", "abc.def-123456"),
        ("Authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("{'Authorization': 'Bearer my-secret-token-1'}", "my-secret-token-1"),
        ("sent Bearer 0123456789abcdef0123", "0123456789abcdef0123"),
        ("x-api-key: 0123abcd4567", "0123abcd4567"),
        ("X-Goog-Api-Key: abcdefgh", "abcdefgh"),
        ("postgresql://me:hunter2@db.example.org:5432/x", "hunter2"),
        ("redis://:s3cr3tpw@localhost", "s3cr3tpw"),
        ("mongodb+srv://u:p@ss@host/db", "p@ss"),
        ("OPENAI_API_KEY=abcdef", "abcdef"),
        ("export DB_PASSWORD=supersecret", "supersecret"),
        ("MY_SECRET=mysecretvalue", "mysecretvalue"),
        ("AUTH_TOKEN=a123456789", "a123456789"),
        ('SECRET_KEY="django-insecure-abc"', "django-insecure-abc"),
        ('{"password": "hunter2"}', "hunter2"),
        ('{"api_key": "abc123"}', "abc123"),
        (r"{\"client_secret\": \"abc123\"}", "abc123"),
        ("aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "wJalrXUtnFEMI"),
        ("password: hunter2", "hunter2"),
        ("https://x.org/?access_token=abc123def456&y=1", "abc123def456"),
        ("mysql --password s3cr3tpw", "s3cr3tpw"),
        (f"https://api.telegram.org/bot123456789:AA{BODY[:33]}/getMe", BODY[:33]),
        (f"https://hooks.slack.com/services/T0000/B0000/{BODY[:24]}", BODY[:24]),
        (f"https://discord.com/api/webhooks/123456789/{BODY}", BODY),
        (f"https://a.example.net/c?sv=2024-01-01&sig={BODY}%3D&se=1", BODY),
        ("curl -u admin:hunter2 https://example.org", "hunter2"),
        ("mysql -u root -phunter2 db", "hunter2"),
        (f"Cookie: session={BODY}; theme=dark", BODY),
        ("DB_PASS=hunter2", "hunter2"),
        ("export FOO_TOKEN='abcdefgh1'", "abcdefgh1"),
        ('DB_PASSWORD="hunter 2 and more"', "hunter 2"),
        ("jdbc:sqlserver://h;user=sa;password=Hunter2!;", "Hunter2!"),
        ("Server=h;User Id=u;Pwd=hunter2;", "hunter2"),
        ("amqp://guest:guestpw@h/v", "guestpw"),
        ("accountKey=Zm9vYmFyYmF6MTIzNDU2Nzg5MA==", "Zm9vYmFyYmF6"),
    ],
)
def test_a_named_secret_goes(text, secret):
    assert secret not in redact(text)
    assert STUB in redact(text)


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


HARMLESS = [
    "token = tokenizer.next()",
    "for token in tokens: print(token)",
    "api_key=os.environ['OPENAI_API_KEY']",
    'api_key = os.getenv("OPENAI_API_KEY")',
    "client = OpenAI(api_key=api_key, timeout=30)",
    "password = getpass.getpass('Password: ')",
    "def login(user: str, password: str) -> Token:",
    "max_tokens=4096, token_count: 12345",
    '{"token": "hello", "key": "value", "tokens": 12}',
    "key = lambda row: row['key']",
    "f'postgresql://{user}:{password}@{host}'",
    "set PASSWORD=<your password> or TOKEN=$TOKEN",
    '"api_key": "${API_KEY}"',
    "PWD=/home/me/project",
    "headers: { Authorization: `Bearer ${process.env.API_TOKEN}` }",
    'API_KEY="am_your_key_here" or api_key="bu_..." or "m0-xxx"',
    "PRIMARY_KEY=id\nSORT_KEY=name",
    "basic functionality, bearer of bad news, the Basic Internationalization-Library",
    "class='sk-container-id-1 sk-toggleable__content sk-estimator-doc-link'",
    "a task-1234567890abcdef1234567890 and a risk-free disk-usage-report-2024",
    hashlib.sha256(b"x").hexdigest(),
    f"sha256:{hashlib.sha256(b'y').hexdigest()}  file.bin",
    "data:image/png;base64," + base64.b64encode(bytes(range(256)) * 8).decode(),
    "commit 15ec464f9d2b0c6b7a8e9f0a1b2c3d4e5f6a7b8c",
    "key: 15ec464f9d2b0c6b7a8e9f0a1b2c3d4e5f6a7b8c",
    '"integrity": "sha512-' + base64.b64encode(hashlib.sha512(b"z").digest()).decode() + '"',
    "curl -u $USER:$PASS https://example.org; docker run -u 1000:1000",
    "mysql -u root -p db; PASS: test_login; bypass=1",
    "Cookie: consent=yes; at 12:34:56",
    "see https://example.org:8080/path@v1?x=1#a:b",
    "git@github.com:owner/repo.git",
    "The password must have 12 characters; a secret is what nobody knows.",
    "the docs mention -----BEGIN PRIVATE KEY----- without one",
    "hf_hub_download(repo_id, filename)",
    "3f1c2a90-5b1e-4c3d-9a8b-7c6d5e4f3a2b",
]


@pytest.mark.parametrize("text", HARMLESS)
def test_code_and_prose_stay_as_they_are(text):
    assert redact(text) == text


@given(st.text(max_size=300))
@example("Authorization: Bearer abcdef")
@example("password: [redacted]x")
@example("KEY=TOKEN=SECRET=a1b2c3d4e5f6")
@example("api_key='" + "sk-proj-aB3dE5fG7hJ9'")
def test_redacting_twice_changes_nothing(text):
    once = redact(text)
    assert redact(once) == once


FRAGMENTS = st.sampled_from(
    [
        *KEYS.values(),
        "password",
        "API_KEY",
        "token",
        "=",
        ": ",
        '"',
        "'",
        "\\",
        " ",
        "\n",
        "Bearer ",
        "Authorization",
        "basic ",
        "://",
        "u:p@",
        "h/",
        "a1B2c3D4e5F6g7H8",
        "-----BEGIN PRIVATE KEY-----",
        "-----END PRIVATE KEY-----",
        "[redacted]",
        "[",
        "]",
        "-",
        "--secret ",
        "x-api-key",
        "sk-",
        "eyJ",
    ]
)


@given(st.lists(FRAGMENTS, max_size=12).map("".join))
def test_redacting_twice_changes_nothing_around_secrets(text):
    once = redact(text)
    assert redact(once) == once


@given(st.one_of(st.text(max_size=400), st.lists(FRAGMENTS, max_size=12).map("".join)))
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
        "sk-",
        "eyJ",
        "eyJaaaaaaaaaa.",
        "-----BEGIN PRIVATE KEY-----",
        "a://",
        "a://b:",
        "password",
        "password=",
        "token: '",
        "Bearer ",
        "authorization:",
        "--token ",
        "xoxb-",
        "_key",
        "A",
        "a.",
        "-----BEGIN PRIVATE KEY-----" + "A" * 50,
        'password: "',
        " ",
        "key=\\",
        "github_pat_",
        "curl -u a",
        "mysql -p",
        "cookie: a=",
        "hooks.slack.com/services/",
        "1234567890:",
    ],
)
def test_hostile_text_takes_linear_time(unit):
    def seconds(size):
        text = unit * (size // len(unit))
        start = time.process_time()
        redact(text)
        return time.process_time() - start

    seconds(10_000)
    assert seconds(150_000) < 1.2
