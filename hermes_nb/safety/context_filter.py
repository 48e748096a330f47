"""Decide whether a passage that looks like an attack really is one.

A rule that forbids an action ("never run `cat .env`") or describes one ("prompts such as
`ignore all previous instructions` are attacks") is not an attack. Quotation marks alone excuse
nothing: the surrounding text must be about attacks, and must not tell the reader to follow the
quotation.
"""

from __future__ import annotations

import re
from functools import cache

from hermes_nb.safety import table
from hermes_nb.safety.patterns import Sign, compiled
from hermes_nb.safety.rules import Match, charset, expression, unbroken
from hermes_nb.safety.words import PARAGRAPH, SENTENCE, Tagged

_BEFORE = 400
"""Number of characters to search before a passage."""
_AFTER = 200
"""Number of characters to search after a passage."""
_WORDS_BEFORE = 90
"""Number of tags before a passage to search for words about attacks."""
_WORDS_AFTER = 45
"""Number of tags after a passage to search for words about attacks."""
_WORDS_AROUND = 250
"""Number of tags around a quotation in which to count words about attacks."""
_AGAIN = 3
"""Minimum number of words about attacks around a quotation for it to count as an example."""
_NEAR = 5
"""Maximum words between a "never" and the passage it governs."""
_PLAIN = 2
"""A sign with at least this score counts as more than a hint."""
_FENCED = 4_000
"""Number of characters before a passage to search for an open code fence."""

_BREAK = re.compile(r"[;:!?—–(]|\s-\s")
_SERIES = re.compile(r"\b(?:or|nor|oder|ou|o|и|или)\b")
_LIST_ITEM = re.compile(r"[ \t]{0,12}(?:[-*+•|]|\d{1,3}[.)]|>|\[)")
_ITEM = re.compile(r"\n[ \t]*(?:[-*+•|]|\d{1,3}[.)])[ \t]")
_LEAD = 60
_SHORT = 30
_SCOPE = 24
"""Maximum characters between an order to ignore and the directory that it refers to."""
_QUOTES = "\"'`“”«»„‘’「」『』"
_INVITED = 24
"""Number of characters before an excuse to search for words that introduce it."""
_UNBROKEN = frozenset({"HIDES", "HUSHES", "UNASKED", "TAKES", "OWNED"})
"""Intents (see `rules`) that do not count if a clause ends within their first part."""
_CLAUSE = re.compile(r"[,;:!?—–()、，；]|\s-\s")
_FREE = frozenset({"HIDES", "HUSHES", "UNASKED", "LOOSENS", "NAMES", "SPEAKS", "EXCUSES", "MASKS"})
"""Intents that count even after a "not": they contain a negation themselves, or are not orders."""
_TOLD = frozenset({"HIDES", "HUSHES", "UNASKED", "SETTLES", "ALTERS"})
"""Intents that do not count in statements about a program, because users report its behaviour."""


def _pattern(name: str) -> re.Pattern[str]:
    """Return a pattern from `[context]` in `rules.toml`."""
    return compiled(table("rules")["context"][name])


@cache
def _orders() -> re.Pattern[str]:
    """Return the pattern for an order to follow something, unless the order is negated."""
    return compiled(f"(?<!{charset('FORBID')}){expression('OBEY ~4 IT').pattern}")


