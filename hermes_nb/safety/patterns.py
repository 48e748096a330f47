"""Search code, commands and markup for signs of an attack, within a time limit.

The patterns are in `code_patterns.toml`. `traces` uses all of them for the scan; `threats` uses
those that harm the person who runs the code, for the check of skills. `piped` finds downloads that
run without being read. `flows` follows assignments line by line: a variable is tainted by the
secrets in its value. A secret in a request's headers does not count, because every API call has
one. A secret in the body counts, but a single key in an example is suspicious only in combination
with another sign.

A pattern is searched only around words that its matches must contain. `ScanTimeout` is raised when
scanning a text has used `LIMIT` seconds of CPU time per `SIZE` characters. Compiling the patterns,
once per process, does not count.
"""

from __future__ import annotations

import gc
import math
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, lru_cache
from itertools import chain, islice
from time import thread_time

from hermes_nb.core.messages import Json
from hermes_nb.safety import table

LIMIT, SIZE = 0.25, 65_536
"""CPU seconds per `SIZE` characters of text."""
MARKS = 1.0
"""A text with at least this total score is suspicious."""
BLOCKS = 3.0
"""A text with at least this score is blocked: a plain order to ignore the rules, or several
hints."""
_CELL = 256
"""Required words are located by cell, a section of the text with this many characters."""
_MOST = 2_048
"""Characters to search between two checks of the time limit."""
_REACH = 200
"""Length of a pattern's matches in characters, without its gaps."""
_GAP = re.compile(r"\{\d*,(\d+)\}")
"""A gap in a pattern, with its maximum length."""
_APART = 150
"""Number of matches of a pattern to report separately. The rest are reported as one."""

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Sign:
    """A passage that looks like part of an attack: `text[start:end]`."""

    category: str
    """Id of the kind of attack."""
    name: str
    """Id of the rule or pattern."""
    score: float
    """Weight, on the scale of `BLOCKS`."""
    start: int
    """Index of the first character."""
    end: int
    """Index after the last character."""
    negates: bool = False
    """Whether the rule itself contains a negation."""
    negated: bool = False
    """Whether the rule begins with a negation, so a preceding one does not excuse it."""
    quotable: bool = False
    """Whether to ignore it in code and quotations, where chat templates are documented."""


class ScanTimeout(Exception):
    """The time limit for scanning a text was exceeded."""


_UNTIL: ContextVar[float] = ContextVar("UNTIL", default=math.inf)
"""Thread CPU time at which the limit is exceeded."""
_COLLECTING: ContextVar[float] = ContextVar("COLLECTING", default=0.0)
"""Thread CPU time when the current garbage collection started, or 0 if there is none."""


