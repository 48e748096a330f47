"""Parses a search query; every string is a valid query and no error is raised.

Plain words are alternatives. `AND`, `OR`, `NOT` (in capitals, between operands), parentheses,
"quoted phrases" and prefix* have their usual meaning. A quoted phrase is required even in a plain
query. Invalid syntax, such as an unbalanced quote or an operator without operands, is ignored.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass

from hermes_nb.storage import words

LONGEST = 8_000
"""Maximum length of a query, in characters; the rest is ignored."""
MOST_UNITS = 40
"""Maximum number of a query's units (words or phrases) to search for."""
MOST_OPERANDS = 200
"""Maximum number of operands in a query with operators."""
DEEPEST = 8
"""Maximum levels of parentheses. Each level may use a dozen of the 100 stack entries of FTS5's
parser."""


@dataclass(frozen=True, slots=True)
class Phrase:
    """Consecutive terms; with `prefix`, the last one is the start of a word."""

    terms: tuple[str, ...]
    prefix: bool = False


@dataclass(frozen=True, slots=True)
class AllOf:
    """Matches all operands."""

    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class AnyOf:
    """Matches at least one of the operands."""

    operands: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Without:
    """Matches `kept` (None: everything) and not `dropped`."""

    kept: Node | None
    dropped: Node


Node = Phrase | AllOf | AnyOf | Without


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A parsed query."""

    text: str
    """The query as typed. It is used to determine the kind of question."""
    units: tuple[Phrase, ...]
    """The phrases that determine a message's score."""
    must: Node | None = None
    """The condition that a message must match, or None if any unit is enough."""
    names: frozenset[str] = frozenset()
    """Terms from capitalised words."""
    question: bool = False
    """Whether it is a question; its answer may not contain the query's words."""

    @property
    def terms(self) -> frozenset[str]:
        """The terms of all units."""
        return frozenset(term for unit in self.units for term in unit.terms)


_QUESTION = re.compile(
    r"\s*(?:who|whom|whose|what|when|where|why|which|how|did|do|does|is|are|was|were|has|have|"
    r"would|could|can|tell me|wer|wann|warum|welche[rs]?|qui|quand|pourquoi|comment|qu[eé]|"
    r"qui[eé]n|cu[aá]ndo|d[oó]nde|c[oó]mo|quando|quem|onde|chi|dove|perch[eé])\b",
    re.IGNORECASE,
)
_TOKEN = re.compile(r'"(?P<quoted>[^"]*)"(?P<star>\*)?|(?P<bracket>[()])|(?P<word>[^\s()"]+)|"')
_OPERATORS = frozenset(("AND", "OR", "NOT"))


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str = ""
    prefix: bool = False


def parse(text: str) -> Query:
    """Parse a query."""
    text = text[:LONGEST].encode("utf-8", "ignore").decode("utf-8").replace("\0", " ")
    tokens = list(_tokens(text))
    if any(token.kind in _OPERATORS for token in tokens):
        must = _QueryReader(tokens).read()
        units = tuple(dict.fromkeys(_wanted(must)))[:MOST_UNITS] if must else ()
        return Query(text=text, units=units, must=must, names=_names(text))
    phrases = [phrase for token in tokens if token.kind == "quoted" if (phrase := _phrase(token))]
    units = tuple(dict.fromkeys((*phrases, *_units(tokens))))[:MOST_UNITS]
    return Query(
        text=text,
        units=units,
        must=AllOf(tuple(phrases)) if len(phrases) > 1 else next(iter(phrases), None),
        names=_names(text),
        question=not phrases and _is_question(text, tokens),
    )


ASKING = 4
"""A query with at least this many words counts as a question or description."""


def _is_question(text: str, tokens: list[_Token]) -> bool:
    if len(tokens) <= 1 or any(token.prefix for token in tokens):
        return False
    return len(tokens) >= ASKING or "?" in text or _QUESTION.match(text) is not None


def _tokens(text: str) -> Iterator[_Token]:
    """Yield the tokens with balanced parentheses; those nested too deeply are dropped."""
    found = list(_raw_tokens(text))
    paired: set[int] = set()
    opened: list[int] = []
    for number, token in enumerate(found):
        if token.kind == "(":
            opened.append(number)
        elif token.kind == ")" and opened:
            start = opened.pop()
            if len(opened) < DEEPEST:
                paired |= {start, number}
    return (t for number, t in enumerate(found) if t.kind not in ("(", ")") or number in paired)


