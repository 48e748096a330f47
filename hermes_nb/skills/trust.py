"""Decide how much a skill is trusted: scan its texts, and consider what the user has accepted.

Each text is checked twice: by the injection scan, for text that would steer the agent, and by rules
for code, for commands that would do harm if the agent ran them. These heuristics stop known tricks;
the guard checks each command again when it runs. Verdicts are cached, and text that the user has
accepted counts as clean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, TypeVar

from hermes_nb.core.escapes import visible
from hermes_nb.core.text import one_line
from hermes_nb.safety.patterns import (
    MARKS,
    STRONG,
    ScanTimeout,
    Sign,
    deadline,
    flows,
    piped,
    threats,
)
from hermes_nb.safety.scan import DENSE, Finding, ScanResult, neutralised, scan
from hermes_nb.skills.cache import WORTH_SAVING, Cache
from hermes_nb.skills.discovery import DOCUMENT, FILE_LIMIT, FoundSkill, Root, decoded, read_regular
from hermes_nb.skills.document import Document, SkillError, read_document
from hermes_nb.skills.support_files import is_code, support_files

Level = Literal["clean", "suspicious", "dangerous"]
Accepts = Callable[[Path, str], bool]
"""Returns whether the user has accepted the text at a path, whatever the verdict."""
UNFIT = "unnamed"
"""The category for skills whose folder names should not be displayed."""
_AT_ONCE = 64
"""Maximum number of new documents to scan completely when they are found, which takes about 0.1 s.
If there are more, only names and descriptions are scanned at first, and each document is scanned
when it is loaded."""
_SMALLEST = 40
"""Size of a batch of texts that is not split further to find the suspicious one."""
_BETWEEN = "\n\n---\n\n"
"""Separator of texts in a batch. It keeps one text from being read as an excuse for the next."""
_OPENS = ("```", "~~~")
"""Starts of code blocks, in which some findings count less; such texts are scanned alone."""
_EXAMINED = 4 * FILE_LIMIT
"""Number of bytes of a skill's support files to scan when it is loaded."""
_REASONS = 4
_PASSAGE = 160
"""Maximum length of a displayed passage, in characters."""
_Read = TypeVar("_Read", Sign, str)
_GUIDES = {
    "remote_code": 1.0,
    "remote-code": 2.0,
    "persistence": 2.5,
    "privilege": 2.0,
    "tampering": 1.0,
    "destructive": 1.5,
    "destruction": 2.0,
    "cover-up": 2.0,
    "secret_access": 2.0,
    "secret-access": 2.0,
}
"""Maximum score, by category, of findings that are normal in the code of harmless guides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillVerdict:
    """The verdict on a text."""

    level: Level = "clean"
    """How dangerous it is."""
    reasons: tuple[str, ...] = ()
    """The findings with their passages, made safe for display."""
    text: str = ""
    """The text to load: without its suspicious passages if it is suspicious, or "" if dangerous."""

    @property
    def why(self) -> str:
        """The reasons, on one line."""
        return "; ".join(self.reasons)


Judged = tuple[Level, tuple[str, ...]]
"""A text's level and the reasons."""
_CLEAN: Judged = ("clean", ())
_DOWNLOAD = "remote-code"
"""The category of commands that run a download directly, before anyone can read it."""


def examine(text: str, *, name: str = "", strict: bool = False, code: bool = False) -> SkillVerdict:
    """Return the verdict on a skill's document or, with `code`, on one of its scripts.

    Instructions to the agent are refused. Commands that a guide shows are reported but left in
    place, because the guard decides when they run. `strict`, for untrusted sources, refuses text
    that would otherwise be marked.
    """
    scanned = scan(text, name=name, strict=strict)
    harm = chain(threats(text, code=code, guide=True), flows(text, code=code))
    found = _in_time(text, harm, Sign(DENSE, "unread", STRONG, 0, len(text)))
    several = [
        *((finding.category, finding.passage) for finding in scanned.findings),
        *((sign.category, _passage(text[sign.start : sign.end])) for sign in found),
    ]
    named = [passage for _, passage in several]
    downloads = map(_passage, _downloads(text, code=code))
    several += [(_DOWNLOAD, each) for each in downloads if not any(each in one for one in named)]
    reasons = _reasons(several)
    meant = [each for each in scanned.findings if not _shown(text, each, code=code)]
    blocked = scanned.verdict == "blocked" and sum(each.score for each in meant) >= MARKS
    if blocked or _dangerous(found):
        return SkillVerdict(level="dangerous", reasons=reasons)
    if several:
        return SkillVerdict(level="suspicious", reasons=reasons, text=neutralised(text, meant))
    return SkillVerdict(text=text)


