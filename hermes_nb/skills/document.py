"""Parse any SKILL.md leniently, but strictly check those that Hermes writes.

The format is defined by agentskills.io: YAML frontmatter with `name` and `description` (at most 64
and 1,024 characters) and a Markdown body. The parser adds a note for each irregularity. A skill is
unusable only if it has no frontmatter or description, or if nothing can be parsed.

The frontmatter is parsed in bounded time and memory. Values are strings, lists and mappings: dates
and numbers remain text. The tree is built from PyYAML's events, so that depth and size can be
limited; aliases remain text and are not expanded. Common mistakes (an unquoted `description: Use
when: ...`, tabs, globs that begin with `*`) are repaired if only one meaning is possible.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hermes_nb.core.errors import ToolError
from hermes_nb.core.messages import Json

NAME_LIMIT = 64
DESCRIPTION_LIMIT = 1_024
DOCUMENT_LIMIT = 100_000
"""Maximum length, in characters, of a SKILL.md that Hermes writes.

Longer ones by other authors can still be read.
"""
FRONTMATTER_LIMIT = 65_536
"""Maximum length of a frontmatter, in characters; the longest in public skills have about 4,000."""
TAGS_LIMIT = 30
CATEGORY_LEVELS = 2
_DEPTH = 20
_FENCE = "---"
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")
_FIELD = re.compile(r"([A-Za-z_][\w.-]*):(?:[ \t]+(.*))?")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*+"|\'(?:[^\']|\'\')*+\'')
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
_VARIABLE = re.compile(r"[A-Za-z_]\w{0,63}", re.ASCII)
_NEEDS = ("required_environment_variables", "prerequisites")
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_UNCLOSED = "the frontmatter is not closed by a line `---`"


class SkillError(ToolError):
    """An operation on a skill is impossible; the message explains what to do next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """The conditions under which a skill is offered; an empty field sets no condition."""

    platforms: tuple[str, ...] = ()
    """Platforms on which it works, in lower case."""
    requires_tools: tuple[str, ...] = ()
    """Tools that must be enabled."""
    requires_toolsets: tuple[str, ...] = ()
    """Toolsets that must be enabled."""
    fallback_for_tools: tuple[str, ...] = ()
    """Tools that it replaces: it is offered only if they are disabled."""
    fallback_for_toolsets: tuple[str, ...] = ()
    """Toolsets that it replaces: it is offered only if they are disabled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A parsed SKILL.md."""

    name: str
    """The skill's name, from the document or else its folder."""
    description: str
    """When to use the skill, on one line."""
    body: str = ""
    """The Markdown below the frontmatter; "" if it was not read."""
    tags: tuple[str, ...] = ()
    """Tags, at most `TAGS_LIMIT`."""
    category: str = ""
    """The category in the document; used only if the folder is not in a category folder."""
    gates: Gates = field(default_factory=Gates)
    """The conditions under which it is offered."""
    environment: tuple[str, ...] = ()
    """Environment variables that it requires."""
    notes: tuple[str, ...] = ()
    """Irregularities found while reading."""


@dataclass(frozen=True, slots=True)
class Split:
    """A document split at its fences, the `---` lines around the frontmatter."""

    head: str
    """The frontmatter without the fences."""
    body: str
    """The text below the closing fence."""
    closed: bool = True
    """False if the closing fence is missing."""


@dataclass(frozen=True, slots=True)
class Frontmatter:
    """Parsed frontmatter."""

    fields: dict[str, Json]
    """The top-level fields by name."""
    notes: tuple[str, ...] = ()
    """Repairs and irregularities."""


_OPEN = Gates()


def read_document(text: str, *, folder: str = "") -> Document:
    """Parse a SKILL.md; raise SkillError with the reason if it is unusable.

    `folder` is the name of its directory, used if the document has no valid name.
    """
    return understood(read_frontmatter(text), folder=folder, body=split(text).body.strip("\n"))


