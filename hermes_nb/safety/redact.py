"""Remove secrets from text before it is stored, displayed, exported or summarised.

Invariants: linear time on any input, idempotent, and minimal: a secret becomes `[redacted]`,
everything else stays the same byte for byte. Known key formats (`secrets.toml`) are redacted
everywhere. A value after a secret's name (`PASSWORD=…`, `"api_key": "…"`) is redacted if it could
be a secret. Code that only mentions one (`token = tokenizer.next()`, `api_key=os.environ["KEY"]`),
placeholders and prose are kept. Files are recognised by their structure (.netrc, .pgpass, shadow,
PuTTY keys), even if their white space is URL-encoded.

Terminal codes and invisible characters cannot hide a secret: the visible text is searched, and a
line with a secret loses its codes. Base64 is decoded once, and a run that contains a secret is
redacted completely.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
import string
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from operator import eq
from pathlib import Path
from typing import Literal

from hermes_nb.core.messages import Json, Message, Text, ToolCall
from hermes_nb.safety import table

STUB = "[redacted]"
"""Replaces every secret."""
_SHORTEST_TOKEN = 8
"""Minimum characters for the value of a name that ends with TOKEN."""
_SHORTEST_FORM = 15  # minimum characters for a key or hash with a recognisable format
_SHORTEST_RUN = 24  # minimum characters for a base64 run to be decoded
_BASE64 = frozenset(f"{string.ascii_letters}{string.digits}+/")
_URL_SAFE = str.maketrans("-_", "+/")
_LONGEST_PHRASE = 64
"""Maximum characters of a quoted secret with spaces."""
_LONGEST_NAME = 60
"""Maximum characters of a name."""
_DIGESTS = frozenset({32, 40, 56, 64, 96, 128})
"""Lengths of hexadecimal digests. Such values are rarely secrets; many are cache keys."""

_IN_NAMES = f"{string.ascii_letters}{string.digits}_.-"
_BEFORE = re.compile(r"(?i)(?:;|%3B)\s{0,2}$")
_AFTER = re.compile(r"(?i)(?:;|%3B)\s{0,2}[a-z ]{2,24}(?:=|%3D)")
"""Patterns for what precedes and follows a setting in a connection string."""

_CODE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|@?[A-Za-z_]+\d{0,3}")
_TYPE = re.compile(r"(?:[A-Z][a-z]{2,}\d{0,2}[A-Z]?)+|[A-Z]\w{1,30}(?:Private|Public)Key")
_NAMES_A_SECRET = re.compile(r"(?i)pass|token|key|secret|cred|pwd")
_LOGIN_NAME = re.compile(r"(?i)user|login|e-?mail|host|account")
_FIELD = re.compile(r"\{[A-Za-z_]?[\w.]*(?:![rsa])?\}")
_PORT = re.compile(r":(?:\*|[1-9]\d{3,4}):")
_AGING = re.compile(r":\d{1,6}(?::\d{0,6}){5}:")

_PHRASE = 12
"""Number of words in the shortest wallet seed phrase, from BIP-39's word list."""
_LENGTHS = frozenset({12, 15, 18, 21, 24})
"""Possible word counts of a BIP-39 seed phrase."""
_SHORTEST_PHRASE = 47
"""Number of characters in the shortest seed phrase."""
_SEPARATED = r"[a-z ,\n\"'+]"
_RUNS = re.compile(rf"(?:{_SEPARATED}{{0,46}}+[^a-z ,\n\"'+]++)*+({_SEPARATED}*+)")
"""Skips runs that are too short to contain twelve three-letter words."""
_WORD = re.compile(r"[a-z]+")
_TWELVE = re.compile(r"(?:[a-z]{3,8}+[^a-z]{1,4}+){11}[a-z]{3,8}")


def families() -> dict[str, Json]:
    """Return the contents of `secrets.toml`."""
    return table("secrets")


