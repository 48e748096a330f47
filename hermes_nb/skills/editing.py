"""Change skills: check a request, scan its text, and apply it completely or refuse it."""

from __future__ import annotations

import difflib
import errno
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypedDict

from hermes_nb.core.errors import ToolError
from hermes_nb.core.patching import Patched, Terms, patched
from hermes_nb.core.text import head_tail
from hermes_nb.skills.cache import Cache
from hermes_nb.skills.catalogue import Catalogue, Skill
from hermes_nb.skills.discovery import (
    DOCUMENT,
    FILE_LIMIT,
    STATE,
    Root,
    as_roots,
    decoded,
    read_regular,
)
from hermes_nb.skills.document import (
    SkillError,
    name_problems,
    problems,
    read_document,
    valid_category,
)
from hermes_nb.skills.duplicates import near_duplicate
from hermes_nb.skills.history import SkillOrigin, UsageLog, Writer, digest_of
from hermes_nb.skills.support_files import checked_path, is_code, missing, support_files
from hermes_nb.skills.trust import Accepts, Examiner, examine_own

Action = Literal["create", "edit", "patch", "delete", "write_file", "remove_file", "undo"]
COPIED = 16 * FILE_LIMIT
"""Maximum size, in bytes, of a skill that is copied to the Hermes directory to be changed."""
_DIFF_LIMIT = 3_000
_TERMS = Terms(old="`old`", new="`new`", look="skill_view")
_UNWRITABLE = "the home directory cannot be written"
_ERRORS = {
    errno.ENOSPC: "the disk is full; free some space and try again",
    errno.EDQUOT: "the disk quota is used up; free some space and try again",
    errno.EROFS: _UNWRITABLE,
    errno.EACCES: _UNWRITABLE,
    errno.EPERM: _UNWRITABLE,
}
_log = logging.getLogger(__name__)


class Details(TypedDict, total=False):
    """A change's arguments other than its action and name; see `SkillChange`."""

    content: str | None
    category: str
    file_path: str
    file_content: str | None
    old_string: str | None
    new_string: str | None
    replace_all: bool
    seen: str | None
    origin: SkillOrigin


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillChange:
    """A request to change a skill. Each action checks the arguments that it needs."""

    action: str
    """One of `Action`; others are refused."""
    name: str = ""
    """Name of the skill; "" undoes the last change to any skill."""
    content: str | None = None
    """The whole SKILL.md, for create and edit."""
    category: str = ""
    """The category of a new skill; "" for none."""
    file_path: str = ""
    """Relative path of a support file; "" for SKILL.md."""
    file_content: str | None = None
    """The new content of a support file, for write_file."""
    old_string: str | None = None
    """The text to replace, for patch."""
    new_string: str | None = None
    """The replacement, for patch."""
    replace_all: bool = False
    """True to replace all occurrences, for patch."""
    seen: str | None = None
    """Digest of the file that the requester saw, or "" if it was missing.

    If the file has since changed, the change is refused. None skips this check.
    """
    origin: SkillOrigin = field(default_factory=SkillOrigin)
    """Who makes the change."""

    @property
    def file(self) -> str:
        """The relative path of the file to change; raises SkillError if it is not valid."""
        return DOCUMENT if self.file_path in ("", DOCUMENT) else checked_path(self.file_path)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillOutcome:
    """The result of a change."""

    applied: bool
    """True if the change was made; False if nothing was changed."""
    message: str
    """The result, or the reason for refusal, in one sentence."""
    action: str = ""
    """The requested action."""
    name: str = ""
    """Name of the skill."""
    path: Path | None = None
    """Folder of the changed skill; None if nothing was changed."""
    diff: str = ""
    """A short unified diff; "" if there is nothing to show."""

    def __bool__(self) -> bool:
        return self.applied


