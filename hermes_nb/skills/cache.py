"""What is known of skills' documents and texts, kept on disk for the next process.

A document counts for the file with that very path, size, inode and both times; a verdict for that
very content; and both for the code and the rules that made them. The file may be deleted: it is
bounded, private, and void where it is damaged. Who can write it could write skills as well, or
accept texts for the user.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Literal

from hermes_nb import safety, skills
from hermes_nb.core.files import write_atomic
from hermes_nb.core.messages import Json
from hermes_nb.core.plugins import plugins
from hermes_nb.safety.scan import DETECTORS

LIMIT = 5_000
"""Documents and verdicts that are kept, the newest ones of each."""
_LARGEST = 2**25
"""Bytes of the file that are read; a thousand skills take about 0.5 MB."""
WORTH_SAVING = 20
"""New entries from which the file is written: reading and examining that many takes 0.1 s."""
Kind = Literal["documents", "verdicts"]


class Cache:
    """The entries of a home, below `directory` or, with None, in memory. Safe between threads."""

    def __init__(self, directory: Path | None) -> None:
        self._path = directory / "cache.json" if directory else None
        self._lock = threading.Lock()
        self._entries: dict[str, dict[str, Json]] = {}
        self._unsaved = 0

    def get(self, kind: Kind, key: str) -> Json:
        """Return what is known by this key, or None; whoever asks checks what it looks like."""
        return (self._entries or self._loaded())[kind].get(key)

    def put(self, kind: Kind, entries: Mapping[str, Json], *, worth: int = 0) -> None:
        """Take note of what is JSON, or of tuples where JSON has lists.

        They count as `worth` entries where they took longer to make than those of as many skills.
        """
        with self._lock:
            known = self._loaded()[kind]
            for key in entries:
                known.pop(key, None)
            known.update(entries)
            self._unsaved += max(worth, len(entries))

    def save(self) -> None:
        """Write what is new, if it is enough; a place that cannot be written is left alone."""
        path = self._path
        with self._lock:
            if path is None or self._unsaved < WORTH_SAVING or not path.parents[2].is_dir():
                return
            newest = {kind: [*known.items()][-LIMIT:] for kind, known in self._entries.items()}
            self._unsaved = 0
        kept = {kind: dict(items) for kind, items in newest.items()}
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomic(path, json.dumps({"edition": edition(), **kept}).encode(), mode=0o600)
            for earlier in ("documents.json", "verdicts.json"):
                path.with_name(earlier).unlink(missing_ok=True)
        except OSError:  # a cache that cannot be kept costs time, nothing else
            return

    def _loaded(self) -> dict[str, dict[str, Json]]:
        if not self._entries:
            data: Json = None
            with suppress(OSError, ValueError, RecursionError):
                if self._path and self._path.stat().st_size <= _LARGEST:
                    data = json.loads(self._path.read_bytes())
            data = data if isinstance(data, dict) and data.get("edition") == edition() else {}
            known = {kind: data.get(kind) for kind in ("documents", "verdicts")}
            self._entries = {k: v if isinstance(v, dict) else {} for k, v in known.items()}
        return self._entries


@cache
def edition() -> str:
    """Return a digest of everything that a cached entry depends on: the code and the rules.

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
    for point in plugins(DETECTORS):
        version = point.dist.version if point.dist else ""
        digest.update(f"{point.name} {point.value} {version}\n".encode())
    return digest.hexdigest()
