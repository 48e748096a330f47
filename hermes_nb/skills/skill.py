"""What the library hands out: a skill in a list, a skill that is read, the outcome of a change."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hermes_nb.skills.document import Gates
from hermes_nb.skills.ledger import Usage
from hermes_nb.skills.roots import Root, Source

Action = Literal["create", "edit", "patch", "delete", "write_file", "remove_file", "undo"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A skill that can be loaded. `path` is that of its document, in a directory without links.

    `notes` say what is odd about its document, `marks` what the guard thinks of it.
    """

    name: str
    description: str
    category: str
    path: str
    root: Root
    digest: str
    tags: tuple[str, ...] = ()
    gates: Gates = field(default_factory=Gates)
    notes: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    usage: Usage = field(default_factory=Usage)

    @property
    def file(self) -> Path:
        """The document."""
        return Path(self.path)

    @property
    def directory(self) -> Path:
        """The skill's folder, absolute."""
        return self.file.parent

    @property
    def source(self) -> Source:
        """Which kind of place it comes from."""
        return self.root.source

    @property
    def enabled(self) -> bool:
        """Whether the user left it on."""
        return not self.usage.disabled


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A skill that is not offered, and why."""

    name: str
    path: Path
    source: Source
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A skill's document or one of its files, as it may be shown.

    `text` is "" for a binary file, of which `about` says what it is. `files` are the skill's
    support files by path relative to `directory`; `marks` are for whoever reads the text.
    """

    skill: Skill
    file: str
    text: str
    about: str = ""
    files: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()

    @property
    def directory(self) -> Path:
        """The skill's folder, for commands that run its scripts."""
        return self.skill.directory


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a change. `message` says it in a sentence, `diff` shows a patch.

    Nothing was changed where `applied` is false.
    """

    applied: bool
    message: str
    action: str = ""
    name: str = ""
    path: Path | None = None
    diff: str = ""

    def __bool__(self) -> bool:
        """Say whether it was applied."""
        return self.applied