@cache
def _pattern(name: str) -> re.Pattern[str]:
    """Return a compiled pattern from `secrets.toml`."""
    return re.compile(families()["patterns"][name].replace("\n", ""))


def _is_placeholder(value: str) -> bool:
    """Return whether `value` is a placeholder, such as `<your key>` or `$TOKEN`."""
    return _pattern("placeholder").fullmatch(value) is not None


def _folded(text: str) -> str:
    """Return the text in lower case, with the same length, as case-insensitive patterns see it."""
    if not text.isascii():
        for letter, plain in (("\u017f", "s"), ("\u212a", "k"), ("\u0130", "i"), ("\u0131", "i")):
            text = text.replace(letter, plain)
    return text.lower()


def _second(match: re.Match[str]) -> str:
    """Return the match with its second group redacted, unless the group is a placeholder."""
    return match[0] if _is_placeholder(match[2]) else match[1] + STUB


def _if_random(run: int, match: re.Match[str]) -> str:
    """Return the match with its second group redacted if the group looks generated."""
    return match[1] + STUB if _is_random(match[2], run) else match[0]


def _without_files(text: str) -> str:
    """Return `text` without the secrets of netrc, pgpass, shadow and PuTTY files."""
    if "password" in text and ("machine" in text or "default" in text):
        text = _pattern("machine").sub(lambda m: _pattern("password").sub(_second, m[0]), text)
    if ":" not in text:
        return text
    if _PORT.search(text):
        text = _pattern("pgpass").sub(_second, text)
    if _AGING.search(text):
        text = _pattern("shadow").sub(_second, text)
    if "Private-Lines:" in text:
        text = _pattern("putty").sub(rf"\1{STUB}", text)
    return text


def _is_login(value: str) -> bool:
    """Return whether `value` is a base64 user name and password, as in Docker and npm settings."""
    try:
        told = base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False
    return b":" in told[1:-1] and told.isascii() and told.decode("ascii").isprintable()


def _without_phrases(text: str) -> str:
    """Return `text` without seed phrases: twelve or more consecutive words from the word list."""
    pieces: list[str] = []
    done = 0
    for start, end in seed_phrases(text):
        pieces += [text[done:start], STUB]
        done = end
    return "".join([*pieces, text[done:]]) if pieces else text


def _without_named(text: str) -> str:
    """Return `text` without the values of names such as `password`, if they could be secrets."""
    low = _folded(text)
    pieces: list[str] = []
    done = at = 0
    while hit := _pattern("names").search(low, at):
        at = hit.end()
        found = _pattern("named").match(text, at)
        if found is None:
            continue
        kind = found.lastgroup or ""
        secret = _named_secret(_name(text, hit.start(), at), found, kind)
        if secret:
            pieces += [text[done : found.start(kind)], STUB]
            done = found.end(kind)
        if secret or kind != "quoted":
            at = found.end()
    return "".join([*pieces, text[done:]]) if pieces else text


def _name(text: str, start: int, end: int) -> str:
    """Return the whole name around `text[start:end]`, or "" if it is too long to be a name."""
    before = text[max(0, start - _LONGEST_NAME - 1) : start]
    length = len(before) - len(before.rstrip(_IN_NAMES))
    return "" if length > _LONGEST_NAME else text[start - length : end]


def _named_secret(name: str, found: re.Match[str], kind: str) -> bool:
    """Return whether the value in the regex group `kind` of `found` is a secret."""
    value = found[kind]
    low = name.lower()
    if not name or kind == "braced":
        return bool(low.endswith("pwd") and _connects(found) and not _FIELD.fullmatch(value))
    if _is_placeholder(value) or name == "OLDPWD":
        return False
    if name == "PWD":
        return _connects(found) and not value.startswith(("/", "~"))
    if low.endswith("auth"):
        return _is_login(value)
    if low.endswith("pass") and not name.endswith("_PASS"):
        return _is_pass(low, found, kind)
    strong = _pattern("strong").search(re.sub(r"[_.-]", "", low)) is not None
    if kind == "bare" and found.string[found.end() : found.end() + 1] in ("'", '"'):
        between = found["between"]  # `arn:aws:…:secret:name"` is a resource name, not a secret
        if not ("=" in between or "%" in between or between[-1:].isspace()):
            return False
    if kind == "quoted":
        return _quoted_secret(name, value, strong=strong)
    return _bare_secret(name, value, strong=strong)


