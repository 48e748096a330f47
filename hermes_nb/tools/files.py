"""The toolset `files`: read, write, patch and list files in the working directory.

Files are read as streams with a size limit, so reading is safe for any size or type. Writes are
atomic.
Notebooks can be read but not written: an open notebook is owned by its front end.
"""

from __future__ import annotations

import io
import os
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, TextIO

from hermes_nb.core.errors import ToolError, TurnInterrupted
from hermes_nb.core.escapes import visible
from hermes_nb.core.files import write_atomic
from hermes_nb.core.messages import Json
from hermes_nb.core.patching import patched
from hermes_nb.core.tools import Risk, Tool, ToolContext, ToolOutput, Toolset
from hermes_nb.tools.encodings import SAMPLE, Encoding, decode, encoding_of, kind_of
from hermes_nb.tools.ignore import DirectoryEntry, Rules, entries, rules_for, rules_in
from hermes_nb.tools.schema import tool
from hermes_nb.tools.search import search
from hermes_nb.tools.workspace import Workspace, open_regular, size_text

ENTRIES_SHOWN = 500


def listing(directory: Path, *, depth: int, hidden: bool, ignored: bool) -> str:
    """Return a directory's contents as text: at most `ENTRIES_SHOWN` lines and a note.

    `.git` is listed but not entered. Links are shown with their target and not followed.
    """
    tree = _Tree(hidden=hidden, ignored=ignored)
    tree.add(directory.as_posix(), rules_for(directory), depth, "")
    lines = tree.lines or ["(empty)"]
    if note := tree.note():
        lines = [*lines, note]
    return "\n".join(lines)


class _Tree:
    """Collects the lines of a listing and counts the omitted entries."""

    def __init__(self, *, hidden: bool, ignored: bool) -> None:
        self.lines: list[str] = []
        self._hidden = hidden
        self._ignored = ignored
        self._left_out = {"more": 0, "hidden": 0, "ignored": 0}

    def add(self, directory: str, rules: Rules, depth: int, indent: str) -> None:
        """Add a directory's entries and their contents, down to `depth` levels."""
        chosen = [entry for entry in entries(directory, rules) if self._wanted(entry)]
        for entry in sorted(chosen, key=lambda entry: (not entry.is_directory, entry.name)):
            if len(self.lines) >= ENTRIES_SHOWN:
                self._left_out["more"] += 1
                continue
            self.lines.append(indent + _line(entry))
            if entry.is_directory and depth > 1 and entry.name != ".git":
                self.add(entry.path, rules_in(entry.path, rules), depth - 1, indent + "  ")

    def note(self) -> str:
        """Return a line that counts the omitted entries; "" if all are listed."""
        parts = [f"{count:,} {what}" for what, count in self._left_out.items() if count]
        return f"[not shown: {', '.join(parts)}]" if parts else ""

    def _wanted(self, entry: DirectoryEntry) -> bool:
        if entry.hidden and not self._hidden:
            self._left_out["hidden"] += 1
            return False
        if entry.ignored and not self._ignored:
            self._left_out["ignored"] += 1
            return False
        return True


def _line(entry: DirectoryEntry) -> str:
    name = visible(entry.name)
    if entry.is_link:
        try:
            return f"{name} -> {visible(os.readlink(entry.path))}"  # noqa: PTH115 - a string
        except OSError:
            return f"{name} -> ?"
    if entry.is_directory:
        return f"{name}/"
    try:
        return f"{name}  {size_text(os.lstat(entry.path).st_size)}"
    except OSError:
        return name


READ_LIMIT = 40_000
"""Characters per page; less than the limit for tool output, so that a page is never truncated."""
LINE_LIMIT = 2_000
COUNT_LIMIT = 64_000_000
"""Maximum size in bytes of a file whose remaining lines are counted for the note below a page."""
_CHUNK = 65_536


class StreamLines:
    """A stream's lines, each truncated to `LINE_LIMIT`, in bounded memory.

    Raises `TurnInterrupted` between chunks once `stop` is set, because a large file takes a while.
    """

    def __init__(self, text: TextIO, stop: threading.Event) -> None:
        self._text = text
        self._stop = stop

    def next(self) -> str | None:
        """Return the next line without its line ending; None at the end of the stream."""
        line = self._read(LINE_LIMIT + 2)  # a line ending has up to two characters
        if not line:
            return None
        dropped = 0
        rest = line
        while rest and not rest.endswith("\n"):
            rest = self._read(_CHUNK)
            dropped += len(rest.rstrip("\r\n"))
        line = line.rstrip("\r\n")
        if len(line) <= LINE_LIMIT and not dropped:
            return line
        dropped += len(line) - LINE_LIMIT
        return f"{line[:LINE_LIMIT]}[... {dropped:,} more characters]"

    def skip(self, count: int) -> int:
        """Skip up to `count` lines and return the number skipped."""
        return next((n for n in range(count) if self.next() is None), count)

    def _read(self, size: int) -> str:
        if self._stop.is_set():
            raise TurnInterrupted("reading was stopped")
        return self._text.readline(size)


