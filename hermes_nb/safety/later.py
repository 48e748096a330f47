"""What of a workspace runs later or instructs an agent: found, kept, put back after a command.

A sandbox cannot forbid names that are not there yet without making them. So what is there is
looked at before a command that may write, and again after it: what is new is taken away, what
changed is put back, and the caller asks with a diff. The walk looks into every folder but those of
installed code, of which it sees what Python runs at its start.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_nb.safety.protected import NOT_WALKED, known_names, shadows

if TYPE_CHECKING:
    from hermes_nb.core.messages import Json

MOST_KEPT = 1 << 22
"""Bytes of a file that are kept to be put back; of a longer one only the hash."""
_PACKAGES = frozenset({"site-packages", "dist-packages"})
_ENVIRONMENTS = frozenset({".venv", "venv"})
_IN_GIT = frozenset({"config", "config.worktree", "attributes", "commondir"})
_SEQUENCES = frozenset({"rebase-merge", "rebase-apply", "sequencer"})
_GIT_FOLDERS = _SEQUENCES | {"hooks", "info", "modules", "worktrees"}
_TODO = frozenset({"git-rebase-todo", "todo"})
_EXECUTES = re.compile(rb"(?m)^[ \t]*(?:exec|x)(?![^\s]).*")
_MODULE = re.compile(r"\.(?:py|pyc|so|pyd)$")
_HARMLESS_CONFIG = re.compile(
    r"\s*(?:[#;].*|\[(?:core|user|init|(?:remote|branch|submodule) \"[\w./-]+\")\]"
    r"|(?:repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode"
    r"|symlinks|fetch|remote|merge|rebase|active|name|email|defaultbranch|path|branch)\s*=[^\\]*"
    r"|url\s*=\s*(?!ext::|-)[^\\]*)?"
)

_AGENT = re.compile(
    r"%hermes\b|magic\(\s{0,9}['\"]hermes|\bhermes_nb\b|\A\s{0,99}hermes[ \t][^=\n][^\n]*\s*\Z"
)
"""A magic, the package, or a magic without its `%`, which IPython takes if it is the only line."""


def starts_agent(source: str) -> bool:
    """Say whether a cell with this source starts an agent when it is run."""
    return bool(_AGENT.search(source))


def agent_cells(notebook: str) -> frozenset[str]:
    """Return the sources of a notebook's cells that start an agent.

    `notebook` is the text of an .ipynb file (nbformat 3 or 4). What is no JSON is no notebook.
    """
    try:
        cells = list(_code_cells(json.loads(notebook)))
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(filter(starts_agent, cells))


def _code_cells(value: Json) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _code_cells(each)
    elif isinstance(value, dict):
        if value.get("cell_type") == "code":
            source = value.get("source", value.get("input", ""))
            yield "".join(map(str, source)) if isinstance(source, list) else str(source)
        else:
            for each in value.values():
                yield from _code_cells(each)


@dataclass(frozen=True, slots=True)
class Kept:
    """A file as it was: what is in it (None: too long), its hash and mode, or where it leads."""

    content: bytes | None = None
    digest: str = ""
    mode: int = 0o644
    link: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What runs later below `root`; `fixed` cannot have been changed by the command."""

    root: Path
    files: Mapping[str, Kept]
    fixed: frozenset[str] = frozenset()
    environment: bool = False


@dataclass(frozen=True, slots=True)
class Taken:
    """A file that a command made or changed, and that runs later: not there before it is agreed."""

    path: Path
    before: Kept | None
    after: Kept | None

    def diff(self) -> str:
        """Return what the command would have changed, as a unified diff."""
        before, after = _lines(self.before), _lines(self.after)
        return "".join(difflib.unified_diff(before, after, f"a/{self.path}", f"b/{self.path}"))


@dataclass(slots=True)
class Places:
    """Where things run later: files, and folders of which everything does."""

    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)