def _connects(found: re.Match[str]) -> bool:
    """Return whether a setting is part of a connection string, next to another setting."""
    text, end = found.string, found.end()
    start = found.start() - len("pwd")
    return bool(_AFTER.match(text, end) or _BEFORE.search(text, max(0, start - 6), start))


def _is_pass(name: str, found: re.Match[str], kind: str) -> bool:
    """Return whether the value of `pass` is a password. Usually it is a test result."""
    if name != "pass" and not name.endswith(("_pass", "-pass")):
        return False
    between, value = found["between"], found[kind]
    if kind == "quoted" and between.lstrip("\\")[:1] in ('"', "'"):
        around = found.string[max(0, found.start() - 200) : found.end() + 200]
        return " " not in value and (not value.isalpha() or _LOGIN_NAME.search(around) is not None)
    return (
        "=" in between or found.string[found.start() - 4 : found.start()] == "pass"
    ) and _is_random(value, 6)


def _quoted_secret(name: str, value: str, *, strong: bool) -> bool:
    """Return whether a quoted value is a secret. After a `strong` name, any single word is."""
    digits = any(c.isdigit() for c in value)
    if " " in value or "\t" in value:
        return strong and name.isupper() and digits and len(value) <= _LONGEST_PHRASE
    if strong:
        return True
    if name.isupper() and name.endswith("TOKEN") and digits:
        return len(value) >= _SHORTEST_TOKEN
    if name.lower().endswith("key"):  # "key": "…" is common in all kinds of mappings
        return name.isupper() and _is_random(value, 12)
    return _is_random(value, 12)


def _bare_secret(name: str, value: str, *, strong: bool) -> bool:
    """Return whether an unquoted value is a secret: usually in .env style, otherwise if random."""
    if name.isupper():
        if strong:
            return not (value.startswith("/") and name.endswith("PWD"))
        if name.endswith("TOKEN"):
            return len(value) >= _SHORTEST_TOKEN and not value.isdigit()
        return _is_random(value, 12)
    if _CODE.fullmatch(value) and ("." in value or "@" in value or _NAMES_A_SECRET.search(value)):
        return False
    digest = len(value) in _DIGESTS and not value.strip("0123456789abcdef")
    if not strong and (digest or _TYPE.fullmatch(value)):
        return False
    return _is_random(value, 6 if strong else 12)


def _is_random(value: str, run: int) -> bool:
    """Return whether `value` looks generated: letters and digits mixed, at least `run` long.

    Hyphenated words (`sk-container-id-1` in scikit-learn's HTML) do not. A generated value without
    capitals has a long unbroken stretch.
    """
    if len(value) < run or not any(c.isdigit() for c in value):
        return False
    lower = any(c.islower() for c in value)
    if lower and any(c.isupper() for c in value):
        return True
    letters = lower or any(c.isupper() for c in value)
    stretch = max(map(len, re.split(r"[-_./]", value)))
    return letters and stretch >= min(run, 12)


_ROUNDS = 4
"""Maximum passes over a text."""
_WRITTEN = (
    *("\\u001b[", "\\u001B[", "\\x1b[", "\\x1B[", "\\033[", "\\e["),
    *("\\u00ad", "\\u00AD", "\\u200", "\\u2060", "\\ufe", "\\uFE", "\\udb40"),
    *("\\u115f", "\\u1160", "\\u17b", "\\u180", "\\u3164", "\\uff", "\\ud834"),
)
"""How source code writes terminal codes and invisible characters as escape sequences."""
_STRINGS = re.compile(r"\x1b[\]PX^_]")
"""Start of a terminal code that contains text, such as the URL of a link."""

