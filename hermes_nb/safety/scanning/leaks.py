"""Code that sends secrets away: a value read from the environment that ends in a request's body.

No parser, on purpose: the code stands in Markdown, in any language, and may be cut off. Names that
are assigned from a secret are followed line by line to a call that talks to the network. What goes
into headers is left alone, that is how an API is called.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator

from hermes_nb.safety.reading.quick import matches, spans
from hermes_nb.safety.reading.signs import Sign

_FROM_ENVIRONMENT = (
    r"os\.environ(?!\.(?:setdefault|update|pop)|\[[^\]\n]{1,60}\]\s*=[^=])|getenv\(|process\.env\b|\benv::var"
    r"|open\([^)\n]{0,80}(?:\.ssh|\.env|\.aws|\.netrc|id_rsa|/etc/passwd|credentials)"
)
_ENVIRONMENT = re.compile(_FROM_ENVIRONMENT)
_OPENED = re.compile(
    r"(?:open\(|path\(|readfilesync\()[^\n]{0,80}(?:\.ssh/|\.aws/|\.netrc|id_rsa|id_ed25519|/etc/shadow|\.git-credentials)"
)
_NEEDS = ("environ", "getenv(", "process.env", "env::var", "open(")
_WHOLE = re.compile(
    r"dict\(os\.environ\)|os\.environ\.(?:copy|items)\(|json\.dumps\((?:dict\()?os\.environ\b"
    r"|json\.stringify\(process\.env\)|\{\*\*os\.environ"
)
_SECRET_ENTRY = re.compile(
    r"(?:environ(?:\.get\(|\[)|getenv\(|process\.env\.)\s{0,2}[\"']?"
    r"(\w{0,40}(?:key|token|secret|passw|credential|database_url)\w{0,20})"
)
_ASSIGNED = re.compile(r"^\s{0,40}(?:const |let |var |export )?(\w{1,60})\s{0,8}=(?!=)")
_SINK = (
    r"\b(?:requests|httpx|session|client|axios|http|urllib\.request|aiohttp)\.(?:post|put|patch|request|urlopen|get)\("
    r"|\bfetch\(|\burlopen\(|\.sendall\(|\.sendto\(|\.send\(|\bsmtplib\b|gethostbyname\("
)
_HEADERS = re.compile(r"(?:headers|auth)\s{0,3}[=:]\s{0,3}(?:\{[^}]{0,600}\}|\([^)]{0,300}\)|\w+)")
_USUAL = re.compile(
    r"[\"']?\b(?:api_?key|key|access_?token|appid)[\"']?\s{0,3}[:=]\s{0,3}[\w.]{1,60}(?=\s{0,3}[,})\n])"
)
_PUBLIC = re.compile(
    r"(?:environ(?:\.get\(|\[)|getenv\(|process\.env\.)\s{0,2}[\"']?\w{0,60}(?:url|uri|host|endpoint|port|region)\b"
)
"""What a variable of the environment says about where to send, which is no secret."""
_GRANT = "grant_type"
"""What every request for an OAuth token has in its body, next to the client's secret."""
_SINK_LINES = 8
_MANY = 150
"""Requests with secrets after which the rest of a text is taken for one."""
_NAMES = 40
"""How many names are followed; more than that in one text is no program in a skill."""


def leaks(text: str) -> Iterator[Sign]:
    """Yield the requests in a lower-case text that carry secrets, and where many are collected."""
    if not any(map(text.__contains__, _NEEDS)) or not any(matches(_FROM_ENVIRONMENT, text)):
        return
    lines = text.split("\n")
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line) + 1)
    secret: dict[str, bool] = {}
    found = 0
    sinks = {bisect_right(starts, start) - 1 for start, _ in spans(_SINK, text)}
    for index, line in enumerate(lines):
        if found == _MANY:
            yield Sign("exfiltration", "sent by code", 3, starts[index], len(text))
            return
        if index in sinks and _carries(_call(lines, index), secret):
            found += 1
            yield Sign("exfiltration", "sent by code", 3, starts[index], starts[index] + len(line))
        assigned = _ASSIGNED.match(line)
        if assigned is None:
            continue
        value = _value(lines, index)
        if _GRANT in value:
            continue  # a secret that is sent to get a token for it
        if len(secret) < _NAMES:
            whole = _WHOLE.search(line) is not None
            if (
                whole
                or _OPENED.search(line)
                or _SECRET_ENTRY.search(line)
                or _mentions(line[assigned.end() :], secret)
            ):
                secret[assigned[1]] = whole
        if "{" in value and len(_collected(value)) > 1:
            secret[assigned[1]] = True
            yield Sign("exfiltration", "collected", 1.5, starts[index], starts[index] + len(value))


def _carries(call: str, secret: dict[str, bool]) -> bool:
    """Say whether a request has a secret in its payload that it is not there to exchange."""
    if _GRANT in call:
        return False
    call = _PUBLIC.sub(" ", call)
    return _ENVIRONMENT.search(call) is not None or _mentions(call, secret)


def _value(lines: list[str], index: int) -> str:
    """Return what is assigned on a line, all of it where it may be a mapping."""
    several = any("{" in line for line in lines[index : index + _SINK_LINES])
    return _call(lines, index) if several else lines[index]


def _call(lines: list[str], index: int) -> str:
    """Return the statement that begins on a line, without the headers it may set."""
    statement: list[str] = []
    depth = 0
    for line in lines[index : index + _SINK_LINES]:
        statement.append(line[:400])
        depth += sum(map(line.count, "([{")) - sum(map(line.count, ")]}"))
        if depth <= 0:
            break
    return _USUAL.sub(" ", _HEADERS.sub(" ", "\n".join(statement)))


def _collected(statement: str) -> set[str]:
    return set(_SECRET_ENTRY.findall(statement))


def _mentions(code: str, names: dict[str, bool]) -> bool:
    return any(name in names for name in re.findall(r"\w{1,60}", code)) if names else False
