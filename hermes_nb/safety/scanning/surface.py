"""What an attack looks like in code, commands and markup, where words and their order mean little.

Plain patterns are data, in `surface.toml`; requests are looked at argument by argument.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

from hermes_nb.safety.reading.needs import Needs
from hermes_nb.safety.reading.normalise import Span
from hermes_nb.safety.reading.quick import spans
from hermes_nb.safety.reading.signs import APART, Sign, crowds
from hermes_nb.safety.reading.steps import Steps
from hermes_nb.safety.reading.vocabulary import vocabulary

_NAME = r"\w{0,40}(?:key|token|secret|passw|credential|pwd)\w{0,20}"
_FILE = r"[~\w./-]{0,80}(?:\.env\b|id_rsa|id_ed25519|\.ssh/|\.aws/|\.netrc|/etc/(?:passwd|shadow))"


@dataclass(frozen=True, slots=True)
class _Pattern:
    category: str
    score: float
    needs: tuple[str, ...]
    pattern: str


@dataclass(frozen=True, slots=True)
class _Near:
    """Things that are harmful together."""

    category: str
    score: float
    needs: tuple[str, ...]
    steps: Steps


@cache
def _data() -> dict[str, list[dict[str, Any]]]:
    return tomllib.loads(Path(__file__).with_name("surface.toml").read_text(encoding="utf-8"))


@cache
def _patterns() -> tuple[_Pattern, ...]:
    """Return the patterns of `surface.toml`; one is compiled when a text first needs it."""
    return tuple(
        _Pattern(item["category"], item["score"], tuple(item["needs"]), item["pattern"])
        for item in _data()["pattern"]
    )


@cache
def _combinations() -> tuple[_Near, ...]:
    """Return what `surface.toml` says is harmful together."""
    return tuple(
        _Near(
            *(item["category"], item["score"], tuple(item["needs"])),
            steps=Steps(
                patterns=tuple(item["steps"]),
                within=(item["within"],) * (len(item["steps"]) - 1),
                barring=("\n" if item.get("line") else "",) * (len(item["steps"]) - 1),
            ),
        )
        for item in _data()["near"]
    )


@cache
def _needs() -> tuple[Needs, Needs]:
    """Return what the patterns and the combinations need."""
    return Needs([each.needs for each in _patterns()]), Needs([e.needs for e in _combinations()])


_PIPED = Steps(
    patterns=(
        r"(?:curl|wget)\b",
        r"\|\s{0,4}(?:sudo\s+)?(?:env\s+)?(?:(?:ba|z|da|k)?sh|python3?|node|perl)\b",
    ),
    within=(300,),
    barring=("\n|",),
)
_SUBSTITUTED = (
    ("<(", r"\b(?:bash|zsh|sh)\s+<\(\s{0,3}(?:curl|wget)\b[^\n]{0,300}"),
    ("eval", r"\beval\s+[\"']?\$\(\s{0,3}(?:curl|wget)\b[^\n]{0,300}"),
)
"""What has to be there, and the download that an interpreter takes for a file or a command."""
_INVOKED = Steps(
    patterns=(
        r"i(?<!\wi)(?:ex|nvoke-expression)\b",
        r"(?:iwr|irm|invoke-webrequest|downloadstring)[^\n`]{0,200}",
    ),
    within=(40,),
    barring=("\n",),
)
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
    patterns, combinations = _needs()
    has = vocabulary(text).has
    for known in map(_patterns().__getitem__, patterns.met(has)):
        quotable = known.category == "role_hijack" and known.score < _FORGED
        found = spans(known.pattern, text)
        for start, end in chain(islice(found, APART), crowds(found)):
            yield Sign(known.category, known.pattern, known.score, start, end, quotable=quotable)
    for near in map(_combinations().__getitem__, combinations.met(has)):
        for start, end in near.steps.places(text):
            yield Sign(near.category, near.steps.patterns[-1], near.score, start, end)
    yield from _remote_code(text)
    if any(map(text.__contains__, _TOOLS)):
        yield from _sent(text)


def _remote_code(text: str) -> Iterator[Sign]:
    """Yield downloads that go straight into an interpreter, counted by how they are ordered."""
    found = [*_PIPED.places(text), *_INVOKED.places(text)]
    for need, pattern in _SUBSTITUTED:
        if need in text:
            found += spans(pattern, text)
    places = _apart(sorted(found))
    for start, end in islice(places, APART):
        before, command = text[max(0, start - _BEFORE) : start], text[start:end]
        score = 0.5
        score += 0.5 if "https://" not in command else 0
        score += 1 if _ORDERED.search(before) and not _VENDORS.search(command) else 0
        score += 1.5 if _SHADY.search(command) else 0
        score += 1 if before.rstrip("\"'`").endswith(_CALLS) else 0
        yield Sign("remote_code", "piped", score, start, end)
    for start, end in crowds(places):  # as bad as the worst one among them may be
        crowd = text[max(0, start - _BEFORE) : end]
        score = 1.0 + bool(_ORDERED.search(crowd)) + 1.5 * bool(_SHADY.search(crowd))
        score += any(map(crowd.__contains__, _CALLS))
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
    requests = spans(_COMMAND, text)
    for start, end in chain(islice(requests, APART), crowds(requests)):
        request = text[start:end]
        if text[start - 1 : start] == "`":
            request = request.partition("`")[0]  # where the code ends that it is set in
        request = _HEADER.sub(" ", request)
        found = _SENT_SECRET.search(request)
        if found is None:
            continue
        usual = _USUAL_PARAMETER.sub(" ", request)
        if _SENT_SECRET.search(usual) is None and _SHADY.search(request) is None:
            continue
        score = 3.0 if found[0][0] in "@<" or "(" in found[0][:3] else 2.0
        yield Sign("exfiltration", "sent", score, start, end)
