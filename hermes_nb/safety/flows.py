"""Whether code carries secrets out: environment variables that end up in what is sent.

A reading of assignments, line by line, not an interpreter: a name is tainted by what its value
mentions. A secret in the headers of a request is how every API is used and counts for nothing; one
in the payload is a weak sign, a whole environment or an encoded secret in it a strong one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from hermes_nb.safety.threats import PASSAGE, STRONG, WEAK, Threat

_FENCE = re.compile(r"\n[ \t]*(```+|~~~+)[^\n]*")
_SENSITIVE = r"\w{0,60}(?:KEY|TOKEN|SECRET|PASSW(?:OR)?D|CREDENTIALS?|DATABASE_URL|DSN)\b"
_READS = re.compile(
    rf"""(?x) (?:os\.)?environ(?:\.get\(|\[)\s*f?["'](?P<py>{_SENSITIVE})
      | getenv\(\s*["'](?P<get>{_SENSITIVE})
      | process\.env(?:\.|\[["'])(?P<js>{_SENSITIVE})
      | \$\{{?(?P<sh>[A-Z]{_SENSITIVE})"""
)
_SOURCES = ("environ", "getenv", "process.env", "$")
"""One of these is in everything that reads from the environment."""
_DUMPS = re.compile(
    r"dict\((?:os\.)?environ\)|\{\s*\*\*(?:os\.)?environ|(?:os\.)?environ\.(?:items|copy)\(\)"
    r"|json\.dumps\((?:os\.)?environ|JSON\.stringify\(process\.env\)|\.\.\.process\.env"
)
_ENCODES = re.compile(
    r"b(?:16|32|64|85)encode\(|\.hex\(|hexlify\(|\bbtoa\(|toString\([\"'](?:base64|hex)"
)
_ASSIGNS = re.compile(
    r"\s*(?:const |let |var |export )?([A-Za-z_]\w{0,60})\s*(?::[^=\n]{0,40})?=(?!=)"
)
_NAME = re.compile(r"[A-Za-z_]\w*")
_SENDS = re.compile(
    r"(?:requests|httpx|session|client|aiohttp|axios|urllib3|http)\.(?:post|put|patch|request)\("
    r"|\burlopen\(|\bRequest\(|\bfetch\(|\.sendall?\(|\bsendto\(|\.storbinary\("
)
_RESOLVES = re.compile(
    r"\b(?:dig|nslookup|gethostbyname|getaddrinfo|resolver\.(?:query|resolve))\b"
)
_HEADERS = re.compile(r"\b(?:headers|auth)\s*[=:]\s*(?:\{[^}]{0,300}\}|[\w.]+(?:\([^)]{0,100}\))?)")
_REACH = 500
"""Characters behind the opening bracket of a call that are taken for its arguments."""
_SERIALISES = re.compile(r"\b(?:json\.dumps|JSON\.stringify|pickle\.dumps|yaml\.dump)\(")
_LEAVES = re.compile(f"{_SENDS.pattern}|{_RESOLVES.pattern}|{_SERIALISES.pattern}")
_SEVERAL = 2
_MANY = 40
"""Threats in one text after which the rest of it is one: no honest text holds as many."""


@dataclass(slots=True)
class _Tainted:
    """What the names of a block may hold: which secrets, a whole environment, an encoding."""

    secrets: dict[str, frozenset[str]] = field(default_factory=dict)
    dumps: set[str] = field(default_factory=set)
    encoded: set[str] = field(default_factory=set)

    def of(self, expression: str) -> tuple[frozenset[str], bool, bool]:
        """Return the secrets that an expression mentions, and whether dumped, and encoded."""
        names = set(_NAME.findall(expression))
        found = {match[match.lastgroup or 0] for match in _READS.finditer(expression)}
        found = found.union(*(self.secrets[name] for name in names & self.secrets.keys()))
        dumped = _DUMPS.search(expression) is not None or not names.isdisjoint(self.dumps)
        carries = bool(found) or dumped
        encoded = (carries and _ENCODES.search(expression) is not None) or not names.isdisjoint(
            self.encoded
        )
        return frozenset(found), dumped, encoded

    def assign(self, name: str, expression: str) -> None:
        """Note what a name holds from here on."""
        found, dumped, encoded = self.of(expression)
        if found:
            self.secrets[name] = found
        for holds, names in ((dumped, self.dumps), (encoded, self.encoded)):
            if holds:
                names.add(name)


def flows(text: str, *, code: bool = False) -> Iterator[Threat]:
    """Yield how secrets leave, in the fenced blocks of a document or, with `code`, in all of it."""
    if not any(map(text.__contains__, _SOURCES)) or not _LEAVES.search(text):
        return
    found = 0
    for start, block in [(0, text)] if code else _blocks(text):
        if _LEAVES.search(block) and (_READS.search(block) or _DUMPS.search(block)):
            for threat in _in_block(block):
                found += 1
                end = start + len(block) if found < _MANY else len(text)
                yield replace(threat, start=start, end=end)
                if found == _MANY:
                    return


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yield the fenced blocks of a document with their places; the last one may be open."""
    opened = ""
    start = 0
    for fence in _FENCE.finditer(
        f"\n{text}"
    ):  # it ends, of the text itself, where the block begins
        if not opened:
            opened, start = fence[1], fence.end()
        elif fence[1].startswith(opened):
            yield start, text[start : fence.start()]
            opened = ""
    if opened:
        yield start, text[start:]


def _in_block(block: str) -> Iterator[Threat]:
    tainted = _Tainted()
    for statement in _statements(block):
        if "grant_type" in statement:
            continue  # a client's secret on its way to the one who gave it out, for a token
        if match := _ASSIGNS.match(statement):
            tainted.assign(match[1], statement[match.end() :])
        if sent := next(_sent(statement), ""):
            yield from _judged(tainted.of(sent), statement)
        resolves, serialises = _RESOLVES.search(statement), _SERIALISES.search(statement)
        if not resolves and not serialises:
            continue
        found, _, encoded = tainted.of(statement)
        if encoded and resolves:
            yield _threat("encoded-lookup", STRONG, statement)
        if len(found) >= _SEVERAL and serialises:
            yield _threat("collected-secrets", STRONG, statement, "secret-access")


def _judged(taint: tuple[frozenset[str], bool, bool], statement: str) -> Iterator[Threat]:
    found, dumped, encoded = taint
    if dumped:
        yield _threat("environment-sent", STRONG, statement)
    elif encoded:
        yield _threat("encoded-secret-sent", STRONG, statement)
    elif found:
        yield _threat("secret-sent", STRONG if len(found) >= _SEVERAL else WEAK, statement)


def _sent(statement: str) -> Iterator[str]:
    """Yield what a statement sends, without the headers of a request."""
    for match in _SENDS.finditer(statement):
        yield _HEADERS.sub("", statement[match.end() : match.end() + _REACH])


def _statements(block: str) -> Iterator[str]:
    """Yield logical lines: a line goes on while its brackets are open, up to a bound."""
    kept: list[str] = []
    depth = size = 0
    for line in block.split("\n"):
        if not line or line.isspace():
            continue
        kept.append(line[:2_000])
        size += len(kept[-1])
        depth += sum(line.count(c) for c in "([{") - sum(line.count(c) for c in ")]}")
        if depth <= 0 or size > 2 * _REACH:
            yield "\n".join(kept)
            kept, depth, size = [], 0, 0
    if kept:
        yield "\n".join(kept)


def _threat(rule: str, weight: int, statement: str, category: str = "exfiltration") -> Threat:
    return Threat(category, rule, weight, " ".join(statement.split())[:PASSAGE])
