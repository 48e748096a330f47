"""The skills library: find, view and change skills.

Roots are searched in order; if several skills have the same name, the first one is used. Only the
skills in the Hermes directory are written. A skill from a later root is copied there when it is
first changed, and the copy is used from then on.
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
"""Tokens for the list of skills in the system prompt."""


def unset_variables(skill: Skill) -> list[str]:
    """Return the environment variables that a skill requires and that are not set."""
    return [name for name in skill.environment if not os.environ.get(name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillView:
    """A skill's document or one of its files, ready for display."""

    skill: Skill
    """The skill."""
    file: str
    """Path of the file, relative to the skill's directory."""
    text: str
    """The text of the file; "" for a binary file."""
    about: str = ""
    """A description of a binary file; "" for text."""
    files: tuple[str, ...] = ()
    """The skill's support files by path relative to `directory`."""
    marks: tuple[str, ...] = ()
    """Warnings for the reader of the text."""

    @property
    def directory(self) -> Path:
        """The skill's folder, for commands that run its scripts."""
        return self.skill.directory


class Library(Changer):
    """The skills under `roots`, in order. See `as_roots` for how plain paths are treated.

    `accepts(path, text)` returns whether the user trusts a text; without it, no skill in the
    working directory is loaded. `on_changed(outcome)` is called after every change made through the
    library, in the thread that makes the change, and must not raise. No file is created before the
    first change.
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
        """Return the list of skills for the system prompt, or "" if there are none to offer.

        Args:
            budget_tokens: maximum size; if it is exceeded, only the skills that match `query` best
                and are used the most are listed, and the others counted.
            query: text for ranking, such as the user's prompt.
            platform: the platform, as in `sys.platform`.
            tools: names of the tools that are on; None satisfies every tool condition.
            toolsets: names of the toolsets that are on; None satisfies every toolset condition.
        """
        snapshot = self._catalogue.snapshot()
        here = Surroundings(platform=platform, tools=tools, toolsets=toolsets)
        offered = [s for s in snapshot.skills.values() if s.enabled and not here.closed(s.gates)]
        fitting = snapshot.scores(query) if query else {}
        return render(offered, fitting, budget_tokens=budget_tokens)

    def list(
        self, category: str = "", query: str = "", *, all_of_them: bool = False
    ) -> list[Skill]:
        """Return skills by category and name or, with a query, the matching ones, best first.

        `category` includes its subcategories. `all_of_them` adds skills that are switched off or
        whose conditions are not met.
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
        """Scan text that is not a skill; clean results are cached."""
        return self._examiner.scanned(text, name, scan)

    def view(self, name: str, file: str | None = None, *, counted: bool = True) -> SkillView:
        """Return a skill's SKILL.md or, with `file`, one of its support files, for display.

        `counted` is false if the user views the skill: this is not added to its usage, and also
        works for a skill that is switched off. Raises SkillError if the skill or file is missing or
        refused.
        """
        skill = self.get(name)
        if not (skill.enabled or not counted):
            message = f"skill {skill.name!r} is turned off; only the user can turn it on"
            raise SkillError(message)
        try:
            files, marks = self._examiner.support(skill.root, skill.directory)
        except SkillError as error:
            raise SkillError(f"skill {skill.name!r} is refused: {error}") from error
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
            if unset := unset_variables(skill):
                line = f"it needs {', '.join(unset)} in the environment, but that is not set"
                marks = (f"{line}: tell the user before you follow it", *marks)
        if not skill.root.vouched:
            marks = (f"it comes from {skill.source} skills, which other people wrote", *marks)
        if counted:
            self._ledger.note(skill.name, "view")
        return SkillView(
            skill=skill, file=relative, text=text, about=about, files=files, marks=tuple(marks)
        )

    def get(self, name: str) -> Skill:
        """Return a skill by name or `category/name`; SkillError lists similar names."""
        return self._catalogue.find(name)

    def skipped(self) -> Sequence[SkippedSkill]:
        """Return the skills that are not offered, with the reasons, including unmet conditions."""
        snapshot = self._catalogue.snapshot()
        here = Surroundings()
        closed = [
            SkippedSkill(name=skill.name, path=skill.file, source=skill.source, reason=reason)
            for skill in snapshot.skills.values()
            if (reason := here.closed(skill.gates))
        ]
        return [*snapshot.skipped, *closed]

    def categories(self) -> dict[str, int]:
        """Return the number of skills in each category."""
        counts: dict[str, int] = {}
        for skill in self.list():
            counts[skill.category or GENERAL] = counts.get(skill.category or GENERAL, 0) + 1
        return counts

    def usage(self) -> Mapping[str, SkillUsage]:
        """Return the skills' usage by name."""
        return self._ledger.entries()

    def used(self, name: str, origin: SkillOrigin | None = None) -> None:
        """Record that a skill was loaded into a conversation."""
        self._ledger.note(name, "use", origin)

    def switch(self, name: str, *, on: bool) -> None:
        """Switch a skill on or off; raise SkillError if the name is unknown."""
        self._ledger.note(self.get(name).name, "on" if on else "off")

    def manage(
        self, action: Action | str, name: str = "", **details: Unpack[Details]
    ) -> SkillOutcome:
        """Change a skill: create, edit, patch, delete, write_file, remove_file, undo.

        `details` are fields of `SkillChange`. Create and edit take `content`, a whole SKILL.md;
        create also takes a `category`. Patch takes `old_string`, `new_string` and `replace_all`,
        and changes SKILL.md unless `file_path` is a support file. Write_file takes `file_path` and
        `file_content`. `origin` says who makes the change.

        Never raises for invalid input: the outcome then has `applied` set to False and a message
        that says what to do.
        """
        return self.make(SkillChange(action=action, name=name.strip(), **details))

    def preview(self, action: Action | str, name: str = "", **details: Unpack[Details]) -> str:
        """Return the result of `manage` as text or a diff; raise SkillError if it would fail."""
        return self.shown(SkillChange(action=action, name=name.strip(), **details))

    def _text(self, skill: Skill, path: Path, relative: str, data: bytes) -> tuple[str, str]:
        """Return a file's text for display, or "" and a description if it is binary."""
        try:
            text, _ = decoded(data)
        except SkillError:
            return "", f"{relative} is binary, {len(data):,} bytes; its path is {path}"
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
