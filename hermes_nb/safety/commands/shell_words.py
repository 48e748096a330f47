r"""What a shell would make of a word: quotes, variables, braces, `~` and substitutions evaluated.

A part whose value cannot be known here becomes the character `UNKNOWN`; the home directory is
`HOME`, whoever runs it. Nothing is looked up in the file system or the environment.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from hermes_nb.safety.commands.shell_source import Source

if TYPE_CHECKING:
    from tree_sitter import Node

UNKNOWN = "\ufffc"
"""Stands for a part of a word that only the running shell knows."""
HOME = "/~"
"""Stands for the home directory of whoever runs the command."""
_ALTERNATIVES = 64
_VALUE_LIMIT = 2_000
_GLOB = "*?["
_SPLIT = "\0"
"""Stands for white space out of an unquoted expansion: there the shell starts a new word."""
_KNOWN_VARIABLES = {"HOME": HOME, "TMPDIR": "/tmp", "OLDPWD": UNKNOWN}  # noqa: S108 - a guess
_ESCAPE = re.compile(r"\\(\n|.)", re.DOTALL)
_ESCAPE_IN_STRING = re.compile(r'\\([\n"$`\\])')

Character = tuple[str, bool]
"""A character and whether it is quoted."""


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command after expansion.

    `glob` words may become any number of file names. In a `tame` word every unknown part is an
    ordinary variable; one that is not holds the output of a command.
    """

    text: str
    glob: bool = False
    tame: bool = True

    @property
    def known(self) -> bool:
        """Whether every character is known; a glob is known as a pattern."""
        return UNKNOWN not in self.text


@dataclass(slots=True)
class Scope:
    """What the shell knows at a point of a script: variables that are constant, and where it is."""

    variables: dict[str, Word] = field(default_factory=dict)
    directory: str | None = None

    def copy(self) -> Scope:
        """Return the scope of a subshell."""
        return Scope(dict(self.variables), self.directory)

    def set(self, name: str, value: Word) -> None:
        """Remember a variable; one that grows without end (`a=$a$a`) is forgotten."""
        short = len(value.text) <= _VALUE_LIMIT
        self.variables[name] = value if short else Word(UNKNOWN, tame=False)

    def value(self, name: str) -> Word:
        """Return a variable's value; one that the script does not set is unknown but tame."""
        if name in self.variables:
            return self.variables[name]
        if name == "PWD" and self.directory is not None:
            return Word(self.directory)
        return Word(_KNOWN_VARIABLES.get(name, UNKNOWN))


@dataclass(slots=True)
class Expansion:
    """Expands words in a scope.

    `source` is the script that the nodes are of. `substitute` reads a command substitution and
    returns its output if that can be known. `unusual` collects what was met that this does not
    understand.
    """

    source: Source
    scope: Scope
    substitute: Callable[[Node], str | None]
    unusual: list[str] = field(default_factory=list)
    _wild: bool = False

    def words(self, node: Node) -> list[Word]:
        """Return what the word at `node` expands to; an empty unquoted expansion to nothing."""
        self._wild = False
        characters = list(self._characters(node, quoted=False))
        if characters[:1] == [("~", False)]:
            characters = _tilde(characters)
        words = []
        alternatives, more = _braces(characters)
        if more:
            self.unusual.append("it stands for more words than are looked at")
        for alternative in alternatives:
            for piece in _split(alternative):
                text = "".join(character for character, _ in piece)
                glob = any(character in _GLOB and not quoted for character, quoted in piece)
                words.append(Word(text, glob, tame=not self._wild))
        return words

    def word(self, node: Node | None) -> Word:
        """Return the word at `node` unsplit, as in an assignment."""
        if node is None:
            return Word("")
        words = self.words(node)
        if len(words) == 1:
            return words[0]
        text = " ".join(word.text for word in words)
        return Word(text, any(w.glob for w in words), all(w.tame for w in words))

    def _characters(self, node: Node, *, quoted: bool) -> Iterator[Character]:
        match node.type:
            case (
                "word" | "number" | "test_operator" | "variable_name" | "extglob_pattern" | "regex"
            ):
                yield from _bare(self.source.text(node))
            case "raw_string":
                yield from ((character, True) for character in self.source.text(node)[1:-1])
            case "ansi_c_string":
                yield from ((character, True) for character in _ansi(self.source.text(node)[2:-1]))
            case "string" | "translated_string":
                yield from self._string(node)
            case "concatenation" | "command_name":
                for child in node.children:
                    yield from self._characters(child, quoted=quoted)
            case _:
                yield from self._expansion(node, quoted=quoted)

    def _string(self, node: Node) -> Iterator[Character]:
        """Yield a double-quoted string; what the parser leaves out between its parts is text."""
        between = self.source.between
        done = node.start_byte + between(node.start_byte, node.end_byte).find(b'"') + 1
        for child in node.children:
            if child.type in ('"', "string_content", "$"):
                continue
            yield from _literal(between(done, child.start_byte))
            yield from self._expansion(child, quoted=True)
            done = child.end_byte
        yield from _literal(between(done, node.end_byte - 1))

    def _expansion(self, node: Node, *, quoted: bool) -> Iterator[Character]:
        match node.type:
            case "simple_expansion":
                value = self._variable(self.source.text(node)[1:])
            case "expansion":
                value = self._parameter(node)
            case "command_substitution":
                output = self.substitute(node)
                self._wild |= output is None
                value = Word(UNKNOWN if output is None else output.rstrip("\n"))
            case "process_substitution":
                self.substitute(node)
                value = Word("/dev/fd/63")
            case "arithmetic_expansion" | "brace_expression":
                self._look_into(node)
                value = Word(UNKNOWN)
            case _:
                self._unusual(node)
                value = Word(UNKNOWN)
        self._wild |= not value.tame
        for character in value.text:
            blank = character in " \t\n" and not quoted
            yield (_SPLIT if blank else character, quoted or character not in _GLOB)

    def _variable(self, name: str) -> Word:
        return self.scope.value(name) if name.isidentifier() else Word(UNKNOWN)

    def _parameter(self, node: Node) -> Word:
        """Return the value of `${...}`; a default counts as the value of what is not set."""
        match = re.fullmatch(r"\$\{(\w+)(:?[-?][^{}$`]*)?\}", self.source.text(node))
        if match is None:
            self._look_into(node)
            if not re.fullmatch(
                r"\$\{#?\w+(\[[@*\d]\])?([-+?#%/^,:][^$`!@]*)?\}", self.source.text(node)
            ):
                self._unusual(node)
            return Word(UNKNOWN)
        name, default = match[1], match[2] or ""
        value = self._variable(name)
        operator = default.lstrip(":")[:1]
        if operator == "-" and (name not in self.scope.variables or not value.known):
            fallback = default.lstrip(":")[1:].strip("\"'")
            return value if value.known else Word(HOME if fallback == "~" else fallback)
        return value

    def _look_into(self, node: Node) -> None:
        """Read substitutions inside of what is not evaluated; an index may run code of its own."""
        for child in node.children:
            if child.type in ("command_substitution", "process_substitution"):
                self.substitute(child)
                self._wild = True
            elif child.type == "subscript":
                self._unusual(child)
            self._look_into(child)

    def _unusual(self, node: Node) -> None:
        self.unusual.append(f"it uses {self.source.text(node)[:40]!r}")
        self._wild = True


