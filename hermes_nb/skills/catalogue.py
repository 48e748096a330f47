"""Every skill of every root as of now: which one wins, which are refused, which are off.

A snapshot is put together from what the shelves see, the guard's verdicts, what the user accepted
and the ledger. It costs little when nothing changed. Safe between threads.
"""

from __future__ import annotations

import difflib
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hermes_nb.core.text import one_line
from hermes_nb.safety.visible import visible
from hermes_nb.skills.discovery import FILE_LIMIT, Found, Shelf, decoded, read_regular
from hermes_nb.skills.document import Document, SkillError, read_document
from hermes_nb.skills.guard import Verdict
from hermes_nb.skills.kept import Kept
from hermes_nb.skills.ledger import Ledger, Usage
from hermes_nb.skills.ranking import Text, scores, text_of
from hermes_nb.skills.roots import Root
from hermes_nb.skills.skill import Skill, Skipped
from hermes_nb.skills.support import is_code, listed
from hermes_nb.skills.verdicts import Verdicts, edition

Accepts = Callable[[Path, str], bool]
"""Says whether the user accepted a text at a path, however it looks."""
_WORTH_SAVING = 20
"""New verdicts from which they are written down: examining that many costs about 0.1 s."""
DOCUMENT = "SKILL.md"
UNFIT = "unnamed"
"""The category of skills whose folders have names that are not fit to be shown."""
_WORTH_KEEPING = 50
"""Documents read for which what they say is written down: reading that many takes some 10 ms."""
_AT_ONCE = 64
"""New documents that a process examines whole when it sees them, some 0.1 s. When more are new it
examines `_OF_MANY`, and looks at what the index shows of the others; these are examined when they
are loaded, or by a later process."""
_OF_MANY = 12
_UNUSED = Usage()
_EXAMINED = 4 * FILE_LIMIT
"""Bytes of a skill's support files that are examined when it is loaded."""


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
    """Keeps the last snapshot and makes new ones."""

    def __init__(
        self,
        roots: Sequence[Root],
        *,
        ledger: Ledger,
        verdicts: Verdicts,
        accepts: Accepts | None = None,
    ) -> None:
        self._kept = Kept(verdicts.directory, edition=edition())
        self._shelves = [Shelf(root, self._kept) for root in roots]
        self._ledger, self._verdicts, self._accepts = ledger, verdicts, accepts
        self._lock = threading.RLock()
        self._last = Snapshot()
        self._claimed: set[str] = set()
        self._built: dict[str, tuple[Found, Usage, tuple[str, ...], Skill]] = {}
        self._texts: dict[str, tuple[str, Text]] = {}
        self._found: dict[str, tuple[Shelf, Found]] = {}
        self._harmless: dict[str, tuple[int, int, int]] = {}
        self._categories: dict[str, str] = {"": ""}
        self._room = _AT_ONCE

    def snapshot(self) -> Snapshot:
        """Return what there is now."""
        with self._lock:
            self._last = self._taken()
            self._claimed = {skipped.name for skipped in self._last.skipped}
            self._verdicts.save(at_least=_WORTH_SAVING)
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

    def judged(self, root: Root, file: Path, text: str, *, digest: str, code: bool) -> Verdict:
        """Return the verdict on a text of a skill in `root`, the user's word included.

        A document of the working directory is as good as dangerous until it was accepted.
        """
        if not root.examined:
            return Verdict(text=text)
        is_document = file.name.lower() == "skill.md"
        if root.source == "workdir" and is_document:
            if self._accepted(file, text):
                return Verdict(text=text)
            reason = "it comes with the working directory and is not trusted yet"
            return Verdict(level="dangerous", reasons=(reason,))
        name = visible(file.name)
        verdict = self._verdicts.of(text, digest=digest, name=name, strict=root.strict, code=code)
        if verdict.level != "clean" and self._accepted(file, text):
            return Verdict(text=text)
        return verdict

    def support(self, skill: Skill) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return a skill's support files, and the guard's marks on them.

        Raises SkillError when one of them is dangerous: it may run without ever being read.
        """
        files = listed(skill.directory)
        if not skill.root.examined:
            return files, ()
        marks: list[str] = []
        total = 0
        for name in files:
            path = skill.directory / name
            try:
                status = path.stat()
                total += status.st_size
                if total > _EXAMINED or status.st_size > FILE_LIMIT:
                    marks.append("it has more support files than were examined")
                    break
                verdict = self._support_verdict(skill.root, path, name, status)
            except OSError as error:
                marks.append(f"{name} cannot be read: {error.strerror}")
                continue
            if verdict.level == "dangerous":
                message = f"skill {skill.name!r} is refused, {name} looks harmful: {verdict.why}"
                raise SkillError(message)
            marks += [f"{name}: {reason}" for reason in verdict.reasons]
        return files, tuple(marks)

    def _support_verdict(
        self, root: Root, path: Path, name: str, status: os.stat_result
    ) -> Verdict:
        """Return what is thought of a support file, read again only where it is not clean."""
        stamp = (status.st_mtime_ns, status.st_ctime_ns, status.st_size)
        with self._lock:
            if self._harmless.get(str(path)) == stamp:
                return Verdict()
        try:
            text, _ = decoded(read_regular(path))
        except SkillError:  # binary data is neither read nor run as it is
            return Verdict()
        code = is_code(name)
        level, _ = self._verdicts.level(text, name=name, strict=root.strict, code=code)
        if level != "clean":
            return self.judged(root, path, text, digest="", code=code)
        with self._lock:
            self._harmless[str(path)] = stamp
        return Verdict()

    def _taken(self) -> Snapshot:
        usage = self._ledger.entries()
        looked = [(shelf, shelf.look()) for shelf in self._shelves]
        self._glance([found for _, several in looked for found in several])
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
            level, reasons = self._level(found)
        except (OSError, SkillError) as error:
            return _skipped(found, document.name, str(error))
        if level == "dangerous":
            return _skipped(found, document.name, "; ".join(reasons))
        own = usage.get(document.name, _UNUSED)
        known = self._built.get(found.path)
        if known is not None and known[:3] == (found, own, reasons):
            return known[3]
        described = document.description if level == "clean" else self._neutral(found, document)
        skill = Skill(
            name=document.name,
            description=described,
            category=self._category(found, document),
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

    def _neutral(self, found: Found, document: Document) -> str:
        """Return the description of a suspicious skill, which the index shows, neutralised."""
        try:
            text, _ = decoded(read_regular(found.file))
            verdict = self.judged(found.root, found.file, text, digest=found.digest, code=False)
            return read_document(verdict.text, folder=found.folder).description
        except (OSError, SkillError):  # what was neutralised can no longer be read
            return f"a skill named {document.name}"

    def _level(self, found: Found) -> tuple[str, tuple[str, ...]]:
        """Return how bad a document is, without reading it again where that is known."""
        if not found.root.examined:
            return "clean", ()
        if found.root.source != "workdir":
            known = self._verdicts.known(found.digest, strict=found.root.strict)
            if known and known[0] == "clean":
                return self._also_named(found)
            if known and self._accepts is None:
                return known
            if known is None and self._room <= 0:
                return self._glanced(found)
            self._room -= known is None
        text, _ = decoded(read_regular(found.path))
        verdict = self.judged(found.root, found.file, text, digest=found.digest, code=False)
        own = self._verdicts.known(found.digest, strict=found.root.strict)
        if found.root.source != "workdir" and own is not None and own[0] == "clean":
            return self._also_named(found)
        return verdict.level, verdict.reasons

    def _also_named(self, found: Found) -> tuple[str, tuple[str, ...]]:
        """Return how bad a clean document is whose name may be its folder's, not its own."""
        odd = found.document is not None and found.document.notes
        return self._glanced(found) if odd else ("clean", ())

    def _glanced(self, found: Found) -> tuple[str, tuple[str, ...]]:
        """Return how bad that is which the index shows: the name may be the folder's."""
        document = found.document
        if document is None or self._verdicts.glanced(found.digest, document.name):
            return "clean", ()
        level, reasons = self._verdicts.level(_shown(document), name=DOCUMENT)
        return ("dangerous", reasons) if level == "suspicious" else (level, reasons)

    def _category(self, found: Found, document: Document) -> str:
        """Return what a skill is listed under: folders' names, unless they read like an order."""
        category = found.category or document.category
        known = self._categories.get(category)
        if known is None:
            level, _ = self._verdicts.level(_said(category))
            known = self._categories[category] = category if level == "clean" else UNFIT
        return known

    def _glance(self, several: Sequence[Found]) -> None:
        """Look at what the index shows of documents that are not examined now, all at once."""
        new = [
            (found, found.document)
            for found in several
            if found.root.examined
            and found.root.source != "workdir"
            and found.document is not None
            and self._verdicts.known(found.digest, strict=found.root.strict) is None
        ]
        if len(new) > self._room:
            self._room = min(self._room, _OF_MANY)
            rest = new[max(self._room, 0) :]
            categories = {found.category or document.category for found, document in new}
            self._verdicts.take_in(
                {(found.digest, each.name): _shown(each) for found, each in rest},
                map(_said, sorted(categories.difference(self._categories))),
            )

    def _text(self, skill: Skill) -> Text:
        known = self._texts.get(skill.path)
        if known is not None and known[0] == skill.digest:
            return known[1]
        text = text_of(skill.name, skill.description, skill.tags)
        self._texts[skill.path] = (skill.digest, text)
        return text

    def _accepted(self, file: Path, text: str) -> bool:
        return self._accepts is not None and self._accepts(file, text)


def _shown(document: Document) -> str:
    """Return what the index shows of a document."""
    return f"{document.name}\n\n{document.description}"


def _said(category: str) -> str:
    """Return what a category says to whoever reads the index."""
    return visible(category).replace("/", "\n\n")


def _with_usage(skill: Skill, usage: Usage) -> Skill:
    return skill if skill.usage == usage else replace(skill, usage=usage)


def _skipped(found: Found, name: str, reason: str) -> Skipped:
    shown = visible(one_line(name, 64)) or "unnamed"
    return Skipped(name=shown, path=found.file, source=found.root.source, reason=visible(reason))