_MARK = "\x1e"
_ESCAPES = (("\\n", f"{_MARK}\x0b"), ("\\r", f"{_MARK}\x0c"), ("\\t", f"{_MARK}\x1f"))
"""Escape sequences for white space, with a temporary replacement of the same length."""

OPAQUE = frozenset({"signature", "data", "encrypted_content", "id"})
"""Provider fields that the provider checks byte by byte. They look random but contain no secret."""
_HEADERS = ("api-key", "auth-token", "access-token", "subscription-key")
"""Names of HTTP headers that contain a key, as substrings."""
_SIGNS = (
    *("key", "token", "secret", "pass", "pwd", "cred", "auth", "bearer", "basic", "cookie"),
    *("curl", "mysql", "mariadb", "://", "eyj", "$", "{s", "private", "\\", "\x1b", "\x9b"),
)
"""Substrings that occur in or next to almost every secret. Texts without any are searched less."""
_SHORT_RUNS = re.compile(r"(?:[A-Za-z0-9_-]{0,14}+[^A-Za-z0-9_-]++)*+[A-Za-z0-9_-]{0,14}+")
"""Matches a text without a run of 15 letters and digits. Every token contains such a run.

A secret contains or follows one of `_SIGNS`, is such a run, or is in a file with a known
structure."""


def redact(text: str) -> str:
    """Return `text` with every secret replaced by `[redacted]`."""
    if not text.isascii() and _pattern("invisible").search(text):
        return _redacted(text)
    low = _folded(text)
    for sign in _SIGNS:  # called for every output; a generator would take twice as long
        if sign in low:
            return _redacted(text)
    if not _SHORT_RUNS.fullmatch(text):
        return _redacted(text)
    return _without_phrases(_without_files(text) if ":" in text else text)


def _redacted(text: str) -> str:
    """Redact the visible text. Lines without a secret keep their invisible characters."""
    coded = "\x1b" in text or "\x9b" in text or bool(_pattern("invisible").search(text))
    if not coded and not ("\\" in text and any(sign in text for sign in _WRITTEN)):
        return _searched(text)
    if _STRINGS.search(text):
        text = _searched(text)
    plain = _pattern("codes").sub("", text)
    hidden = _searched(plain)
    if hidden == plain:
        return text
    lines, plains, hiddens = text.split("\n"), plain.split("\n"), hidden.split("\n")
    if len(lines) != len(plains):
        return hidden
    if len(plains) == len(hiddens):
        kept = zip(lines, plains, hiddens, strict=True)
        return "\n".join(line if was == now else now for line, was, now in kept)
    # Lines were joined: keep those above and below the difference.
    top = [*map(eq, plains, hiddens), False].index(False)
    end = [*map(eq, plains[top:][::-1], hiddens[top:][::-1]), False].index(False)
    return "\n".join([*lines[:top], *hiddens[top : len(hiddens) - end], *lines[len(lines) - end :]])


def _searched(text: str) -> str:
    """Redact text without codes. Escaped line endings and tabs (JSON, code) are white space."""
    if "\\" not in text or _MARK in text:
        return _settled(text)
    for escape, space in _ESCAPES:
        text = text.replace(escape, space)
    text = _settled(text)
    for escape, space in _ESCAPES:
        text = text.replace(space, escape)
    return text


def _settled(text: str) -> str:
    """Redact until nothing changes: a key may directly follow one that was just removed."""
    for _ in range(_ROUNDS):
        hidden = _known(text)
        if hidden == text:
            break
        text = hidden
    return text


def _encoded(match: re.Match[str]) -> str:
    """Redact a base64 run if its decoded text contains a secret."""
    run = _pattern("base64_ends").sub("", match[0]).translate(_URL_SAFE)
    letters = "".join([c for c in run if c in _BASE64])
    letters = letters[:-1] if len(letters) % 4 == 1 else letters
    said = base64.b64decode(letters + "=" * (-len(letters) % 4)).decode("latin-1")
    return STUB if _known(said, decode=False) != said else match[0]


