"""What a SKILL.md says: read as leniently as the wild demands, written as strictly as the format.

The format is agentskills.io's: frontmatter with `name` and `description` (64 and 1,024 characters)
and a Markdown body. Reading keeps notes on everything that is odd; only what leaves a skill
without a meaning (no frontmatter, no description, nothing to read) makes it unusable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_nb.core.errors import ToolError
from hermes_nb.skills.frontmatter import FrontmatterError, plain_text, read_fields, split, words

NAME_LIMIT = 64
DESCRIPTION_LIMIT = 1_024
DOCUMENT_LIMIT = 100_000
"""Characters of a SKILL.md that is written; longer ones of others are read."""
TAGS_LIMIT = 30
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]*")


class SkillError(ToolError):
    """Something about a skill cannot be done; the text says what to do next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    """When a skill is offered: on which platforms, with and instead of which tools."""

    platforms: tuple[str, ...] = ()
    requires_tools: tuple[str, ...] = ()
    requires_toolsets: tuple[str, ...] = ()
    fallback_for_tools: tuple[str, ...] = ()
    fallback_for_toolsets: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A SKILL.md that was understood; `notes` say what was odd about it.

    `category` is what the document itself claims, which counts only where its folder has none.
    """

    name: str
    description: str
    body: str
    tags: tuple[str, ...] = ()
    category: str = ""
    gates: Gates = field(default_factory=Gates)
    notes: tuple[str, ...] = ()


_OPEN = Gates()


def read_document(text: str, *, folder: str = "", whole: bool = True) -> Document:
    """Return what a SKILL.md says; raise SkillError with the reason where it says nothing usable.

    `folder` is the name of its directory, which stands in for a name that is missing or unusable.
    Without `whole` the body is left out.
    """
    try:
        parts = split(text)
        read = read_fields(parts.head)
    except FrontmatterError as error:
        raise SkillError(str(error)) from error
    notes = [] if parts.closed else ["the frontmatter is not closed by a line `---`"]
    notes += read.notes
    description = " ".join(plain_text(read.fields.get("description")).split())
    if not description:
        message = "it has no description"
        raise SkillError(message)
    if len(description) > DESCRIPTION_LIMIT:
        notes.append(f"the description is longer than {DESCRIPTION_LIMIT:,} characters")
    hermes = _hermes(read.fields)
    return Document(
        name=_name(read.fields.get("name"), folder, notes),
        description=description,
        body=parts.body.strip("\n") if whole else "",
        tags=_tags(read.fields, hermes),
        category=valid_category(plain_text(hermes.get("category") or read.fields.get("category"))),
        gates=_gates(read.fields, hermes),
        notes=tuple(notes),
    )


def problems(text: str, *, name: str = "") -> list[str]:
    """Return what keeps a text from being written as the SKILL.md of the skill `name`."""
    if len(text) > DOCUMENT_LIMIT:
        return [f"it has {len(text):,} characters, {DOCUMENT_LIMIT:,} is the limit"]
    if "\0" in text or not _encodable(text):
        return ["it holds NUL characters or lone surrogates"]
    try:
        parts = split(text)
        read = read_fields(parts.head, repair=False)
    except FrontmatterError as error:
        way = 'begin with `---`, `name: ...`, `description: "..."`, `---`'
        return [f"{error}; {way}, with quotes around what holds `: `"]
    found = [] if parts.closed else ["the frontmatter is not closed by a line `---`"]
    found += read.notes
    if "---" in parts.head:
        found.append(
            "`---` stands inside the frontmatter, where simple readers take it for its end"
        )
    if not text.removeprefix("\ufeff").startswith("---"):
        found.append("something stands before the frontmatter")
    given = plain_text(read.fields.get("name"))
    found += name_problems(given)
    if name and given != name:
        found.append(f"its name is {given!r}, and the skill is {name!r}")
    description = plain_text(read.fields.get("description"))
    if not 1 <= len(description) <= DESCRIPTION_LIMIT:
        found.append(
            f"the description has {len(description):,} characters; it needs 1 to "
            f"{DESCRIPTION_LIMIT:,} that say what the skill does and when to use it"
        )
    if not parts.body.strip():
        found.append("there is nothing below the frontmatter")
    return found


def name_problems(name: str) -> list[str]:
    """Return what is wrong with a skill's name, if anything."""
    if not name:
        return ["it has no name"]
    if len(name) > NAME_LIMIT:
        return [f"the name is longer than {NAME_LIMIT} characters"]
    if not _NAME.fullmatch(name):
        return [f"{name[:80]!r} is no name for a skill; use a-z, 0-9, `-`, `_`, `.`"]
    return []


def valid_category(category: str) -> str:
    """Return a category if it can be one, in lower case and with at most two levels, else ""."""
    if not category:
        return ""
    parts = [part.strip().lower().replace(" ", "-") for part in category.split("/")]
    good = len(parts) <= 2 and not any(name_problems(part) for part in parts)  # noqa: PLR2004
    return "/".join(parts) if good else ""


def _name(given: object, folder: str, notes: list[str]) -> str:
    """Return the name that a skill goes by: its own, else its folder's, made usable if need be."""
    own = plain_text(given)
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


def _hermes(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return `metadata.hermes`, where this family of agents keeps what the format leaves open."""
    metadata = fields.get("metadata")
    if not isinstance(metadata, Mapping):
        return {}
    hermes = metadata.get("hermes")
    return hermes if isinstance(hermes, Mapping) else {}


def _tags(fields: Mapping[str, Any], hermes: Mapping[str, Any]) -> tuple[str, ...]:
    metadata = fields.get("metadata")
    general = metadata.get("tags") if isinstance(metadata, Mapping) else None
    for value in (hermes.get("tags"), fields.get("tags"), general):
        if found := words(value):
            return tuple(tag[:NAME_LIMIT] for tag in found[:TAGS_LIMIT])
    return ()


def _gates(fields: Mapping[str, Any], hermes: Mapping[str, Any]) -> Gates:
    if not (hermes or fields.get("platforms")):
        return _OPEN

    def named(key: str) -> tuple[str, ...]:
        return words(hermes.get(key) or "")

    return Gates(
        platforms=tuple(item.lower() for item in words(fields.get("platforms") or "")),
        requires_tools=named("requires_tools"),
        requires_toolsets=named("requires_toolsets"),
        fallback_for_tools=named("fallback_for_tools"),
        fallback_for_toolsets=named("fallback_for_toolsets"),
    )


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