def read_frontmatter(text: str) -> Frontmatter:
    """Parse the frontmatter of a SKILL.md, repaired if necessary; raise SkillError if missing.

    Returns only the fields that `understood` uses.
    """
    parts = split(text)
    read = read_fields(parts.head)
    known = ("name", "description", "category", "tags", "platforms", "metadata")
    fields = {key: read.fields[key] for key in (*known, *_NEEDS) if key in read.fields}
    return Frontmatter(fields, read.notes if parts.closed else (_UNCLOSED, *read.notes))


def understood(read: Frontmatter, *, folder: str, body: str = "") -> Document:
    """Interpret a frontmatter; raise SkillError if it has no description."""
    fields = read.fields
    notes = list(read.notes)
    description = " ".join(plain_text(fields.get("description")).split())
    if not description:
        raise SkillError("it has no description")
    if len(description) > DESCRIPTION_LIMIT:
        notes.append(f"the description is longer than {DESCRIPTION_LIMIT:,} characters")
    metadata = _mapping(fields.get("metadata"))
    hermes = _mapping(metadata.get("hermes"))
    tags = (words(each.get("tags")) for each in (hermes, fields, metadata))
    return Document(
        name=_name(plain_text(fields.get("name")), folder, notes),
        description=description,
        body=body,
        tags=tuple(tag[:NAME_LIMIT] for tag in next(filter(None, tags), ())[:TAGS_LIMIT]),
        category=valid_category(plain_text(hermes.get("category") or fields.get("category"))),
        gates=_gates(fields.get("platforms"), hermes),
        environment=_environment(fields),
        notes=tuple(notes),
    )


def problems(text: str, *, name: str = "") -> list[str]:
    """Return the problems that prevent writing `text` as the SKILL.md of the skill `name`."""
    if len(text) > DOCUMENT_LIMIT:
        return [f"it has {len(text):,} characters; the limit is {DOCUMENT_LIMIT:,}"]
    if re.search("[\0\ud800-\udfff]", text):
        return ["it contains NUL characters or lone surrogates"]
    try:
        parts = split(text)
        read = read_fields(parts.head, repair=False)
    except SkillError as error:
        way = 'begin with `---`, `name: ...`, `description: "..."`, `---`'
        return [f"{error}; {way}, with quotes around values that contain `: `"]
    found = [] if parts.closed else [_UNCLOSED]
    found += read.notes
    if _FENCE in parts.head:
        found.append(
            "`---` appears inside the frontmatter, where simple parsers take it for the end"
        )
    if not text.removeprefix("\ufeff").startswith(_FENCE):
        found.append("there is text before the frontmatter")
    given = plain_text(read.fields.get("name"))
    found += name_problems(given)
    if name and given != name:
        found.append(f"its name is {given!r}, but the skill is called {name!r}")
    description = plain_text(read.fields.get("description"))
    if not 1 <= len(description) <= DESCRIPTION_LIMIT:
        found.append(
            f"the description has {len(description):,} characters; it needs 1 to "
            f"{DESCRIPTION_LIMIT:,} that say what the skill does and when to use it"
        )
    if not parts.body.strip():
        found.append("there is no text after the frontmatter")
    return found


def name_problems(name: str) -> list[str]:
    """Return the problems with a skill's name; empty if it is valid."""
    if not name:
        return ["it has no name"]
    if len(name) > NAME_LIMIT:
        return [f"the name is longer than {NAME_LIMIT} characters"]
    if not _NAME.fullmatch(name):
        return [f"{name[:80]!r} is not a valid skill name; use a-z, 0-9, `-`, `_`, `.`"]
    return []


def valid_category(category: str) -> str:
    """Return a category in lower case with at most two levels, or "" if it is invalid."""
    if not category:
        return ""
    parts = [part.strip().lower().replace(" ", "-") for part in category.split("/")]
    good = len(parts) <= CATEGORY_LEVELS and not any(name_problems(part) for part in parts)
    return "/".join(parts) if good else ""