def _raw_tokens(text: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(text):
        if match["quoted"] is not None:
            yield _Token("quoted", match["quoted"], prefix=match["star"] is not None)
        elif match["bracket"]:
            yield _Token(match["bracket"])
        elif word := match["word"]:
            if word in _OPERATORS:
                yield _Token(word)
            elif words.terms(word):
                yield _Token("word", word, prefix=word.endswith("*") and word[-2:-1].isalnum())


def _phrase(token: _Token) -> Phrase | None:
    """Return a token as a phrase, or None if empty; the last word of a prefix is not stemmed."""
    if not token.prefix:
        found = tuple(words.terms(token.text))
        return Phrase(found) if found else None
    *before, last = words.pieces(token.text) or [""]
    start = "".join(words.pieces(words.fold(last))).replace("'", "")
    found = (*(term for piece in before for term in words.terms_of(piece)), *words.spaced(start))
    return Phrase(found, prefix=True) if start else None


def _units(tokens: list[_Token]) -> list[Phrase]:
    """Return the units for a plain query's words, without stop words if others remain."""
    plain = [token for token in tokens if token.kind == "word"]
    folded = [words.fold(piece).replace("'", "") for t in plain for piece in words.pieces(t.text)]
    stop = words.stop_words(folded)
    kept = [unit for token in plain for unit in _units_of(token, stop)]
    return kept or [unit for token in plain for unit in _units_of(token, frozenset())]


def _units_of(token: _Token, stop: frozenset[str]) -> Iterator[Phrase]:
    if token.prefix:
        if phrase := _phrase(token):
            yield phrase
        return
    pieces = [piece for piece in words.pieces(token.text) if words.terms_of(piece)]
    if len(pieces) > 1:
        # An identifier, a path or a decimal: search for its parts as a phrase, and for each part.
        yield Phrase(tuple(words.terms(token.text)))
    for piece in pieces:
        if words.fold(piece).replace("'", "").replace("\u2019", "") in stop:
            continue
        found = words.terms_of(piece)
        if len(found) > 1:  # a word in a script without spaces
            yield from (Phrase(pair) for pair in itertools.pairwise(found))
        else:
            yield Phrase(found)


def _names(text: str) -> frozenset[str]:
    return frozenset(
        term for piece in words.pieces(text) if piece[0].isupper() for term in words.terms_of(piece)
    )


def _wanted(node: Node) -> Iterator[Phrase]:
    """Yield the phrases that raise a message's score; operands of NOT don't."""
    match node:
        case Phrase():
            yield node
        case AllOf(operands) | AnyOf(operands):
            for operand in operands:
                yield from _wanted(operand)
        case Without(kept, _):
            if kept:
                yield from _wanted(kept)


class _QueryReader:
    """Recursive descent: OR binds loosest, then AND (also implicit), then NOT."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._next = 0
        self._operands = 0

    def read(self) -> Node | None:
        """Parse alternatives up to a closing parenthesis or the end."""
        found: list[Node] = []
        while True:
            if operand := self._conjunction():
                found.append(operand)
            if self._peek() != "OR":
                break
            self._next += 1
        return found[0] if len(found) == 1 else AnyOf(tuple(found)) if found else None

    def _peek(self) -> str:
        return self._tokens[self._next].kind if self._next < len(self._tokens) else ""

    def _conjunction(self) -> Node | None:
        kept: list[Node] = []
        dropped: list[Node] = []
        negated = False
        while (kind := self._peek()) not in ("", "OR", ")"):
            self._next += 1
            if kind in ("AND", "NOT"):
                # `a AND NOT b`, `a NOT b`. A repeated NOT counts once.
                negated = kind == "NOT" or negated
                continue
            if operand := self._operand(self._tokens[self._next - 1]):
                (dropped if negated else kept).append(operand)
            negated = False
        whole = (kept[0] if len(kept) == 1 else AllOf(tuple(kept))) if kept else None
        if not dropped:
            return whole
        return Without(whole, dropped[0] if len(dropped) == 1 else AnyOf(tuple(dropped)))

    def _operand(self, token: _Token) -> Node | None:
        if token.kind == "(":
            inside = self.read()
            self._next += 1  # its closing parenthesis
            return inside
        self._operands += 1
        return _phrase(token) if self._operands <= MOST_OPERANDS else None