def _known(text: str, *, decode: bool = True) -> str:
    if "PRIVATE KEY" in text:
        text = _pattern("pem").sub(STUB, text)
    text = _without_files(text)
    low = _folded(text)
    if words := [word for word in text.split() if len(word) >= _SHORTEST_FORM]:
        runs = [word for word in words if len(word) >= _SHORTEST_RUN] if decode else []
        if runs and _pattern("base64").search("\n".join(runs)):
            text = _pattern("base64_lines").sub(_encoded, text)
        text = _without_tokens(text, "\n".join(words))
    if "curl" in low or "mysql" in low or "mariadb" in low:
        text = _pattern("login").sub(_login, text)
    text = _without_headers(text, low)
    if "://" in text:
        text = _pattern("url").sub(_address, text)
        text = _pattern("url_token").sub(partial(_if_random, 16), text)
    if "--" in text:
        text = _pattern("flag").sub(_second, text)
    return _without_phrases(_without_named(text))


def _without_tokens(text: str, words: str) -> str:
    """Return `text` without keys that are recognisable by their format.

    `words` are the long words of the text. Every key is one of them, so only these words are
    searched for the start of each format.
    """
    for prefix, rest in _forms("tokens"):
        if prefix in words:
            text = _token(prefix, rest).sub(STUB, text)
    for sign, whole in _forms("marked"):
        if sign in words:
            text = re.sub(whole, STUB, text)
    for prefix, rest in _forms("hashes"):
        if prefix in words:
            text = _token(prefix, rest + "[./A-Za-z0-9$]*+").sub(STUB, text)
    if "sk-" in words:
        text = _pattern("generic_sk").sub(lambda m: STUB if _is_random(m[1], 12) else m[0], text)
    if _pattern("discord_time").search(words):
        text = _pattern("discord").sub(_discord, text)
    if ":AA" in words:
        text = _pattern("telegram").sub(f":{STUB}", text)
    if "http" in text or "hooks." in text or "discord" in text:
        text = _pattern("signature").sub(_second, _pattern("hook").sub(_second, text))
    return text


@cache
def _forms(kind: Literal["tokens", "marked", "hashes"]) -> tuple[tuple[str, str], ...]:
    """Return a kind's formats as pairs: a substring to search for, and a pattern.

    The substring is the start of the secret or a part of it. The pattern matches the rest or the
    whole.
    """
    listed = families()[kind].values()
    return tuple(
        (each, rest) for forms in listed for begin, rest in forms for each in begin.split()
    )


@cache
def _token(prefix: str, rest: str) -> re.Pattern[str]:
    r"""Return a token's pattern. No letter or digit may precede it, except in an escape.

    Examples of escapes are `%20`, and `\u003d` or `\x3d` in JSON and code.
    """
    begun, hexadecimal = re.escape(prefix), "[0-9A-Fa-f]"
    before = rf"(?<![A-Za-z0-9]{begun})|(?<=%{hexadecimal}{{2}}{begun})"
    before += rf"|(?<=\\u{hexadecimal}{{4}}{begun})|(?<=\\x{hexadecimal}{{2}}{begun})"
    return re.compile(f"{begun}(?:{before}){rest}")


def _discord(match: re.Match[str]) -> str:
    """Redact a Discord token. Its first part is an account number in base64."""
    first = match[0].partition(".")[0]
    with suppress(binascii.Error, ValueError):
        if first == "mfa" or base64.urlsafe_b64decode(first + "=" * (-len(first) % 4)).isdigit():
            return STUB
    return match[0]


