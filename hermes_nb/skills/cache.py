"""Cache skills' parsed documents and verdicts on disk for the next process.

A cached document is valid as long as its file has the same path, size, inode and times, and a
cached verdict as long as the content is the same. Both are valid only for the same version of the
code and the rules. The cache file is limited in size, private and safe to delete; a damaged file
counts as empty. Anyone who can write it could also write skills or accept texts on the user's
behalf.
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
"""Maximum number of documents, and of verdicts; the newest are kept."""
_LARGEST = 2**25
"""Maximum size of the file in bytes; a thousand skills take about 0.5 MB."""
WORTH_SAVING = 20
"""Minimum number of new entries for writing the file; computing that many takes 0.1 s."""
Kind = Literal["documents", "verdicts"]


class Cache:
    """The cache in `directory`; without a directory, it is in memory only. Thread-safe."""

    def __init__(self, directory: Path | None) -> None:
        self._path = directory / "cache.json" if directory else None
        self._lock = threading.Lock()
        self._entries: dict[str, dict[str, Json]] = {}
        self._unsaved = 0

    def get(self, kind: Kind, key: str) -> Json:
        """Return the entry for a key, or None; the caller must check its structure."""
        return (self._entries or self._loaded())[kind].get(key)

    def put(self, kind: Kind, entries: Mapping[str, Json], *, worth: int = 0) -> None:
        """Add entries, which must be JSON values (tuples become lists).

        If the entries are slow to compute, set `worth` to the number of ordinary entries that they
        count as when the cache decides whether to save.
        """
        with self._lock:
            known = self._loaded()[kind]
            for key in entries:
                known.pop(key, None)
            known.update(entries)
            self._unsaved += max(worth, len(entries))

    def save(self) -> None:
        """Save new entries if there are enough; an unwritable directory is ignored."""
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
        except OSError:  # without the file, the next process only takes longer
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
    """Return a digest of everything that the entries depend on: the code and the rules.

    It covers the content of all files, because their times and sizes may be unchanged.
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
