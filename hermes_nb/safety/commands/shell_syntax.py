"""Reads a shell script into the simple commands it may run, in order, with what they would get.

Parsing is tree-sitter's; nothing is run or looked up. Constant variables and `cd` are followed as
far as they are plain, loops over constant lists are unrolled, substitutions and function bodies are
read like everything else. A branch counts as taken.
"""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING, cast

from hermes_nb.safety.commands.shell_script import Redirect, Script, Simple, output_of
from hermes_nb.safety.commands.shell_source import Source
from hermes_nb.safety.commands.shell_words import HOME, UNKNOWN, Expansion, Scope, Word
from hermes_nb.safety.commands.vital import absolute

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

_UNROLLED = 8
_WORDS = frozenset(
    {
        *("word", "number", "string", "raw_string", "ansi_c_string", "concatenation"),
        *("simple_expansion", "expansion", "command_substitution", "process_substitution"),
        *("arithmetic_expansion", "brace_expression", "translated_string", "extglob_pattern"),
        *("regex", "test_operator"),
    }
)
_SIMPLE = frozenset(
    {
        *("command", "declaration_command", "unset_command", "test_command"),
        *("variable_assignment", "variable_assignments"),
    }
)
_SPECIAL = {
    "redirected_statement": "_redirected",
    "pipeline": "_pipeline",
    "subshell": "_apart",
    "for_statement": "_loop",
    "function_definition": "_function",
    "compound_statement": "_block",
}
_REDIRECTS = frozenset({"file_redirect", "heredoc_redirect", "herestring_redirect"})


class TooLongError(Exception):
    """Reading took longer than it may."""


def read(source: str, *, deadline: float, scope: Scope | None = None) -> Script:
    """Read a script; raise TooLongError past `deadline` (monotonic), ImportError without parser."""
    script = Source(source)
    tree = _parser().parse(script.plain)
    reader = _Reader(script, scope or Scope(), deadline)
    if tree.root_node.has_error or script.ambiguous:
        reader.script.unsure.append("it could not be parsed")
    reader.statement(tree.root_node, None)
    return reader.script


@cache
def _parser() -> Parser:
    import tree_sitter_bash
    from tree_sitter import Language, Parser

    return Parser(Language(tree_sitter_bash.language()))


