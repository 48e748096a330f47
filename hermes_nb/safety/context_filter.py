"""Whether a passage that looks like an attack is meant as one.

A rule that forbids ("never run `cat .env`") or describes ("prompts such as `ignore all previous
instructions` are attacks") is none. Quotation marks alone excuse nothing: the text around has to
speak of attacks, and must not order the reader to do as quoted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from hermes_nb.safety.patterns import Sign
from hermes_nb.safety.rules import Match, charset, unbroken
from hermes_nb.safety.words import PARAGRAPH, SENTENCE, Tagged

_BEFORE = 400
_AFTER = 200
_WORDS_BEFORE = 90
_WORDS_AFTER = 45
_WORDS_AROUND = 250
_AGAIN = 3
"""How many words for attacks, that far around, make a quotation one of an attack."""
_NEAR = 5
"""How many words before a passage a "never" may stand and still govern it."""
_PLAIN = 2
"""The score from which a sign is more than a hint."""
_FENCED = 4_000
"""How far back, in characters, a code fence that is still open is looked for."""

_FORBIDDING = re.compile(
    r"\b(?:never|not|don'?t|avoid|forbidden|prohibited|refuse|disallow(?:ed)?|blocked?|deny|denied"
    r"|reject|flag|detect|treat|nie|nicht|niemals|verboten|jamais|ne|nunca|mai|никогда|не)\b"
    r"|不要|禁止|切勿|請勿|请勿|しない|금지"
)
_SPEAKER = re.compile(
    r"\b(?:attackers?|adversar\w+|malicious \w+|someone|hackers?|payloads?|prompts?|inputs?"
    r"|contents?|websites?|pages?|documents?|emails?|texts?|injections?)\b[^.\n]{0,60}?"
    r"\b(?:says?|tells?|tr(?:y|ies|ying)|attempt\w*|asks?|instruct\w*|claims?|contains?|embeds?"
    r"|includes?|like)\b"
    r"|\b(?:p[aá]ginas?|mensage[mn]s?|mensaje|texto|sit[ei]o?|seiten?|nachricht|messaggio|courriel"
    r"|страниц\w|письм\w)\b[^.\n]{0,60}?\b(?:pedir|pede|disser|pid[ea]|dic[ea]|dig[ea]|demande|dit"
    r"|contient|contiene|contém|verlangt|sagt|enthält|chiede|просит|написано)\b"
)
_BREAK = re.compile(r"[;:!?—–(]|\s-\s")
_SERIES = re.compile(r"\b(?:or|nor|oder|ou|o|и|или)\b")
_LIST_ITEM = re.compile(r"[ \t]{0,12}(?:[-*+•|]|\d{1,3}[.)]|>|\[)")
_ITEM = re.compile(r"\n[ \t]*(?:[-*+•|]|\d{1,3}[.)])[ \t]")
_LEAD = 60
_SHORT = 30
_SCOPE = 24
"""How near, in characters, the directory stands that an order to ignore is about."""
_DIRECTORY = re.compile(
    r"`(?:[\w.@-]+/)+[\w.@*-]*`|`[\w-]*(?:old|legacy|archiv|deprecated)[\w.-]*`"
)
_CAUSES = re.compile(
    r"\b(?:makes?|made|making|causes?|caused|lets?)[ ](?:[\w.`'-]+[ ]){1,5}(?:to[ ])?$"
)
_ASKED = re.compile(
    r"\b(?:if|when(?:ever)?|si|cuando|quando|se|wenn|falls|если|коли|якщо|als|jesli|eger)\b"
    r"[^.:;!?\n]{0,40}?\b(?:asks?|tells?|demande|dit|pid[ae]|pede|ped[ei]|chied[ae]|dic[ea]|sagt"
    r"|verlangt|bittet|auffordert|просит|требует|говорит|vraagt|zegt|prosi|kaze)\b[^.:;!?\n]{0,24}$"
)
"""What a page or a user may ask for, told as a case: what comes next is no order."""
_LEGAL = re.compile(r"\bincluding,?\s+(?:but\s+)?(?:not\s+limited|without\s+limitation)")
"""What every licence says: a limit that is none of a model's."""
_MISSIVE = re.compile(
    r"\b(?:e-?mails?|mails?|letters?|drafts?|schreiben|courriels?|correos?|cartas?|lettera"
    r"|wiadomo\w{1,8}|листа?|письм\w{1,4}|e-?posta\w{0,6})\b|邮件|郵件|メール|메일"
)
"""A letter that is not to be heeded is one that was sent by mistake."""
_QUOTES = "\"'`“”«»„‘’「」『』"
_INVITES = re.compile(
    r"\b(?:any|have|further|other|more)\s+(?:\w+\s+)?(?:questions|queries|doubts)"
    r"|\b(?:bei|weitere|haben)\s+(?:sie\s+)?(?:noch\s+|weitere\s+)?(?:ruck)?fragen|\bfragen\s+haben"
    r"|\b(?:toute|des|une|autres?|vos)\s+(?:autre\s+)?questions?|\b(?:dudas?|duvidas?|preguntas)\b"
    r"|\b(?:alguna|otra|cualquier|alguma|qualquer|qualsiasi|altr[ae]|una)\s+(?:pregunta|pergunta|domand)"
    r"|\b(?:вопрос(?:ы|ов)?|pytan\w{1,3})\b"
)
"""Questions that a letter invites at its end; whoever answers them makes no excuses."""
_INVITED = 24
"""Characters before an excuse in which they may be spoken of."""
_UNBROKEN = frozenset({"HIDES", "HUSHES", "UNASKED", "TAKES", "OWNED"})
"""Intents within whose first part no clause ends."""
_CLAUSE = re.compile(r"[,;:!?—–()、，；]|\s-\s")
_FREE = frozenset({"HIDES", "HUSHES", "UNASKED", "LOOSENS", "NAMES", "SPEAKS", "EXCUSES", "MASKS"})
"""Intents that a "not" before them does not excuse: they have their own, or are no order."""
_TOLD = frozenset({"HIDES", "HUSHES", "UNASKED", "SETTLES", "ALTERS"})
"""Intents that mean nothing in what is told of a program: users report that it does such things."""