def find_later(root: Path, *, environment: bool = False) -> Places:
    """Find what runs later below `root`; `environment` leaves folders of installed code out."""
    places = Places()
    for place, folders, names in os.walk(root):
        below = os.path.relpath(place, root)
        parts = () if below == "." else tuple(part.casefold() for part in Path(below).parts)
        packages = not _ENVIRONMENTS.isdisjoint(parts) or not _PACKAGES.isdisjoint(parts)
        if parts and parts[-1] == ".git":
            places.folders.append(place)
            places.files += _in_git(place)
            folders[:] = []
            continue
        if "HEAD" in names and "config" in names and "objects" in folders:  # a bare repository
            places.files += _in_git(place)
        if not (packages and environment):
            entries = (*names, *_links(place, folders))
            whole = _whole(parts)
            places.files += (
                os.path.join(place, name)
                for name in entries
                if (whole and not packages) or _later(place, parts, name, root)
            )
            if whole and not _whole(parts[:-1]):
                places.folders.append(place)
        folders[:] = _walked(parts, folders)
    return places


def _walked(parts: tuple[str, ...], folders: list[str]) -> list[str]:
    """Return the folders to look into: of installed code only what runs at its start."""
    if parts and parts[-1] in _PACKAGES:
        return []
    kept = [name for name in folders if name not in NOT_WALKED or name.casefold() in _PACKAGES]
    if parts and parts[-1] in _ENVIRONMENTS:
        return [name for name in kept if name.casefold() in ("bin", "scripts", "lib", "lib64")]
    return kept


def _whole(parts: tuple[str, ...]) -> bool:
    """Say whether everything in a folder runs later."""
    later = known_names("later")
    return not later.folders.keys().isdisjoint(parts) or any(
        pair in later.pairs for pair in pairwise(parts)
    )


def _later(place: str, parts: tuple[str, ...], name: str, root: Path) -> bool:
    low, path = name.casefold(), os.path.join(place, name)
    if parts and parts[-1] in _PACKAGES:
        return low.endswith((".pth", ".py"))
    if not _ENVIRONMENTS.isdisjoint(parts):
        return low == "pyvenv.cfg" or low.startswith(("activate", "python"))
    if known_names("later").file.match(low) or low == ".git":
        return True
    above = any(low == first for first, _ in known_names("later").pairs)
    if (above or _whole((*parts, low))) and os.path.islink(path):
        return True
    return bool(_MODULE.search(name)) and bool(shadows(Path(path), root))


def _links(place: str, folders: Sequence[str]) -> list[str]:
    return [name for name in folders if os.path.islink(os.path.join(place, name))]


def _in_git(git: str) -> Iterator[str]:
    """Yield what of a repository's own files git runs or obeys, submodules' too."""
    for place, folders, names in os.walk(git):
        below = Path(os.path.relpath(place, git)).parts
        own, hooks = os.path.basename(place), "hooks" in below
        for name in (*names, *_links(place, folders)):
            listed = name in _IN_GIT and (name != "attributes" or own == "info")
            listed |= name in _TODO and own in _SEQUENCES
            if listed or name in _GIT_FOLDERS or (hooks and not name.endswith(".sample")):
                yield os.path.join(place, name)
        if not hooks:
            inside = "modules" in below or "worktrees" in below
            folders[:] = [
                name
                for name in folders
                if name in _GIT_FOLDERS or (inside and name not in ("objects", "refs", "logs"))
            ]


def runs_later(root: Path, *, environment: bool = False) -> dict[str, Kept]:
    """Return the files below `root` that run later or instruct an agent, with what is in them."""
    places = find_later(root, environment=environment)
    found = ((path, _keep(path)) for path in places.files)
    return {path: kept for path, kept in found if kept is not None}


