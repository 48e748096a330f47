"""What a change would make of a skill's file, checked and guarded before anything is written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from hermes_nb.skills.discovery import FILE_LIMIT, decoded, read_regular
from hermes_nb.skills.document import SkillError, problems, read_document
from hermes_nb.skills.editing import replaced
from hermes_nb.skills.guard import examine_own
from hermes_nb.skills.history import digest_of
from hermes_nb.skills.ledger import Origin
from hermes_nb.skills.skill import Skill
from hermes_nb.skills.support import checked_path, is_code, missing, real_path
from hermes_nb.skills.writing import DOCUMENT


class Details(TypedDict, total=False):
    """What a change may be given beside its action and the skill's name."""

    content: str | None
    category: str
    file_path: str
    file_content: str | None
    old_string: str | None
    new_string: str | None
    replace_all: bool
    seen: str | None
    origin: Origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What somebody asks for; what an action needs is checked by it.

    `seen` is the digest of the file that it is about, as it was for whoever asks ("" where there
    was none): a change of any other file is refused. None means: as it is.
    """

    action: str
    name: str = ""
    content: str | None = None
    category: str = ""
    file_path: str = ""
    file_content: str | None = None
    old_string: str | None = None
    new_string: str | None = None
    replace_all: bool = False
    seen: str | None = None
    origin: Origin = field(default_factory=Origin)

    @property
    def file(self) -> str:
        """The file it is about, relative to the skill; raises SkillError for what is no path."""
        if self.file_path in ("", DOCUMENT):
            return DOCUMENT
        return checked_path(self.file_path)


def current_bytes(skill: Skill, relative: str) -> bytes | None:
    """Return a file's bytes, None where there is none."""
    path = skill.file if relative == DOCUMENT else real_path(skill.directory, relative)
    return read_regular(path) if os.path.lexists(path) else None


def refuse_changed(change: Change, before: bytes | None) -> None:
    """Raise SkillError when the file is no longer the one that the change was thought for."""
    if change.seen is not None and digest_of(before) != change.seen:
        message = f"{change.file} of skill {change.name!r} has been changed since; look at it again"
        raise SkillError(message)


def bytes_after(change: Change, skill: Skill, relative: str, before: bytes | None) -> bytes | None:
    """Return what a file shall be, checked and guarded; None where it shall not be."""
    if change.action == "remove_file":
        if before is None:
            raise missing(skill.directory, relative)
        return None
    if change.action == "patch":
        if before is None:
            raise missing(skill.directory, relative)
        text = _patched(change, before)
    elif change.action == "edit":
        text = given(change.content, "edit", "content")
    else:
        text = given(change.file_content, "write_file", "file_content")
    if relative == DOCUMENT:
        _check_document(text, skill, text_of(before or b""), is_patch=change.action == "patch")
    data = bytes_of(text)
    if len(data) > FILE_LIMIT:
        message = f"{relative} would have {len(data):,} bytes; {FILE_LIMIT:,} is the limit"
        raise SkillError(message)
    known = (before or b"").decode("utf-8", "replace")
    code = relative != DOCUMENT and is_code(relative)
    refuse_harm(text, f"{skill.name}/{relative}", code=code, before=known)
    return data


def _patched(change: Change, before: bytes) -> str:
    old = given(change.old_string, "patch", "old_string")
    new = given(change.new_string, "patch", "new_string")
    return replaced(text_of(before), old, new, replace_all=change.replace_all).text


def _check_document(text: str, skill: Skill, before: str, *, is_patch: bool) -> None:
    """Raise SkillError unless a document is valid or, when it is patched, as valid as it was.

    Skills from elsewhere break the format in ways that a patch of their body need not mend.
    """
    found = problems(text, name=skill.name)
    if not found:
        return
    if is_patch and len(found) <= len(problems(before, name=skill.name)):
        folder = skill.directory.name
        old, new = read_document(before, folder=folder), read_document(text, folder=folder)
        if new.name == skill.name and set(new.notes) <= set(old.notes):
            return
    refuse(found, f"{skill.name!r} was not changed")


def refuse_harm(text: str, name: str, *, code: bool, before: str = "") -> None:
    """Raise SkillError when a text that is to be written is dangerous; `before` is what it was."""
    verdict = examine_own(text, name=name, code=code, before=before)
    if verdict.level == "dangerous":
        message = f"{name!r} was not written, it looks harmful: {verdict.why}; leave that out"
        raise SkillError(message)


def refuse(found: Sequence[str], what: str) -> None:
    """Raise SkillError with what was found, if anything."""
    if found:
        message = f"{what}: {'; '.join(found)}"
        raise SkillError(message)


def given(value: str | None, action: str, argument: str) -> str:
    """Return an argument that an action needs; raise SkillError where it is missing."""
    if value is None:
        message = f"{action} needs `{argument}`"
        raise SkillError(message)
    return value


def bytes_of(text: str) -> bytes:
    """Return a text's bytes; raise SkillError on what no file should have."""
    if "\0" in text:
        message = "a NUL character cannot be written; leave it out"
        raise SkillError(message)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        message = "a lone surrogate cannot be written; leave it out"
        raise SkillError(message) from error


def text_of(data: bytes) -> str:
    """Return a file's text; raise SkillError on binary data."""
    return decoded(data)[0]
