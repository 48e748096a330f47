"""What an attack looks like in code, commands and markup, where words and their order mean little.

Plain patterns are data, in `surface.toml`; requests are looked at argument by argument.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from hermes_nb.safety.signs import Sign

_NAME = r"\w{0,40}(?:key|token|secret|passw|credential|pwd)\w{0,20}"
_FILE = r"[~\w./-]{0,80}(?:\.env\b|id_rsa|id_ed25519|\.ssh/|\.aws/|\.netrc|/etc/(?:passwd|shadow))"


@dataclass(frozen=True, slots=True)
class _Pattern:
    category: str
    score: float
    needs: tuple[str, ...]
    pattern: re.Pattern[str]


@cache
def _patterns() -> tuple[_Pattern, ...]:
    """Return the patterns of `surface.toml`, compiled once."""
    data = files("hermes_nb.safety").joinpath("surface.toml").read_text(encoding="utf-8")
    return tuple(
        _Pattern(item["category"], item["score"], tuple(item["needs"]), re.compile(item["pattern"]))
        for item in tomllib.loads(data)["pattern"]
    )


_PIPED = re.compile(
    r"(?:curl|wget)\b[^\n|]{0,300}\|\s{0,4}(?:sudo\s+)?(?:env\s+)?"
    r"(?:(?:ba|z|da|k)?sh|python3?|node|perl)\b"
    r"|\b(?:ba|z)?sh\s+<\(\s{0,3}(?:curl|wget)\b[^\n]{0,300}"
    r"|\beval\s+[\"']?\$\(\s{0,3}(?:curl|wget)\b[^\n]{0,300}"
    r"|\b(?:iex|invoke-expression)\b[^\n]{0,40}(?:iwr|irm|downloadstring|invoke-webrequest)"
    r"[^\n]{0,200}"
)
_ORDERED = re.compile(
    r"\b(?:must|required?|recover\w*|immediately|mandatory|before (?:continuing|anything))\b"
)
_SHADY = re.compile(
    r"https?://(?:\d{1,3}\.){3}\d{1,3}|pastebin\.com|webhook\.site|requestbin|ngrok|\.onion\b"
    r"|transfer\.sh|interact\.sh|\boast\.|burpcollaborator|pipedream\.net|\braw\.githack"
)
_TOOLS = ("curl", "wget", "invoke-webrequest", "iwr", "http")
_COMMAND = re.compile(r"(?:curl|wget|invoke-webrequest|iwr|httpie?)\b[^\n]{1,500}")
_HEADER = re.compile(
    r"(?:-h|--header|-u|--user|--oauth2-bearer)\s{0,3}"
    r"(?:\"[^\"\n]{0,300}\"|'[^'\n]{0,300}'|[^\s]{1,200})"
)
_SENT_SECRET = re.compile(
    rf"\$[({{]{{0,2}}{_NAME}|@{_FILE}|\$\(\s{{0,3}}(?:env|printenv|set)\s{{0,3}}[)|]"
    rf"|\$\(\s{{0,3}}(?:cat|base64|head|tar)\b[^)\n]{{0,40}}{_FILE}|<\s{{0,3}}{_FILE}"
)
_USUAL_PARAMETER = re.compile(
    r"[?&\"'](?:api_?-?key|key|access_?token|token|appid|apikey|auth)=\$[({]?\w{1,60}[)}]?[\"'&]?"
)


_FORGED = 3
"""The score of a forged turn that counts even where it is quoted."""


def traces(text: str) -> Iterator[Sign]:
    """Yield what looks like part of an attack in a lower-case, normalised text."""
    for known in _patterns():
        if any(need in text for need in known.needs):
            quotable = known.category == "role_hijack" and known.score < _FORGED
            name = known.pattern.pattern
            for match in known.pattern.finditer(text):
                yield Sign(known.category, name, known.score, *match.span(), quotable=quotable)
    yield from _remote_code(text)
    if any(tool in text for tool in _TOOLS):
        yield from _sent(text)


def _remote_code(text: str) -> Iterator[Sign]:
    """Yield downloads that go straight into an interpreter, counted by how they are ordered."""
    if "curl" not in text and "wget" not in text and "iex" not in text and "invoke-" not in text:
        return
    for match in _PIPED.finditer(text):
        before = text[max(0, match.start() - 80) : match.start()]
        score = 0.5
        score += 0.5 if "https://" not in match[0] else 0
        score += 1 if _ORDERED.search(before) else 0
        score += 1.5 if _SHADY.search(match[0]) else 0
        score += 1 if before.rstrip("\"'`").endswith(("system(", "popen(", "run(")) else 0
        yield Sign("remote_code", "piped", score, *match.span())


def _sent(text: str) -> Iterator[Sign]:
    """Yield requests that carry a secret anywhere but in a header, where it belongs."""
    for match in _COMMAND.finditer(text):
        request = _HEADER.sub(" ", match[0])
        found = _SENT_SECRET.search(request)
        if found is None:
            continue
        usual = _USUAL_PARAMETER.sub(" ", request)
        if _SENT_SECRET.search(usual) is None and _SHADY.search(request) is None:
            continue
        score = 3.0 if found[0][0] in "@<" or "(" in found[0][:3] else 2.0
        yield Sign("exfiltration", "sent", score, *match.span())
