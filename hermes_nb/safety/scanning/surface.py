"""What an attack looks like in code, commands and markup, where words and their order mean little.

Plain patterns are data, in `surface.toml`; requests are looked at argument by argument.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hermes_nb.safety.reading.patterns import Sign, Span, followed, some, spans

_NAME = r"\w{0,40}(?:key|token|secret|passw|credential|pwd)\w{0,20}"
_FILE = r"[~\w./-]{0,80}(?:\.env\b|id_rsa|id_ed25519|\.ssh/|\.aws/|\.netrc|/etc/(?:passwd|shadow))"


@dataclass(frozen=True, slots=True)
class _Pattern:
    category: str
    name: str
    score: float
    needs: tuple[str, ...]
    pattern: str


@cache
def _data() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(Path(__file__).with_name("surface.toml").read_text(encoding="utf-8"))


@cache
def _patterns() -> tuple[_Pattern, ...]:
    """Return the patterns of `surface.toml`, and of what it says is harmful together."""
    found = []
    for item in (*_data()["pattern"], *_data()["near"]):
        steps = item.get("steps") or [item["pattern"]]
        gaps = len(steps) - 1
        barring = ["\n" if item.get("line") else ""] * gaps
        pattern = followed(steps, [item.get("within", 0)] * gaps, barring)
        found.append(
            _Pattern(item["category"], steps[-1], item["score"], tuple(item["needs"]), pattern)
        )
    return tuple(found)


@cache
def hidden_elements() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return what a page does not show, each with what it says first, and which of that orders."""
    (item,) = _data()["hidden"]
    return re.compile(item["element"]), re.compile(item["order"])


_DOWNLOADS = (
    (
        ("curl", "wget"),
        r"(?:curl|wget)\b[^\n|]{0,300}?\|\s{0,4}(?:sudo\s+)?(?:env\s+)?(?:(?:ba|z|da|k)?sh\b"
        r"|(?:python3?|node|perl)\b(?!\s+-(?:m\s+(?!code\b)|\w{0,3}[cenp]\b)"
        r"(?![^\n]{0,300}\b(?:exec|eval|compile|system)\b)))",
    ),
    (
        ("iwr", "irm", "invoke-webrequest", "downloadstring"),
        r"i(?<!\wi)(?:ex|nvoke-expression)\b[^\n]{0,40}?"
        r"(?:iwr|irm|invoke-webrequest|downloadstring)[^\n`]{0,200}",
    ),
    (("<(",), r"\b(?:bash|zsh|sh)\s+<\(\s{0,3}(?:curl|wget)\b[^\n]{0,300}"),
    (("eval",), r"\beval\s+[\"']?\$\(\s{0,3}(?:curl|wget)\b[^\n]{0,300}"),
)
"""What has to be there, and the download that an interpreter takes."""
_VENDORS = re.compile(
    r"https://(?:sh\.rustup\.rs|get\.docker\.com|astral\.sh|bun\.sh|deno\.land|ollama\.com|get\.sdkman\.io"
    r"|deb\.nodesource\.com|install\.python-poetry\.org|get\.helm\.sh|starship\.rs|nixos\.org"
    r"|raw\.githubusercontent\.com/(?:homebrew|nvm-sh|pyenv)|cli\.github\.com|get\.pnpm\.io)(?:/|\s|\))"
)
"""Where installers come from that are documented everywhere just so."""
_ORDERED = re.compile(
    r"\b(?:must|required?|recover\w*|immediately|mandatory|before (?:continuing|anything))\b"
)
_SHADY = re.compile(
    r"https?://(?:\d{1,3}\.){3}\d{1,3}|pastebin\.com|webhook\.site|requestbin|ngrok|\.onion\b"
    r"|transfer\.sh|interact\.sh|\boast\.|burpcollaborator|pipedream\.net|\braw\.githack"
)
_CALLS = ("system(", "popen(", "run(")
_BEFORE = 80
"""Characters before a download in which it may be ordered."""
_TOOLS = ("curl", "wget", "invoke-webrequest", "iwr", "http")
_COMMAND = r"(?:curl|wget|invoke-webrequest|iwr|httpie?)\b[^\n]{1,500}"
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
    r"|//api\.telegram\.org/bot\$[({]?\w{1,60}[)}]?"
)


_FORGED = 3
"""The score of a forged turn that counts even where it is quoted."""


def traces(text: str) -> Iterator[Sign]:
    """Yield what looks like part of an attack in a lower-case, normalised text."""
    for known in _patterns():
        quotable = known.category == "role_hijack" and known.score < _FORGED
        for start, end in some(spans(known.pattern, text, known.needs)):
            yield Sign(known.category, known.name, known.score, start, end, quotable=quotable)
    yield from _remote_code(text)
    yield from _sent(text)


def _remote_code(text: str) -> Iterator[Sign]:
    """Yield downloads that go straight into an interpreter, counted by how they are ordered."""
    found = [place for needs, pattern in _DOWNLOADS for place in spans(pattern, text, needs)]
    for start, end in some(_apart(sorted(found))):
        before, command = text[max(0, start - _BEFORE) : start], text[start:end]
        score = 0.5
        score += 0.5 if "https://" not in command else 0
        score += 1 if _ORDERED.search(before) and not _VENDORS.search(command) else 0
        score += 1.5 if _SHADY.search(command) else 0
        score += 1 if before.rstrip("\"'`").endswith(_CALLS) else 0
        yield Sign("remote_code", "piped", score, start, end)


def _apart(places: Iterable[Span]) -> Iterator[Span]:
    """Yield the places, in order, that do not overlap one before."""
    done = 0
    for start, end in places:
        if start >= done:
            done = end
            yield start, end


def _sent(text: str) -> Iterator[Sign]:
    """Yield requests that carry a secret anywhere but in a header, where it belongs."""
    for start, end in some(spans(_COMMAND, text, _TOOLS)):
        request = text[start:end]
        if text[start - 1 : start] == "`":
            request = request.partition("`")[0]  # where the code ends that it is set in
        request = _HEADER.sub(" ", request)
        found = _SENT_SECRET.search(request)
        if found is None or "grant_type" in request:
            continue  # nothing, or a client's secret on its way to the one who gave it out
        usual = _USUAL_PARAMETER.sub(" ", request)
        if _SENT_SECRET.search(usual) is None and _SHADY.search(request) is None:
            continue
        score = 3.0 if found[0][0] in "@<" or "(" in found[0][:3] else 2.0
        yield Sign("exfiltration", "sent", score, start, end)