def _bare(text: str) -> Iterator[Character]:
    """Yield unquoted text, with what a backslash protects marked as quoted."""
    done = 0
    for match in _ESCAPE.finditer(text):
        yield from ((character, False) for character in text[done : match.start()])
        if match[1] != "\n":
            yield (match[1], True)
        done = match.end()
    yield from ((character, False) for character in text[done:])


def _literal(source: bytes) -> Iterator[Character]:
    text = source.decode("utf-8", "replace")
    text = _ESCAPE_IN_STRING.sub(lambda match: match[1].strip("\n"), text)
    return ((character, True) for character in text)


def _ansi(text: str) -> str:
    r"""Return the text of `$'...'`; an escape that Python does not know stays as it is."""
    text = re.sub(r"\\[eE]", r"\\x1b", text)
    try:
        return codecs.decode(text.encode("latin-1", "backslashreplace"), "unicode_escape")
    except UnicodeDecodeError:
        return text


def _tilde(characters: list[Character]) -> list[Character]:
    """Replace `~` or `~name` at the beginning by a home directory."""
    end = next((n for n, (c, _) in enumerate(characters) if c == "/"), len(characters))
    name = "".join(character for character, _ in characters[1:end])
    value = UNKNOWN if name in ("+", "-") else HOME
    return [*((character, True) for character in value), *characters[end:]]


def _split(characters: list[Character]) -> Iterator[list[Character]]:
    """Yield the words that unquoted expansions with white space in them make of one."""
    if not any(character == _SPLIT for character, _ in characters):
        yield characters
        return
    piece: list[Character] = []
    for item in [*characters, (_SPLIT, False)]:
        if item[0] != _SPLIT:
            piece.append(item)
        elif piece:
            yield piece
            piece = []


def _braces(characters: list[Character]) -> tuple[list[list[Character]], bool]:
    """Return the alternatives of `a{b,c}`, and whether there are more than these."""
    found: list[list[Character]] = []
    pending = [characters]
    while pending:
        each = pending.pop()
        group = _group(each)
        if group is None:
            found.append(each)
            continue
        room = _ALTERNATIVES - len(found) - len(pending)
        bounds = list(pairwise(group))
        inner = [
            [*each[: group[0]], *each[one + 1 : two], *each[group[-1] + 1 :]]
            for one, two in bounds[:room]
        ]
        if len(inner) < len(bounds):
            return [*found, *inner, *reversed(pending)], True
        pending += reversed(inner)
    return found, False


def _group(characters: list[Character]) -> list[int] | None:
    """Return the places of the first group's brace, of its commas, and of its other brace."""
    first: list[int] | None = None
    opened: list[list[int]] = []
    for position, item in enumerate(characters):
        if item == ("{", False):
            opened.append([position])
        elif opened and item == (",", False):
            opened[-1].append(position)
        elif opened and item == ("}", False):
            group = [*opened.pop(), position]
            if len(group) > len("{}") and (first is None or group[0] < first[0]):
                first = group
    return first
