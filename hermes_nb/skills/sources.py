"""Skills of other people, as they were when the user looked at them: taken over, compared, dropped.

A folder below `skill_sources` in the home is a copy of a source's skills, one folder each: their
documents and support files, no links, nothing else. What the guard finds dangerous is left out. The
copy changes by a look at the difference alone, whatever happens where it came from.
"""

from __future__ import annotations

import difflib
import json
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from hermes_nb.core.files import locked, make_private, write_atomic
from hermes_nb.core.regular_files import real_inside
from hermes_nb.skills.discovery import DOCUMENT, Root, Shelf, decoded, read_regular
from hermes_nb.skills.document import NAME_LIMIT, SkillError, name_problems, read_document
from hermes_nb.skills.support_files import is_code, real_path, support_files
from hermes_nb.skills.trust import Level, examine

FOLDER = "skill_sources"
RECORD = "sources.json"
MOST_SKILLS = 200
LARGEST = 16_777_216
"""Bytes of all the skills of a source."""
COMPARED = 20_000
"""Lines of a file up to which its difference is shown line by line."""
Files = Mapping[str, bytes]
"""What files hold, by their paths below the source's folder, `skill/…`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillSource:
    """Where skills come from: a path or an address, a folder in it, and as of which commit."""

    name: str
    place: str
    folder: str = ""
    commit: str = ""

    @property
    def is_remote(self) -> bool:
        """Whether it is an address, for git."""
        return "://" in self.place


def source_of(place: str, folder: str = "") -> SkillSource:
    """Return the source of an address or a path; raise SkillError for what is none."""
    if "://" in place or re.match(r"[\w.-]+@[\w.-]+:", place):
        parts = urlsplit(place)
        if parts.scheme not in ("https", "file"):
            raise SkillError(f"{place!r}: an address of skills begins with https:// or file://")
        if "@" in parts.netloc:
            raise SkillError("an address with a name or password in it is not kept; leave it out")
    else:
        path = Path(place).expanduser().absolute()
        if not path.is_dir():
            raise SkillError(f"{place!r} is no folder, and no address with https:// or file://")
        place = str(path)
    inside = PurePosixPath(folder)
    if inside.is_absolute() or ".." in inside.parts:
        raise SkillError(f"{folder!r} leads out of the source")
    last = PurePosixPath(urlsplit(place).path if "://" in place else place).name
    name = re.sub(r"[^a-z0-9._-]+", "-", last.lower().removesuffix(".git")).strip("-._")
    return SkillSource(name=name[:NAME_LIMIT] or "skills", place=place, folder=folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSkill:
    """A skill of a source as the guard sees it; `dangerous` ones are not taken."""

    name: str
    description: str = ""
    level: Level = "clean"
    why: str = ""


def taken(place: Path, below: str = "") -> tuple[Files, list[SeenSkill]]:
    """Return the skills in a folder of a place and what was seen of each.

    Raises SkillError and OSError.
    """
    kept: dict[str, bytes] = {}
    seen: list[SeenSkill] = []
    names: set[str] = set()
    root = place.resolve()
    for folder, document in _skills(real_inside(root / below, root)):
        try:
            one, files = _skill(folder, document)
        except (SkillError, OSError) as error:
            seen.append(SeenSkill(name=folder.name, level="dangerous", why=str(error)))
            continue
        if one.name in names:
            one = SeenSkill(
                name=one.name, level="dangerous", why="there is one of that name already"
            )
        elif one.level != "dangerous":
            names.add(one.name)
            kept |= {f"{one.name}/{path}": data for path, data in files.items()}
        seen.append(one)
        if len(seen) > MOST_SKILLS or sum(map(len, kept.values())) > LARGEST:
            most = f"{MOST_SKILLS} skills or {LARGEST:,} bytes"
            raise SkillError(f"it has more than {most}; name a folder of it")
    if not seen:
        raise SkillError(f"there is no {DOCUMENT} in it, three folders deep; name a folder of it")
    return kept, seen


def _skills(place: Path) -> Iterator[tuple[Path, str]]:
    """Yield the folders of skills, and how their documents are named."""
    if (place / DOCUMENT).is_file():
        yield place, DOCUMENT
        return
    for found in Shelf(Root(place)).look():
        yield found.file.parent, found.file.name


def _skill(folder: Path, name: str) -> tuple[SeenSkill, Files]:
    text, _ = decoded(read_regular(folder / name))
    document = read_document(text, folder=folder.name)
    files = {DOCUMENT: text.encode("utf-8", "replace")}
    verdicts = [examine(text, name=DOCUMENT)]
    for path in support_files(folder):
        data = files[path] = read_regular(real_path(folder, path))
        with suppress(SkillError):  # binary data is neither read nor run as it is
            verdicts.append(examine(decoded(data)[0], name=path, code=is_code(path)))
    levels = {verdict.level for verdict in verdicts}
    order: tuple[Level, ...] = ("dangerous", "suspicious", "clean")
    level = next(each for each in order if each in levels)
    why = "; ".join(verdict.why for verdict in verdicts if verdict.level == level)
    return SeenSkill(
        name=document.name, description=document.description, level=level, why=why
    ), files


def difference(before: Files, after: Files) -> str:
    """Return what changes from one state of a source to another, as a unified diff."""
    shown: list[str] = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old != new:
            lines, others = _lines(old), _lines(new)
            names = f"a/{path}" if lines else "/dev/null", f"b/{path}" if others else "/dev/null"
            if len(lines) + len(others) > COMPARED:
                shown.append(f"{path}: {len(lines):,} lines become {len(others):,}")
            else:
                found = [*difflib.unified_diff(lines, others, *names, lineterm="")]
                shown += found or [f"{path} differs in what is no text, or in its line ends"]
    return "\n".join(shown)


def _lines(data: bytes | None) -> list[str]:
    try:
        return decoded(data)[0].splitlines() if data else []
    except SkillError:
        return [f"(binary, {len(data or b''):,} bytes)"]


class Sources:
    """The sources of one home; what raises is OSError, and TimeoutError for a held lock."""

    def __init__(self, home: Path) -> None:
        self.directory = home / FOLDER
        self._record = self.directory / RECORD

    def all(self) -> dict[str, SkillSource]:
        """Return the sources by name; a record that cannot be read has none."""
        try:
            found = json.loads(self._record.read_bytes())
            sources = [SkillSource(**{k: str(v) for k, v in each.items()}) for each in found]
        except (OSError, ValueError, TypeError, AttributeError):
            return {}
        return {each.name: each for each in sources if not name_problems(each.name)}

    def files(self, name: str) -> Files:
        """Return what is kept of a source."""
        kept: dict[str, bytes] = {}
        for folder in sorted((self.directory / name).glob("*/")):
            paths = [DOCUMENT, *support_files(folder)]
            kept |= {f"{folder.name}/{path}": read_regular(folder / path) for path in paths}
        return kept

    def keep(self, source: SkillSource, files: Files) -> None:
        """Put these files in the place of what is kept of a source."""
        make_private(self.directory)
        with (
            locked(self._record),
            tempfile.TemporaryDirectory(prefix=".", dir=self.directory) as folder,
        ):
            new, old = Path(folder, "new"), Path(folder, "old")
            new.mkdir()
            for path, data in files.items():
                (new / path).parent.mkdir(parents=True, exist_ok=True)
                (new / path).write_bytes(data)
            place = self.directory / source.name
            if place.exists():
                place.rename(old)
            new.rename(place)
            self._write({**self.all(), source.name: source})

    def drop(self, name: str) -> None:
        """Forget a source with its skills."""
        with locked(self._record):
            self._write({n: each for n, each in self.all().items() if n != name})
            shutil.rmtree(self.directory / name, ignore_errors=True)

    def _write(self, sources: Mapping[str, SkillSource]) -> None:
        data = json.dumps([asdict(each) for each in sources.values()], indent=1).encode()
        write_atomic(self._record, data, mode=0o600)
