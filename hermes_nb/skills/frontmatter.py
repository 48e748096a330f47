"""The YAML block at the head of a SKILL.md, read leniently and in bounded time and memory.

Values are strings, lists and mappings: a date or a number stays the text that was written. The
tree is built from parser events, so depth and size are limits of ours; an alias is the text it is
written as, which leaves nothing to expand. What people really write (an unquoted `description: Use
when: ...`, tabs, globs that begin with `*`) is repaired where only one meaning is possible.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from hermes_nb.skills.plain_fields import plain_fields

FRONTMATTER_LIMIT = 65_536
"""Characters; the largest in the wild have about 4,000."""
_DEPTH = 20
_FENCE = "---"
_FIELD = re.compile(r"([A-Za-z_][\w.-]*):(?:[ \t]+(.*))?")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})


class FrontmatterError(ValueError):
    """There is no frontmatter to be had; the text says why."""


@dataclass(frozen=True, slots=True)
class Split:
    """A document cut at its fences; `closed` is false where the second one is missing."""

    head: str
    body: str
    closed: bool = True


@dataclass(frozen=True, slots=True)
class Frontmatter:
    """The top-level fields, and notes on what had to be repaired or is odd."""

    fields: dict[str, Any]
    notes: tuple[str, ...] = ()


def split(text: str) -> Split:
    """Cut a document, any line ends, at its fences; raise FrontmatterError when it has none.

    Without a closing fence the frontmatter ends at the first line that cannot belong to it.
    """
    text = text.removeprefix("\ufeff")
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = text.lstrip("\n")
    first, _, rest = text.partition("\n")
    if first.rstrip() != _FENCE:
        message = "it does not begin with a line `---`"
        raise FrontmatterError(message)
    start = 0 if rest.startswith(_FENCE) else rest.find(f"\n{_FENCE}") + 1
    while rest.startswith(_FENCE, start):
        line, _, body = rest[start:].partition("\n")
        if line.rstrip() == _FENCE:
            return Split(rest[: max(0, start - 1)], body)
        start = rest.find(f"\n{_FENCE}", start) + 1
        if not start:
            break
    lines = text.split("\n")
    end = next((n for n, line in enumerate(lines[1:], 1) if not _may_belong(line)), len(lines))
    return Split("\n".join(lines[1:end]), "\n".join(lines[end:]), closed=False)


def read_fields(head: str, *, repair: bool = True) -> Frontmatter:
    """Return the fields of a frontmatter; raise FrontmatterError where it cannot be understood."""
    if len(head) > FRONTMATTER_LIMIT:
        message = f"the frontmatter is longer than {FRONTMATTER_LIMIT:,} characters"
        raise FrontmatterError(message)
    if (plain := plain_fields(head)) is not None:
        return Frontmatter(plain)
    first: FrontmatterError | None = None
    for candidate, note in _candidates(head) if repair else ((head, ""),):
        try:
            read = parsed(candidate)
        except FrontmatterError as error:
            first = first or error
        else:
            return Frontmatter(read.fields, (*((note,) if note else ()), *read.notes))
    raise first or FrontmatterError(head)


def plain_text(value: object) -> str:
    """Return a field's value as one text: a list joined by commas, a mapping as nothing."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list):
        return ", ".join(item for item in value if isinstance(item, str))
    return ""


def words(value: object) -> tuple[str, ...]:
    """Return a field that is a list, or a text with commas, as its items."""
    if not value:
        return ()
    items = value if isinstance(value, list) else plain_text(value).split(",")
    return tuple(item.strip() for item in items if isinstance(item, str) and item.strip())


def _may_belong(line: str) -> bool:
    return line[:1] in {" ", "\t", "-", "#"} or _FIELD.fullmatch(line) is not None


def _candidates(head: str) -> Iterator[tuple[str, str]]:
    """Yield the frontmatter as it is, then ever more repaired, each with what was done."""
    yield head, ""
    cleaned = _CONTROL.sub("", head)
    lines = [_untabbed(line) for line in cleaned.split("\n")]
    yield "\n".join(lines), "tabs or control characters in the frontmatter were replaced"
    yield _quoted(lines), "values that needed quotes in YAML were read as they are written"


