"""The skills library: what there is, what it says, and how it changes.

Roots are looked through in order and the first skill of a name wins. Only the home's skills are
written; a skill that comes after the home is copied there when it is first changed, and then wins.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from hermes_nb.safety.scan import ScanResult
from hermes_nb.skills.catalogue import Skill, SkippedSkill
from hermes_nb.skills.discovery import DOCUMENT, decoded, read_regular
from hermes_nb.skills.document import SkillError, valid_category
from hermes_nb.skills.editing import Action, Changer, Details, SkillChange, SkillOutcome
from hermes_nb.skills.history import SkillOrigin, SkillUsage
from hermes_nb.skills.prompt_index import GENERAL, render
from hermes_nb.skills.support_files import checked_path, is_code, missing
from hermes_nb.skills.surroundings import Surroundings

INDEX_BUDGET = 2_000
"""Tokens of the index in the system prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillView:
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


class Library(Changer):
    """Skills below `roots`, in order; plain paths are the home's skills first, then external ones.

    `accepts(path, text)` says what the user trusts as it stands: without it, nothing loads from the
    working directory. `on_changed(outcome)` hears of every change that was made through here, in
    the thread that made it, and must not raise. Nothing is created before something is written.
    """

    def index(
        self,
        budget_tokens: int = INDEX_BUDGET,
        query: str = "",
        *,
        platform: str = sys.platform,
        tools: Collection[str] | None = None,
        toolsets: Collection[str] | None = None,
    ) -> str:
        """Return the text for the system prompt, "" where there is no skill to offer.

        Over the budget, what fits `query` best and was used most is kept and the rest counted.
        `tools` and `toolsets` are those that are on; None opens every gate that asks for them.
        """
        snapshot = self._catalogue.snapshot()
        here = Surroundings(platform=platform, tools=tools, toolsets=toolsets)
        offered = [s for s in snapshot.skills.values() if s.enabled and not here.closed(s.gates)]
        fitting = snapshot.scores(query) if query else {}
        return render(offered, fitting, budget_tokens=budget_tokens)

    def list(
        self, category: str = "", query: str = "", *, all_of_them: bool = False
    ) -> list[Skill]:
        """Return skills by category and name or, with a query, those that fit, best first.

        `category` includes what is below it. `all_of_them` adds those that are switched off or
        closed by a gate.
        """
        snapshot = self._catalogue.snapshot()
        here = Surroundings()
        skills = [
            skill
            for skill in snapshot.skills.values()
            if (all_of_them or (skill.enabled and not here.closed(skill.gates)))
            and _within(skill, category)
        ]
        if not query.strip():
            return sorted(skills, key=lambda skill: (skill.category, skill.name))
        fitting = snapshot.scores(query)
        lower = query.strip().lower()
        literal = {s.name for s in skills if lower in s.name or lower in s.description.lower()}
        matching = [s for s in skills if s.name in fitting or s.name in literal]
        return sorted(matching, key=lambda s: (-fitting.get(s.name, 0.0), s.name))

    def scanned(self, text: str, name: str, scan: Callable[[str, str], ScanResult]) -> ScanResult:
        """Return what a text is that is no skill; what was clean before is not scanned again."""
        return self._examiner.scanned(text, name, scan)

    def view(self, name: str, file: str | None = None, *, counted: bool = True) -> SkillView:
        """Return a skill's SKILL.md or, with `file`, one of its support files, to be shown.

        Raises SkillError when there is no such skill or file, when it is refused, and why.
        `counted` is false when the user looks: that is no use, and shows what is off as well.
        """
        skill = self.get(name)
        if not (skill.enabled or not counted):
            message = f"skill {skill.name!r} is switched off; only the user can switch it on"
            raise SkillError(message)
        try:
            files, marks = self._examiner.support(skill.root, skill.directory)
        except SkillError as error:
            raise SkillError(f"skill {skill.name!r} is refused, {error}") from error
        relative = DOCUMENT if file in (None, "", DOCUMENT) else checked_path(str(file))
        path = skill.where(relative)
        try:
            data = read_regular(path)
        except FileNotFoundError as error:
            raise missing(skill.directory, relative) from error
        except OSError as error:
            message = f"{relative!r} cannot be read: {error.strerror}; choose another file"
            raise SkillError(message) from error
        if skill.root.signed is not None:
            skill.root.signed.check(path, data)
        text, about = self._text(skill, path, relative, data)
        if relative == DOCUMENT:
            marks = (*skill.marks, *marks)
            if unset := [name for name in skill.environment if not os.environ.get(name)]:
                told = f"it needs {', '.join(unset)} in the environment, where that is not set"
                marks = (f"{told}: say so before you follow it", *marks)
        if not skill.root.vouched:
            marks = (f"it comes from {skill.source} skills, which nobody here wrote", *marks)
        if counted:
            self._ledger.note(skill.name, "view")
        return SkillView(
            skill=skill, file=relative, text=text, about=about, files=files, marks=tuple(marks)
        )

    def get(self, name: str) -> Skill:
        """Return a skill by its name, also as `category/name`; raise SkillError, nearest named."""
        return self._catalogue.find(name)

    def skipped(self) -> Sequence[SkippedSkill]:
        """Return what was found and is not offered, with the reasons; also what a gate closes."""
        snapshot = self._catalogue.snapshot()
        here = Surroundings()
        closed = [
            SkippedSkill(name=skill.name, path=skill.file, source=skill.source, reason=reason)
            for skill in snapshot.skills.values()
            if (reason := here.closed(skill.gates))
        ]
        return [*snapshot.skipped, *closed]

    def categories(self) -> dict[str, int]:
        """Return how many skills each category has."""
        counts: dict[str, int] = {}
        for skill in self.list():
            counts[skill.category or GENERAL] = counts.get(skill.category or GENERAL, 0) + 1
        return counts

    def usage(self) -> Mapping[str, SkillUsage]:
        """Return what the ledger knows, by skill name."""
        return self._ledger.entries()

    def used(self, name: str, origin: SkillOrigin | None = None) -> None:
        """Count that a skill was loaded into a conversation."""
        self._ledger.note(name, "use", origin)

    def switch(self, name: str, *, on: bool) -> None:
        """Switch a skill on or off; raise SkillError when there is none of that name."""
        self._ledger.note(self.get(name).name, "on" if on else "off")

    def manage(
        self, action: Action | str, name: str = "", **details: Unpack[Details]
    ) -> SkillOutcome:
        """Change a skill: create, edit, patch, delete, write_file, remove_file, undo.

        `details` are those of `SkillChange`: `content` is a whole SKILL.md for create (with a
        `category`, if any) and edit; patch takes `old_string`, `new_string`, `replace_all` and
        works on SKILL.md unless `file_path` names a support file; write_file takes `file_path` and
        `file_content`; `origin` says who changes it. Never raises for what a caller can cause: an
        outcome that is not `applied` says what to do.
        """
        return self.make(SkillChange(action=action, name=name.strip(), **details))

    def preview(self, action: Action | str, name: str = "", **details: Unpack[Details]) -> str:
        """Return what `manage` would do, as a text or a diff; raise SkillError where it cannot."""
        return self.shown(SkillChange(action=action, name=name.strip(), **details))

    def _text(self, skill: Skill, path: Path, relative: str, data: bytes) -> tuple[str, str]:
        """Return a file's text as it may be shown, and what it is where it is no text."""
        try:
            text, _ = decoded(data)
        except SkillError:
            return "", f"{relative} is binary, {len(data):,} bytes; it lies at {path}"
        code = relative != DOCUMENT and is_code(relative)
        verdict = self._examiner.judged(skill.root, path, text, code=code)
        if verdict.level == "dangerous":
            raise SkillError(f"{relative} of skill {skill.name!r} is refused: {verdict.why}")
        return verdict.text, ""


def _within(skill: Skill, category: str) -> bool:
    wanted = valid_category(category) or category.strip().lower()
    own = skill.category.lower()
    return (
        not wanted
        or own == wanted
        or own.startswith(f"{wanted}/")
        or (wanted == GENERAL and not own)
    )
