"""Take secrets out of text before it is stored, shown, exported or summarised.

Invariants: linear time on any input, idempotent, and quiet: a secret becomes `[redacted]`, all else
stays byte for byte. Known key formats (`secrets.toml`) go wherever they stand; what is known by its
name or its file only is found by `credentials`.

Terminal codes hide nothing: what a terminal would show is looked at, and a line that holds a secret
loses its codes.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Literal

from hermes_nb.core.messages import Json, Message, Part, Text, ToolCall
from hermes_nb.safety.credentials import (
    CODE,
    STUB,
    families,
    folded,
    is_placeholder,
    is_random,
    pattern,
    second,
    without_files,
    without_named,
    without_phrases,
)

__all__ = ["STUB", "families", "redact", "without_secrets"]

_ROUNDS = 4
_WRITTEN = ("\\u001b[", "\\u001B[", "\\x1b[", "\\x1B[", "\\033[", "\\e[")
_CODES = re.compile(
    r"(?:\x1b\[|\x9b|\\(?:u001[bB]|x1[bB]|033|e)\[)[0-?]{0,64}[ -/]{0,8}[@-~]"  # colours, cursor
    r"|\x1b[\]PX^_][^\x07\x1b\n]{0,2048}(?:\x07|\x1b\\)"  # links and titles
    r"|\x1b[ -/]{0,8}[0-~]?"
)
_STRINGS = re.compile(r"\x1b[\]PX^_]")
"""What begins a code with text of its own, such as the address of a link."""

_MARK = "\x1e"
_ESCAPES = (("\\n", f"{_MARK}\x0b"), ("\\r", f"{_MARK}\x0c"), ("\\t", f"{_MARK}\x1f"))
"""Escapes of white space, and the white space of the same length that stands for them meanwhile."""

OPAQUE = frozenset({"signature", "data", "encrypted_content", "id"})
"""Fields of a provider's own that it checks byte by byte: they look random, and say nothing."""
_HEADERS = ("api-key", "auth-token", "access-token", "subscription-key")
_SIGNS = (
    *("key", "token", "secret", "pass", "pwd", "cred", "auth", "bearer", "basic", "cookie"),
    *("curl", "mysql", "mariadb", "://", "eyj", "$", "{s", "private", "\\", "\x1b", "\x9b"),
)
_SHORT_RUNS = re.compile(r"(?:[A-Za-z0-9_-]{0,14}+[^A-Za-z0-9_-]++)*+[A-Za-z0-9_-]{0,14}+")
"""Passes over text without a run of 15 letters and digits: every token has one.

A secret has a telling word beside it or in it, is such a run, or stands in a file of its own form.
"""


def redact(text: str) -> str:
    """Return `text` with `[redacted]` in place of every secret in it."""
    low = folded(text)
    for sign in _SIGNS:  # this is called for every output: a generator would take twice as long
        if sign in low:
            return _redacted(text)
    if _long_run(text):
        return _redacted(text)
    return without_phrases(without_files(text) if ":" in text else text)


def _redacted(text: str) -> str:
    """Redact what a terminal would show; lines without a secret keep their codes."""
    if not _coded(text):
        return _searched(text)
    if _STRINGS.search(text):
        text = _searched(text)
    plain = _CODES.sub("", text)
    hidden = _searched(plain)
    if hidden == plain:
        return text
    lines, plains, hiddens = text.split("\n"), plain.split("\n"), hidden.split("\n")
    if not len(lines) == len(plains) == len(hiddens):
        return hidden
    kept = zip(lines, plains, hiddens, strict=True)
    return "\n".join(line if was == now else now for line, was, now in kept)


def _coded(text: str) -> bool:
    if "\x1b" in text or "\x9b" in text:
        return True
    return "\\" in text and any(sign in text for sign in _WRITTEN)


def _long_run(text: str) -> bool:
    found = _SHORT_RUNS.match(text)
    return found is None or found.end() < len(text)


def _searched(text: str) -> str:
    """Redact text without codes; line ends and tabs of a JSON string or of code count as such."""
    if "\\" not in text or _MARK in text:
        return _settled(text)
    for escape, space in _ESCAPES:
        text = text.replace(escape, space)
    text = _settled(text)
    for escape, space in _ESCAPES:
        text = text.replace(space, escape)
    return text


def _settled(text: str) -> str:
    """Redact until nothing changes: a key may stand directly behind one that went."""
    for _ in range(_ROUNDS):
        hidden = _known(text)
        if hidden == text:
            break
        text = hidden
    return text


def _known(text: str) -> str:
    if "PRIVATE KEY" in text:
        text = pattern("pem").sub(STUB, text)
    text = without_files(text)
    low = folded(text)
    if _long_run(text):
        text = _without_tokens(text)
    for prefix, rest in _forms("hashes"):
        if prefix in text:
            text = _token(prefix, rest + "[./A-Za-z0-9$]*+").sub(STUB, text)
    if "curl" in low or "mysql" in low or "mariadb" in low:
        text = pattern("login").sub(_login, text)
    text = _without_headers(text, low)
    if "://" in text:
        text = pattern("url_token").sub(_address_token, pattern("url").sub(_address, text))
    if "--" in text:
        text = pattern("flag").sub(second, text)
    return without_phrases(without_named(text))