class Changer:
    """The base class for `Library`, with the methods that change the skills under `roots`."""

    def __init__(
        self,
        roots: Iterable[Root | Path | str],
        *,
        accepts: Accepts | None = None,
        on_changed: Callable[[SkillOutcome], None] = lambda _: None,
    ) -> None:
        self.roots = as_roots(roots)
        home = next((root for root in self.roots if root.source == "home"), None)
        directory = Path(os.path.realpath(home.path)) if home else None
        self._writer = Writer(directory) if directory else None
        state = directory / STATE if directory else None
        cache = Cache(state)
        self._ledger = UsageLog(state)
        self._examiner = Examiner(cache, accepts)
        self._catalogue = Catalogue(
            self.roots, ledger=self._ledger, examiner=self._examiner, cache=cache
        )
        self._on_changed = on_changed

    def make(self, change: SkillChange) -> SkillOutcome:
        """Make a change and return its result; never raises SkillError or OSError."""
        try:
            act, writer = self._prepared(change)
            outcome = act(change, writer)
        except SkillError as error:
            return SkillOutcome(
                applied=False, message=str(error), action=change.action, name=change.name
            )
        except OSError as error:
            message = f"nothing was changed: {_ERRORS.get(error.errno or 0) or error}"
            return SkillOutcome(
                applied=False, message=message, action=change.action, name=change.name
            )
        try:
            self._on_changed(outcome)
        except Exception:  # noqa: BLE001 - the change was made, whatever its listener does
            _log.warning("a listener failed on %s", outcome.message, exc_info=True)
        return outcome

    def shown(self, change: SkillChange) -> str:
        """Return the effect of a change as text or a diff; raise SkillError if it is refused."""
        _, writer = self._prepared(change)
        if change.action == "create":
            self._checked_new(change)
            return f"new skill {change.name!r}\n\n{change.content}"
        if change.action == "undo":
            last = next(writer.records(change.name), None)
            return f"undo {last.action} of skill {last.name!r}" if last else "nothing to undo"
        skill = self._catalogue.find(change.name)
        relative = _file(change)
        before = _current(change, skill, relative)
        if change.action == "delete":
            return f"delete skill {skill.name!r} ({skill.description})"
        old, new = (_text(data or b"") for data in (before, _after(change, skill, before)))
        return diff(old, new, f"{skill.name}/{relative}") or "no difference"

    def seen(self, change: SkillChange) -> str:
        """Return the digest of the file to change, for `SkillChange.seen`; "" if it is missing."""
        if change.action in ("create", "undo"):
            return ""
        return digest_of(_bytes_at(self._catalogue.find(change.name), _file(change)))

    def has_made(self, proposal: str) -> bool:
        """Return whether the records show that the change with this `origin.proposal` was made."""
        return self._writer is not None and self._writer.has_made(proposal)

    def _prepared(
        self, change: SkillChange
    ) -> tuple[Callable[[SkillChange, Writer], SkillOutcome], Writer]:
        actions: Mapping[str, Callable[[SkillChange, Writer], SkillOutcome]] = {
            "create": self._create,
            **dict.fromkeys(("edit", "patch", "write_file", "remove_file"), self._rewrite),
            "delete": self._delete,
            "undo": self._undo,
        }
        act = actions.get(change.action)
        if act is None:
            raise SkillError(f"no action {change.action!r}; use one of {', '.join(actions)}")
        if self._writer is None:
            raise SkillError("there is no Hermes directory for skills, so nothing can be written")
        return act, self._writer

    def _checked_new(self, change: SkillChange) -> tuple[str, str]:
        name = change.name
        text = _given(change.content, "create", "content")
        _refuse(name_problems(name), f"{name[:80]!r} was not created")
        category = valid_category(change.category)
        if change.category.strip() and not category:
            raise SkillError(
                f"{change.category[:80]!r} is not a valid category; use a word such as `data`"
            )
        _refuse(problems(text, name=name), f"{name!r} was not created")
        _refuse_harm(text, name, code=False)
        snapshot = self._catalogue.snapshot()
        if there := snapshot.skills.get(name):
            message = f"skill {name!r} exists in {there.source} skills; patch or edit that one"
            raise SkillError(message)
        if like := near_duplicate(read_document(text, folder=name), snapshot):
            raise SkillError(
                f"{name!r} was not created: skill {like.name!r} is nearly the same "
                f"({like.description[:100]}); view it and patch it instead"
            )
        return text, category

    def _create(self, change: SkillChange, writer: Writer) -> SkillOutcome:
        name = change.name
        _refuse(name_problems(name), f"{name[:80]!r} was not created")
        with writer.alone(), writer.alone(name):
            text, category = self._checked_new(change)
            contents = {DOCUMENT: _bytes(text)}
            path = writer.create(name, category, contents, change.action, change.origin)
        self._ledger.note(name, "made", change.origin)
        place = f" in {category}" if category else ""
        return _done(change, name, path, f"created skill {name!r}{place}")

    def _rewrite(self, change: SkillChange, writer: Writer) -> SkillOutcome:
        """Change one file of a skill: its document or a support file."""
        relative = _file(change)
        with self._locked_skill(change.name, writer) as skill:
            before = _current(change, skill, relative)
            after = _after(change, skill, before)
            path, copied = skill.directory, ""
            if skill.source == "home":
                writer.put(path, skill.name, relative, after, change.action, change.origin)
            else:
                copied = f" in a copy; the {skill.source} skill is unchanged"
                names = support_files(skill.directory)
                contents = {name: read_regular(skill.directory / name) for name in names}
                contents = {**contents, DOCUMENT: read_regular(skill.file), relative: after or b""}
                if after is None:
                    del contents[relative]
                if sum(map(len, contents.values())) > COPIED:
                    raise SkillError(
                        f"skill {skill.name!r} is larger than {COPIED:,} bytes, so it "
                        "cannot be copied"
                    )
                path = writer.create(
                    skill.name, skill.category, contents, change.action, change.origin
                )
        self._ledger.note(skill.name, "patch", change.origin)
        shown = ""
        if before is not None and after is not None:
            shown = diff(_text(before), _text(after), relative)
        verb = "removed" if after is None else "wrote" if before is None else "changed"
        message = f"{verb} {relative} of skill {skill.name!r}{copied}"
        return _done(change, skill.name, path, message, shown)

    def _delete(self, change: SkillChange, writer: Writer) -> SkillOutcome:
        with self._locked_skill(change.name, writer, whole=True) as skill:
            if skill.source != "home":
                raise SkillError(
                    f"skill {skill.name!r} comes from {skill.source} skills and cannot be "
                    "deleted; the user can turn it off"
                )
            _current(change, skill, DOCUMENT)
            writer.remove(skill.directory, skill.name, change.action, change.origin)
        self._ledger.note(skill.name, "gone", change.origin)
        message = f"deleted skill {skill.name!r}; undo restores it"
        return _done(change, change.name, skill.directory, message)

    @staticmethod
    def _undo(change: SkillChange, writer: Writer) -> SkillOutcome:
        with writer.alone():
            last = next(writer.records(change.name), None)
            name = change.name or (last.name if last else "")
            if not name or name_problems(name):
                raise SkillError("there is no change to undo")
            with writer.alone(name):
                record = writer.undo(name)
        message = f"undid {record.action} of skill {record.name!r}"
        return _done(change, record.name, writer.root / record.place, message)

    @contextmanager
    def _locked_skill(self, name: str, writer: Writer, *, whole: bool = False) -> Iterator[Skill]:
        """Yield the skill while holding its lock, and the general lock too if `whole` is set.

        Raises SkillError if the skill is missing or belongs to the working directory.
        """
        if not name:
            raise SkillError("`name` is missing; give the name of the skill")
        skill = self._catalogue.find(name)
        order = [root.source for root in self.roots]
        # A changed copy in the Hermes directory would have no effect: this one takes precedence.
        if order.index(skill.source) < order.index("home"):
            raise SkillError(
                f"skill {skill.name!r} belongs to the working directory; change its files with "
                "the file tools"
            )
        with ExitStack() as locks:
            if skill.source != "home" or whole:
                locks.enter_context(writer.alone())
            locks.enter_context(writer.alone(skill.name))
            yield self._catalogue.find(skill.name)  # it may have changed before it was locked


