"""Changes of skills: what is asked is checked, guarded, done whole or refused with the reason."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from hermes_nb.skills.catalogue import Catalogue
from hermes_nb.skills.checking import (
    Change,
    bytes_after,
    bytes_of,
    current_bytes,
    given,
    refuse,
    refuse_changed,
    refuse_harm,
    text_of,
)
from hermes_nb.skills.discovery import FILE_LIMIT, read_regular
from hermes_nb.skills.document import (
    SkillError,
    name_problems,
    problems,
    read_document,
    valid_category,
)
from hermes_nb.skills.editing import diff
from hermes_nb.skills.history import digest_of
from hermes_nb.skills.ledger import Ledger
from hermes_nb.skills.likeness import near_duplicate
from hermes_nb.skills.roots import Root
from hermes_nb.skills.skill import Outcome, Skill
from hermes_nb.skills.support import listed
from hermes_nb.skills.writing import DOCUMENT, Writer

COPIED = 16 * FILE_LIMIT
"""Bytes of a skill that is copied to the home in order to be changed."""
_ERRORS = {
    errno.ENOSPC: "the disk is full; free some space and try again",
    errno.EDQUOT: "the disk quota is used up; free some space and try again",
    errno.EROFS: "the home directory cannot be written",
    errno.EACCES: "the home directory cannot be written",
    errno.EPERM: "the home directory cannot be written",
}
_log = logging.getLogger(__name__)


class Changer:
    """Makes changes; `writer` is None where there is no home to write to."""

    def __init__(
        self,
        roots: Sequence[Root],
        writer: Writer | None,
        *,
        catalogue: Catalogue,
        ledger: Ledger,
        on_changed: Callable[[Outcome], None],
    ) -> None:
        self._roots, self._writer = roots, writer
        self._catalogue, self._ledger, self._on_changed = catalogue, ledger, on_changed
        self._actions: Mapping[str, Callable[[Change, Writer], Outcome]] = {
            "create": self._create,
            "edit": self._rewrite,
            "patch": self._rewrite,
            "write_file": self._rewrite,
            "remove_file": self._rewrite,
            "delete": self._delete,
            "undo": self._undo,
        }

    def make(self, change: Change) -> Outcome:
        """Make a change and return what became of it."""
        try:
            act, writer = self._prepared(change)
            outcome = act(change, writer)
        except SkillError as error:
            return _refused(change, str(error))
        except OSError as error:
            reason = _ERRORS.get(error.errno or 0) or str(error)
            return _refused(change, f"nothing was changed: {reason}")
        self._announce(outcome)
        return outcome

    def _prepared(self, change: Change) -> tuple[Callable[[Change, Writer], Outcome], Writer]:
        act = self._actions.get(change.action)
        if act is None:
            message = f"no action {change.action!r}; use one of {', '.join(self._actions)}"
            raise SkillError(message)
        if self._writer is None:
            message = "there is no home directory for skills; nothing can be written"
            raise SkillError(message)
        return act, self._writer

    def _announce(self, outcome: Outcome) -> None:
        try:
            self._on_changed(outcome)
        except Exception:  # noqa: BLE001 - the change was made, whatever its listener does
            _log.warning("a listener failed on %s", outcome.message, exc_info=True)

    def preview(self, change: Change) -> str:
        """Return what a change would do, as a text or a diff; raise SkillError if it cannot be."""
        _, writer = self._prepared(change)
        if change.action == "create":
            self._checked_new(change)
            return f"new skill {change.name!r}\n\n{change.content}"
        if change.action == "undo":
            last = next(writer.history.records(change.name), None)
            return f"undo {last.action} of skill {last.name!r}" if last else "nothing to undo"
        skill = self._catalogue.find(change.name)
        if change.action == "delete":
            refuse_changed(change, current_bytes(skill, DOCUMENT))
            return f"delete skill {skill.name!r} ({skill.description})"
        relative = _file(change)
        before = current_bytes(skill, relative)
        refuse_changed(change, before)
        after = bytes_after(change, skill, relative, before)
        old, new = (text_of(data or b"") for data in (before, after))
        return diff(old, new, f"{skill.name}/{relative}") or "no difference"

    def seen(self, change: Change) -> str:
        """Return the digest of the file that a change is about, "" where there is none yet."""
        if change.action in ("create", "undo"):
            return ""
        relative = DOCUMENT if change.action == "delete" else _file(change)
        return digest_of(current_bytes(self._catalogue.find(change.name), relative))

    def has_made(self, proposal: str) -> bool:
        """Say whether the change that the user approved under this id was made."""
        return self._writer is not None and self._writer.has_made(proposal)

    def _checked_new(self, change: Change) -> tuple[str, str]:
        """Return a new skill's text and category; raise SkillError when it must not be made."""
        name = change.name
        text = given(change.content, "create", "content")
        refuse(name_problems(name), f"{name[:80]!r} was not created")
        category = valid_category(change.category)
        if change.category.strip() and not category:
            message = f"{change.category[:80]!r} is no category; use a word such as `data`"
            raise SkillError(message)
        refuse(problems(text, name=name), f"{name!r} was not created")
        refuse_harm(text, name, code=False)
        snapshot = self._catalogue.snapshot()
        if there := snapshot.skills.get(name):
            message = f"skill {name!r} exists in {there.source} skills; patch or edit that one"
            raise SkillError(message)
        if like := near_duplicate(read_document(text, folder=name), snapshot):
            message = (
                f"{name!r} was not created: skill {like.name!r} is nearly the same "
                f"({like.description[:100]}); view it and patch it instead"
            )
            raise SkillError(message)
        return text, category

    def _create(self, change: Change, writer: Writer) -> Outcome:
        name = change.name
        refuse(name_problems(name), f"{name[:80]!r} was not created")
        with writer.alone(), writer.alone(name):
            text, category = self._checked_new(change)
            contents = {DOCUMENT: bytes_of(text)}
            path = writer.create(name, category, contents, change.action, change.origin)
        self._ledger.note(name, "made", change.origin)
        place = f" in {category}" if category else ""
        return _done(change, f"created skill {name!r}{place}", path)

    def _rewrite(self, change: Change, writer: Writer) -> Outcome:
        """Change one file of a skill: its document or a support file."""
        relative = _file(change)
        with self._locked_skill(change.name, writer) as skill:
            before = current_bytes(skill, relative)
            refuse_changed(change, before)
            after = bytes_after(change, skill, relative, before)
            if skill.source == "home":
                writer.put(
                    skill.directory, skill.name, relative, after, change.action, change.origin
                )
                path = skill.directory
            else:
                path = self._copied(change, writer, skill, relative, after)
        self._ledger.note(skill.name, "patch", change.origin)
        copied = "" if skill.source == "home" else f" in a copy; the {skill.source} one stays"
        shown = ""
        if before is not None and after is not None:
            shown = diff(text_of(before), text_of(after), relative)
        verb = "removed" if after is None else "wrote" if before is None else "changed"
        message = f"{verb} {relative} of skill {skill.name!r}{copied}"
        return _done(change, message, path, name=skill.name, shown=shown)

    def _copied(
        self, change: Change, writer: Writer, skill: Skill, relative: str, after: bytes | None
    ) -> Path:
        """Make the home's own copy of a skill, changed; nothing appears before it is whole."""
        contents = {name: read_regular(skill.directory / name) for name in listed(skill.directory)}
        contents[DOCUMENT] = read_regular(skill.file)
        if after is None:
            contents.pop(relative, None)
        else:
            contents[relative] = after
        if sum(map(len, contents.values())) > COPIED:
            message = f"skill {skill.name!r} is larger than {COPIED:,} bytes; it is not copied"
            raise SkillError(message)
        return writer.create(skill.name, skill.category, contents, change.action, change.origin)

    def _delete(self, change: Change, writer: Writer) -> Outcome:
        with self._locked_skill(change.name, writer, whole=True) as skill:
            if skill.source != "home":
                message = (
                    f"skill {skill.name!r} comes from {skill.source} skills and is not deleted; "
                    "the user can switch it off"
                )
                raise SkillError(message)
            refuse_changed(change, current_bytes(skill, DOCUMENT))
            writer.remove(skill.directory, skill.name, change.action, change.origin)
        self._ledger.note(skill.name, "gone", change.origin)
        return _done(change, f"deleted skill {skill.name!r}; undo brings it back", skill.directory)

    def _undo(self, change: Change, writer: Writer) -> Outcome:
        with writer.alone():
            last = next(writer.history.records(change.name), None)
            name = change.name or (last.name if last else "")
            if not name or name_problems(name):
                message = "there is no change to undo"
                raise SkillError(message)
            with writer.alone(name):
                record = writer.undo(name)
        message = f"undid {record.action} of skill {record.name!r}"
        return _done(change, message, writer.root / record.place, name=record.name)

    @contextmanager
    def _locked_skill(self, name: str, writer: Writer, *, whole: bool = False) -> Iterator[Skill]:
        """Yield a skill as it is under its lock, with `whole` also under the general one.

        Raises SkillError when the skill is out of reach.
        """
        if not name:
            message = "which skill? give its `name`"
            raise SkillError(message)
        skill = self._catalogue.find(name)
        order = [root.source for root in self._roots]
        if order.index(skill.source) < order.index("home"):
            message = (
                f"skill {skill.name!r} belongs to the working directory; change its files with "
                "the file tools"
            )
            raise SkillError(message)
        with ExitStack() as locks:
            if skill.source != "home" or whole:
                locks.enter_context(writer.alone())
            locks.enter_context(writer.alone(skill.name))
            yield self._catalogue.find(skill.name)


def _file(change: Change) -> str:
    """Return the file that a change is about; raise SkillError where the action is for others."""
    relative = change.file
    if relative == DOCUMENT and change.action in ("write_file", "remove_file"):
        message = f"{change.action} is for support files; give `file_path`, or use edit or patch"
        raise SkillError(message)
    if relative != DOCUMENT and change.action == "edit":
        message = "edit replaces SKILL.md; use write_file for a support file"
        raise SkillError(message)
    return relative


def _refused(change: Change, message: str) -> Outcome:
    return Outcome(applied=False, message=message, action=change.action, name=change.name)


def _done(change: Change, message: str, path: Path, *, name: str = "", shown: str = "") -> Outcome:
    return Outcome(
        applied=True,
        message=message,
        action=change.action,
        name=name or change.name,
        path=path,
        diff=shown,
    )
