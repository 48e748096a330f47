"""Remembers what the guard found, by content, so that no text is examined twice.

The file is a cache: it is bounded, it may be deleted, and a change of the rules makes it void. It
lies among the home's skills, and who can write there needs no forged verdict.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hermes_nb import safety, skills
from hermes_nb.core.files import write_atomic
from hermes_nb.skills.guard import Level, Verdict, examine

LIMIT = 5_000
"""Verdicts that are kept, the newest ones."""
_SMALLEST = 40
"""Texts that are examined together and not parted any further to find the bad one among them."""
_BETWEEN = "\n\n---\n\n"
"""Parts texts that are examined together: none can excuse what the next one says."""
_OPENS = ("```", "~~~")
"""What begins code, in which some things mean less; a text with it is examined by itself."""
_MARKED = 64
"""Suspicious texts whose neutralised form is kept; that many skills fill some megabytes at most."""
_LEVELS: tuple[Level, ...] = ("clean", "suspicious", "dangerous")


class Verdicts:
    """Verdicts by content; `directory` is where they outlive the process, or None."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self._path = directory / "verdicts.json" if directory else None
        self._lock = threading.Lock()
        self._known: dict[str, tuple[Level, tuple[str, ...]]] | None = None
        self._rules = ""
        self._unsaved = 0
        self._marked: dict[str, Verdict] = {}

    def of(
        self,
        text: str,
        *,
        digest: str = "",
        name: str = "",
        strict: bool = False,
        code: bool = False,
    ) -> Verdict:
        """Return the verdict on a text; `digest` is the SHA-256 of its file, where it is known.

        What may be loaded of a suspicious text is kept in memory only, for some of them.
        """
        digest = digest or _digest(text)
        level, reasons = self.level(text, digest=digest, name=name, strict=strict, code=code)
        if level == "clean":
            return Verdict(text=text)
        if level == "dangerous":
            return Verdict(level=level, reasons=reasons)
        key = _key(digest, strict=strict, code=code)
        with self._lock:
            marked = self._marked.get(key)
        if marked is None:
            marked = examine(text, name=name, strict=strict, code=code)
            with self._lock:
                if len(self._marked) >= _MARKED:
                    self._marked.clear()
                self._marked[key] = marked
        return marked

    def known(self, digest: str, *, strict: bool = False) -> tuple[Level, tuple[str, ...]] | None:
        """Return what is known of a document with these bytes, or None."""
        with self._lock:
            return self._loaded().get(_key(digest, strict=strict, code=False))

    def level(
        self,
        text: str,
        *,
        digest: str = "",
        name: str = "",
        strict: bool = False,
        code: bool = False,
    ) -> tuple[Level, tuple[str, ...]]:
        """Return how bad a text is, and why."""
        digest = digest or _digest(text)
        key = _key(digest, strict=strict, code=code)
        with self._lock:
            found = self._loaded().get(key)
        if found is None:
            verdict = examine(text, name=name, strict=strict, code=code)
            found = (verdict.level, verdict.reasons)
            with self._lock:
                self._loaded()[key] = found
                self._unsaved += 1
        return found

    def glanced(self, digest: str, name: str) -> bool:
        """Say whether what the index shows of a document was found clean.

        `digest` is that of its bytes; its `name` may be its folder's and need not be in them.
        """
        with self._lock:
            return _glance(digest, name) in self._loaded()

    def take_in(self, shown: Mapping[tuple[str, str], str], texts: Iterable[str] = ()) -> None:
        """Examine what the index shows of documents, by digest and name, and texts, all at once.

        Of those that are not clean nothing is noted: each is examined by itself when it is asked
        for, and so is one with code in it.
        """
        named = {_glance(*key): text for key, text in shown.items()}
        named |= {_key(_digest(text), strict=False, code=False): text for text in texts}
        with self._lock:
            known = self._loaded()
        plain = {
            key: text for key, text in named.items() if not any(map(text.__contains__, _OPENS))
        }
        pending = [keys] if (keys := [key for key in plain if key not in known]) else []
        while pending:
            keys = pending.pop()
            if examine(_BETWEEN.join(map(plain.__getitem__, keys))).level == "clean":
                with self._lock:
                    known.update(dict.fromkeys(keys, ("clean", ())))
                    self._unsaved += len(keys)
            elif len(keys) > _SMALLEST:
                half = len(keys) // 2
                pending += [keys[:half], keys[half:]]

    def save(self, *, at_least: int = 1) -> None:
        """Write what is new, if that many are; a place that cannot be written is left alone."""
        with self._lock:
            if self._path is None or self._unsaved < at_least or not self._path.parents[1].is_dir():
                return
            newest = list(self._loaded().items())[-LIMIT:]
            self._unsaved = 0
        data = json.dumps({"rules": self._rules, "verdicts": dict(newest)}, ensure_ascii=False)
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomic(self._path, data.encode("utf-8", "replace"), mode=0o600)
        except OSError:  # a cache that cannot be kept costs time, nothing else
            return

    def _loaded(self) -> dict[str, tuple[Level, tuple[str, ...]]]:
        if self._known is None:
            self._rules = edition()
            self._known = _read(self._path, self._rules) if self._path else {}
        return self._known


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _key(digest: str, *, strict: bool, code: bool) -> str:
    return f"{digest}{'s' if strict else ''}{'c' if code else ''}"


def _glance(digest: str, name: str) -> str:
    return f"{digest}g{name}"


def _read(path: Path, rules: str) -> dict[str, tuple[Level, tuple[str, ...]]]:
    try:
        data: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(data, dict) or data.get("rules") != rules:
        return {}
    verdicts = data.get("verdicts")
    known: dict[str, tuple[Level, tuple[str, ...]]] = {}
    for key, value in verdicts.items() if isinstance(verdicts, dict) else ():
        match value:
            case [level, [*reasons]] if level in _LEVELS:
                known[key] = (level, tuple(map(str, reasons)))
    return known


@cache
def edition() -> str:
    """Return a digest of everything that a verdict depends on: the code and the rules.

    Of the content of each file, below every folder: times and sizes may stay as they were.
    """
    digest = hashlib.sha256()
    for package in (safety, skills):
        for folder in map(Path, package.__path__):
            for path in sorted(folder.rglob("*")):
                if path.suffix in (".py", ".toml", ".json"):
                    content = path.read_bytes()
                    title = f"{path.relative_to(folder).as_posix()} {len(content)}\n"
                    digest.update(title.encode() + content)
    return digest.hexdigest()