def _untabbed(line: str) -> str:
    rest = line.lstrip(" \t")
    return line[: len(line) - len(rest)].replace("\t", "  ") + rest


def _quoted(lines: list[str]) -> str:
    """Put every plain or badly quoted top-level value into quotes, its continuation lines too."""
    out: list[str] = []
    position = 0
    while position < len(lines):
        match = _FIELD.fullmatch(lines[position])
        position += 1
        value = (match[2] or "").strip() if match else ""
        if not match or not value or value[0] in "|>[{#" or _well_quoted(value):
            out.append(lines[position - 1])
            continue
        while position < len(lines) and lines[position][:1] == " ":
            value = f"{value} {lines[position].strip()}"
            position += 1
        out.append(f"{match[1]}: {json.dumps(_unquoted(value), ensure_ascii=False)}")
    return "\n".join(out)


def _well_quoted(value: str) -> bool:
    """Say whether a value is one quoted text and nothing else."""
    return re.fullmatch(r'"(?:[^"\\]|\\.)*+"|\'(?:[^\']|\'\')*+\'', value) is not None


def _unquoted(value: str) -> str:
    """Return a badly quoted value without its outer quotes, if it has a pair of them."""
    if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
        return value[1:-1]
    return value


@cache
def _loader() -> Any:  # noqa: ANN401 - the C parser where PyYAML has it
    import yaml

    return getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def parsed(head: str) -> Frontmatter:
    """Return what YAML makes of a frontmatter; raise FrontmatterError where it makes nothing."""
    import yaml

    builder = _Builder()
    try:
        for event in yaml.parse(head, Loader=_loader()):
            builder.take(event)
    except (yaml.YAMLError, UnicodeError) as error:
        raise FrontmatterError(_reason(error)) from error
    if not isinstance(builder.root, dict):
        message = "the frontmatter is not a list of `key: value` fields"
        raise FrontmatterError(message)
    return Frontmatter(builder.root, tuple(dict.fromkeys(builder.notes)))


def _reason(error: Exception) -> str:
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
    mark = getattr(error, "problem_mark", None)
    # The fence is the file's first line, and marks count from 0.
    where = f" at line {mark.line + 2}" if mark else ""
    return f"the frontmatter is no valid YAML{where}: {problem}"


@dataclass(slots=True)
class _Builder:
    """Builds the tree from the parser's events."""

    root: Any = None
    notes: list[str] = field(default_factory=list)
    _open: list[Any] = field(default_factory=list)
    _keys: list[str | None] = field(default_factory=list)
    _done: bool = False

    def take(self, event: Any) -> None:  # noqa: ANN401 - PyYAML's events
        kind = type(event).__name__
        if kind == "ScalarEvent":
            null = event.implicit[0] and not event.style and event.value in _NULLS
            self._put("" if null else event.value)
        elif kind == "AliasEvent":
            self._put(f"*{event.anchor}")
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            self._begin({} if kind == "MappingStartEvent" else [])
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            self._open.pop()
            self._keys.pop()
        elif kind == "DocumentEndEvent":
            self._done = True

    def _begin(self, container: Any) -> None:  # noqa: ANN401 - a dict or a list
        if len(self._open) >= _DEPTH:
            message = f"the frontmatter is nested more than {_DEPTH} levels deep"
            raise FrontmatterError(message)
        self._put(container)
        self._open.append(container)
        self._keys.append(None)

    def _put(self, value: Any) -> None:  # noqa: ANN401 - any node
        if not self._open:
            if self._done:
                message = "the frontmatter holds more than one YAML document"
                raise FrontmatterError(message)
            self.root = value
            return
        parent = self._open[-1]
        if isinstance(parent, list):
            parent.append(value)
        elif (key := self._keys[-1]) is None:
            self._keys[-1] = value if isinstance(value, str) else json.dumps(value)
        else:
            if key in parent:
                self.notes.append(f"the field {key!r} is there twice; the last one counts")
            parent[key] = value
            self._keys[-1] = None
