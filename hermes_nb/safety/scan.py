"""Look for prompt injection in text before it reaches a prompt.

A heuristic, not a boundary. The text is unfolded (`normalise`), turned into a row of word classes
(`tagging`) and read by rules (`rules`); code and markup are looked at as they are written
(`surface`, `leaks`, `markup_traces`); what is encoded is decoded and looked at again (`encodings`).
Passages that forbid or describe an attack do not count (`standing`). The rest adds up: from
`rules.MARKS` on a text is suspicious, from `rules.BLOCKS` on it is blocked.

All of the text is looked at. A flood of what is dear to read meets a deadline (`patterns.LIMIT`),
and is withheld.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from hermes_nb.core.text import one_line
from hermes_nb.safety.language.rules import BLOCKS, MARKS
from hermes_nb.safety.redact import redact
from hermes_nb.safety.scanning.evidence import DENSE, Evidence, evidence, total
from hermes_nb.safety.visible import visible

ScanVerdict = Literal["clean", "suspicious", "blocked"]

_SHOWN = 200
_SHOWN_NAME = 120
_NEAR = 60
"""Characters between passages of one category that are shown as one."""
_TOLD = 24
"""Passages of one text that are told apart like that; no honest text has as many. Behind them those
that are at most `_FLOOD` characters from each other are one."""
_FLOOD = 2_000
_SAMPLE = 80
_TOO_DENSE = "more to judge than any honest text has, so not all was read: {}"
"""What is said of a text that is not read to its end (`evidence.DENSE`); `{}` is its beginning."""
_SENTENCE = 240
"""How far around a passage its sentence is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A passage that looks like an attack.

    `category` is its id; `passage` is what stands in the original, fit to be shown: escaped, on one
    line, without secrets (of `too_dense`, the beginning, behind what that means). `score` says how
    much it counts (`rules.BLOCKS` alone blocks), and the passage is `text[start:end]` of the
    scanned text.
    """

    category: str
    passage: str
    score: float = 1.0
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanResult:
    """What a scan found.

    `text` is what may be loaded: the text itself when it is `clean`, with the passages neutralised
    when it is `suspicious`, one line that says so when it is `blocked`.
    """

    verdict: ScanVerdict
    findings: tuple[Finding, ...] = ()
    text: str = ""


def scan(text: str, *, name: str = "", strict: bool = False) -> ScanResult:
    """Return what `text` is; `strict` blocks what would otherwise be suspicious.

    `name` is what the line about a blocked text calls it.
    """
    found = evidence(text)
    score = total(found)
    if score < MARKS:
        return ScanResult(verdict="clean", text=text)
    findings = tuple(_finding(text, item) for item in _merged(found))
    if score >= BLOCKS or strict:
        return ScanResult(verdict="blocked", findings=findings, text=_blocked(name, findings))
    return ScanResult(verdict="suspicious", findings=findings, text=neutralised(text, findings))


def _merged(found: Iterable[Evidence]) -> list[Evidence]:
    """Return evidence with neighbouring pieces of a category made one; it is sorted by start."""
    groups: list[_Group] = []
    latest: dict[str, _Group] = {}
    for item in found:
        group = latest.get(item.category)
        near = _NEAR if len(groups) < _TOLD else _FLOOD
        if group is None or item.start > group.end + near:
            latest[item.category] = group = _Group(item, item.end, item.score)
            groups.append(group)
            continue
        group.end = max(group.end, item.end)
        group.score = max(group.score, item.score)
    return [
        Evidence(first.category, first.sign, group.score, first.start, group.end)
        for group in groups
        for first in (group.first,)
    ]


@dataclass(slots=True)
class _Group:
    """Pieces of evidence that are shown as one."""

    first: Evidence
    end: int
    score: float


def neutralised(text: str, findings: Sequence[Finding]) -> str:
    """Return `text` with the sentences around its findings replaced by a marker each."""
    parts: list[str] = []
    done = 0
    for start, end, categories in _passages(text, findings):
        parts.append(text[done:start])
        parts.append(f"[passage withheld: {', '.join(categories)}]")
        done = end
    return "".join(parts) + text[done:]


def _passages(text: str, findings: Sequence[Finding]) -> list[tuple[int, int, list[str]]]:
    """Return the sentences around findings, merged where they touch, with their categories."""
    passages: list[tuple[int, int, list[str]]] = []
    for finding in sorted(findings, key=lambda f: (f.start, f.end)):
        start, end = _sentence(text, finding.start, finding.end)
        if passages and start <= passages[-1][1]:
            first, last, categories = passages.pop()
            start, end = first, max(last, end)
            if finding.category not in categories:
                categories.append(finding.category)
        else:
            categories = [finding.category]
        passages.append((start, end, categories))
    return passages


_END = re.compile(r"[.!?](?=\s)|[。！？\n]")


def _sentence(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the sentence around a passage: half an order can still be followed."""
    low = max(0, start - _SENTENCE)
    first = low
    for stop in _END.finditer(text, low, start):
        first = stop.end()
    after = _END.search(text, max(start, end - 1), end + _SENTENCE)
    last = after.start() if after is not None else min(len(text), end + _SENTENCE)
    first += len(text[first:start]) - len(text[first:start].lstrip(" \t"))
    return first, max(last, end)


def _finding(text: str, item: Evidence) -> Finding:
    passage = text[item.start : min(item.end, item.start + _SHOWN * 4)]
    shown = one_line(redact(visible(passage, lines=True)), _SHOWN)
    return Finding(
        category=item.category,
        passage=_TOO_DENSE.format(one_line(shown, _SAMPLE)) if item.category == DENSE else shown,
        score=item.score,
        start=item.start,
        end=item.end,
    )


def _blocked(name: str, findings: Sequence[Finding]) -> str:
    ids = ",".join(sorted({finding.category for finding in findings}))
    title = one_line(visible(name, lines=True).replace("]", ")"), _SHOWN_NAME) or "text"
    return f"[BLOCKED: {title} contained potential prompt injection ({ids}). Content not loaded.]"
