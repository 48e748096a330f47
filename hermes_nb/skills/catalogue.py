"""The current skills in all roots: which one is used if names clash, and which are not offered.

A snapshot combines the files in the roots, the verdicts, the user's acceptance and the usage
counts. It is cheap if nothing has changed. Thread-safe.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hermes_nb.core.escapes import visible
from hermes_nb.core.text import one_line
from hermes_nb.skills.cache import Cache
from hermes_nb.skills.discovery import DOCUMENT, FoundSkill, Root, Shelf, Source
from hermes_nb.skills.document import Gates, SkillError
from hermes_nb.skills.history import SkillUsage, UsageLog
from hermes_nb.skills.matching import SkillTerms, scores, text_of
from hermes_nb.skills.support_files import real_path
from hermes_nb.skills.trust import Examiner

_UNUSED = SkillUsage()


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """A skill that can be loaded."""

    name: str
    """Unique name."""
    description: str
    """When to use it. Suspicious passages are left out."""
    category: str
    """Category, with at most one `/`; "" for none."""
    path: str
    """Path of its document (SKILL.md). The directory has no symbolic links in its path."""
    root: Root
    """The root in which it was found."""
    digest: str
    """Its document's SHA-256."""
    tags: tuple[str, ...] = ()
    """Tags from its document."""
    gates: Gates = field(default_factory=Gates)
    """Conditions under which it is offered."""
    environment: tuple[str, ...] = ()
    """Environment variables that it requires."""
    notes: tuple[str, ...] = ()
    """Irregularities in its document."""
    marks: tuple[str, ...] = ()
    """The scan's findings."""
    usage: SkillUsage = field(default_factory=SkillUsage)
    """Usage counts, and whether it is switched off."""

    @property
    def file(self) -> Path:
        return Path(self.path)

    @property
    def directory(self) -> Path:
        return self.file.parent

    @property
    def source(self) -> Source:
        return self.root.source

    @property
    def terms(self) -> SkillTerms:
        """The terms for ranking it."""
        return text_of(self.name, self.description, self.tags)

    @property
    def enabled(self) -> bool:
        """Whether the skill is on; the user can switch it off."""
        return not self.usage.disabled

    def where(self, relative: str) -> Path:
        """Return the path of its document or a support file; raises SkillError if invalid."""
        return self.file if relative == DOCUMENT else real_path(self.directory, relative)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedSkill:
    """A skill that is not offered, and why."""

    name: str
    """Name of the skill, or of its folder."""
    path: Path
    """Path of its document or folder."""
    source: Source
    """Its root's source."""
    reason: str
    """Why it is not offered."""


@dataclass(frozen=True, slots=True)
class SkillSnapshot:
    """The skills at one point in time."""

    skills: Mapping[str, Skill] = field(default_factory=dict)
    """Skills that can be loaded, by name."""
    skipped: Sequence[SkippedSkill] = ()
    """Skills that were found but are not offered."""

    def scores(self, query: str) -> dict[str, float]:
        """Return the scores of the skills that match a query, by name."""
        return scores({name: skill.terms for name, skill in self.skills.items()}, query)


class Catalogue:
    """Takes snapshots of the skills in all roots, and caches the skills between snapshots."""

    def __init__(
        self, roots: Sequence[Root], *, ledger: UsageLog, examiner: Examiner, cache: Cache
    ) -> None:
        self._cache, self._ledger, self._examiner = cache, ledger, examiner
        self._shelves = [Shelf(root, cache) for root in roots]
        self._lock = threading.Lock()
        self._built: dict[str, tuple[FoundSkill, Skill]] = {}

    def snapshot(self) -> SkillSnapshot:
        """Return the skills as they are now."""
        with self._lock:
            usage = self._ledger.entries()
            looked = [(shelf, shelf.scan()) for shelf in self._shelves]
            signed = [shelf.root.signed for shelf in self._shelves if shelf.root.signed]
            revoked = {name: why for each in signed for name, why in each.revoked.items()}
            self._examiner.glance([found for _, several in looked for found in several])
            skills: dict[str, Skill] = {}
            skipped: list[SkippedSkill] = []
            for shelf, several in looked:
                for found in several:
                    skill = self._skill(found, usage, skills, revoked)
                    if isinstance(skill, SkippedSkill):
                        skipped.append(skill)
                    else:
                        skills[skill.name] = skill
                skipped += [
                    SkippedSkill(name=path.name, path=path, source=shelf.root.source, reason=reason)
                    for path, reason in shelf.notes
                ]
            self._cache.save()
            return SkillSnapshot(skills, skipped)

    def find(self, name: str) -> Skill:
        """Return a skill by name or `category/name`; SkillError lists similar names."""
        plain = name.strip().strip("/")
        snapshot = self.snapshot()
        if found := snapshot.skills.get(plain):
            return found
        for skill in snapshot.skills.values():
            if plain.lower() in (f"{skill.category}/{skill.name}", skill.directory.name.lower()):
                return skill
        for skipped in snapshot.skipped:
            if skipped.name == plain:
                raise SkillError(f"skill {plain!r} is not loaded: {skipped.reason}")
        near = difflib.get_close_matches(plain.lower(), snapshot.skills, n=3, cutoff=0.5)
        near = near or sorted(snapshot.scores(plain.replace("-", " ")))[:3]
        hint = f"nearest: {', '.join(near)}; " if near else ""
        raise SkillError(f"no skill {plain[:80]!r}; {hint}skills_list lists all skills")

    def _skill(
        self,
        found: FoundSkill,
        usage: Mapping[str, SkillUsage],
        taken: Mapping[str, Skill],
        revoked: Mapping[str, str],
    ) -> Skill | SkippedSkill:
        document, signed = found.document, found.root.signed
        if signed is not None and (why := signed.why(found.file.parent)):
            return _skipped(found, document.name if document else found.folder, why)
        if document is None:
            return _skipped(found, found.folder, found.reason)
        if why := revoked.get(document.name, "") or revoked.get(found.folder, ""):
            return _skipped(found, document.name, f"the administrator has revoked it: {why}")
        if other := taken.get(document.name):
            return _skipped(
                found, document.name, f"a skill of the same name in {other.source} takes precedence"
            )
        try:
            level, reasons = self._examiner.level(found)
        except (OSError, SkillError) as error:
            return _skipped(found, document.name, str(error))
        if level == "dangerous" and signed is None:
            return _skipped(found, document.name, "; ".join(reasons))
        own = usage.get(document.name, _UNUSED)
        before, built = self._built.get(found.path, (None, None))
        if built and before is found and (built.marks, built.usage) == (reasons, own):
            return built
        described = document.description
        if level != "clean":
            described = self._examiner.neutral(found, document)
        skill = Skill(
            name=document.name,
            description=described,
            category=self._examiner.category(found, document),
            path=found.path,
            root=found.root,
            digest=found.digest,
            tags=document.tags,
            gates=document.gates,
            environment=document.environment,
            notes=document.notes,
            marks=reasons,
            usage=own,
        )
        self._built[found.path] = (found, skill)
        return skill


def _skipped(found: FoundSkill, name: str, reason: str) -> SkippedSkill:
    shown = visible(one_line(name, 64)) or "unnamed"
    return SkippedSkill(
        name=shown, path=found.file, source=found.root.source, reason=visible(reason)
    )