class _Reader:
    """Walks a syntax tree in the order of execution."""

    def __init__(self, source: Source, scope: Scope, deadline: float) -> None:
        self.script = Script()
        self._source = source
        self._scope = scope
        self._deadline = deadline

    def statement(self, node: Node, feed: Simple | None) -> Simple | None:
        """Read a statement whose input comes from `feed`; return its last simple command."""
        if time.monotonic() > self._deadline:
            raise TooLongError
        if node.type in _SIMPLE:
            return self._simple(node, feed)
        if read := getattr(self, _SPECIAL.get(node.type, ""), None):
            return cast("Simple | None", read(node, feed))
        if node.type == "ERROR":
            self._unsure("it could not be parsed")
        return self._children(node, feed)

    def _children(self, node: Node, feed: Simple | None) -> Simple | None:
        last: Simple | None = None
        for child in node.children:
            if child.type in _WORDS:  # a case's value, a condition's stray word
                self._words(child)
            elif child.is_named and child.type not in ("comment", "variable_name"):
                last = self.statement(child, feed)
        return last

    def _simple(self, node: Node, feed: Simple | None) -> Simple:
        command = Simple(feed=feed, directory=self._scope.directory)
        if node.type == "test_command":
            command.words = [Word("test")]
        if node.type == "variable_assignment":
            self._assign(node, command)
        else:
            self._collect(node, command)
        self.script.commands.append(command)
        self._follow(command)
        return command

    def _collect(self, node: Node, command: Simple) -> None:
        """Gather a command's words, assignments and redirects; operators inside a test are none."""
        for child in node.children:
            if child.type == "variable_assignment":
                self._assign(child, command)
            elif child.type in _REDIRECTS:
                self._redirect(child, command)
            elif child.type in _WORDS or child.type in ("command_name", "variable_name"):
                command.words += self._words(child)
            elif child.is_named:
                self._collect(child, command)
            elif child.type in ("export", "declare", "typeset", "local", "readonly", "unset"):
                command.words.append(Word(child.type))

    def _assign(self, node: Node, command: Simple) -> None:
        target = node.child_by_field_name("name")
        value = node.child_by_field_name("value")
        name = self._source.text(target) if target else ""
        if target is None or target.type != "variable_name":
            self._unsure(f"it sets {name[:40]!r}")
        if value is not None and value.type == "array":
            word = Word(UNKNOWN)
            for item in value.children:
                if item.is_named:
                    self._words(item)
        else:
            word = self._expansion().word(value)
        command.assigned.append((name, word))

    def _follow(self, command: Simple) -> None:
        """Let a plain assignment or `cd` have its effect on what comes after."""
        if not command.words or command.name in ("export", "declare", "typeset", "readonly"):
            for name, value in command.assigned:
                self._scope.set(name, value)
        elif command.name in ("cd", "pushd"):
            targets = [word for word in command.words[1:] if not word.text.startswith("-")]
            self._scope.directory = _directory(self._scope.directory, targets)
        elif command.name in ("read", "unset", "mapfile", "readarray"):
            for word in command.words[1:]:
                self._scope.set(word.text, Word(UNKNOWN, tame=False))

    def _redirected(self, node: Node, feed: Simple | None) -> Simple | None:
        body = node.child_by_field_name("body")
        before = len(self.script.commands)
        last = self.statement(body, feed) if body is not None else None
        if last is None:
            last = Simple(directory=self._scope.directory)
            self.script.commands.append(last)
        for child in node.children:
            if child.type in _REDIRECTS:
                self._redirect(child, last)
        for command in self.script.commands[before:-1]:  # of a block, all its commands read it
            command.given = command.given if command.given is not None else last.given
        return last

    def _redirect(self, node: Node, command: Simple) -> None:
        if node.type == "heredoc_redirect":
            self._heredoc(node, command)
            return
        operator = next((c.type for c in node.children if not c.is_named), "")
        words = [w for c in node.children if c.type in _WORDS for w in self._words(c)]
        if node.type == "herestring_redirect":
            word = words[0] if words else Word("")
            command.given = word.text if word.known else None
            return
        command.redirects.append(Redirect(operator, words[0] if words else Word("")))
        # The grammar gives words that follow a redirect to it; the shell gives them to the command.
        command.words += words[1:]

    def _heredoc(self, node: Node, command: Simple) -> None:
        """Read a heredoc, and what the grammar hangs below it: the rest of that line."""
        for child in node.children:
            if child.type == "heredoc_body":
                body = self._source.text(child)
                dynamic = any(grandchild.type != "heredoc_content" for grandchild in child.children)
                command.given = None if dynamic else body
                self._words_within(child)
            elif child.type in _REDIRECTS:
                self._redirect(child, command)
            elif child.type in _WORDS:
                command.words += self._words(child)
        for child in node.children:
            if child.type == "pipeline":
                self._pipeline(child, command)
            elif (
                child.is_named and node.field_name_for_child(node.children.index(child)) == "right"
            ):
                self.statement(child, None)

    def _pipeline(self, node: Node, feed: Simple | None) -> Simple | None:
        outer = self._scope
        for child in node.children:
            if child.is_named and child.type != "comment":
                self._scope = outer.copy()
                feed = self.statement(child, feed)
        self._scope = outer
        return feed

    def _apart(self, node: Node, feed: Simple | None) -> Simple | None:
        """Read what runs in a subshell: what it sets does not last."""
        outer, self._scope = self._scope, self._scope.copy()
        last: Simple | None = None
        for child in node.children:
            if child.type in _REDIRECTS:  # `$(< file)`
                last = Simple(directory=self._scope.directory)
                self._redirect(child, last)
                self.script.commands.append(last)
            elif child.is_named and child.type != "comment":
                last = self.statement(child, feed)
        self._scope = outer
        return last

    def _block(self, node: Node, feed: Simple | None) -> Simple | None:
        if node.children[0].type == "((":
            self._arithmetic(node)
            return None
        return self._children(node, feed)

    def _loop(self, node: Node, _feed: Simple | None) -> Simple | None:
        variable = node.child_by_field_name("variable")
        name = self._source.text(variable) if variable else ""
        body = node.child_by_field_name("body")
        values = [w for c in node.children if c.type in _WORDS for w in self._words(c)]
        wild = Word(UNKNOWN, tame=all(word.tame for word in values))
        constant = 0 < len(values) <= _UNROLLED and all(word.known for word in values)
        last: Simple | None = None
        for value in values if constant else [wild]:
            self._scope.set(name, value)
            last = self.statement(body, None) if body else None
        if not all(word.glob is False for word in values):
            self._scope.set(name, wild)
        return last

    def _function(self, node: Node, _feed: Simple | None) -> None:
        name = node.child_by_field_name("name")
        body = node.child_by_field_name("body")
        if name is None or body is None:
            return
        calls, parallel = self._calls(body, self._source.text(name))
        if calls and parallel:
            self.script.bombs.append(self._source.text(name))
        self.statement(body, None)

    def _calls(self, node: Node, name: str) -> tuple[int, bool]:
        """Return how often a function calls itself, and whether calls go on beside each other."""
        calls, parallel = 0, False
        pending = [node]
        while pending:
            each = pending.pop()
            pending += each.children
            if each.type == "command_name" and self._source.text(each) == name:
                calls += 1
            parallel |= each.type in ("&", "|")
        return calls, parallel

    def _arithmetic(self, node: Node) -> None:
        text = self._source.text(node)
        if "[" in text or "$" in text or "`" in text:
            self._unsure("it computes with what may be code")
        self._words_within(node)

    def _words_within(self, node: Node) -> None:
        for child in node.children:
            if child.type in _WORDS:
                self._words(child)
            else:
                self._words_within(child)

    def _words(self, node: Node) -> list[Word]:
        return self._expansion().words(node)

    def _expansion(self) -> Expansion:
        return Expansion(self._source, self._scope, self._substitute, self.script.unsure)

    def _substitute(self, node: Node) -> str | None:
        before = len(self.script.commands)
        self._apart(node, None)
        commands = self.script.commands[before:]
        return output_of(commands[0]) if len(commands) == 1 else None

    def _unsure(self, what: str) -> None:
        self.script.unsure.append(what)


def _directory(current: str | None, targets: list[Word]) -> str | None:
    """Return where `cd` leads, None if that cannot be told."""
    if not targets:
        return HOME
    if not targets[0].known or targets[0].glob:
        return None
    return absolute(targets[0].text, current)