def split(text: str) -> Split:
    """Split a document at its fences, with any line endings; raise SkillError if it has none.

    Without a closing fence, the frontmatter ends at the first line that cannot be part of it.
    """
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n").lstrip("\n")
    first, _, rest = text.partition("\n")
    if first.rstrip() != _FENCE:
        raise SkillError("it does not begin with a line `---`")
    start = 0 if rest.startswith(_FENCE) else rest.find(f"\n{_FENCE}") + 1
    while rest.startswith(_FENCE, start):
        line, _, body = rest[start:].partition("\n")
        if line.rstrip() == _FENCE:
            return Split(rest[: max(0, start - 1)], body)
        start = rest.find(f"\n{_FENCE}", start) + 1
        if not start:
            break
    lines = rest.split("\n")
    ends = (
        number
        for number, line in enumerate(lines)
        if line[:1] not in {" ", "\t", "-", "#"} and not _FIELD.fullmatch(line)
    )
    end = next(ends, len(lines))
    return Split("\n".join(lines[:end]), "\n".join(lines[end:]), closed=False)


def read_fields(head: str, *, repair: bool = True) -> Frontmatter:
    """Parse the fields of a frontmatter; raise SkillError if that fails."""
    if len(head) > FRONTMATTER_LIMIT:
        raise SkillError(f"the frontmatter is longer than {FRONTMATTER_LIMIT:,} characters")
    first: SkillError | None = None
    for candidate, note in _candidates(head) if repair else ((head, ""),):
        try:
            read = _parsed(candidate)
        except SkillError as error:
            first = first or error
        else:
            return Frontmatter(read.fields, (note, *read.notes) if note else read.notes)
    raise first or SkillError(head)


def plain_text(value: object) -> str:
    """Return a field as text: list items are joined by commas, and a mapping becomes ""."""
    if isinstance(value, str):
        return value.strip()
    if isinstance(value, list):
        return ", ".join(item for item in value if isinstance(item, str))
    return ""


def words(value: object) -> tuple[str, ...]:
    """Return the items of a list, or of comma-separated text."""
    if not value:
        return ()
    items = value if isinstance(value, list) else plain_text(value).split(",")
    return tuple(item.strip() for item in items if isinstance(item, str) and item.strip())


def _mapping(value: object) -> Mapping[str, Json]:
    return value if isinstance(value, Mapping) else {}


def _name(own: str, folder: str, notes: list[str]) -> str:
    """Return the skill's own name or else its folder's, changed to a valid one if necessary."""
    if own and not name_problems(own):
        if folder and own != folder:
            notes.append(f"its name differs from its folder's, {folder!r}")
        return own
    notes.append(f"its name {own[:80]!r} cannot be used" if own else "it has no name")
    for source in (folder, own):
        usable = re.sub(r"[^a-z0-9._-]+", "-", source.lower()).strip("-._")[:NAME_LIMIT]
        if usable:
            return usable
    return "unnamed"


def _gates(platforms: object, hermes: Mapping[str, Json]) -> Gates:
    if not (hermes or platforms):
        return _OPEN
    return Gates(
        platforms=tuple(item.lower() for item in words(platforms)),
        requires_tools=words(hermes.get("requires_tools")),
        requires_toolsets=words(hermes.get("requires_toolsets")),
        fallback_for_tools=words(hermes.get("fallback_for_tools")),
        fallback_for_toolsets=words(hermes.get("fallback_for_toolsets")),
    )