@dataclass(frozen=True, slots=True)
class _Patterns:
    """What is looked for among the tags around a passage."""

    forbids: re.Pattern[str]
    forbids_behind: re.Pattern[str]
    hedges: re.Pattern[str]
    talks: re.Pattern[str]
    warns: re.Pattern[str]
    orders: re.Pattern[str]
    told: re.Pattern[str]
    """How a sentence begins that says what some program does."""


@cache
def _patterns() -> _Patterns:
    """Return the patterns, compiled once: most texts hold nothing that they would be needed for."""
    gap = f"[^{SENTENCE}{PARAGRAPH}]"
    return _Patterns(
        forbids=re.compile(charset("FORBID")),
        forbids_behind=re.compile(f"{gap}{{0,2}}{charset('POSTNEG')}"),
        hedges=re.compile(charset("HESITATE|INSTEAD|ALSO")),
        talks=re.compile(charset("TALK")),
        warns=re.compile(charset("TALK|DANGER")),
        orders=re.compile(f"(?<!{charset('FORBID')}){charset('OBEY')}{gap}{{0,4}}{charset('IT')}"),
        told=re.compile(f"[\\s\\S]?{gap}{{0,3}}?{charset('PROGRAM')}"),
    )


class Context:
    """Answers, for one text, whether signs in it are meant."""

    def __init__(self, text: str, words: Tagged) -> None:
        """Take a lower-case, normalised text and its tags."""
        self._text = text
        self._words = words

    def intended(self, match: Match) -> bool:
        """Say whether the match of an intent is no accident, and not forbidden."""
        name = match.row.name
        if name in _TOLD and _patterns().told.match(self._words.tags, match.sentence[0] - 1):
            return False
        start, end = self._words.span(*match.head)
        if name in _UNBROKEN and _CLAUSE.search(self._text, start, end):
            return False
        if name == "EXCUSES" and _INVITES.search(self._text, max(0, start - _INVITED), end):
            return False
        if name not in _FREE and self._forbidden(start, match.head[0]):
            return False
        return unbroken(self._text, self._words.span(match.first, match.last))

    def meant(self, sign: Sign) -> bool:
        """Say whether a sign is part of an attack and not of talk about one."""
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
        before = self._before(start)
        if not self._described(first, last, sign.score):
            return sign.negated or not self._listed_as_forbidden(start, before)
        line = before.rpartition("\n")[2]
        if self._quoted(start, end) or _SPEAKER.search(line):
            return False
        return not (_LIST_ITEM.match(line or self._text[start:end]) and _FORBIDDING.search(before))

    def _innocent(self, sign: Sign) -> bool:
        """Say whether a sign is something else that looks alike, each kind in its own way."""
        start, end = sign.start, sign.end
        if sign.category == "role_hijack":
            return self._named(start, end)
        if sign.category == "prompt_injection":
            return self._elsewhere(start, end)
        return sign.category == "deception" and _ITEM.search(self._text, start, end) is not None

    def example(self, start: int, end: int) -> bool:
        """Say whether a passage is quoted by a text that speaks of attacks again and again."""
        if not self._quoted(start, end):
            return False
        first, last = self._words.before(start), self._words.before(end)
        around = self._words.tags[max(0, first - _WORDS_AROUND) : last + _WORDS_AROUND]
        if len(_patterns().talks.findall(around)) < _AGAIN:
            return False
        return not self._ordered(start, end)

    def _ordered(self, start: int, end: int) -> bool:
        """Say whether the line around a quotation orders to follow it."""
        words, text = self._words, self._text
        line = text.rfind("\n", max(0, start - _BEFORE), start) + 1
        stop = text.find("\n", end, end + _AFTER)
        stop = stop if stop >= 0 else min(len(text), end + _AFTER)
        opened = max(text.rfind(sign, line, start + 1) for sign in _QUOTES)
        closed = [at for sign in _QUOTES if (at := text.find(sign, end, stop)) >= 0]
        before = words.tags[words.before(line) : words.before(max(line, opened))]
        after = words.tags[words.before(min(closed, default=end)) : words.before(stop)]
        orders = _patterns().orders
        return orders.search(before) is not None or orders.search(after) is not None

    def _described(self, first: int, last: int, score: float) -> bool:
        """Say whether the text around speaks of attacks and does not order to follow this one.

        For a weak sign any talk of danger will do.
        """
        talks = _patterns().talks if score >= _PLAIN else _patterns().warns
        tags = self._words.tags
        before = PARAGRAPH.join(tags[max(0, first - _WORDS_BEFORE) : first].split(PARAGRAPH)[-2:])
        after = tags[last : last + _WORDS_AFTER].partition(PARAGRAPH)[0]
        if not (talks.search(before) or talks.search(after)):
            return False
        return not (_patterns().orders.search(before) or _patterns().orders.search(after))

    def _forbidden(self, start: int, first: int) -> bool:
        """Say whether a word of forbidding before a passage, or its `first` tag, governs it."""
        words = self._words
        for place in range(first - 1, max(-1, first - 1 - _NEAR), -1):
            if words.tags[place] in (SENTENCE, PARAGRAPH):
                break
            if _patterns().forbids.match(words.tags, place):
                said = self._text[words.span(place, place + 1)[1] : start]
                hedged = _patterns().hedges.search(words.tags, place + 1, first)
                return not hedged and _governs(said, first - place - 1)
        return False

    def _denied(self, first: int, last: int) -> bool:
        """Say whether a "never" follows a passage's verb, or the passage."""
        words = self._words
        if last - first > 1 and _patterns().forbids.match(words.tags, first + 1):
            return not _patterns().hedges.match(words.tags, first + 2)
        return _patterns().forbids_behind.match(words.tags, last, last + 3) is not None

    def _named(self, start: int, end: int) -> bool:
        """Say whether a passage is all that stands between two backticks: a thing that is named."""
        before = self._text[max(0, start - _LEAD) : start].rpartition("\n")[2]
        behind = self._text[end : end + _LEAD].partition("\n")[0]
        inside = before.count("`") % 2 == 1 and "`" in behind
        if _LEGAL.search(self._text, start, end):
            return True
        return (
            inside
            and not before.rpartition("`")[2].strip()
            and len(behind.partition("`")[0]) < _SHORT
        )

    def _elsewhere(self, start: int, end: int) -> bool:
        """Say whether an order to ignore is about a directory, or about what some program does."""
        before = self._text[max(0, start - _LEAD) : start].rpartition("\n")[2]
        if _CAUSES.search(before) or _ASKED.search(before):
            return True
        if _MISSIVE.search(self._text, start, end):
            return True
        behind = self._text[end : end + _LEAD].partition("\n")[0]
        return (
            _DIRECTORY.search(f"{before[-_SCOPE:]}{self._text[start:end]}{behind[:_SCOPE]}")
            is not None
        )

    def _before(self, start: int) -> str:
        """Return what leads to a passage: its paragraph, and the lead-in or heading above it."""
        text = self._text[max(0, start - _BEFORE) : start]
        paragraphs = text.rsplit("\n\n", 2)
        return "\n".join(paragraphs[-2:])

    def _listed_as_forbidden(self, start: int, before: str) -> bool:
        """Say whether the passage is an item of a list that is introduced by forbidding it."""
        lines = before.split("\n")
        if not _LIST_ITEM.match(lines[-1] or self._text[start : start + 4]):
            return False
        for line in reversed(lines[:-1]):
            if line.strip() and not _LIST_ITEM.match(line):
                heading = line.rstrip(" *_").endswith(":") or line.lstrip().startswith("#")
                return heading and _FORBIDDING.search(line) is not None
        return False

    def _quoted(self, start: int, end: int) -> bool:
        """Say whether the passage stands in quotation marks, code, or a table."""
        text = self._text
        line = text[max(0, start - _BEFORE) : start + 1].rpartition("\n")[2]
        behind = text[end : end + _AFTER].partition("\n")[0]
        if line.lstrip().startswith("|"):
            return True
        if any(q in line[-80:] for q in _QUOTES) and any(q in behind for q in _QUOTES):
            return True
        return text.count("```", max(0, start - _FENCED), start) % 2 == 1


def _governs(between: str, words: int) -> bool:
    """Say whether a "not" still holds behind what stands between: "do not print, log or send"."""
    if _BREAK.search(between) or ("," in between and not _SERIES.search(between)):
        return False
    return "\n" not in between or words == 0