def examine_own(text: str, *, name: str = "", code: bool = False, before: str = "") -> SkillVerdict:
    """Return the verdict on new text for a skill, which replaces `before`.

    This is stricter than `examine`, which is for other people's skills: a download that is piped to
    a shell or evaluated is refused, unless `before` already contains it. `examine` only marks it.
    """
    known = set(_downloads(before, code=code))
    if found := [each for each in _downloads(text, code=code) if each not in known]:
        reasons = _reasons([(_DOWNLOAD, _passage(each)) for each in found])
        return SkillVerdict(level="dangerous", reasons=reasons)
    return examine(text, name=name, code=code)


def _downloads(text: str, *, code: bool) -> list[str]:
    return _in_time(text, piped(text, code=code), text)


class Examiner:
    """Judges skills by cached verdicts and by what the user has accepted.

    `judged` and `support` are thread-safe, but the other methods are not.
    """

    def __init__(self, cache: Cache, accepts: Accepts | None = None) -> None:
        self._cache, self._accepts = cache, accepts
        self._categories: dict[str, str] = {"": ""}
        self._clean: dict[str, FoundSkill] = {}
        self._looked_at: set[str] = set()
        self._room = _AT_ONCE

    def judged(
        self, root: Root, file: Path, text: str, *, digest: str = "", code: bool = False
    ) -> SkillVerdict:
        """Return the verdict on text from a skill in `root`, considering what the user accepted.

        `digest` is the SHA-256 of its file, if known. A document in the working directory counts as
        dangerous until the user accepts it.
        """
        if not root.examined:
            return SkillVerdict(text=text)
        if root.source == "workdir" and file.name.lower() == DOCUMENT.lower():
            if self._accepted(file, text):
                return SkillVerdict(text=text)
            reason = "it comes with the working directory and is not trusted yet"
            return SkillVerdict(level="dangerous", reasons=(reason,))
        name = visible(file.name)
        level, reasons = self._level(text, digest, name, strict=root.strict, code=code)
        if level == "clean" or self._accepted(file, text):
            return SkillVerdict(text=text)
        if root.signed is not None:  # the administrator has reviewed it
            return SkillVerdict(level="suspicious", reasons=reasons, text=text)
        if level == "dangerous":
            self._clean.pop(str(file), None)
            return SkillVerdict(level=level, reasons=reasons)
        return examine(text, name=name, strict=root.strict, code=code)

    def support(self, root: Root, directory: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return a skill's support files, and warnings about them.

        Raises SkillError if one of them is dangerous, because it could run without being read.
        """
        files = support_files(directory)
        marks: list[str] = []
        total = 0
        for name in files if root.examined else ():
            path = directory / name
            try:
                size = path.stat().st_size
                total += size
                if total > _EXAMINED or size > FILE_LIMIT:
                    marks.append("it has more support files than were examined")
                    break
                text, _ = decoded(read_regular(path))
            except OSError as error:
                marks.append(f"{name} cannot be read: {error.strerror}")
                continue
            except SkillError:  # binary data is neither read by the model nor run directly
                continue
            verdict = self.judged(root, path, text, code=is_code(name))
            if verdict.level == "dangerous":
                raise SkillError(f"{name} looks harmful: {verdict.why}")
            marks += [f"{name}: {reason}" for reason in verdict.reasons]
        return files, tuple(marks)

    def scanned(self, text: str, name: str, scan: Callable[[str, str], ScanResult]) -> ScanResult:
        """Scan text that is not a skill; clean results are cached."""
        key = f"{_digest(text)}t"  # saves the next process the import of the scan
        if self._known(key) == _CLEAN:
            return ScanResult(verdict="clean", text=text)
        result = scan(text, name)
        if result.verdict == "clean":
            self._cache.put("verdicts", {key: _CLEAN}, worth=WORTH_SAVING)
        return result

    def level(self, found: FoundSkill) -> Judged:
        """Return a document's level and the reasons, from the cache if possible."""
        root = found.root
        if not root.examined or self._clean.get(found.path) is found:
            return _CLEAN
        if root.source == "workdir":
            text, _ = decoded(read_regular(found.path))
            verdict = self.judged(root, found.file, text)
            return verdict.level, verdict.reasons
        known = self._known(_key(found.digest))
        if known is None and self._room <= 0:
            known = self._glanced(found)
        elif known is None or (known != _CLEAN and self._accepts):
            self._room -= known is None
            text, _ = decoded(read_regular(found.path))
            known = self._level(text, found.digest, DOCUMENT)
            if known != _CLEAN and self._accepted(found.file, text):
                return _CLEAN
        if known == _CLEAN and found.document is not None and found.document.notes:
            known = self._glanced(found)
        if known == _CLEAN:
            self._clean[found.path] = found
        return known

    def neutral(self, found: FoundSkill, document: Document) -> str:
        """Return a suspicious skill's description without suspicious passages, for the prompt."""
        try:
            text, _ = decoded(read_regular(found.file))
            verdict = self.judged(found.root, found.file, text, digest=found.digest)
            return read_document(verdict.text, folder=found.folder).description
        except (OSError, SkillError):  # the neutralised document may no longer be valid
            return f"a skill named {document.name}"

    def category(self, found: FoundSkill, document: Document) -> str:
        """Return the category for display: folder names, unless they read like an instruction."""
        category = found.category or document.category
        if not found.root.examined:  # also avoids loading the scan's word lists (5 MB)
            return category
        known = self._categories.get(category)
        if known is None:
            level, _ = self._level(_said(category))
            known = self._categories[category] = category if level == "clean" else UNFIT
        return known

    def glance(self, several: Sequence[FoundSkill]) -> None:
        """Scan the names and descriptions of new documents in batches if there are many.

        Only clean results are recorded. Suspicious documents, and those with code blocks, are
        scanned separately when they are needed.
        """
        new = [
            (found, found.document)
            for found in several
            if found.digest not in self._looked_at
            and found.root.examined
            and found.root.source != "workdir"
            and found.document is not None
            and self._known(_key(found.digest)) is None
        ]
        self._looked_at.update(found.digest for found, _ in new)
        if len(new) <= self._room:
            return
        self._room = 0
        named = {_glance(found.digest, each.name): _listed(each) for found, each in new}
        categories = {found.category or document.category for found, document in new}
        for category in categories.difference(self._categories):
            named[_key(_digest(_said(category)))] = _said(category)
        self._take_in({key: t for key, t in named.items() if not any(o in t for o in _OPENS)})

    def _take_in(self, named: Mapping[str, str]) -> None:
        """Scan the texts in `named`, keyed by cache key, in one batch; record them if clean.

        A large batch that is not clean is split in half.
        """
        pending = [[key for key in named if self._known(key) is None]]
        while pending:
            keys = pending.pop()
            if keys and examine(_BETWEEN.join(map(named.__getitem__, keys))).level == "clean":
                self._cache.put("verdicts", dict.fromkeys(keys, _CLEAN))
            elif len(keys) > _SMALLEST:
                half = len(keys) // 2
                pending += [keys[:half], keys[half:]]

    def _level(
        self,
        text: str,
        digest: str = "",
        name: str = "",
        *,
        strict: bool = False,
        code: bool = False,
    ) -> Judged:
        key = _key(digest or _digest(text), strict=strict, code=code)
        known = self._known(key)
        if known is None:
            verdict = examine(text, name=name, strict=strict, code=code)
            known = (verdict.level, verdict.reasons)
            self._cache.put("verdicts", {key: known})
        return known

    def _known(self, key: str) -> Judged | None:
        match self._cache.get("verdicts", key):
            case ["clean" | "suspicious" | "dangerous" as level, [*reasons]]:
                return level, tuple(map(str, reasons))
            case _:
                return None

    def _glanced(self, found: FoundSkill) -> Judged:
        """Return the level of a skill's name and description ("dangerous" if it is suspicious)."""
        document = found.document
        if document is None or self._known(_glance(found.digest, document.name)):
            return _CLEAN
        level, reasons = self._level(_listed(document), name=DOCUMENT)
        return ("dangerous", reasons) if level == "suspicious" else (level, reasons)

    def _accepted(self, file: Path, text: str) -> bool:
        return self._accepts is not None and self._accepts(file, text)


def _in_time(text: str, found: Iterable[_Read], unread: _Read) -> list[_Read]:
    """Return the findings, or only `unread` if the scan exceeds its time limit."""
    try:
        with deadline(len(text)):
            return list(found)
    except ScanTimeout:
        return [unread]


def _shown(text: str, finding: Finding, *, code: bool) -> bool:
    if finding.score > _GUIDES.get(finding.category, -1.0):
        return False
    line = text.rfind("\n", 0, finding.start) + 1
    fenced = text.count("```", 0, line) % 2 == 1
    return code or fenced or text.count("`", line, finding.start) % 2 == 1


def _dangerous(found: Iterable[Sign]) -> bool:
    """Return whether there is one strong sign or at least two different weak ones."""
    scores: dict[str, float] = {}
    for sign in found:
        scores[sign.name] = max(sign.score, scores.get(sign.name, 0.0))
    return sum(scores.values()) >= MARKS


def _passage(text: str) -> str:
    return " ".join(text[: 4 * _PASSAGE].split())[:_PASSAGE]


def _reasons(several: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    told = (f"{category}: {visible(one_line(each, 100))!r}" for category, each in several)
    return tuple(dict.fromkeys(told))[:_REASONS]


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _key(digest: str, *, strict: bool = False, code: bool = False) -> str:
    return f"{digest}{'s' if strict else ''}{'c' if code else ''}"


def _glance(digest: str, name: str) -> str:
    """Return the cache key for a name and description; the name may be the folder's name."""
    return f"{digest}g{name}"


def _listed(document: Document) -> str:
    return f"{document.name}\n\n{document.description}"


def _said(category: str) -> str:
    return visible(category).replace("/", "\n\n")