def numbered(lines: StreamLines, offset: int, limit: int, size: int) -> str:
    """Return up to `limit` lines, from line `offset` (from 1), of a file of `size` bytes."""
    skipped = lines.skip(offset - 1)
    shown: list[str] = []
    left = READ_LIMIT
    while len(shown) < limit and left > 0:
        line = lines.next()
        if line is None:
            past = "" if shown else _nothing(offset, skipped, size)
            return "\n".join(shown) or past
        shown.append(f"{offset + len(shown)}\t{line}")
        left -= len(shown[-1]) + 1
    return "\n".join([*shown, *_rest(lines, offset, offset + len(shown) - 1, size)])


def _nothing(offset: int, lines: int, size: int) -> str:
    if size == 0:
        return "[the file is empty]"
    return f"[line {offset:,} is past the end: the file has {lines:,} lines]"


def _rest(lines: StreamLines, first: int, last: int, size: int) -> list[str]:
    """Return a note, as a list of one line, if the file continues after the last line shown."""
    if lines.next() is None:
        return []
    going_on = f"continue with offset={last + 1}"
    if size > COUNT_LIMIT:
        return [f"[truncated after line {last:,}; the file has {size_text(size)}; {going_on}]"]
    total = last + 1 + lines.skip(COUNT_LIMIT)
    return [f"[lines {first:,} to {last:,} of {total:,}; {going_on}]"]


PATCH_LIMIT = 16_000_000
"""Maximum size in bytes of a file to patch, which happens in memory."""

_ANYBODY_WRITES = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH
_PATCHING = threading.Lock()
"""One patch at a time: child agents may change the same file in parallel."""

Positive = Annotated[int, {"minimum": 1}]


def files(
    root: Path,
    *,
    also_readable: tuple[Path, ...] = (),
    allowed: Callable[[Path], bool] = lambda _: False,
) -> Toolset:
    """Return the tools for `root`; `also_readable` directories may be read but not written.

    `allowed(path)` grants access to individual paths outside, given as real absolute paths.
    """
    space = Workspace(root=root, also_readable=also_readable, allowed=allowed)
    makers = (_read_file, _write_file, _patch, search, _list_files)
    return Toolset(make(space) for make in makers)


def _gist(arguments: Mapping[str, Json]) -> str:
    return visible(str(arguments.get("path", ".")))


def _read_file(space: Workspace) -> Tool:
    def origin(arguments: Mapping[str, Json]) -> str:
        path = Path(os.path.realpath(space.root / str(arguments.get("path", "")).replace("\0", "")))
        inside = path.is_relative_to(os.path.realpath(space.root))
        return "" if inside else "a file outside the working directory"

    @tool(toolset="files", paths=("path",), root=space.root, describe=_gist, origin=origin)
    def read_file(
        context: ToolContext, path: str, offset: Positive = 1, limit: Positive = 1000
    ) -> str:
        """Read a text file with line numbers. A cut result says how to continue.

        Args:
            offset: first line
            limit: number of lines
        """
        target = space.resolve(path)
        with space.explained(target), open_regular(target) as file:
            sample = file.read(SAMPLE)
            size = os.fstat(file.fileno()).st_size
            encoding = encoding_of(sample, whole=size <= SAMPLE)
            if encoding is None:
                kind = kind_of(target, sample)
                raise ToolError(
                    f"{space.shown(target)!r} is binary ({kind}, {size_text(size)}) and not shown; "
                    "load it with Python instead"
                )
            file.seek(len(encoding.mark))
            text = io.TextIOWrapper(file, encoding.name, errors="replace", newline="\n")
            shown = numbered(StreamLines(text, context.stop), offset, limit, size)
        return shown if encoding.name == "utf-8" else f"{shown}\n[read as {encoding.name}]"

    return read_file


def _write_file(space: Workspace) -> Tool:
    @tool(toolset="files", risk=Risk.WRITE, paths=("path",), root=space.root, describe=_gist)
    def write_file(path: str, content: str) -> ToolOutput:
        """Create or overwrite a file, with missing directories."""
        target = _writable(space, path)
        with space.explained(target):
            exists = target.exists()
            before = _current(target) if exists else None
            encoding = Encoding()
            if before is not None:
                content, encoding = _in_style(content, *before)
            target.parent.mkdir(parents=True, exist_ok=True)
            data = encoding.encode(content)
            write_atomic(target, data)
        lines = content.count("\n") + (not content.endswith("\n") and content != "")
        verb = "replaced" if exists else "created"
        text = f"{verb} {space.shown(target)} ({lines:,} lines, {size_text(len(data))})"
        return ToolOutput(text, origin="ours")  # it quotes nothing from the file

    return write_file