@contextmanager
def deadline(size: int) -> Iterator[None]:
    """Limit the time for scanning a text of `size` characters. After that, `in_time` raises."""
    token = _UNTIL.set(thread_time() + LIMIT * max(1, -(-size // SIZE)))
    gc.callbacks.append(_collected)
    try:
        yield
    finally:
        gc.callbacks.remove(_collected)
        _UNTIL.reset(token)


def _collected(phase: str, _info: object) -> None:
    """Exclude garbage collection from the time limit.

    In a kernel with millions of objects, a collection takes longer than scanning a text.
    """
    if phase == "start":
        _COLLECTING.set(thread_time())
    elif began := _COLLECTING.get():
        _UNTIL.set(_UNTIL.get() + thread_time() - began)
        _COLLECTING.set(0.0)


def in_time() -> None:
    """Raise `ScanTimeout` if the time limit is exceeded."""
    if thread_time() > _UNTIL.get():
        raise ScanTimeout


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Return a compiled pattern. Compiling does not count towards the time limit."""
    started = thread_time()
    expression = re.compile(pattern)
    _UNTIL.set(_UNTIL.get() + thread_time() - started)
    return expression


def spans(pattern: str, text: str, needs: Sequence[str] = ()) -> Iterator[Span]:
    """Yield a pattern's matches. Each match contains one of `needs`, which are in lower case."""
    done, reach = 0, _reach(pattern)
    for start, end in _near(lowered(text), needs, reach):
        in_time()
        for match in compiled(pattern).finditer(text, max(start, done), end + reach):
            if match.start() >= end:
                break
            done = match.end()
            yield match.span()


@cache
def _reach(pattern: str) -> int:
    """Return approximately how many characters a pattern can match."""
    return _REACH + sum(map(int, _GAP.findall(pattern)))


def _near(text: str, needs: Sequence[str], reach: int) -> Iterator[Span]:
    """Yield the parts of a text in which a match can begin: those near one of `needs`."""
    cells = set[int]() if needs else set(range(len(text) // _CELL + 1))
    for need in needs:
        at = text.find(need)
        while at >= 0:
            cells.add(at // _CELL)
            at = text.find(need, (at // _CELL + 1) * _CELL)
    first = done = 0
    for cell in sorted(cells):
        start, end = cell * _CELL - (reach if needs else 0), (cell + 1) * _CELL
        if start > done or end - first > _MOST:
            if done:
                yield first, done
            first = max(start, done)
        done = end
    if done:
        yield first, done


def some(places: Iterator[Span]) -> Iterator[Span]:
    """Yield the first matches one by one, and all later ones as a single span."""
    yield from islice(places, _APART)
    if rest := [*places]:
        yield rest[0][0], rest[-1][1]


@lru_cache(maxsize=4)
def lowered(text: str) -> str:
    """Return text in lower case, with the same length."""
    lower = text.lower()
    if len(lower) != len(text):  # a few capitals have two-character lower-case forms
        return "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
    return lower


STRONG, SHOWN = 2.0, 0.0
"""Scores of a sign that is dangerous on its own, and of one that is common in harmless guides."""
_FLOWS, _KEY, _KEY_SHOWN = 3.0, 1.5, 0.5
_FORGED = 3
"""A forged chat turn with at least this score counts even in a quotation."""


@dataclass(frozen=True, slots=True)
class _Pattern:
    category: str
    """Id of the kind of attack."""
    name: str
    """Id of the pattern."""
    score: float
    """Weight, on the scale of `BLOCKS`."""
    needs: tuple[str, ...]
    """Lower-case words. Every match contains one of them."""
    pattern: str
    """The regular expression."""
    harms: bool
    """Whether a match is harmful to the person who runs the code."""
    shown: bool
    """Whether harmless guides also contain such code."""


@cache
def _patterns() -> tuple[_Pattern, ...]:
    """Return the patterns, each of which is compiled on first use."""
    return tuple(_ready(item) for item in table("code_patterns")["pattern"])


def candidates(lower: str, *, harms: bool) -> Iterator[_Pattern]:
    """Yield the patterns that have a required word in the text.

    This filter is quick, and most texts contain few of these words.
    """
    for each in _patterns():
        if each.harms is harms and (not each.needs or any(map(lower.__contains__, each.needs))):
            yield each


def _ready(item: dict[str, Json]) -> _Pattern:
    steps = item.get("steps") or [item["pattern"]]
    pattern = steps[0] if len(steps) == 1 else _alone(steps[0])
    barring = item.get("barring") or [""] * (len(steps) - 1)
    for step, most, signs in zip(steps[1:], item.get("within", ()), barring, strict=True):
        between = f"[^{re.escape(signs)}]" if signs else "(?s:.)"
        pattern += f"{between}{{0,{most}}}?{_alone(step)}"
    return _Pattern(
        *(item["category"], item.get("name", steps[-1]), item["score"], tuple(item["needs"])),
        pattern=pattern.replace("{secret_file}", table("code_patterns")["secret_file"]),
        harms=item.get("harms", False),
        shown=item.get("shown", False),
    )


def _alone(step: str) -> str:
    """Enclose a part of a pattern in a group, so that its `(?i)` flag applies only to that part."""
    return f"(?i:{step[4:]})" if step.startswith("(?i)") else f"(?:{step})"


@cache
def _pattern(name: str) -> re.Pattern[str]:
    """Return a pattern from `[excuses]` or `[flows]`."""
    return compiled({**table("code_patterns")["excuses"], **table("code_patterns")["flows"]}[name])


@cache
def hidden_elements() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """Return a pattern for hidden HTML elements, and one for those that begin with a command."""
    hidden = table("code_patterns")["hidden"]
    return re.compile(hidden["element"]), re.compile(hidden["order"])


def traces(text: str) -> Iterator[Sign]:
    """Yield the signs of an attack in a normalised text."""
    lower = lowered(text)
    for each in candidates(lower, harms=False):
        quotable = each.category == "role_hijack" and each.score < _FORGED
        for start, end in some(spans(each.pattern, lower, each.needs)):
            yield Sign(each.category, each.name, each.score, start, end, quotable=quotable)
    yield from chain(threats(text), flows(text, code=True))


_LINE, _PARAGRAPH = 120, 300
"""Characters to search before a passage for words that forbid it, in a line and in a paragraph."""
_SENTENCE_END = re.compile(r"[.!?][ \t]")


def threats(text: str, *, code: bool = False, guide: bool = False) -> Iterator[Sign]:
    """Yield the harmful passages in a text.

    `code` means that the whole text is code, and `guide` that it is documentation. Outside of code,
    a passage does not count if the words before it in its sentence forbid or describe it.
    """
    for each in candidates(lowered(text), harms=True):
        for place in spans(each.pattern, text, each.needs):
            in_time()
            score = _graded(each, text, place, guide=guide)
            if score is not None and (code or not _forbidden(text, place[0], _pattern("forbids"))):
                yield Sign(each.category, each.name, score, *place)


def _graded(each: _Pattern, text: str, place: Span, *, guide: bool) -> float | None:
    """Return a passage's score, or None if it is common, such as a vendor's install command."""
    passage = text[slice(*place)]
    downloads = each.name in ("download-and-run", "powershell-download")
    if downloads and _pattern("plain_http").search(passage):
        return STRONG
    if guide and each.shown:
        ordered = _pattern("orders").search(text, max(0, place[0] - _PARAGRAPH), place[0])
        return each.score if ordered else SHOWN
    excused = each.name == "download-and-run" and _pattern("installer").search(passage)
    return None if excused else each.score


def _forbidden(text: str, position: int, words: re.Pattern[str]) -> bool:
    """Return whether the text before `position` in its sentence forbids or describes it."""
    quoted = text[max(0, position - 2) : position]
    inline = quoted.endswith("`") and quoted != "``"
    line = text.rfind("\n\n" if inline else "\n", 0, position) + 1
    start = max(line, position - (_PARAGRAPH if inline else _LINE))
    ends = [end.end() for end in _SENTENCE_END.finditer(text, start, position)]
    return words.search(text[max([start, *ends]) : position]) is not None


_SPLICES = re.compile(r"\\\n|''|\"\"|\\(?=[a-z])")
"""Parts that a shell ignores: line continuations, empty quotes, needless backslashes."""


def piped(text: str, *, code: bool = False) -> Iterator[str]:
    """Yield commands that pass a download straight to a shell or an interpreter (`curl … | sh`)."""
    plain = _SPLICES.sub(lambda match: " " * len(match[0]) if "\n" in match[0] else "", text)
    parts = table("code_patterns")["pipe"]
    for pattern in parts["patterns"]:
        whole = pattern.replace("{fetch}", parts["fetch"]).replace("{shell}", parts["shell"])
        for start, end in spans(whole, plain, parts["needs"]):
            if code or not _forbidden(plain, start, _pattern("prohibits")):
                yield plain[start:end]


# Flow of secrets.

_FENCE = re.compile(r"\n[ \t]*(```+|~~~+)[^\n]*")
_ASSIGNS = re.compile(
    r"\s*(?:const |let |var |export )?([A-Za-z_]\w{0,60})\s*(?::[^=\n]{0,40})?=(?!=)"
)
_NAME = re.compile(r"[A-Za-z_]\w*")
_SEVERAL = 2
_ARGUMENTS = 500
"""Characters after a call's opening bracket to search as its arguments."""
_WHOLE = "the whole environment"


@dataclass(slots=True)
class _Tainted:
    """The secrets that the variables of a code block may contain."""

    secrets: dict[str, frozenset[str]] = field(default_factory=dict)
    """Names of secrets, by variable."""
    encoded: set[str] = field(default_factory=set)
    """Variables with an encoded secret."""

    def secrets_in(self, expression: str) -> frozenset[str]:
        """Return the secrets that an expression mentions."""
        found: set[str] = set()
        if _may_read(expression):
            reads = _pattern("reads").finditer(expression)
            found |= {match[match.lastgroup or 0] for match in reads}
            found |= {_WHOLE} if _pattern("dumps").search(expression) else set()
        if self.secrets:
            names = self.secrets.keys() & _NAME.findall(expression)
            found = found.union(*map(self.secrets.__getitem__, names))
        return frozenset(found)

    def encodes(self, expression: str, secrets: Iterable[str]) -> bool:
        """Return whether an expression encodes one of its `secrets`, or uses an encoded one."""
        if secrets and _pattern("encodes").search(expression):
            return True
        return bool(self.encoded) and not self.encoded.isdisjoint(_NAME.findall(expression))

    def assign(self, name: str, expression: str) -> None:
        """Record which secrets the variable `name` contains after an assignment."""
        found = self.secrets_in(expression)
        if found:
            self.secrets[name] = found
        if self.encodes(expression, found):
            self.encoded.add(name)

    def leaving(self, statement: str) -> tuple[str, str] | None:
        """Return the sign's category and name if a statement leaks a secret, otherwise None."""
        key = False
        for match in _pattern("sends").finditer(statement) if "(" in statement else ():
            sent = statement[match.end() : match.end() + _ARGUMENTS]
            sent = _pattern("usual").sub("", _pattern("headers").sub("", sent))
            if found := self.secrets_in(sent):
                key = len(found) == 1 and all(map(_pattern("service").fullmatch, found))
                if not key:
                    return "exfiltration", "secret-sent"
        found = self.secrets_in(statement)
        if _pattern("resolves").search(statement) and self.encodes(statement, found):
            return "exfiltration", "encoded-lookup"
        if _pattern("serialises").search(statement) and len(found - {_WHOLE}) >= _SEVERAL:
            return "secret-access", "collected-secrets"
        return ("secret-access", "key-sent") if key else None


def flows(text: str, *, code: bool = False) -> Iterator[Sign]:
    """Yield statements that send or collect secrets.

    Only the fenced blocks of a document are searched. `code` means that the whole text is code.
    """
    blocks = [(0, text)] if code else _blocks(text)
    for start, block in blocks if _may_read(text) else ():
        if _pattern("reads").search(block) or _pattern("dumps").search(block):
            yield from _in_block(block, start, key=_KEY if code else _KEY_SHOWN)


def _may_read(text: str) -> bool:
    return any(map(text.__contains__, table("code_patterns")["flows"]["sources"]))


def _blocks(text: str) -> Iterator[tuple[int, str]]:
    """Yield the fenced blocks of a document with their offsets. The last one may be unclosed."""
    opened, start = "", 0
    for fence in _FENCE.finditer(f"\n{text}"):  # shifted by 1: `end` is the block's start
        if not opened:
            opened, start = fence[1], fence.end()
        elif fence[1].startswith(opened):
            yield start, text[start : fence.start()]
            opened = ""
    if opened:
        yield start, text[start:]


def _in_block(block: str, start: int, *, key: float) -> Iterator[Sign]:
    """Yield leaks in a code block. `key` is the score of a request with a single service key."""
    tainted, at = _Tainted(), 0
    for statement in _statements(block):
        in_time()
        if "grant_type" in statement:
            continue  # OAuth: a client sends its secret to the issuer to get a token
        if match := _ASSIGNS.match(statement):
            tainted.assign(match[1], statement[match.end() :])
        known = tainted.secrets or _may_read(statement)
        if known and (sent := tainted.leaving(statement)):
            at = max(at, block.find(statement.partition("\n")[0], at))
            end = min(at + len(statement), len(block))
            score = key if sent[1] == "key-sent" else _FLOWS
            yield Sign(*sent, score, start + at, start + end)


def _statements(block: str) -> Iterator[str]:
    """Yield logical lines: a line continues while brackets are open, up to a size limit."""
    kept: list[str] = []
    depth = size = 0
    for line in block.split("\n"):
        if not line or line.isspace():
            continue
        kept.append(line[:2_000])
        size += len(kept[-1])
        depth += sum(line.count(c) for c in "([{") - sum(line.count(c) for c in ")]}")
        if depth <= 0 or size > 2 * _ARGUMENTS:
            yield "\n".join(kept)
            kept, depth, size = [], 0, 0
    if kept:
        yield "\n".join(kept)