def _without_tokens(text: str) -> str:
    """Return `text` without what shows by its own form that it is a key."""
    for prefix, rest in _forms("tokens"):
        if prefix in text:
            text = _token(prefix, rest).sub(STUB, text)
    text = pattern("generic_sk").sub(lambda m: STUB if is_random(m[1], 12) else m[0], text)
    if ".atlasv1." in text:
        text = pattern("terraform").sub(STUB, text)
    if pattern("discord_time").search(text):
        text = pattern("discord").sub(_discord, text)
    text = pattern("telegram").sub(f":{STUB}", text)
    if "http" in text or "hooks." in text or "discord" in text:
        text = pattern("signature").sub(second, pattern("hook").sub(second, text))
    return text


@cache
def _forms(kind: Literal["tokens", "hashes"]) -> tuple[tuple[str, str], ...]:
    """Return what secrets begin with and what follows, as a pattern."""
    listed = families()[kind].values()
    return tuple(
        (each, rest) for forms in listed for begin, rest in forms for each in begin.split()
    )


@cache
def _token(prefix: str, rest: str) -> re.Pattern[str]:
    """Return the pattern of a token: no letter or digit stands before it but those of `%20`."""
    begun = re.escape(prefix)
    before = rf"(?<![A-Za-z0-9]{begun})|(?<=%[0-9A-Fa-f]{{2}}{begun})"
    return re.compile(f"{begun}(?:{before}){rest}")


def _discord(match: re.Match[str]) -> str:
    """Redact a Discord token: its first part is the number of an account, in base64."""
    first = match[0].partition(".")[0]
    if first == "mfa":
        return STUB
    try:
        number = base64.urlsafe_b64decode(first + "=" * (-len(first) % 4))
    except (binascii.Error, ValueError):
        return match[0]
    return STUB if number.isdigit() else match[0]


def _without_headers(text: str, low: str) -> str:
    """Return `text` without what HTTP headers and clients send to say who asks."""
    if "auth" in low:
        text = pattern("pair").sub(second, text)
    if "cookie" in low:
        text = pattern("cookie").sub(lambda m: m[1] + STUB if is_random(m[2], 16) else m[0], text)
    if "authorization" in low:
        text = pattern("authorization").sub(_header, text)
    if "bearer" in low or "basic" in low:
        text = pattern("scheme").sub(_scheme, text)
    if any(header in low for header in _HEADERS):
        text = pattern("header").sub(second, text)
    return text


def _header(match: re.Match[str]) -> str:
    """Redact an authorization header; `authorization = request.headers.get(…)` is code."""
    code = "." in match[2] and match[1][-1:] in " =" and CODE.fullmatch(match[2])
    return match[0] if code else second(match)


def _login(match: re.Match[str]) -> str:
    """Redact the password behind `curl -u name:` and `mysql -p`."""
    before, value = (match[1], match[2]) if match[1] else (match[3], match[4])
    return match[0] if is_placeholder(value) else before + STUB


def _scheme(match: re.Match[str]) -> str:
    """Redact `Bearer …` outside a header, where "basic functionality" may be meant."""
    shortest = 12 if match[1].lower() == "bearer" else 16
    if len(match[3]) < shortest or not is_random(match[3], shortest):
        return match[0]
    return f"{match[1]}{match[2]}{STUB}"


def _address(match: re.Match[str]) -> str:
    """Redact the password of an address; it may hold slashes that should have been escaped."""
    return match[0] if is_placeholder(match[2] or match[3]) else f"{match[1]}{STUB}@"


def _address_token(match: re.Match[str]) -> str:
    return match[1] + STUB if is_random(match[2], 16) else match[0]


def without_secrets(message: Message) -> Message:
    """Return the message as it may be stored: the same object where it holds no secret.

    Text, reasoning, arguments and a provider's readable fields are looked at, pictures are not.
    """
    parts = tuple(_part(part) for part in message.parts)
    calls = tuple(_call(call) for call in message.calls)
    reasoning = redact(message.reasoning)
    echo: Mapping[str, Json] = _strings(message.echo)
    stored = replace(message, parts=parts, calls=calls, reasoning=reasoning, echo=echo)
    return message if stored == message else stored


def _part(part: Part) -> Part:
    return replace(part, text=redact(part.text)) if isinstance(part, Text) else part


def _call(call: ToolCall) -> ToolCall:
    """Return the call with its arguments redacted, together with the names they stand under."""
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
    try:
        found = json.loads(hidden)
    except ValueError:  # a secret that spans an escape or a quote
        found = None
    return found if isinstance(found, dict) else _strings(arguments)


def _strings(value: Json) -> Json:
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {key: each if key in OPAQUE else _strings(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_strings(each) for each in value]
    return value
