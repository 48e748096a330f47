"""Every skill of every root as of now: which one wins, which are refused, which are off.

A snapshot is put together from what the shelves see, the guard's verdicts, what the user accepted
and the ledger. It costs little when nothing changed. Safe between threads.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hermes_nb.core.text import one_line
from hermes_nb.safety.visible import visible
from hermes_nb.skills.discovery import Found, Shelf
from hermes_nb.skills.document import SkillError
from hermes_nb.skills.examining import Examiner
from hermes_nb.skills.kept import Kept
from hermes_nb.skills.ledger import Ledger, Usage
from hermes_nb.skills.ranking import Text, scores, text_of
from hermes_nb.skills.roots import Root
from hermes_nb.skills.skill import Skill, Skipped
from hermes_nb.skills.verdicts import edition

_WORTH_KEEPING = 50
"""Documents read for which what they say is written down: reading that many takes some 10 ms."""
_UNUSED = Usage()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The skills by name, and what is not offered; `terms` works out a skill's for ranking."""

    skills: Mapping[str, Skill] = field(default_factory=dict)
    skipped: Sequence[Skipped] = ()
    terms: Callable[[Skill], Text] = lambda skill: text_of(skill.name, skill.description)

    @property
    def texts(self) -> Mapping[str, Text]:
        """The skills' terms by name."""
        return {name: self.terms(skill) for name, skill in self.skills.items()}


class Catalogue:
    """Keeps the last snapshot and makes new ones.

    `state` is the directory in which what was read of documents is kept, None for none.
    """

    def __init__(
        self,
        roots: Sequence[Root],
        *,
        ledger: Ledger,
        examiner: Examiner,
        state: Path | None,
    ) -> None:
        self._kept = Kept(state, edition=edition())
        self._shelves = [Shelf(root, self._kept) for root in roots]
        self._ledger, self._examiner = ledger, examiner
        self._lock = threading.RLock()
        self._last = Snapshot()
        self._claimed: set[str] = set()
        self._built: dict[str, tuple[Found, Usage, tuple[str, ...], Skill]] = {}
        self._texts: dict[str, tuple[str, Text]] = {}
        self._found: dict[str, tuple[Shelf, Found]] = {}

    def snapshot(self) -> Snapshot:
        """Return what there is now."""
        with self._lock:
            self._last = self._taken()
            self._claimed = {skipped.name for skipped in self._last.skipped}
            self._examiner.save()
            if sum(shelf.unkept for shelf in self._shelves) >= _WORTH_KEEPING:
                self._kept.save(known for shelf in self._shelves for known in shelf.documents())
                for shelf in self._shelves:
                    shelf.unkept = 0
            return self._last

    def current(self, name: str) -> Skill | None:
        """Return a skill if it is certain to be as it was last seen, else None; a few `stat`s.

        Certain it is where no folder came or went and nothing else claims the name.
        """
        with self._lock:
            skill = self._last.skills.get(name)
            if skill is None or name in self._claimed or skill.source == "workdir":
                return None
            shelf, found = self._found[name]
            if not shelf.fresh(found) or not all(each.settled() for each in self._shelves):
                return None
            return _with_usage(skill, self._ledger.of(name))

    def find(self, name: str) -> Skill:
        """Return a skill by its name, also as `category/name`; raise SkillError, nearest named."""
        plain = name.strip().strip("/")
        if skill := self.current(plain):
            return skill
        snapshot = self.snapshot()
        if found := snapshot.skills.get(plain):
            return found
        for skill in snapshot.skills.values():
            if plain.lower() in (f"{skill.category}/{skill.name}", skill.directory.name.lower()):
                return skill
        for skipped in snapshot.skipped:
            if skipped.name == plain:
                message = f"skill {plain!r} is not loaded: {skipped.reason}"
                raise SkillError(message)
        near = difflib.get_close_matches(plain.lower(), snapshot.skills, n=3, cutoff=0.5)
        near = near or sorted(scores(snapshot.texts, plain.replace("-", " ")))[:3]
        hint = f"nearest: {', '.join(near)}; " if near else ""
        message = f"no skill {plain[:80]!r}; {hint}skills_list shows what there is"
        raise SkillError(message)

    def _taken(self) -> Snapshot:
        usage = self._ledger.entries()
        looked = [(shelf, shelf.look()) for shelf in self._shelves]
        self._examiner.glance([found for _, several in looked for found in several])
        skills: dict[str, Skill] = {}
        skipped: list[Skipped] = []
        self._found = {}
        for shelf, several in looked:
            for found in several:
                skill = self._skill(found, usage, skills)
                if isinstance(skill, Skipped):
                    skipped.append(skill)
                    continue
                skills[skill.name] = skill
                self._found[skill.name] = (shelf, found)
            skipped += [
                Skipped(name=path.name, path=path, source=shelf.root.source, reason=reason)
                for path, reason in shelf.notes
            ]
        return Snapshot(skills, skipped, self._text)

    def _skill(
        self, found: Found, usage: Mapping[str, Usage], taken: Mapping[str, Skill]
    ) -> Skill | Skipped:
        """Return a document as a skill, or why it is none."""
        document = found.document
        if document is None:
            return _skipped(found, found.folder, found.reason)
        if other := taken.get(document.name):
            return _skipped(found, document.name, f"one of that name in {other.source} comes first")
        try:
            level, reasons = self._examiner.level(found)
        except (OSError, SkillError) as error:
            return _skipped(found, document.name, str(error))
        if level == "dangerous":
            return _skipped(found, document.name, "; ".join(reasons))
        own = usage.get(document.name, _UNUSED)
        known = self._built.get(found.path)
        if known is not None and known[:3] == (found, own, reasons):
            return known[3]
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
            notes=document.notes,
            marks=reasons,
            usage=own,
        )
        self._built[found.path] = (found, own, reasons, skill)
        return skill

    def _text(self, skill: Skill) -> Text:
        known = self._texts.get(skill.path)
        if known is not None and known[0] == skill.digest:
            return known[1]
        text = text_of(skill.name, skill.description, skill.tags)
        self._texts[skill.path] = (skill.digest, text)
        return text


def _with_usage(skill: Skill, usage: Usage) -> Skill:
    return skill if skill.usage == usage else replace(skill, usage=usage)


def _skipped(found: Found, name: str, reason: str) -> Skipped:
    shown = visible(one_line(name, 64)) or "unnamed"
    return Skipped(name=shown, path=found.file, source=found.root.source, reason=visible(reason))
