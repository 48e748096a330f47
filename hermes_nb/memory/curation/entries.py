r"""The byte format of curated memory, shared with Hermes Agent: entries between lines of `§`.

Entries are joined by `\n§\n`, stripped, in UTF-8, with no newline at the end. What a person wrote
by hand is understood too, and every word of it kept: a file without a `§` line is its headings,
bullets and paragraphs. `Parsed.canonical` says whether the bytes are in the format; those that are
not deserve a copy before they are replaced.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable
from dataclasses import dataclass

MARK = "§"
SEPARATOR = f"\n{MARK}\n"

_SEPARATOR_LINE = re.compile(r"^[ \t]*§[ \t]*$", re.MULTILINE)
_BULLET = re.compile(r"(?:[-*+•]|\d{1,3}[.)])[ \t]+\S")
_HEADING = re.compile(r"#{1,6}[ \t]+\S")
_FENCE = re.compile(r"[ \t]{0,3}(`{3,}|~{3,})")
_CONTROLS = {
    **dict.fromkeys([*range(32), 0x7F, *range(0x80, 0xA0)]),
    ord("\n"): "\n",
    ord("\t"): "\t",
}
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a memory file holds; `oddities` says what is odd about its bytes, in a few words."""

    entries: tuple[str, ...] = ()
    oddities: tuple[str, ...] = ()
    canonical: bool = True


def render(entries: Iterable[str]) -> bytes:
    """Return the bytes of a memory file; the inverse of `parse` for clean entries."""
    return SEPARATOR.join(entries).encode("utf-8")


def size(entries: Iterable[str]) -> int:
    """Return the characters that entries take in their file, separators included."""
    return len(SEPARATOR.join(entries))


def cleaned(content: str) -> str:
    r"""Return the content of an entry as it can be stored.

    Line ends become `\n`, characters that UTF-8 cannot hold a replacement character; control
    characters (NUL among them) and white space at the ends go.
    """
    text = content.replace("\r\n", "\n").replace("\r", "\n").translate(_CONTROLS)
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").strip()


def has_separator(content: str) -> bool:
    """Say whether a line of `content` would split it in two when it is read back."""
    return _SEPARATOR_LINE.search(content) is not None


def parse(data: bytes, *, one_entry: bool = False) -> Parsed:
    """Return what `data` holds; no bytes make it raise.

    Text without a `§` line may be one entry of several paragraphs or a hand-written file: it is
    taken apart unless the caller knows that it was written as `one_entry`.
    """
    text, oddities = _decoded(data)
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if _SEPARATOR_LINE.search(text):
        parts = _SEPARATOR_LINE.split(text)
    elif one_entry:
        parts = [text]
    else:
        parts = _blocks(text)
    entries = tuple(part for part in map(cleaned, parts) if part)
    # Several entries from a text without `§` are a reading of it, not its bytes.
    canonical = not oddities and render(entries) == data
    return Parsed(entries, tuple(oddities), canonical)


def _decoded(data: bytes) -> tuple[str, list[str]]:
    """Return the text of `data`, and what had to be done to get it."""
    oddities: list[str] = []
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        oddities.append("UTF-16")
        text = data.decode("utf-16", "replace")
    else:
        if data.startswith(codecs.BOM_UTF8):
            oddities.append("a byte order mark")
            data = data[len(codecs.BOM_UTF8) :]
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            oddities.append("bytes that are not UTF-8")
            text = data.decode("utf-8", "replace")
    if "\0" in text:
        oddities.append("NUL bytes")
        text = text.replace("\0", _REPLACEMENT)
    return text, oddities


def _blocks(text: str) -> list[str]:
    """Take hand-written Markdown apart: headings, bullets with what hangs on them, paragraphs."""
    blocks: list[list[str]] = [[]]
    fence = ""
    for line in text.split("\n"):
        if fence:
            blocks[-1].append(line)
            if line.strip().startswith(fence) and not line.strip().strip(fence[0]):
                fence = ""
            continue
        if not line.strip():
            blocks.append([])
            continue
        if opened := _FENCE.match(line):
            fence = opened[1]
        elif _HEADING.match(line):
            blocks.extend([[line], []])
            continue
        elif _BULLET.match(line):
            blocks.append([])
        blocks[-1].append(line)
    return ["\n".join(block) for block in blocks if block]
