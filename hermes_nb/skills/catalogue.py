"""Every skill as of now: which one wins, which are offered, found and alike, and how it is said.

A snapshot is put together from what lies in the roots, the guard's verdicts, what the user accepted
and the use counts. It costs little when nothing changed. Safe between threads.

What fits a query best is told by BM25 over names, tags and descriptions, with the usual parameters
(k1 = 1.2, b = 0.75; Robertson and Zaragoza, 2009). A name counts three times, a tag twice. Words
are matched by their stems' beginnings, so that `plots` finds `plotting`.

The index of the prompt has a line a skill, by category, within a budget of tokens. When not all
fit, those that fit the query best and were used most stay, and the rest is counted. Equal skills
give equal bytes: the prompt is cached.
"""

from __future__ import annotations

import difflib
import math
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

from hermes_nb.core.escapes import visible
from hermes_nb.core.text import CHARACTERS_PER_TOKEN, one_line
from hermes_nb.skills.discovery import (
    DOCUMENT,
    Cache,
    FoundSkill,
    Root,
    Shelf,
    Source,
    decoded,
    read_regular,
)
from hermes_nb.skills.document import Document, Gates, SkillError, read_document
from hermes_nb.skills.history import SkillUsage, UsageLog
from hermes_nb.skills.support_files import real_path
from hermes_nb.skills.trust import Examiner
from hermes_nb.storage.words import pieces, terms_of

_K1 = 1.2
_B = 0.75
_STOP = frozenset(
    "a an and are as at be by for from how in into is it its of on or that the their this to use"
    " used using user users when with you your skill skills via any can not all do does".split()
)
_SHORTEST_STEM = 3


@dataclass(frozen=True, slots=True)
class SkillTerms:
    """What is known of a skill for ranking: its terms with their weights."""

    terms: Mapping[str, int]
    length: int


@lru_cache(maxsize=5_000)
def text_of(name: str, description: str, tags: Sequence[str] = ()) -> SkillTerms:
    """Return the terms of a skill."""
    terms: dict[str, int] = {}
    for said, weight in ((description, 1), (" ".join(tags), 2), (name, 3)):
        for term in stems(said):
            terms[term] = terms.get(term, 0) + weight
    return SkillTerms(terms, sum(terms.values()))


def stems(text: str) -> list[str]:
    """Return the terms of a text's words; of scripts without spaces, pairs of signs."""
    return [term for piece in pieces(text) for term in _stems_of(piece)]


@lru_cache(maxsize=20_000)
def _stems_of(piece: str) -> tuple[str, ...]:
    """Return the terms of one word; descriptions have the same words over and over."""
    signs = () if piece.lower() in _STOP else terms_of(piece)
    return tuple(map("".join, pairwise(signs))) if len(signs) > 1 else signs


def scores(texts: Mapping[str, SkillTerms], query: str) -> dict[str, float]:
    """Return how well each text fits a query, those alone that fit at all."""
    wanted = set(stems(query))
    if not wanted or not texts:
        return {}
    words = _meant(wanted, set().union(*(text.terms for text in texts.values())))
    matches = {key: _matched(text, words) for key, text in texts.items()}
    frequency = Counter(term for found in matches.values() for term in found)
    total = len(texts)
    rare = {term: math.log(1 + (total - n + 0.5) / (n + 0.5)) for term, n in frequency.items()}
    mean = sum(text.length for text in texts.values()) / total or 1.0
    result: dict[str, float] = {}
    for key, found in matches.items():
        norm = _K1 * (1 - _B + _B * texts[key].length / mean)
        score = sum(rare[t] * count * (_K1 + 1) / (count + norm) for t, count in found.items())
        if score > 0:
            result[key] = score
    return result


def likeness(one: SkillTerms, other: SkillTerms) -> float:
    """Return how much of two texts' words is common, 0 to 1 (Jaccard, each word counted once)."""
    together = len(one.terms.keys() | other.terms.keys())
    return len(one.terms.keys() & other.terms.keys()) / together if together else 0.0


