"""What is thought of each skill: its document, its support files, the category it is listed under.

The guard's verdicts are asked for as rarely as may be, and the user's word comes before them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from hermes_nb.safety.visible import visible
from hermes_nb.skills.discovery import FILE_LIMIT, Found, decoded, read_regular
from hermes_nb.skills.document import Document, SkillError, read_document
from hermes_nb.skills.guard import Verdict
from hermes_nb.skills.roots import Root
from hermes_nb.skills.skill import Skill
from hermes_nb.skills.support import is_code, listed
from hermes_nb.skills.verdicts import Verdicts
from hermes_nb.skills.writing import DOCUMENT

Accepts = Callable[[Path, str], bool]
"""Says whether the user accepted a text at a path, however it looks."""
_WORTH_SAVING = 20
"""New verdicts from which they are written down: examining that many costs about 0.1 s."""
UNFIT = "unnamed"
"""The category of skills whose folders have names that are not fit to be shown."""
_AT_ONCE = 64
"""New documents that a process examines whole when it sees them, some 0.1 s. When more are new it
examines `_OF_MANY`, and looks at what the index shows of the others; these are examined when they
are loaded, or by a later process."""
_OF_MANY = 12
_EXAMINED = 4 * FILE_LIMIT
"""Bytes of a skill's support files that are examined when it is loaded."""


class Examiner:
    """Judges skills by the guard's verdicts and by what the user accepted.

    `judged` and `support` are safe between threads, the rest is for one after the other.
    """

    def __init__(self, verdicts: Verdicts, accepts: Accepts | None = None) -> None:
        self._verdicts, self._accepts = verdicts, accepts
        self._lock = threading.Lock()
        self._harmless: dict[str, tuple[int, int, int]] = {}
        self._categories: dict[str, str] = {"": ""}
        self._room = _AT_ONCE

    def save(self) -> None:
        """Write new verdicts down, where there are enough of them."""
        self._verdicts.save(at_least=_WORTH_SAVING)

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

    def level(self, found: Found) -> tuple[str, tuple[str, ...]]:
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

    def neutral(self, found: Found, document: Document) -> str:
        """Return the description of a suspicious skill, which the index shows, neutralised."""
        try:
            text, _ = decoded(read_regular(found.file))
            verdict = self.judged(found.root, found.file, text, digest=found.digest, code=False)
            return read_document(verdict.text, folder=found.folder).description
        except (OSError, SkillError):  # what was neutralised can no longer be read
            return f"a skill named {document.name}"

    def category(self, found: Found, document: Document) -> str:
        """Return what a skill is listed under: folders' names, unless they read like an order."""
        category = found.category or document.category
        known = self._categories.get(category)
        if known is None:
            level, _ = self._verdicts.level(_said(category))
            known = self._categories[category] = category if level == "clean" else UNFIT
        return known

    def glance(self, several: Sequence[Found]) -> None:
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

    def _accepted(self, file: Path, text: str) -> bool:
        return self._accepts is not None and self._accepts(file, text)


def _shown(document: Document) -> str:
    """Return what the index shows of a document."""
    return f"{document.name}\n\n{document.description}"


def _said(category: str) -> str:
    """Return what a category says to whoever reads the index."""
    return visible(category).replace("/", "\n\n")