def _patch(space: Workspace) -> Tool:
    @tool(toolset="files", risk=Risk.WRITE, paths=("path",), root=space.root, describe=_gist)
    def patch(
        path: str,
        old: str,
        new: str,
        replace_all: bool = False,
    ) -> str:
        """Replace an exact passage of a file; returns the diff.

        Args:
            old: exact, unique unless replace_all
        """
        target = _writable(space, path)
        name = space.shown(target)
        with _PATCHING:
            text, encoding, version = _read_text(space, target)
            result = patched(text, old, new, name=name, replace_all=replace_all)
            with space.explained(target):
                if version != _version(target.stat()):
                    message = f"{name!r} has just been changed by another program; read it again"
                    raise ToolError(message)
                write_atomic(target, encoding.encode(result.text))
        times = "" if result.count == 1 else f" in {result.count} places"
        return f"patched {name}{times}\n{result.diff}"

    return patch


def _list_files(space: Workspace) -> Tool:
    @tool(toolset="files", paths=("path",), root=space.root, describe=_gist)
    def list_files(
        path: str = ".",
        depth: Annotated[int, {"minimum": 1, "maximum": 8}] = 1,
        hidden: bool = False,
        ignored: bool = False,
    ) -> str:
        """List a directory with file sizes, directories first.

        Args:
            depth: levels below the directory
            hidden: include names that start with a dot
            ignored: include files in .gitignore
        """
        target = space.resolve(path)
        with space.explained(target):
            if not target.is_dir():
                if not target.exists():
                    raise space.missing(target)
                raise ToolError(f"{space.shown(target)!r} is a file; read_file shows it")
            return listing(target, depth=depth, hidden=hidden, ignored=ignored)

    return list_files


def _read_text(space: Workspace, target: Path) -> tuple[str, Encoding, tuple[int, ...]]:
    """Return a file's text, encoding and version; raise ToolError if it is too large or binary."""
    with space.explained(target), open_regular(target) as file:
        version = _version(os.fstat(file.fileno()))
        data = file.read(PATCH_LIMIT + 1)
    name = space.shown(target)
    if len(data) > PATCH_LIMIT:
        message = f"{name!r} is larger than {size_text(PATCH_LIMIT)}; change it with a script"
        raise ToolError(message)
    decoded = decode(data)
    if decoded is None:
        message = f"{name!r} is binary ({kind_of(target, data)}); change it with Python instead"
        raise ToolError(message)
    return *decoded, version


def _version(status: os.stat_result) -> tuple[int, ...]:
    """Return a value that changes whenever the file is written."""
    return status.st_ino, status.st_size, status.st_mtime_ns


def _writable(space: Workspace, path: str) -> Path:
    """Return the path to write; raise ToolError unless it is a regular file and no notebook."""
    target = space.resolve(path, write=True)
    with space.explained(target):
        _check_writable(space, target)
    return target


def _check_writable(space: Workspace, target: Path) -> None:
    if target.suffix.lower() == ".ipynb":
        raise ToolError(
            f"{space.shown(target)!r} is a notebook and may be open; change its cells with the "
            "notebook tools, or ask the user"
        )
    if target.is_dir():
        raise ToolError(f"{space.shown(target)!r} is a directory; give the path of a file")
    if target.exists() and not target.is_file():
        message = (
            f"{space.shown(target)!r} is a device or a pipe; only regular files can be written"
        )
        raise ToolError(message)
    # Replacing a file only needs access to its folder, so this has to be checked.
    if target.exists() and not target.stat().st_mode & _ANYBODY_WRITES:
        message = (
            f"{space.shown(target)!r} is write-protected; ask the user, or choose another file"
        )
        raise ToolError(message)


def _current(target: Path) -> tuple[bytes, Encoding | None]:
    """Return the start of an existing file, and its encoding."""
    with open_regular(target) as file:
        sample = file.read(SAMPLE)
    return sample, encoding_of(sample, whole=len(sample) < SAMPLE)


def _in_style(content: str, sample: bytes, encoding: Encoding | None) -> tuple[str, Encoding]:
    """Give new content the line endings and byte order mark of the file it replaces."""
    lines = sample.count(b"\n")
    if lines and sample.count(b"\r\n") == lines and "\r" not in content:
        content = content.replace("\n", "\r\n")
    marked = encoding is not None and encoding.mark and encoding.name == "utf-8"
    return content, encoding if marked and encoding else Encoding()