class TextContext:
    """Decides whether the signs of an attack in one text are serious."""

    def __init__(self, text: str, words: Tagged) -> None:
        """Store a normalised lower-case text and its tags."""
        self._text = text
        self._words = words

    def intended(self, match: Match) -> bool:
        """Return whether an intent's match is neither accidental nor forbidden."""
        name = match.row.name
        if name in _TOLD and expression("~3 PROGRAM").match(self._words.tags, match.sentence[0]):
            return False
        start, end = self._words.span(*match.head)
        if name in _UNBROKEN and _CLAUSE.search(self._text, start, end):
            return False
        if name == "EXCUSES" and _pattern("invites").search(
            self._text, max(0, start - _INVITED), end
        ):
            return False
        if name not in _FREE and self._forbidden(start, match.head[0]):
            return False
        return unbroken(self._text, self._words.span(match.first, match.last))

    def meant(self, sign: Sign) -> bool:
        """Return whether a sign is part of an attack, not of a text about attacks."""
        start, end = sign.start, sign.end
        first, last = self._words.before(start), self._words.before(end)
        if not sign.negated and self._forbidden(start, first):
            return False
        if not (sign.negates or sign.negated) and self._denied(first, last):
            return False
        if self._innocent(sign):
            return False
        if (sign.quotable and self._quoted(start, end)) or self.example(start, end):
            return False
        # Its paragraph, and the introduction or heading above it.
        before = "\n".join(self._text[max(0, start - _BEFORE) : start].rsplit("\n\n", 2)[-2:])
        if not self._described(first, last, sign.score):
            return sign.negated or not self._listed_as_forbidden(start, before)
        line = before.rpartition("\n")[2]
        if self._quoted(start, end) or _pattern("speaker").search(line):
            return False
        return not (
            _LIST_ITEM.match(line or self._text[start:end])
            and _pattern("forbidding").search(before)
        )

    def _innocent(self, sign: Sign) -> bool:
        """Return whether a sign is harmless, by the criteria of its category."""
        start, end = sign.start, sign.end
        if sign.category == "role_hijack":
            return self._named(start, end)
        if sign.category == "prompt_injection":
            return self._elsewhere(start, end)
        return sign.category == "deception" and _ITEM.search(self._text, start, end) is not None

    def example(self, start: int, end: int) -> bool:
        """Return whether a passage is quoted in a text that repeatedly mentions attacks."""
        if not self._quoted(start, end):
            return False
        first, last = self._words.before(start), self._words.before(end)
        around = self._words.tags[max(0, first - _WORDS_AROUND) : last + _WORDS_AROUND]
        if len(expression("TALK").findall(around)) < _AGAIN:
            return False
        return not self._ordered(start, end)

    def _ordered(self, start: int, end: int) -> bool:
        """Return whether the line around a quotation tells the reader to follow it."""
        words, text = self._words, self._text
        line = text.rfind("\n", max(0, start - _BEFORE), start) + 1
        stop = text.find("\n", end, end + _AFTER)
        stop = stop if stop >= 0 else min(len(text), end + _AFTER)
        opened = max(text.rfind(sign, line, start + 1) for sign in _QUOTES)
        closed = [at for sign in _QUOTES if (at := text.find(sign, end, stop)) >= 0]
        before = words.tags[words.before(line) : words.before(max(line, opened))]
        after = words.tags[words.before(min(closed, default=end)) : words.before(stop)]
        orders = _orders()
        return orders.search(before) is not None or orders.search(after) is not None

    def _described(self, first: int, last: int, score: float) -> bool:
        """Return whether the surrounding text is about attacks and does not ask to follow one.

        For a weak sign, words about danger suffice.
        """
        talks = expression("TALK" if score >= _PLAIN else "TALK|DANGER")
        tags = self._words.tags
        before = PARAGRAPH.join(tags[max(0, first - _WORDS_BEFORE) : first].split(PARAGRAPH)[-2:])
        after = tags[last : last + _WORDS_AFTER].partition(PARAGRAPH)[0]
        if not (talks.search(before) or talks.search(after)):
            return False
        return not (_orders().search(before) or _orders().search(after))

    def _forbidden(self, start: int, first: int) -> bool:
        """Return whether a forbidding word governs a passage, whose first tag is `first`."""
        words = self._words
        for place in range(first - 1, max(-1, first - 1 - _NEAR), -1):
            if words.tags[place] in (SENTENCE, PARAGRAPH):
                break
            if expression("FORBID").match(words.tags, place):
                said = self._text[words.span(place, place + 1)[1] : start]
                parted = _BREAK.search(said) or ("," in said and not _SERIES.search(said))
                hedged = expression("HESITATE|INSTEAD|ALSO").search(words.tags, place + 1, first)
                # It also governs subsequent verbs: "do not print, log or send".
                return not (hedged or parted or ("\n" in said and place + 1 < first))
        return False

    def _denied(self, first: int, last: int) -> bool:
        """Return whether a word like "never" follows the passage or its first word."""
        words = self._words
        if last - first > 1 and expression("FORBID").match(words.tags, first + 1):
            return not expression("HESITATE|INSTEAD|ALSO").match(words.tags, first + 2)
        return expression("~2 POSTNEG").match(words.tags, last, last + 3) is not None

    def _named(self, start: int, end: int) -> bool:
        """Return whether a passage is only a name in backticks, or a legal phrase."""
        before = self._text[max(0, start - _LEAD) : start].rpartition("\n")[2]
        behind = self._text[end : end + _LEAD].partition("\n")[0]
        inside = before.count("`") % 2 == 1 and "`" in behind
        if _pattern("legal").search(self._text, start, end):
            return True
        return (
            inside
            and not before.rpartition("`")[2].strip()
            and len(behind.partition("`")[0]) < _SHORT
        )

    def _elsewhere(self, start: int, end: int) -> bool:
        """Return whether an order to ignore refers to a directory or a program's behaviour."""
        before = self._text[max(0, start - _LEAD) : start].rpartition("\n")[2]
        if _pattern("causes").search(before) or _pattern("asked").search(before):
            return True
        if _pattern("letter").search(self._text, start, end):
            return True
        behind = self._text[end : end + _LEAD].partition("\n")[0]
        return (
            _pattern("directory").search(
                f"{before[-_SCOPE:]}{self._text[start:end]}{behind[:_SCOPE]}"
            )
            is not None
        )

    def _listed_as_forbidden(self, start: int, before: str) -> bool:
        """Return whether the passage is an item in a list whose introduction forbids its items."""
        lines = before.split("\n")
        if not _LIST_ITEM.match(lines[-1] or self._text[start : start + 4]):
            return False
        for line in reversed(lines[:-1]):
            if line.strip() and not _LIST_ITEM.match(line):
                heading = line.rstrip(" *_").endswith(":") or line.lstrip().startswith("#")
                return heading and _pattern("forbidding").search(line) is not None
        return False

    def _quoted(self, start: int, end: int) -> bool:
        """Return whether the passage is in quotation marks, code or a table."""
        text = self._text
        line = text[max(0, start - _BEFORE) : start + 1].rpartition("\n")[2]
        behind = text[end : end + _AFTER].partition("\n")[0]
        if line.lstrip().startswith("|"):
            return True
        if any(q in line[-80:] for q in _QUOTES) and any(q in behind for q in _QUOTES):
            return True
        return text.count("```", max(0, start - _FENCED), start) % 2 == 1