def _environment(fields: Mapping[str, Json]) -> tuple[str, ...]:
    """Return the environment variables that a skill requires.

    Both formats of Hermes Agent are read. An entry is a name, or a mapping with a `name`.
    """
    if fields.keys().isdisjoint(_NEEDS):
        return ()
    listed = fields.get("required_environment_variables")
    older = words(_mapping(fields.get("prerequisites")).get("env_vars"))
    entries = listed if isinstance(listed, list) else words(listed)
    names = [plain_text(_mapping(each).get("name") or each) for each in (*entries, *older)]
    return tuple(dict.fromkeys(filter(_VARIABLE.fullmatch, names)))[:TAGS_LIMIT]


def _candidates(head: str) -> Iterator[tuple[str, str]]:
    """Yield the frontmatter unchanged, then with more and more repairs, each with a note."""
    yield head, ""
    lines: list[str] = []
    for line in _CONTROL.sub("", head).split("\n"):
        rest = line.lstrip(" \t")
        lines.append(line[: len(line) - len(rest)].replace("\t", "  ") + rest)
    yield "\n".join(lines), "tabs or control characters in the frontmatter were replaced"
    yield _quoted(lines), "values that needed quotes in YAML were read as they are written"


def _quoted(lines: list[str]) -> str:
    """Quote every plain or badly quoted top-level value, including continuation lines."""
    out: list[str] = []
    position = 0
    while position < len(lines):
        match = _FIELD.fullmatch(lines[position])
        position += 1
        value = (match[2] or "").strip() if match else ""
        if not match or not value or value[0] in "|>[{#" or _QUOTED.fullmatch(value):
            out.append(lines[position - 1])
            continue
        while position < len(lines) and lines[position][:1] == " ":
            value = f"{value} {lines[position].strip()}"
            position += 1
        if len(value) > 1 and value[0] == value[-1] and value[0] in "\"'":
            value = value[1:-1]
        out.append(f"{match[1]}: {json.dumps(value, ensure_ascii=False)}")
    return "\n".join(out)


def _parsed(head: str) -> Frontmatter:
    import yaml

    notes: list[str] = []
    try:
        events = yaml.parse(head, Loader=getattr(yaml, "CBaseLoader", yaml.BaseLoader))
        roots = [
            _tree(type(event).__name__, event, events, notes)
            for event in events
            if type(event).__name__ not in _AROUND
        ]
    except (yaml.YAMLError, UnicodeError) as error:
        problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "unreadable"
        mark = getattr(error, "problem_mark", None)
        # PyYAML counts lines from 0, and the fence is the first line of the file.
        where = f" at line {mark.line + 2}" if mark else ""
        raise SkillError(f"the frontmatter is not valid YAML{where}: {problem}") from error
    if len(roots) > 1:
        raise SkillError("the frontmatter contains more than one YAML document")
    if not roots or not isinstance(roots[0], dict):
        raise SkillError("the frontmatter is not a list of `key: value` fields")
    return Frontmatter(roots[0], tuple(dict.fromkeys(notes)))


_AROUND = frozenset(
    f"{what}{edge}Event" for what in ("Stream", "Document") for edge in ("Start", "End")
)


def _tree(kind: str, event: Json, events: Iterator[Json], notes: list[str], depth: int = 0) -> Json:
    """Return the value that begins with `event`: a string, a list or a mapping."""
    if kind == "ScalarEvent":
        null = event.implicit[0] and not event.style and event.value in _NULLS
        return "" if null else event.value
    if kind == "AliasEvent":
        return f"*{event.anchor}"
    if depth >= _DEPTH:
        raise SkillError(f"the frontmatter is nested more than {_DEPTH} levels deep")
    values: list[Json] = []
    while not (inner := type(event := next(events)).__name__).endswith("EndEvent"):
        values.append(_tree(inner, event, events, notes, depth + 1))
    if kind == "SequenceStartEvent":
        return values
    fields: dict[str, Json] = {}
    for key, value in zip(values[::2], values[1::2], strict=True):
        name = key if isinstance(key, str) else json.dumps(key)
        if name in fields:
            notes.append(f"the field {name!r} appears twice; the last one is used")
        fields[name] = value
    return fields
