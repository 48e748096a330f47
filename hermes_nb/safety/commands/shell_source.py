"""A shell script as the parser may see it, and what really stands there.

The parser looks up characters in a table of the C library that has none beyond Latin-1, and some of
them end the process: `{` before one beyond U+FFFF (tree-sitter-bash 0.25.1). So it is given a full
stop for each byte that is not ASCII, which to a shell is part of a word and no more, just as these
are; what a node stands for is read from the script itself.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

_PLAIN = bytes(range(128)) + b"." * 128
_HERE = re.compile(rb"(?<!<)<<(?!<)")


class Source:
    """A script; `plain` is what to parse."""

    def __init__(self, script: str) -> None:
        self._bytes = script.encode("utf-8", "replace")
        self.plain = self._bytes.translate(_PLAIN)

    @property
    def ambiguous(self) -> bool:
        """Whether a here-document may end elsewhere than `plain` has it: its end is not ASCII."""
        lines = self._bytes.replace(b"\\\n", b"").split(b"\n")
        return any(
            (here := _HERE.search(line)) and not line[here.end() :].isascii()
            for line in lines
            if not line.isascii()
        )

    def text(self, node: Node) -> str:
        """Return what stands at a node."""
        return self.between(node.start_byte, node.end_byte).decode("utf-8", "replace")

    def between(self, start: int, end: int) -> bytes:
        """Return what stands from one byte of the script to another."""
        return self._bytes[start:end]
