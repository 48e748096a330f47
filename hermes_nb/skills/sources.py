"""Skills from other people: copied, compared and removed under the user's control.

A *source* is a repository or directory with skills. Each source is copied to its own folder under
`skill_sources` in the Hermes directory, with one folder per skill. The copy contains only documents
and support files, no links. Dangerous skills are not copied. The copy changes only after the user
has seen the diff, whatever happens at the source.
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
"""Maximum total size, in bytes, of all of a source's skills."""
COMPARED = 20_000
"""Maximum number of lines, in both versions of a file together, to show a diff for."""
Files = Mapping[str, bytes]
"""Contents of files by their path under the source's folder, such as `skill/SKILL.md`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillSource:
    """A location from which skills are copied."""

    name: str
    """Name of the source, and of its folder under `skill_sources`."""
    place: str
    """Absolute path, or URL for git."""
    folder: str = ""
    """Folder inside the location; "" for the top-level folder."""
    commit: str = ""
    """The copied commit; "" if the location is a path."""

    @property
    def is_remote(self) -> bool:
        """Whether the location is a URL for git."""
        return "://" in self.place


def source_of(place: str, folder: str = "") -> SkillSource:
    """Return the source for a URL or a path; raise SkillError if it is neither."""
    if "://" in place or re.match(r"[\w.-]+@[\w.-]+:", place):
        parts = urlsplit(place)
        if parts.scheme not in ("https", "file"):
            raise SkillError(f"{place!r}: the URL of skills must start with https:// or file://")
        if "@" in parts.netloc:
            raise SkillError("a URL with a user name or password is not saved; remove them")
    else:
        path = Path(place).expanduser().absolute()
        if not path.is_dir():
            raise SkillError(
                f"{place!r} is neither a folder nor a URL that starts with https:// or file://"
            )
        place = str(path)
    inside = PurePosixPath(folder)
    if inside.is_absolute() or ".." in inside.parts:
        raise SkillError(f"{folder!r} is outside the source")
    last = PurePosixPath(urlsplit(place).path if "://" in place else place).name
    name = re.sub(r"[^a-z0-9._-]+", "-", last.lower().removesuffix(".git")).strip("-._")
    return SkillSource(name=name[:NAME_LIMIT] or "skills", place=place, folder=folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenSkill:
    """A skill in a source, with its verdict; `dangerous` ones are not copied."""

    name: str
    """Name of the skill."""
    description: str = ""
    """Description of the skill; "" if it cannot be read."""
    level: Level = "clean"
    """How dangerous the skill is, including its support files."""
    why: str = ""
    """The reasons for the level; "" if clean."""


def taken(place: Path, below: str = "") -> tuple[Files, list[SeenSkill]]:
    """Return the files and verdicts of the skills in `place`, or in its subfolder `below`.

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
                name=one.name, level="dangerous", why="a skill with that name already exists"
            )
        elif one.level != "dangerous":
            names.add(one.name)
            kept |= {f"{one.name}/{path}": data for path, data in files.items()}
        seen.append(one)
        if len(seen) > MOST_SKILLS or sum(map(len, kept.values())) > LARGEST:
            most = f"{MOST_SKILLS} skills or {LARGEST:,} bytes"
            raise SkillError(f"it has more than {most}; give one of its folders")
    if not seen:
        raise SkillError(
            f"there is no {DOCUMENT} in it, down to three levels; give one of its folders"
        )
    return kept, seen


def _skills(place: Path) -> Iterator[tuple[Path, str]]:
    """Yield each skill folder with the name of its document."""
    if (place / DOCUMENT).is_file():
        yield place, DOCUMENT
        return
    for found in Shelf(Root(place)).scan():
        yield found.file.parent, found.file.name


def _skill(folder: Path, name: str) -> tuple[SeenSkill, Files]:
    text, _ = decoded(read_regular(folder / name))
    document = read_document(text, folder=folder.name)
    files = {DOCUMENT: text.encode("utf-8", "replace")}
    verdicts = [examine(text, name=DOCUMENT)]
    for path in support_files(folder):
        data = files[path] = read_regular(real_path(folder, path))
        with suppress(SkillError):  # binary data is neither read by the model nor run directly
            verdicts.append(examine(decoded(data)[0], name=path, code=is_code(path)))
    levels = {verdict.level for verdict in verdicts}
    order: tuple[Level, ...] = ("dangerous", "suspicious", "clean")
    level = next(each for each in order if each in levels)
    why = "; ".join(verdict.why for verdict in verdicts if verdict.level == level)
    return SeenSkill(
        name=document.name, description=document.description, level=level, why=why
    ), files


def difference(before: Files, after: Files) -> str:
    """Return the difference between two states of a source as a unified diff."""
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
                shown += found or [f"{path} differs in binary content or line endings"]
    return "\n".join(shown)


def _lines(data: bytes | None) -> list[str]:
    try:
        return decoded(data)[0].splitlines() if data else []
    except SkillError:
        return [f"(binary, {len(data or b''):,} bytes)"]


class Sources:
    """The copied sources in a Hermes directory; methods raise OSError, TimeoutError if locked."""

    def __init__(self, home: Path) -> None:
        self.directory = home / FOLDER
        self._record = self.directory / RECORD

    def all(self) -> dict[str, SkillSource]:
        """Return the sources by name, or {} if the record cannot be read."""
        try:
            found = json.loads(self._record.read_bytes())
            sources = [SkillSource(**{k: str(v) for k, v in each.items()}) for each in found]
        except (OSError, ValueError, TypeError, AttributeError):
            return {}
        return {each.name: each for each in sources if not name_problems(each.name)}

    def files(self, name: str) -> Files:
        """Return a source's copied files."""
        kept: dict[str, bytes] = {}
        for folder in sorted((self.directory / name).glob("*/")):
            paths = [DOCUMENT, *support_files(folder)]
            kept |= {f"{folder.name}/{path}": read_regular(folder / path) for path in paths}
        return kept

    def keep(self, source: SkillSource, files: Files) -> None:
        """Replace the copied files of a source."""
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
        """Remove a source and its skills."""
        with locked(self._record):
            self._write({n: each for n, each in self.all().items() if n != name})
            shutil.rmtree(self.directory / name, ignore_errors=True)

    def _write(self, sources: Mapping[str, SkillSource]) -> None:
        data = json.dumps([asdict(each) for each in sources.values()], indent=1).encode()
        write_atomic(self._record, data, mode=0o600)
