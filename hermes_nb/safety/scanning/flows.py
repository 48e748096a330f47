"""Whether code carries secrets out: environment variables that end up in what is sent.

A reading of assignments, line by line, not an interpreter: a name is tainted by what its value
mentions. A secret in the headers of a request is how every API is used and counts for nothing; one
in the payload is a weak sign, a whole environment or an encoded secret in it a strong one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from hermes_nb.safety.reading.patterns import in_time
from hermes_nb.safety.scanning.threats import PASSAGE, STRONG, Threat

_FENCE = re.compile(r"\n[ \t]*(```+|~~~+)[^\n]*")
_SENSITIVE = r"\w{0,60}(?:KEY|TOKEN|SECRET|PASSW(?:OR)?D|CREDENTIALS?|DATABASE_URL|DSN)\b"
_READS = re.compile(
    rf"""(?x) environ(?:\.get\(|\[)\s*f?["'](?P<py>(?i:{_SENSITIVE}))
      | (?:getenv|env::var)\(\s*["'](?P<get>(?i:{_SENSITIVE}))
      | process\.env(?:\.|\[["'])(?P<js>(?i:{_SENSITIVE}))
      | \$\{{?(?P<sh>[A-Z]{_SENSITIVE})
      | (?:open|[Pp]ath|readFileSync|expanduser)\(\s*[^)\n]{{0,60}}
        (?P<file>\.ssh/(?!\w{{1,40}}\.pub)|\.aws/|\.netrc|id_rsa\b(?!\.pub)|id_ed25519\b(?!\.pub)|/etc/shadow|\.git-credentials)"""
)
_SOURCES = (
    *("environ", "getenv", "process.env", "env::var", "$"),
    *(".ssh", ".aws", ".netrc", "id_rsa", "id_ed25519", "/etc/shadow", ".git-cred"),
)
"""One of these is in everything that reads a secret."""
_DUMPS = re.compile(
    r"dict\((?:os\.)?environ\)|\{\s*\*\*(?:os\.)?environ|environ\.(?:items|copy)\(\)"
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
    r"(?:requests|httpx|session|client|aiohttp|axios|urllib3|http)\.(?:post|put|patch|request|get)\("
    r"|\burlopen\(|\bRequest\(|\bfetch\(|\.sendall?\(|\bsendto\(|\.storbinary\("
)
_RESOLVES = re.compile(
    r"\b(?:dig|nslookup|gethostbyname|getaddrinfo|resolver\.(?:query|resolve))\b"
)
_HEADERS = re.compile(r"\b(?:headers|auth)\s*[=:]\s*(?:\{[^}]{0,300}\}|[\w.]+(?:\([^)]{0,100}\))?)")
_USUAL = re.compile(
    r"(?i)[\"']?\b(?:api_?key|key|appid|chat_id|user(?:name)?|login|e?mail"
    r"|(?:client_|api_?|app_?)?(?:secret|password|passwd|pwd)|(?:access_|refresh_|auth_|api_)?token)"
    r"[\"']?\s{0,3}[:=]\s{0,3}(?:(?:os\.)?(?:environ(?:\.get\(|\[)|getenv\(|process\.env(?:\.|\[))"
    r"[^,)}\]\n]{1,80}[)\]]?|[\w.]{1,60})(?=\s{0,3}[,)}\n]|$)|api\.telegram\.org/bot\{[^}\n]{1,80}\}"
)
"""A secret under the name that a service asks for it by: how one logs in."""
_REACH = 500
"""Characters behind the opening bracket of a call that are taken for its arguments."""
_SERIALISES = re.compile(r"\b(?:json\.dumps|JSON\.stringify|pickle\.dumps|yaml\.dump)\(")
_SEVERAL = 2


@dataclass(slots=True)
class _Tainted:
    """What the names of a block may hold: which secrets, a whole environment, an encoding."""

    secrets: dict[str, frozenset[str]] = field(default_factory=dict)
    dumps: set[str] = field(default_factory=set)
    encoded: set[str] = field(default_factory=set)

    def secrets_in(self, expression: str) -> frozenset[str]:
        """Return the secrets that an expression mentions."""
        found = frozenset[str]()
        if _holds(expression, _SOURCES):
            found |= {match[match.lastgroup or 0] for match in _READS.finditer(expression)}
        if self.secrets:
            names = self.secrets.keys() & _NAME.findall(expression)
            found = found.union(*map(self.secrets.__getitem__, names))
        return found

    def dumps_in(self, expression: str) -> bool:
        """Say whether an expression holds a whole environment."""
        if _holds(expression, _SOURCES) and _DUMPS.search(expression):
            return True
        return bool(self.dumps) and not self.dumps.isdisjoint(_NAME.findall(expression))

    def encodes(self, expression: str, *, carries: bool) -> bool:
        """Say whether an expression, which `carries` a secret or not, holds an encoded one."""
        if carries and _ENCODES.search(expression):
            return True
        return bool(self.encoded) and not self.encoded.isdisjoint(_NAME.findall(expression))

    def assign(self, name: str, expression: str) -> None:
        """Note what a name holds from here on."""
        found, dumped = self.secrets_in(expression), self.dumps_in(expression)
        if found:
            self.secrets[name] = found
        if dumped:
            self.dumps.add(name)
        if self.encodes(expression, carries=bool(found) or dumped):
            self.encoded.add(name)


def flows(text: str, *, code: bool = False) -> Iterator[Threat]:
    """Yield how secrets leave, in the fenced blocks of a document or, with `code`, in all of it."""
    if not _holds(text, _SOURCES):
        return
    for start, block in [(0, text)] if code else _blocks(text):
        for threat in _in_block(block):
            yield replace(threat, start=start + threat.start, end=start + threat.end)


def _holds(text: str, parts: tuple[str, ...]) -> bool:
    return any(map(text.__contains__, parts))


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
    if not (_READS.search(block) or _DUMPS.search(block)):
        return
    tainted, at = _Tainted(), 0
    for statement in _statements(block):
        in_time()
        if "grant_type" in statement:
            continue  # a client's secret on its way to the one who gave it out, for a token
        if match := _ASSIGNS.match(statement):
            tainted.assign(match[1], statement[match.end() :])
        known = tainted.secrets or tainted.dumps or _holds(statement, _SOURCES)
        for threat in _leaving(tainted, statement) if known else ():
            at = max(at, block.find(statement.partition("\n")[0], at))
            yield replace(threat, start=at, end=min(at + len(statement), len(block)))


def _leaving(tainted: _Tainted, statement: str) -> Iterator[Threat]:
    """Yield what leaves with a statement."""
    if "(" in statement and (sent := next(_sent(statement), "")):
        yield from _judged(tainted, sent, statement)
    if _RESOLVES.search(statement):
        carries = bool(tainted.secrets_in(statement)) or tainted.dumps_in(statement)
        if tainted.encodes(statement, carries=carries):
            yield _threat("encoded-lookup", STRONG, statement)
    if _SERIALISES.search(statement) and len(tainted.secrets_in(statement)) >= _SEVERAL:
        yield _threat("collected-secrets", STRONG, statement, "secret-access")


def _judged(tainted: _Tainted, sent: str, statement: str) -> Iterator[Threat]:
    found, dumped = tainted.secrets_in(sent), tainted.dumps_in(sent)
    if dumped:
        yield _threat("environment-sent", STRONG, statement)
    elif tainted.encodes(sent, carries=bool(found)):
        yield _threat("encoded-secret-sent", STRONG, statement)
    elif found:
        yield _threat("secret-sent", STRONG, statement)


def _sent(statement: str) -> Iterator[str]:
    """Yield what a statement sends, without the headers of a request."""
    for match in _SENDS.finditer(statement):
        yield _USUAL.sub("", _HEADERS.sub("", statement[match.end() : match.end() + _REACH]))


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