def _without_headers(text: str, low: str) -> str:
    """Return `text` without the credentials in HTTP headers and clients."""
    if "auth" in low:
        text = _pattern("pair").sub(_second, text)
    if "cookie" in low:
        text = _pattern("cookie").sub(partial(_if_random, 16), text)
    if "authorization" in low:
        text = _pattern("authorization").sub(_header, text)
    if "bearer" in low or "basic" in low:
        text = _pattern("scheme").sub(_scheme, text)
    if any(header in low for header in _HEADERS):
        text = _pattern("header").sub(_second, text)
    return text


def _header(match: re.Match[str]) -> str:
    """Redact an authorization header. Code (`authorization = request.headers.get(…)`) is kept."""
    code = "." in match[2] and match[1][-1:] in " =" and _CODE.fullmatch(match[2])
    return match[0] if code else _second(match)


def _login(match: re.Match[str]) -> str:
    """Redact the password after `curl -u name:` and `mysql -p`."""
    before, value = (match[1], match[2]) if match[1] else (match[3], match[4])
    return match[0] if _is_placeholder(value) else before + STUB


def _scheme(match: re.Match[str]) -> str:
    """Redact `Bearer …` and `Basic …` outside a header, unless it may be prose ("basic use")."""
    shortest = 12 if match[1].lower() == "bearer" else 16
    if len(match[3]) < shortest or not _is_random(match[3], shortest):
        return match[0]
    return f"{match[1]}{match[2]}{STUB}"


def _address(match: re.Match[str]) -> str:
    """Redact the password in a URL, even if it contains slashes that should have been escaped."""
    return match[0] if _is_placeholder(match[2] or match[3]) else f"{match[1]}{STUB}@"


def without_secrets(message: Message) -> Message:
    """Return the message in a form safe to store: the same object if it contains no secret.

    Text, reasoning, arguments and readable provider fields are searched, but not images.
    """
    parts = tuple(
        replace(part, text=redact(part.text)) if isinstance(part, Text) else part
        for part in message.parts
    )
    calls = tuple(_call(call) for call in message.calls)
    reasoning = redact(message.reasoning)
    echo: Mapping[str, Json] = _strings(message.echo)
    stored = replace(message, parts=parts, calls=calls, reasoning=reasoning, echo=echo)
    return message if stored == message else stored


def _call(call: ToolCall) -> ToolCall:
    """Return the call with redacted arguments. A value is checked together with its name."""
    written = redact(call.text)
    arguments = _arguments(call.arguments)
    if written == call.text and arguments == call.arguments:
        return call
    problem = redact(call.problem)
    return replace(call, text=written if problem else "", arguments=arguments, problem=problem)


def _arguments(arguments: Mapping[str, Json]) -> Mapping[str, Json]:
    told = json.dumps(arguments, ensure_ascii=False, default=str)
    hidden = redact(told)
    if hidden == told:
        return arguments
    with suppress(ValueError):  # no longer JSON if a secret spans an escape or a quote
        if isinstance(found := json.loads(hidden), dict):
            return found
    return dict[str, Json](_strings(arguments))


def _strings(value: Json) -> Json:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {key: each if key in OPAQUE else _strings(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_strings(each) for each in value]
    return value


def seed_phrases(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each wallet seed phrase, in linear time."""
    if len(text) >= _SHORTEST_PHRASE:
        for run in _RUNS.finditer(text):
            yield from _phrases(text, *run.span(1))


def _phrases(text: str, at: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each seed phrase between `at` and `end`."""
    if not _TWELVE.search(text, at, end):
        return
    words = _seed_words()
    row: list[re.Match[str]] = []
    for word in (*_WORD.finditer(text, at, end), None):
        if word is not None and word[0] in words:
            row.append(word)
            continue
        # A phrase has a standard length, or is longer and has mostly distinct words.
        drawn = len({each[0] for each in row}) * 3 >= len(row) * 2
        if len(row) in _LENGTHS or (len(row) > _PHRASE and drawn):
            yield row[0].start(), row[-1].end()
        row.clear()


@cache
def _seed_words() -> frozenset[str]:
    return frozenset(Path(__file__).with_name("seed_words.txt").read_text("utf-8").split())