def _keep(path: str) -> Kept | None:
    try:
        if os.path.islink(path):
            return Kept(link=os.readlink(path))
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(number, "rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o7777
            content = file.read(MOST_KEPT + 1)
            digest = hashlib.sha256(content)
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except FileNotFoundError:
        return None
    except OSError:  # not readable: by us and so by what we start
        return Kept(digest="unreadable")
    kept = content if len(content) <= MOST_KEPT else None
    return Kept(content=kept, digest=digest.hexdigest(), mode=mode)


def take_back(snapshot: Snapshot) -> list[Taken]:
    """Put what runs later back as it was before a command; return what was new or changed.

    Sample hooks and the harmless settings of a new or cloned repository may stay.
    """
    after, out = runs_later(snapshot.root, environment=snapshot.environment), []
    names = sorted(snapshot.files.keys() | after.keys())
    for name in sorted(names, key=lambda name: ".git" not in Path(name).parts):
        before, now = snapshot.files.get(name), after.get(name)
        path = Path(name)
        fixed = before and any(str(place) in snapshot.fixed for place in (path, *path.parents))
        if before == now or fixed or _may_stay(path, before, now):
            continue
        if path.parent.exists() and path.parent.resolve() != path.parent:
            continue  # a link leads elsewhere; it is itself taken away
        _put(path, before)
        out.append(Taken(path, before, now))
    for path in {taken.path.parent for taken in out}:
        _remove_empty(path, snapshot.root)
    return out


def give_back(taken: Sequence[Taken]) -> None:
    """Make what was taken away anew, now that the user has agreed."""
    for each in taken:
        _put(each.path, each.after)


def _may_stay(path: Path, before: Kept | None, now: Kept | None) -> bool:
    """Say whether a change is what `git init`, `git clone`, `git checkout` and a rebase make.

    Attributes choose among filters that are set elsewhere: they may where a repository sets none.
    """
    if now is not None and now.link:
        return False
    if is_todo(path):  # what git has done since, it has struck out
        return _executed(now) <= _executed(before)
    if path.name == ".gitattributes":
        git = next((each / ".git" for each in path.parents if (each / ".git").exists()), path)
        return now is None or _harmless(_keep(str(git / "config")))
    if path.name == ".gitmodules":
        return now is None or _harmless(now)
    made = before is None and path.name in ("config", "HEAD")
    return made and (path.parent / "objects").is_dir() and _harmless(now)


def is_todo(path: Path) -> bool:
    """Say whether git itself writes there what is left to do of a rebase or a sequence."""
    return path.name in _TODO and path.parent.name in _SEQUENCES and "hooks" not in path.parts


def _executed(todo: Kept | None) -> set[bytes]:
    """Return what git would execute of what is left to do."""
    if todo is None:
        return set()
    return {b"all of it"} if todo.content is None else {*_EXECUTES.findall(todo.content)}


def _harmless(settings: Kept | None) -> bool:
    text = b"\0" if settings is None or settings.content is None else settings.content
    lines = text.decode("utf-8", "replace").splitlines()
    return all(_HARMLESS_CONFIG.fullmatch(line) for line in lines)


def _put(path: Path, kept: Kept | None) -> None:
    if kept is not None and not kept.link and kept.content is None:
        return  # too long to have been kept: it stays as it is now
    path.unlink(missing_ok=True)
    if kept is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if kept.link:
        path.symlink_to(kept.link)
        return
    path.write_bytes(kept.content or b"")
    path.chmod(kept.mode)


def _remove_empty(folder: Path, root: Path) -> None:
    for place in (folder, *folder.parents):
        inside = place != root and place.is_relative_to(root)
        parts = tuple(part.casefold() for part in place.relative_to(root).parts) if inside else ()
        if not inside or not _whole(parts) or any(place.iterdir()):
            return
        place.rmdir()


def _lines(kept: Kept | None) -> list[str]:
    if kept is None:
        return []
    if kept.link:
        return [f"-> {kept.link}\n"]
    if kept.content is None:
        return [f"(long, sha256 {kept.digest})\n"]
    return [f"{line}\n" for line in kept.content.decode("utf-8", "backslashreplace").splitlines()]