def replaced(text: str, old: str, new: str, *, replace_all: bool = False) -> Patched:
    """Return `text` with `old` replaced, once unless `replace_all`, keeping the line endings.

    Raises SkillError if `old` is empty, missing, not unique, or equal to `new`.
    """
    try:
        return patched(text, old, new, name="", replace_all=replace_all, terms=_TERMS)
    except ToolError as error:
        raise SkillError(str(error)) from error


def diff(before: str, after: str, name: str) -> str:
    """Return a short unified diff between two texts."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"a/{name}", f"b/{name}", lineterm="", n=2
    )
    return head_tail("\n".join(lines), _DIFF_LIMIT)


def _file(change: SkillChange) -> str:
    """Return the file to change; raise SkillError if the action does not apply to it."""
    relative = DOCUMENT if change.action == "delete" else change.file
    if relative == DOCUMENT and change.action in ("write_file", "remove_file"):
        message = f"{change.action} is for support files; give `file_path`, or use edit or patch"
        raise SkillError(message)
    if relative != DOCUMENT and change.action == "edit":
        raise SkillError("edit replaces SKILL.md; use write_file for a support file")
    return relative


def _bytes_at(skill: Skill, relative: str) -> bytes | None:
    path = skill.where(relative)
    return read_regular(path) if os.path.lexists(path) else None


def _current(change: SkillChange, skill: Skill, relative: str) -> bytes | None:
    """Return a file's bytes; raise SkillError if it differs from the version in `change.seen`."""
    before = _bytes_at(skill, relative)
    if change.seen is not None and digest_of(before) != change.seen:
        message = (
            f"{relative} of skill {change.name!r} has changed since you viewed it; view it again"
        )
        raise SkillError(message)
    return before


