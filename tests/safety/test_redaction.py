"""What is known as a secret goes, in every place it stands in, and nothing else does."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import re
import string
import tomllib
import uuid
from importlib.metadata import files
from itertools import islice
from pathlib import Path

import pytest
from hermes_nb import Hermes
from hermes_nb.core.messages import Message, ToolCall
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.notebook.magics import load, use_model, use_tools
from hermes_nb.safety.redact import STUB, families, redact
from hypothesis import example, given
from hypothesis import strategies as st
from IPython.utils.capture import capture_output

from tests.notebook.conftest import shell  # noqa: F401
from tests.safety.seat import seated

ROOT = Path(__file__).parents[2]
BODY = "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5cB7dE9fG1hJ3kL5mN7pQ9rS1tU3vW5xY7zA9"
HEX = "0a1b2c3d" * 8
PEM = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQC7"
NETRC = f"machine api.example.org\n  login me\n  password hunter2-{BODY[:4]}\n"
SEED = "legal winner thank year wave sausage worth useful legal winner thank yellow"
BCRYPT = f"$2y$05$c4WoMPo3SXsafkva.HHa6u{BODY[:31]}"
CRYPT = f"$6$rounds=656000$c4WoMPo3SXsafkva${BODY[:43]}{BODY[:43]}"
LOGIN = base64.b64encode(b"me:hunter2-Zq81").decode()
CONFIG = f"# mine\nexport GITHUB_TOKEN=ghp_{BODY[:36]}\n".encode()
ENCODED = base64.urlsafe_b64encode(CONFIG).decode()
WRAPPED = "\n".join(re.findall(".{1,30}", base64.b64encode(CONFIG * 2).decode()))

MADE_UP = {"BODY": BODY, "HEX": HEX, "PEM": PEM, "SEED": SEED, "LOGIN": LOGIN, "NETRC": NETRC}
MADE_UP |= {"BCRYPT": BCRYPT, "CRYPT": CRYPT, "ENCODED": ENCODED, "WRAPPED": WRAPPED}
KNOWN = tomllib.loads((Path(__file__).with_name("cases") / "secret_forms.toml").read_text("utf-8"))
SIMPLE = {
    family: [text.format(**MADE_UP) for text in texts] for family, texts in KNOWN["forms"].items()
}
"""What is a secret by its own form, wherever it stands."""
IN_PLACE = {
    family: [(text.format(**MADE_UP), secret.format(**MADE_UP)) for text, secret in rows]
    for family, rows in KNOWN["places"].items()
}
"""What is a secret by what stands around it: the text, and what may not be left of it."""

CONTEXTS = {
    "bare": str,
    "assignment": lambda secret: f"value = '{secret}'",
    "JSON": lambda secret: json.dumps({"a": 1, "value": f"one\n{secret}\ntwo"}),
    "YAML": lambda secret: f"a: 1\nvalue: {secret}\nb: 2" if "\n" not in secret else _block(secret),
    "URL": lambda secret: f"https://example.org/x?a=1&q={secret}",
    "colours": lambda secret: f"\x1b[01;31m\x1b[K{secret}\x1b[m\x1b[K\n\x1b]8;;\x07found\x1b(B",
}


def _block(text: str) -> str:
    return "value: |\n" + "".join(f"    {line}\n" for line in text.split("\n"))


CASES = [
    *((family, secret, secret) for family, all_ in SIMPLE.items() for secret in all_),
    *((family, text, secret) for family, all_ in IN_PLACE.items() for text, secret in all_),
]


@pytest.mark.parametrize("context", CONTEXTS)
def test_every_family_goes_in_every_context(context):
    left = []
    for family, text, secret in CASES:
        placed = CONTEXTS[context](text)
        hidden = redact(placed)
        if (
            STUB not in hidden
            or secret in hidden
            or secret[-9:] in hidden
            or redact(hidden) != hidden
        ):
            left.append((family, placed, hidden))
    assert not left


def test_colours_inside_a_secret_hide_nothing_and_other_lines_keep_theirs():
    key = f"sk-ant-api03-{BODY}"
    text = f"\x1b[32mok\x1b[0m\n\x1b[31m{key[:9]}\x1b[1m{key[9:]}\x1b[0m\n\x1b[2mend\x1b[0m"
    assert redact(text) == f"\x1b[32mok\x1b[0m\n{STUB}\n\x1b[2mend\x1b[0m"
    assert "hunter2" not in redact("\x1b]8;;https://me:hunter2@h/\x07link\x1b]8;;\x07")
    assert key not in redact(json.dumps({"text": f"\x1b[31m{key}"}))


@pytest.mark.parametrize("around", ["the key is {}.", "({})"])
def test_what_has_a_form_of_its_own_goes_beside_any_sign(around):
    for secret in (secret for all_ in SIMPLE.values() for secret in all_):
        hidden = redact(around.format(secret))
        assert STUB in hidden and secret[-12:] not in hidden, secret


@pytest.mark.parametrize("around", [r'{{"q": "a\u003d{}\u0026b"}}', r"'\x3d{}'", r"\u003c{}\u003e"])
@pytest.mark.parametrize("begin", ["ghp_", "glpat-", "sk-ant-api03-", "hf_", "xoxb-"])
def test_a_key_behind_an_escape_of_json_or_code_goes(around, begin):
    hidden = redact(around.format(f"{begin}{BODY}"))
    assert STUB in hidden and BODY[-9:] not in hidden


PROVIDERS = tomllib.loads(
    (Path(__file__).with_name("cases") / "secret_providers.toml").read_text("utf-8")
)
LETTERS = {
    "b62": string.ascii_letters + string.digits,
    "b64": string.ascii_letters + string.digits + "+/",
    "url": string.ascii_letters + string.digits + "_-",
    "upper": string.ascii_uppercase + string.digits,
    "upper32": string.ascii_uppercase + "234567",
    "lower": string.ascii_lowercase + string.digits,
    "hex": "0123456789abcdef",
    "HEX": "0123456789ABCDEF",
    "digits": string.digits,
}


def _made(form: str, dice: random.Random) -> tuple[str, list[str]]:
    """Return a key of this form, and its random parts."""
    parts = []

    def part(found: re.Match[str]) -> str:
        kind, count = found[1], int(found[2])
        drawn = str(uuid.UUID(int=dice.getrandbits(128), version=4)) if kind == "uuid" else ""
        parts.append(drawn or "".join(dice.choices(LETTERS[kind], k=count)))
        return parts[-1]

    key = re.sub(r"<(\w+):(\d+)>", part, form)
    return key, [each for each in parts if len(each) > 8 and not each.isdigit()]


def _left(text: str, parts: list[str]) -> bool:
    """Say whether redaction leaves eight characters of a part, or changes with a second time."""
    hidden = redact(text)
    return redact(hidden) != hidden or any(
        part[i : i + 8] in hidden for part in parts for i in range(len(part) - 7)
    )


def test_keys_of_providers_go_alone_and_behind_names():
    left, seen = [], {*PROVIDERS["alone"], *PROVIDERS["named"]}
    assert len(seen) >= 140
    for form in (form for forms in PROVIDERS["alone"].values() for form in forms):
        for seed in range(3):
            key, parts = _made(form, random.Random(seed))
            texts = (
                key,
                f"the key is {key}.",
                f"KEY={key}",
                f'{{"name": "{key}"}}',
                f"<b>{key}</b>",
            )
            left += [text for text in texts if _left(text, parts)]
    for name, form in PROVIDERS["named"].values():
        for seed in range(3):
            key, parts = _made(form, random.Random(seed))
            low = name.lower()
            texts = (f"{name}={key}", f"export {name}='{key}'", f'{{"{low}": "{key}"}}')
            texts += (f"{low}: {key}", f"os.environ['{name}'] = '{key}'")
            left += [text for text in texts if _left(text, parts)]
    assert not left


INVISIBLE = (
    "\u00ad\u180b\u17b4\u200b\u200c\u200d\u200e\u2060\u3164\ufeff\ufe0f\ufff9\U0001d173\U000e0041"
)


@pytest.mark.parametrize("sign", INVISIBLE)
def test_invisible_characters_hide_nothing_and_stay_where_nothing_is(sign):
    for _, text, secret in CASES[::5]:
        hidden = f"a{sign}b\n" + sign.join([text[:2], text[2:7], text[7:-9], text[-9:]])
        for placed in (hidden, json.dumps({"text": hidden})):
            once = redact(placed)
            assert STUB in once and secret[-9:] not in once, placed
            assert redact(once) == once
        assert f"a{sign}b" in redact(hidden)
    honest = f"caf\u00e9{sign}s and \U0001f468\u200d\U0001f469 in a long_word_of_more_than_fifteen"
    assert redact(honest) == honest


@pytest.mark.parametrize("width", [26, 50, 64, 76])
@pytest.mark.parametrize("indent", ["", "    ", "# ", '  "'])
def test_base64_is_decoded_once_also_over_lines(width, indent):
    encoded = base64.b64encode(b"a: 1\n" * 9 + CONFIG).decode()
    text = "data: |\n" + "".join(f"{indent}{e}\n" for e in re.findall(f".{{1,{width}}}", encoded))
    for placed in (text, json.dumps({"text": text})):
        hidden = redact(placed)
        assert STUB in hidden and encoded[70:85] not in hidden and encoded[-9:] not in hidden
        assert redact(hidden) == hidden
    lines = "\n".join(f'"{each}" +' for each in re.findall(f".{{1,{width - width % 4}}}", encoded))
    assert STUB in redact(lines) and encoded[70:85] not in redact(lines)
    assert redact('"QUFBQUFBQUFBQUFBQUFBQUFB" +\n"QUFB"') == '"QUFBQUFBQUFBQUFBQUFBQUFB" +\n"QUFB"'
    honest = base64.b64encode(b"nothing to see here, only words. " * 9).decode()
    assert redact(honest) == honest


GLUE = [
    *("\\n", "\n", " ", "'", '"', "=", ":", ";PWD=", "://", "@h", "\x1b[31m", "\x1b]8;;"),
    *("\x07", "\\"),
    *("token", "password", "API_KEY", "Bearer ", "Authorization", "basic ", "u:p@", "h/", ": "),
    *("-", "\u200b", "\u00ad", "QUtJQVEyUjNRMlIz", "UTJSM0E="),
    *("-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", STUB, "[", "]", "x-api-key"),
    "sk-",
    *("--secret ", "eyJ", "a1B2c3D4e5F6g7H8"),
]
PARTS = st.lists(st.sampled_from([text for _, text, _ in CASES] + GLUE), max_size=12).map("".join)


@given(PARTS | st.text(max_size=300))
@example("password: [redacted]x")
@example("KEY=TOKEN=SECRET=a1b2c3d4e5f6")
@example("api_key='" + "sk-proj-aB3dE5fG7hJ9'")
def test_redacting_twice_changes_nothing(text):
    once = redact(text)
    assert redact(once) == once


def test_the_docs_list_what_is_known():
    known = {*families()["tokens"], *families()["marked"], *families()["besides"]}
    assert {*SIMPLE, *IN_PLACE} <= known <= {*SIMPLE, *IN_PLACE, *PROVIDERS["alone"]}
    page = (ROOT / "docs/reference/security.md").read_text(encoding="utf-8")
    table = page.partition("| family |")[2].partition("\n\n")[0]
    assert set(re.findall(r"(?m)^\| ([^|]+?) \|", table)) - {"---"} == known


def _life():
    """Yield lines as people and programs write them: code, docs, notebooks, locks, logs, tables."""
    paths = [
        path
        for pattern in ("hermes_nb/**/*.py", "docs/**/*.md", "notebooks/*.ipynb", "skills/**/*.md")
        for path in sorted(ROOT.glob(pattern))[::4]
        if path.name != "security.md"  # it shows what is hidden
    ]
    for package in ("numpy", "pandas", "ipython", "nbformat", "httpx", "jupyter_client"):
        kept = (
            f for f in files(package) or () if f.suffix == ".py" or f.name in ("RECORD", "METADATA")
        )
        paths += [Path(str(f.locate())) for f in islice(kept, 0, None, 25)]
    for path in (Path(__file__).with_name("cases") / "harmless.txt", *paths):
        yield from path.read_text(encoding="utf-8").splitlines()
    for number in range(300):
        digest = hashlib.sha256(bytes([number % 256, number // 256]))
        name = uuid.UUID(bytes=digest.digest()[:16])
        yield f"{digest.hexdigest()}  data/part-{number}.csv"
        yield f"commit {digest.hexdigest()[:40]} (tag: v0.{number})"
        yield f'"integrity": "sha512-{base64.b64encode(digest.digest() * 2).decode()}",'
        yield f"2024-05-01 12:{number % 60:02}:11,{number} INFO worker-1 {name} took {number} ms"
        yield f"{number},{name},{number * 1.37:.4f},12:30:{number % 60:02},true"
        yield f"data:image/png;base64,{base64.b64encode(digest.digest() * 64).decode()}"
        yield f"    --hash=sha256:{digest.hexdigest()} \\"


def test_harmless_lines_stay_as_they_are():
    lines = {line for line in _life() if line.strip()}
    assert len(lines) >= 8_000
    assert [line for line in lines if redact(line) != line] == []


COLOURED = f"found \x1b[01;31m\x1b[Kghp_{BODY[:20]}\x1b[m{BODY[20:36]} and no more"


def look(path: str) -> str:
    """Look at a file."""
    return f"{COLOURED}\n{SEED}"


def _scripted() -> ScriptedModel:
    call = ToolCall(id="1", name="look", arguments={"path": COLOURED})
    return ScriptedModel(
        [Message.assistant(f"I use {COLOURED}", calls=[call]), f"It is {COLOURED}."]
    )


def _is_clean(shown: str, home: Path) -> None:
    kept = [path.read_bytes() for path in home.rglob("*") if path.is_file()]
    assert any(STUB.encode() in each for each in kept)
    for left in (BODY[:20], BODY[20:36], SEED[:30]):
        assert left not in shown
        assert not any(left.encode() in each for each in kept)


@pytest.mark.new_prefix
def test_a_key_behind_colours_is_neither_stored_nor_shown(home, tmp_path):
    with Hermes(_scripted(), cwd=tmp_path, tools=[look], approve="all") as hermes:
        turn = hermes.ask(f"what is in {COLOURED}?")
        assert turn.reason == "answered"
        assert STUB in turn._repr_markdown_()
    _is_clean(turn._repr_markdown_(), home)


@pytest.mark.new_prefix
def test_a_cell_neither_stores_nor_shows_it(shell, home, tmp_path):  # noqa: F811
    load(shell)
    use_model(_scripted())
    use_tools(look)
    with capture_output() as captured:
        shell.run_cell("%hermes --approve all what is in it?")
    told = [output.data for output in captured.outputs]
    assert STUB in json.dumps(told) + captured.stdout
    _is_clean(json.dumps(told) + captured.stdout + captured.stderr, home)


HIDDEN_NAMES = [
    *"password Passwort passwort mot_de_passe motDePasse contraseña contrasen\u0303a senha".split(),
    *("mot de passe", "user-password", "pin", "PIN", "user_pin", "pin_code"),
]
SHOWN_NAMES = "pinned spin pinot opinion pin_a gpio_pin compass token_count passenger".split()


@pytest.mark.parametrize("columns", [HIDDEN_NAMES[:6], HIDDEN_NAMES[6:], SHOWN_NAMES])
def test_columns_whose_names_say_that_they_are_secret_are_not_shown(shell, tmp_path, columns):  # noqa: F811
    pandas = pytest.importorskip("pandas")
    with seated(shell, tmp_path) as seat:
        shell.user_ns["frame"] = pandas.DataFrame({name: ["hunter2"] for name in columns})
        shell.user_ns["Passwort"] = "hunter2"
        shell.user_ns["names"] = {"contraseña": "hunter2"}
        seat.turn("look", [call("list_variables"), call("inspect_variable", name="frame")])
        listed, inspected = (result.text for result in seat.results)
    assert "hunter2" not in listed
    assert inspected.count("hunter2") == (len(columns) if columns is SHOWN_NAMES else 0)


def test_keys_in_column_names_are_not_shown(shell, tmp_path):  # noqa: F811
    pandas = pytest.importorskip("pandas")
    with seated(shell, tmp_path) as seat:
        shell.user_ns["frame"] = pandas.DataFrame({"ghp_" + "a1B2" * 9: [1]})
        seat.turn("look", [call("list_variables")])
        assert "a1B2a1B2" not in seat.results[0].text
        assert "frame" in seat.results[0].text
