"""Secrets that are known by what stands around them: a name, a credential file, a seed phrase.

A named secret (`PASSWORD=…`, `"api_key": "…"`) goes when its value can be one: code that merely
names a secret (`token = tokenizer.next()`, `api_key=os.environ["KEY"]`), placeholders and prose are
left alone. Files are known by how they are built (.netrc, .pgpass, shadow, PuTTY's keys); white
space may be that of an address. Each function takes text and returns it with what is secret
replaced, in linear time.
"""

from __future__ import annotations

import base64
import binascii
import re
from functools import cache
from importlib.resources import files
from pathlib import Path

from hermes_nb.core.messages import Json

STUB = "[redacted]"
_SHORTEST_TOKEN = 8
_LONGEST_PHRASE = 64
_LONGEST_NAME = 60
_DIGESTS = frozenset({32, 40, 56, 64, 96, 128})
"""How long digests are in hexadecimal: they are keys of caches more often than of doors."""

_NAME = re.compile(r"[A-Za-z0-9_.-]*")
_BEFORE = re.compile(r"(?i)(?:;|%3B)\s{0,2}$")
_AFTER = re.compile(r"(?i)(?:;|%3B)\s{0,2}[a-z ]{2,24}(?:=|%3D)")
"""What stands before and after a part of a connection string."""

CODE = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+|@?[A-Za-z_]+\d{0,3}")
_TYPE = re.compile(r"(?:[A-Z][a-z]{2,}\d{0,2}[A-Z]?)+")
_NAMES_A_SECRET = re.compile(r"(?i)pass|token|key|secret|cred|pwd")
_LOGIN_NAME = re.compile(r"(?i)user|login|e-?mail|host|account")
_FIELD = re.compile(r"\{[A-Za-z_]?[\w.]*(?:![rsa])?\}")


_PORT = re.compile(r":(?:\*|[1-9]\d{3,4}):")

_AGING = re.compile(r":\d{1,6}(?::\d{0,6}){5}:")


_PHRASE = 12
_LENGTHS = frozenset({12, 15, 18, 21, 24})
"""Words of the shortest seed phrase, and of each; the list is BIP-39's English one."""
_SHORTEST = 47
_SEPARATED = r"[a-z ,\n\"'+]"
_NO_PHRASE = re.compile(rf"(?:{_SEPARATED}{{0,46}}+[^a-z ,\n\"'+]++)*+")
"""Passes over all runs that are too short for twelve words of three letters."""
_RUN = re.compile(rf"{_SEPARATED}*+")
_WORD = re.compile(r"[a-z]+")
_TWELVE = re.compile(r"(?:[a-z]{3,8}+[^a-z]{1,4}+){11}[a-z]{3,8}")


@cache
def families() -> dict[str, Json]:
    """Return what `secrets.toml` says."""
    import tomllib  # not with the extension

    return tomllib.loads(Path(__file__).with_name("secrets.toml").read_text(encoding="utf-8"))


@cache
def pattern(name: str) -> re.Pattern[str]:
    """Return a pattern of `secrets.toml`."""
    return re.compile(families()["patterns"][name].replace("\n", ""))


def is_placeholder(value: str) -> bool:
    """Say whether `value` only stands for a secret, such as `<your key>` or `$TOKEN`."""
    return pattern("placeholder").fullmatch(value) is not None


def folded(text: str) -> str:
    """Return the text in lower case and of the same length, as patterns without case see it."""
    if not text.isascii():
        for letter, plain in (("\u017f", "s"), ("\u212a", "k"), ("\u0130", "i"), ("\u0131", "i")):
            text = text.replace(letter, plain)
    return text.lower()


def second(match: re.Match[str]) -> str:
    """Return the match with its second group redacted, unless that is a placeholder."""
    return match[0] if is_placeholder(match[2]) else match[1] + STUB


def without_files(text: str) -> str:
    """Return `text` without the secrets of netrc, pgpass, shadow and PuTTY files."""
    if "password" in text and ("machine" in text or "default" in text):
        text = pattern("machine").sub(lambda m: pattern("password").sub(second, m[0]), text)
    if ":" not in text:
        return text
    if _PORT.search(text):
        text = pattern("pgpass").sub(second, text)
    if _AGING.search(text):
        text = pattern("shadow").sub(second, text)
    if "Private-Lines:" in text:
        text = pattern("putty").sub(rf"\1{STUB}", text)
    return text


def is_login(value: str) -> bool:
    """Say whether `value` is a name and a password in base64, as Docker and npm keep them."""
    try:
        told = base64.b64decode(value + "=" * (-len(value) % 4), validate=True)
    except (binascii.Error, ValueError):
        return False
    return b":" in told[1:-1] and told.isascii() and told.decode("ascii").isprintable()


def without_phrases(text: str) -> str:
    """Return `text` without seed phrases: twelve or more words of the list one after another."""
    if len(text) < _SHORTEST:
        return text
    pieces: list[str] = []
    done = 0
    at = _end(_NO_PHRASE, text, 0)
    while at < len(text):
        end = _end(_RUN, text, at)
        if _TWELVE.search(text, at, end):
            for start, stop in _phrases(text, at, end):
                pieces += [text[done:start], STUB]
                done = stop
        at = _end(_NO_PHRASE, text, end)
    return "".join([*pieces, text[done:]]) if pieces else text


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    return found.end() if found else at