def _after(change: SkillChange, skill: Skill, before: bytes | None) -> bytes | None:
    """Return a file's new bytes, checked and scanned, or None to remove it."""
    relative = change.file
    if before is None and change.action in ("remove_file", "patch"):
        raise missing(skill.directory, relative)
    if change.action == "remove_file":
        return None
    if change.action == "patch":
        old = _given(change.old_string, "patch", "old")
        new = _given(change.new_string, "patch", "new")
        text = replaced(_text(before or b""), old, new, replace_all=change.replace_all).text
    elif change.action == "edit":
        text = _given(change.content, "edit", "content")
    else:
        text = _given(change.file_content, "write_file", "file_content")
    if relative == DOCUMENT:
        _check_document(text, skill, _text(before or b""), is_patch=change.action == "patch")
    data = _bytes(text)
    if len(data) > FILE_LIMIT:
        raise SkillError(f"{relative} would have {len(data):,} bytes; the limit is {FILE_LIMIT:,}")
    known = (before or b"").decode("utf-8", "replace")
    code = relative != DOCUMENT and is_code(relative)
    _refuse_harm(text, f"{skill.name}/{relative}", code=code, before=known)
    return data


def _check_document(text: str, skill: Skill, before: str, *, is_patch: bool) -> None:
    """Raise SkillError if a document is invalid or, for a patch, if it has new problems.

    Other people's skills may violate the format in ways that a patch to the body doesn't have to
    fix.
    """
    found = problems(text, name=skill.name)
    if found and is_patch and len(found) <= len(problems(before, name=skill.name)):
        folder = skill.directory.name
        old, new = read_document(before, folder=folder), read_document(text, folder=folder)
        if new.name == skill.name and set(new.notes) <= set(old.notes):
            return
    _refuse(found, f"{skill.name!r} was not changed")


def _refuse_harm(text: str, name: str, *, code: bool, before: str = "") -> None:
    """Raise SkillError if new text is dangerous; `before` is the text that it replaces."""
    verdict = examine_own(text, name=name, code=code, before=before)
    if verdict.level == "dangerous":
        message = f"{name!r} was not written, it looks harmful: {verdict.why}; leave that out"
        raise SkillError(message)


def _refuse(found: Sequence[str], what: str) -> None:
    if found:
        raise SkillError(f"{what}: {'; '.join(found)}")


def _given(value: str | None, action: str, argument: str) -> str:
    if value is None:
        raise SkillError(f"{action} needs `{argument}`")
    return value


def _bytes(text: str) -> bytes:
    if "\0" in text:
        raise SkillError("a NUL character cannot be written; leave it out")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise SkillError("a lone surrogate cannot be written; leave it out") from error


def _text(data: bytes) -> str:
    return decoded(data)[0]


def _done(
    change: SkillChange, name: str, path: Path, message: str, shown: str = ""
) -> SkillOutcome:
    return SkillOutcome(
        applied=True, message=message, action=change.action, name=name, path=path, diff=shown
    )
