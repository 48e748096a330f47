"""What the user has accepted although the scan warned: this content, at this place, nothing else.

One JSON file under the home directory, readable by its owner only. Looking something up writes
nothing. A damaged file means that nothing is trusted; it is kept aside when the next entry is
written, and `Trust.problem` says so until then.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from hermes_nb.core.files import locked, make_private, write_atomic

FILE = "trust.json"
_VERSION = 1
_LARGEST = 4_000_000
"""Bytes; more is no list of what somebody accepted by hand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """One entry: the file's canonical path, the SHA-256 of its text, and when, in UTC."""

    path: str
    sha256: str
    when: str


class Trust:
    """What the user has accepted; safe among processes."""

    def __init__(self, home: Path) -> None:
        self._file = Path(home) / FILE

    @property
    def problem(self) -> str:
        """Return why nothing is trusted although there is a file, or ""."""
        return self._read()[1]

    def accepts(self, path: Path | str, text: str) -> bool:
        """Say whether the user accepted exactly this text at this place."""
        entry = self._read()[0].get(_canonical(path))
        return entry is not None and entry.sha256 == _digest(text)

    def accept(self, path: Path | str, text: str) -> None:
        """Remember that the user accepts this text at this place, instead of an earlier one.

        Raises OSError, or TimeoutError where another process holds the file.
        """
        place = _canonical(path)
        when = datetime.now(UTC).isoformat(timespec="seconds")
        entry = Accepted(path=place, sha256=_digest(text), when=when)
        make_private(self._file.parent)
        with locked(self._file):
            self._write({**self._read_or_set_aside(), place: entry})

    def revoke(self, path: Path | str) -> bool:
        """Forget what was accepted at this place; say whether anything was."""
        place = _canonical(path)
        if place not in self._read()[0]:
            return False
        with locked(self._file):
            entries = self._read_or_set_aside()
            known = entries.pop(place, None) is not None
            self._write(entries)
        return known

    def entries(self) -> tuple[Accepted, ...]:
        """Return everything accepted, by path."""
        return tuple(entry for _, entry in sorted(self._read()[0].items()))

    def _read(self) -> tuple[dict[str, Accepted], str]:
        """Return the entries by path, and what is wrong with the file."""
        try:
            with self._file.open("rb") as file:
                data = file.read(_LARGEST + 1)
        except FileNotFoundError:
            return {}, ""
        except OSError as error:
            return {}, f"{FILE} cannot be read ({error.strerror}); nothing is trusted"
        try:
            return _entries(data), ""
        except (ValueError, TypeError, KeyError, RecursionError):
            told = "it is kept aside when you next trust something"
            return {}, f"{FILE} is damaged and nothing is trusted; {told}"

    def _read_or_set_aside(self) -> dict[str, Accepted]:
        """Return the entries; a file that is damaged takes another name first."""
        entries, problem = self._read()
        if problem:
            self._file.replace(self._aside())
        return entries

    def _aside(self) -> Path:
        number = 1
        while (place := self._file.with_name(f"{FILE}.damaged-{number}")).exists():
            number += 1
        return place

    def _write(self, entries: dict[str, Accepted]) -> None:
        listed = [asdict(entry) for _, entry in sorted(entries.items())]
        document = {"version": _VERSION, "accepted": listed}
        data = json.dumps(document, ensure_ascii=True, indent=1).encode() + b"\n"
        if self._file.exists():
            self._file.chmod(0o600)
        write_atomic(self._file, data, mode=0o600)


def _entries(data: bytes) -> dict[str, Accepted]:
    """Return the entries in a file's bytes; raise ValueError, TypeError or KeyError."""
    if len(data) > _LARGEST:
        raise ValueError("too large")
    document = json.loads(data)
    if document["version"] != _VERSION:
        raise ValueError("made by another version")
    found = (
        Accepted(path=item["path"], sha256=item["sha256"], when=item["when"])
        for item in document["accepted"]
    )
    entries = {entry.path: entry for entry in found}
    if not all(isinstance(v, str) for e in entries.values() for v in (e.path, e.sha256, e.when)):
        raise ValueError("an entry is no text")
    return entries


def _canonical(path: Path | str) -> str:
    return os.path.realpath(Path(path).expanduser())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