def _phrases(text: str, at: int, end: int) -> list[tuple[int, int]]:
    """Return where phrases begin and end between `at` and `end`."""
    words = _seed_words()
    found: list[tuple[int, int]] = []
    row: list[re.Match[str]] = []
    for word in (*_WORD.finditer(text, at, end), None):
        if word is not None and word[0] in words:
            row.append(word)
            continue
        # A phrase has a length of the standard's, or is one among others drawn at random.
        drawn = len({each[0] for each in row}) * 3 >= len(row) * 2
        if len(row) in _LENGTHS or (len(row) > _PHRASE and drawn):
            found.append((row[0].start(), row[-1].end()))
        row.clear()
    return found


@cache
def _seed_words() -> frozenset[str]:
    told = files("hermes_nb.safety").joinpath("seed_words.txt").read_text(encoding="utf-8")
    return frozenset(told.split())


def without_named(text: str) -> str:
    """Return `text` without the values of names such as `password`, where they can be secrets."""
    low = folded(text)
    pieces: list[str] = []
    done = at = 0
    while hit := pattern("names").search(low, at):
        at = hit.end()
        found = pattern("named").match(text, at)
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
    """Return the whole name whose telling part is `text[start:end]`; none if it is no name."""
    before = text[max(0, start - _LONGEST_NAME - 1) : start][::-1]
    found = _NAME.match(before)
    length = found.end() if found else 0
    if length > _LONGEST_NAME:
        return ""
    return text[start - length : end]


def _named_secret(name: str, found: re.Match[str], kind: str) -> bool:
    """Say whether the value that `found` holds, as the named group `kind`, is a secret."""
    value = found[kind]
    low = name.lower()
    if not name or kind == "braced":
        return bool(low.endswith("pwd") and _connects(found) and not _FIELD.fullmatch(value))
    if is_placeholder(value) or name == "OLDPWD":
        return False
    if name == "PWD":
        return _connects(found) and not value.startswith(("/", "~"))
    if low.endswith("auth"):
        return is_login(value)
    if low.endswith("pass") and not name.endswith("_PASS"):
        return _is_pass(low, found, kind)
    strong = pattern("strong").search(re.sub(r"[_.-]", "", low)) is not None
    if kind == "bare" and found.string[found.end() : found.end() + 1] in ("'", '"'):
        between = found["between"]  # `arn:aws:…:secret:name"` is an address
        if not ("=" in between or "%" in between or between[-1:].isspace()):
            return False
    if kind == "quoted":
        return _quoted_secret(name, value, strong=strong)
    return _bare_secret(name, value, strong=strong)


def _connects(found: re.Match[str]) -> bool:
    """Say whether a setting stands in a connection string, before or behind another one."""
    text, end = found.string, found.end()
    start = found.start() - len("pwd")
    return bool(_AFTER.match(text, end) or _BEFORE.search(text, max(0, start - 6), start))


def _is_pass(name: str, found: re.Match[str], kind: str) -> bool:
    """Say whether the value of `pass` is a password; mostly it is how a test ended."""
    if name != "pass" and not name.endswith(("_pass", "-pass")):
        return False
    between, value = found["between"], found[kind]
    if kind == "quoted" and between.lstrip("\\")[:1] in ('"', "'"):
        around = found.string[max(0, found.start() - 200) : found.end() + 200]
        return " " not in value and (not value.isalpha() or _LOGIN_NAME.search(around) is not None)
    return (
        "=" in between or found.string[found.start() - 4 : found.start()] == "pass"
    ) and is_random(value, 6)


def _quoted_secret(name: str, value: str, *, strong: bool) -> bool:
    """Say whether a quoted value is a secret: a strong name needs no more than one word."""
    digits = any(c.isdigit() for c in value)
    if " " in value or "\t" in value:
        return strong and name.isupper() and digits and len(value) <= _LONGEST_PHRASE
    if strong:
        return True
    if name.isupper() and name.endswith("TOKEN") and digits:
        return len(value) >= _SHORTEST_TOKEN
    if name.lower().endswith("key"):  # "key": "…" is every mapping's word
        return name.isupper() and is_random(value, 12)
    return is_random(value, 12)


def _bare_secret(name: str, value: str, *, strong: bool) -> bool:
    """Say whether an unquoted value is a secret: in .env style nearly always, else if random."""
    if name.isupper():
        if strong:
            return not (value.startswith("/") and name.endswith("PWD"))
        if name.endswith("TOKEN"):
            return len(value) >= _SHORTEST_TOKEN and not value.isdigit()
        return is_random(value, 12)
    if CODE.fullmatch(value) and ("." in value or "@" in value or _NAMES_A_SECRET.search(value)):
        return False
    digest = len(value) in _DIGESTS and not value.strip("0123456789abcdef")
    if not strong and (digest or _TYPE.fullmatch(value)):
        return False
    return is_random(value, 6 if strong else 12)


def is_random(value: str, run: int) -> bool:
    """Say whether `value` looks generated: letters and digits mixed, and at least `run` long.

    Words joined by hyphens (`sk-container-id-1` in scikit-learn's HTML) are not: without capitals
    a generated value has a long unbroken stretch.
    """
    if len(value) < run or not any(c.isdigit() for c in value):
        return False
    lower = any(c.islower() for c in value)
    if lower and any(c.isupper() for c in value):
        return True
    letters = lower or any(c.isupper() for c in value)
    stretch = max(map(len, re.split(r"[-_./]", value)))
    return letters and stretch >= min(run, 12)