def same_name(one: str, other: str) -> bool:
    """Say whether two names mean the same: the same words in any order, or a slip of the pen.

    Names that differ in a number do not: `report-2024` is not `report-2025`.
    """
    if re.findall(r"\d+", one) != re.findall(r"\d+", other):
        return False
    words = sorted(stems(one)), sorted(stems(other))
    if words[0] and words[0] == words[1]:
        return True
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    close = 0.92
    return matcher.real_quick_ratio() >= close and matcher.ratio() >= close


def _meant(wanted: set[str], known: set[str]) -> dict[str, list[str]]:
    """Return the terms that texts have for each term of a query: itself, those it begins."""
    found: dict[str, list[str]] = {}
    for term in wanted:
        long = len(term) > _SHORTEST_STEM
        same = [word for word in known if word.startswith(term)] if long else []
        if same or term in known:
            found[term] = same or [term]
    return found


def _matched(text: SkillTerms, words: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return the query's terms that a text has, with their weights; a beginning counts half."""
    found: dict[str, float] = {}
    for term, meant in words.items():
        if exact := text.terms.get(term):
            found[term] = exact
        elif partial := [text.terms[word] for word in meant if word in text.terms]:
            found[term] = max(partial) / 2
    return found


GENERAL = "general"
"""What skills without a category are listed under."""
_SHOWN = 60
"""Characters of a description in the index."""
_HEADING = "Skills (skill_view loads one; load it before a task that it fits):"
_ALIKE = 0.6
"""Share of common words in names and descriptions from which two skills are the same."""
_RELATED = 0.25
"""Share from which their bodies are compared."""
_COPIED = 0.7
"""Share of a body's runs of words that another one has, from which it is a copy."""
_RUN = 5
_SHORTEST_BODY = 20
_COMPARED = 5
_UNUSED = SkillUsage()


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
    environment: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    marks: tuple[str, ...] = ()
    usage: SkillUsage = field(default_factory=SkillUsage)

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
    def enabled(self) -> bool:
        """Whether the user left it on."""
        return not self.usage.disabled

    def where(self, relative: str) -> Path:
        """Return where its document or a support file lies; raises SkillError for other paths."""
        return self.file if relative == DOCUMENT else real_path(self.directory, relative)


@dataclass(frozen=True, slots=True, kw_only=True)
class SkippedSkill:
    """A skill that is not offered, and why."""

    name: str
    path: Path
    source: Source
    reason: str


@dataclass(frozen=True, slots=True)
class SkillSnapshot:
    """The skills by name, and what is not offered."""

    skills: Mapping[str, Skill] = field(default_factory=dict)
    skipped: Sequence[SkippedSkill] = ()

    def scores(self, query: str) -> dict[str, float]:
        """Return how well skills fit a query, by name, those alone that fit at all."""
        return scores({name: _text(skill) for name, skill in self.skills.items()}, query)


class Catalogue:
    """Keeps the last snapshot and makes new ones."""

    def __init__(
        self, roots: Sequence[Root], *, ledger: UsageLog, examiner: Examiner, cache: Cache
    ) -> None:
        self._cache, self._ledger, self._examiner = cache, ledger, examiner
        self._shelves = [Shelf(root, cache) for root in roots]
        self._lock = threading.Lock()
        self._built: dict[str, tuple[FoundSkill, Skill]] = {}

    def snapshot(self) -> SkillSnapshot:
        """Return what there is now."""
        with self._lock:
            usage = self._ledger.entries()
            looked = [(shelf, shelf.look()) for shelf in self._shelves]
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
        """Return a skill by its name, also as `category/name`; raise SkillError, nearest named."""
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
        raise SkillError(f"no skill {plain[:80]!r}; {hint}skills_list shows what there is")

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
            return _skipped(found, document.name, f"one of that name in {other.source} comes first")
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


def render(skills: Sequence[Skill], fitting: Mapping[str, float], *, budget_tokens: int) -> str:
    """Return the index, "" without skills; `fitting` says by name what fits the occasion."""
    if not skills:
        return ""
    room = budget_tokens * CHARACTERS_PER_TOKEN
    shortest = sum(len(skill.name) for skill in skills)
    if shortest <= room and len(whole := _grouped(skills)) <= room:
        return whole
    # The count of what is left out needs room as well.
    room -= len(_HEADING) + len(_rest(len(skills))) + 1
    chosen: list[Skill] = []
    categories: set[str] = set()
    for skill in _by_worth(skills, fitting):
        cost = len(_line(skill)) + 1
        if skill.category not in categories:
            cost += len(_category(skill)) + 1
        if cost > room:
            break
        room -= cost
        categories.add(skill.category)
        chosen.append(skill)
    return f"{_grouped(chosen)}\n{_rest(len(skills) - len(chosen))}"


def near_duplicate(document: Document, snapshot: SkillSnapshot) -> Skill | None:
    """Return the skill that a new document nearly repeats, under whatever name, or None.

    Skills whose names differ in a number are different on purpose.
    """
    own = text_of(document.name, document.description, document.tags)
    digits = re.findall(r"\d+", document.name)
    alike = [
        (likeness(own, _text(skill)), skill)
        for name, skill in snapshot.skills.items()
        if re.findall(r"\d+", name) == digits
    ]
    alike.sort(key=lambda pair: (-pair[0], pair[1].name))
    for share, skill in alike:
        if share >= _ALIKE or same_name(document.name, skill.name):
            return skill
    for share, skill in alike[:_COMPARED]:
        if share >= _RELATED and _copies(document.body, skill):
            return skill
    return None


def _text(skill: Skill) -> SkillTerms:
    return text_of(skill.name, skill.description, skill.tags)


def _copies(body: str, skill: Skill) -> bool:
    try:
        other = read_document(decoded(read_regular(skill.file))[0]).body
    except (OSError, SkillError):  # it went away in between, and is no duplicate then
        return False
    one, two = _runs(body), _runs(other)
    smaller = min(len(one), len(two))
    return smaller >= _SHORTEST_BODY and len(one & two) / smaller >= _COPIED


def _runs(text: str) -> set[tuple[str, ...]]:
    words = stems(text)
    return {tuple(words[n : n + _RUN]) for n in range(len(words) - _RUN + 1)}


def _skipped(found: FoundSkill, name: str, reason: str) -> SkippedSkill:
    shown = visible(one_line(name, 64)) or "unnamed"
    return SkippedSkill(
        name=shown, path=found.file, source=found.root.source, reason=visible(reason)
    )


def _by_worth(skills: Sequence[Skill], fitting: Mapping[str, float]) -> list[Skill]:
    best = max(fitting.values(), default=1.0)
    busiest = max((math.log1p(skill.usage.uses) for skill in skills), default=0.0) or 1.0

    def worth(skill: Skill) -> float:
        used = math.log1p(skill.usage.uses) / busiest
        return fitting.get(skill.name, 0.0) / best + used / 2

    return sorted(skills, key=lambda skill: (-worth(skill), skill.category, skill.name))


def _grouped(skills: Sequence[Skill]) -> str:
    lines = [_HEADING]
    last = None
    for skill in sorted(skills, key=lambda skill: (skill.category, skill.name)):
        if skill.category != last:
            lines.append(_category(skill))
            last = skill.category
        lines.append(_line(skill))
    return "\n".join(lines)


def _category(skill: Skill) -> str:
    return f"{visible(skill.category) or GENERAL}:"


def _line(skill: Skill) -> str:
    return f"- {skill.name}: {_gist(skill.description)}"


@lru_cache(4_096)
def _gist(description: str) -> str:
    """Return how a description is shown: its first sentence, or as much of it as fits.

    It is kept: looking at each character of a thousand descriptions takes 20 ms.
    """
    line = visible(one_line(description, _SHOWN))
    sentence, stop, _ = line.partition(". ")
    return f"{sentence}{stop.strip()}"


def _rest(count: int) -> str:
    return f"{count:,} more: skills_list(query) finds them."
