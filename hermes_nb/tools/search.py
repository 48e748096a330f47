"""`search_files`: find matching lines in files, or list files.

A search has two steps: list the files that `.gitignore` does not ignore, filter and sort them; then
search them in that order. Each step uses ripgrep if it is installed, or else Python code with
exactly the same result. Both run as child processes with a time limit. Patterns are checked as
Python regular expressions; those that Python and ripgrep interpret differently are left to Python.

A search prints events in the format of `rg --json`: `match` and `context` lines file by file, and
an `end` for each file. `Results` turns them into lines for the model, in bounded memory.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import stat
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Annotated

from hermes_nb.core.errors import ToolError, TurnInterrupted
from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Json
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Tool, ToolContext
from hermes_nb.safety.child_environment import child_environment
from hermes_nb.safety.protected import second_name, why_secret
from hermes_nb.tools import ignore, matching
from hermes_nb.tools.process import Program, Sink, run_pipeline
from hermes_nb.tools.schema import tool
from hermes_nb.tools.workspace import Workspace

LINE_LIMIT = 300
COUNT_LIMIT = 10_000
"""Number of matches at which a search stops, because the pattern is too general."""
_LEAD = 60


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    text: str
    is_match: bool


@dataclass(slots=True)
class Results:
    """Stores the first `limit` matches as text and counts the others."""

    limit: int
    """Number of matches to show."""
    name: Callable[[str], str]
    """Returns the displayed name of an absolute path."""
    context: int = 0
    """Number of lines to show around each match."""
    lines: list[str] = field(default_factory=list)
    """The lines to show."""
    matches: int = 0
    """Number of matches found so far."""
    _pending: list[bytes] = field(default_factory=list)
    """Chunks of the current, incomplete line of output."""
    _file: list[_Line] = field(default_factory=list)
    """The current file's lines."""
    _shown: int = 0
    """Number of matches in `lines`."""

    def feed(self, chunk: bytes) -> bool:
        """Add a chunk of output; return False once there are more than `COUNT_LIMIT` matches."""
        self._pending.append(chunk)
        if b"\n" in chunk:  # chunks are joined once per line, since a long line may have many
            *whole, rest = b"".join(self._pending).split(b"\n")
            self._pending = [rest]
            for line in whole:
                self._event(line)
        return self.matches < COUNT_LIMIT

    def _event(self, line: bytes) -> None:
        if not line.startswith(b"{"):  # an error message about a file
            return
        event = json.loads(line)
        data = event["data"]
        if event["type"] in ("match", "context"):
            self._file.append(_line(data, is_match=event["type"] == "match"))
        elif event["type"] == "end":
            if data["binary_offset"] is None:
                self._add(self.name(_path(data["path"])))
            self._file = []

    def _add(self, name: str) -> None:
        """Add a file's lines: matches up to the limit, and their context."""
        matches = [line.number for line in self._file if line.is_match]
        self.matches += len(matches)
        kept = set(matches[: max(0, self.limit - self._shown)])
        self._shown += len(kept)
        around = range(-self.context, self.context + 1)
        near = {number + step for number in kept for step in around}
        last = -1
        for line in self._file:
            if line.number not in (kept if line.is_match else near):
                continue
            if self.context and self.lines and line.number != last + 1:
                self.lines.append("--")
            last = line.number
            mark = ":" if line.is_match else "-"
            self.lines.append(f"{name}{mark}{line.number}{mark} {line.text}".rstrip())

    @property
    def omitted(self) -> int:
        """Number of matches not shown, out of at most `COUNT_LIMIT`."""
        return min(self.matches, COUNT_LIMIT) - self._shown


def _line(data: dict[str, Json], *, is_match: bool) -> _Line:
    text = _text(data["lines"]).rstrip("\r\n")
    start = data["submatches"][0]["start"] if is_match and data["submatches"] else 0
    before = len(text.encode("utf-8", "replace")[:start].decode("utf-8", "ignore"))
    return _Line(data["line_number"], _clipped(text, before), is_match)


def _text(data: dict[str, str]) -> str:
    """Return the text in part of an event, where non-UTF-8 text is in base64."""
    if "text" in data:
        return data["text"]
    return base64.b64decode(data["bytes"]).decode("utf-8", "replace")


def _path(data: dict[str, str]) -> str:
    """Return the path in part of an event, with undecodable bytes as Python represents them."""
    return data["text"] if "text" in data else os.fsdecode(base64.b64decode(data["bytes"]))


def _clipped(text: str, start: int) -> str:
    """Return at most `LINE_LIMIT` characters of a line, around the match."""
    if len(text) <= LINE_LIMIT:
        return visible(text, lines=True)
    first = max(0, min(start - _LEAD, len(text) - LINE_LIMIT)) if start > LINE_LIMIT - _LEAD else 0
    piece = text[first : first + LINE_LIMIT]
    tail = "" if first + LINE_LIMIT >= len(text) else "…"
    return ("…" if first else "") + visible(piece, lines=True) + tail


TIME_LIMIT = 20.0
FILE_LIMIT = 50_000_000
"""Maximum size in bytes of a file to search."""
PATTERN_LIMIT = 1_000
_ARGUMENT_BYTES = 100_000
_FILES_A_RUN = 1_000
_LISTING_LIMIT = 64_000_000
_RIPGREP = (
    *("--no-config", "--no-messages", "--no-require-git"),
    *("--no-ignore-dot", "--no-ignore-exclude", "--no-ignore-global"),
)
_PORTABLE = re.compile(r"(?:[^\\(]|\\[^<>bBAZzpPhRQGXKCNuUxk0-9]|\\[bB](?!\{)|\((?!\?)|\(\?:)*")
"""Matches patterns that have the same meaning in ripgrep and Python."""
_ALTERNATIVES = 64
_GROUP = re.compile(r"\{([^{}]*,[^{}]*)\}")


def search(space: Workspace, *, ripgrep: bool | None = None) -> Tool:
    """Return the tool; `ripgrep` forces or forbids ripgrep (default: use it if installed)."""

    @tool(toolset="files", paths=("path",), root=space.root)
    async def search_files(
        call: ToolContext,
        pattern: str,
        path: str = ".",
        glob: str | None = None,
        ignore_case: bool = False,
        context: Annotated[int, {"minimum": 0, "maximum": 20}] = 0,
        limit: Annotated[int, {"minimum": 1, "maximum": 1000}] = 100,
    ) -> str:
        """Search the lines of files for a regular expression, or list files by name.

        Skips binary, hidden and .gitignored files.

        Args:
            pattern: "" lists the files that match glob
            glob: e.g. *.py, src/**/*.{js,ts} or !*.csv
            context: lines around each match
        """
        if not pattern and not glob:
            raise ToolError("give a `pattern` to search for, or a `glob` to list files")
        query = _Query(_checked(pattern), ignore_case, context, limit)
        program = shutil.which("rg") if ripgrep is None or ripgrep else None
        job = _Job(space, space.resolve(path), program, call, time.monotonic() + TIME_LIMIT)
        with space.explained(job.start):
            job.start.stat()
        files = await job.files(glob)
        return await job.search(query, files) if pattern else _listed(files, limit)

    return search_files


@dataclass(frozen=True, slots=True)
class _Query:
    pattern: str
    ignore_case: bool
    context: int
    limit: int


@dataclass(frozen=True, slots=True)
class _Files:
    """The files to search, sorted: absolute paths with their displayed names."""

    named: dict[str, str]
    complete: bool = True


@dataclass(frozen=True, slots=True)
class _Job:
    """One search: its workspace, start path, program, tool call and deadline."""

    space: Workspace
    start: Path
    ripgrep: str | None
    call: ToolContext
    deadline: float

    async def files(self, glob: str | None) -> _Files:
        """List the files to search, sorted by path."""
        wanted = name_filter(glob) if glob else None
        if not self.start.is_dir():
            found, complete = [str(self.start)], True
        elif self.ripgrep:
            found, complete = await self._listed_by_ripgrep(self.ripgrep)
        else:
            found, complete = await in_thread(self._walk)
        named = await in_thread(self._chosen, found, wanted)
        return _Files(named, complete)

    def _chosen(self, found: list[str], wanted: Callable[[str], bool] | None) -> dict[str, str]:
        """Return the files that pass the filter and may be searched, sorted."""
        inside = len(str(self.start).rstrip("/")) + 1 if self.start.is_dir() else 0
        return {
            path: self.space.shown(Path(path))
            for path in sorted(found)
            if (wanted is None or wanted(path[inside:])) and _searchable(path, self.space.root)
        }

    async def search(self, query: _Query, files: _Files) -> str:
        """Search files and return the matches as text."""
        results = Results(
            query.limit, lambda path: files.named.get(path, visible(path)), query.context
        )
        portable = self.ripgrep is not None and _PORTABLE.fullmatch(query.pattern) is not None
        complete = files.complete
        # Notebooks come last: their outputs change with every run and would crowd out other files.
        for batch in _batches(sorted(files.named, key=lambda path: path.endswith(".ipynb"))):
            command = self._ripgrep(query) if portable else _python(query)
            ended = await self._run([*command, *batch], results.feed)
            complete = complete and ended
            if not complete or results.matches >= COUNT_LIMIT:
                break
        return _result_text(query, results, len(files.named), complete=complete)

    def _walk(self) -> tuple[list[str], bool]:
        found: list[str] = []
        for path in ignore.walk(self.start):
            if self.call.stop.is_set():
                raise TurnInterrupted("the search was stopped")
            if time.monotonic() > self.deadline:
                return found, False
            found.append(path)
        return found, True

    async def _listed_by_ripgrep(self, program: str) -> tuple[list[str], bool]:
        output = bytearray()

        def keep(chunk: bytes) -> bool:
            output.extend(chunk)
            return len(output) < _LISTING_LIMIT

        above = [] if ignore.counts_above(self.start) else ["--no-ignore-parent"]
        command = [program, "--files", "--null", *_RIPGREP, *above, "--", str(self.start)]
        complete = await self._run(command, keep)
        return [os.fsdecode(path) for path in bytes(output).split(b"\0") if path], complete

    def _ripgrep(self, query: _Query) -> list[str]:
        case = ["--ignore-case"] if query.ignore_case else ["--case-sensitive"]
        return [
            str(self.ripgrep),
            *("--json", "--no-config", "--no-messages", "--no-ignore", "--hidden", "--crlf"),
            *("--no-mmap", "--threads=1", f"--max-count={matching.MATCHES_A_FILE}"),
            *(*case, f"--context={query.context}", "--regexp", _once_a_line(query.pattern), "--"),
        ]

    async def _run(self, command: Sequence[str], sink: Sink) -> bool:
        """Run a search; return False if the deadline or the sink ended it early."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            return False
        try:
            ended = await run_pipeline(
                [Program(command=command, env=child_environment())],
                cwd=self.space.real_root(),
                timeout=left,
                sink=sink,
                stop=self.call.stop,
            )
        except OSError as error:
            message = f"the search could not be started: {error}; try again in a moment"
            raise ToolError(message) from error
        return not ended.timed_out and not ended.cut_off


def _once_a_line(pattern: str) -> str:
    """Return a ripgrep pattern that starts like `pattern` and matches to the end of the line.

    ripgrep reports each match in a line, and a line of a minified file may have millions.
    """
    return f"(?:{pattern})(?-u:.)*"


def _python(query: _Query) -> list[str]:
    options = {
        "pattern": query.pattern,
        "ignore_case": query.ignore_case,
        "context": query.context,
    }
    return [sys.executable, "-I", "-S", str(matching.__file__), json.dumps(options)]


def _checked(pattern: str) -> str:
    """Return `pattern` if it is a valid regular expression; raise ToolError if not."""
    if len(pattern) > PATTERN_LIMIT or "\n" in pattern or "\0" in pattern:
        message = (
            f"a pattern must be one line of at most {PATTERN_LIMIT} characters, "
            "because lines are searched one by one"
        )
        raise ToolError(message)
    try:
        pattern.encode("utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            re.compile(pattern)
    except re.error as error:
        at = "" if error.pos is None else f" at position {error.pos}"
        message = (
            f"{visible(pattern)!r} is not a valid regular expression: "
            f"{error.msg}{at}; escape with \\"
        )
        raise ToolError(message) from error
    except (Warning, RecursionError, OverflowError, UnicodeEncodeError) as error:
        message = (
            f"{visible(pattern)!r} cannot be used ({error}); use Python's syntax, such as [a-z]"
        )
        raise ToolError(message) from error
    return pattern


def _searchable(path: str, root: Path) -> bool:
    """Return whether a file is regular, not too large, and not a secret under any of its names."""
    try:
        status = os.lstat(path)
    except OSError:
        return False
    regular = stat.S_ISREG(status.st_mode) and status.st_size <= FILE_LIMIT
    regular = regular and not ignore.is_cassette(PurePosixPath(path).name)
    return regular and not why_secret(PurePosixPath(path)) and not second_name(Path(path), root)


def _batches(files: Sequence[str]) -> Iterator[list[str]]:
    """Yield the files in batches that fit on a command line."""
    batch: list[str] = []
    size = 0
    for path in files:
        if batch and (size + len(path) > _ARGUMENT_BYTES or len(batch) >= _FILES_A_RUN):
            yield batch
            batch, size = [], 0
        batch.append(path)
        size += len(os.fsencode(path)) + 1
    if batch:
        yield batch


def _listed(files: _Files, limit: int) -> str:
    names = list(files.named.values())
    lines = names[:limit] or ["no files match"]
    if more := len(names) - limit:
        lines += [f"[{more:,} more files; narrow the glob]"] if more > 0 else []
    return "\n".join([*lines, *_cut(complete=files.complete)])


def _result_text(query: _Query, results: Results, count: int, *, complete: bool) -> str:
    lines = list(results.lines)
    if not lines:
        lines = [f"no matches for {visible(query.pattern)!r} in {count:,} files"]
    if results.omitted:
        many = "at least " if results.matches >= COUNT_LIMIT else ""
        lines.append(f"[{many}{results.omitted:,} more matches; narrow the pattern or the path]")
    stopped = results.matches >= COUNT_LIMIT
    return "\n".join([*lines, *_cut(complete=complete or stopped)])


def _cut(*, complete: bool) -> list[str]:
    limit = f"stopped after {TIME_LIMIT:.0f} s"
    text = f"[{limit}, not everything was searched; narrow the pattern or the path]"
    return [] if complete else [text]


def name_filter(glob: str) -> Callable[[str], bool]:
    """Return a test for paths relative to the searched directory; raise ToolError if invalid.

    Globs are git patterns plus `{a,b}` and a leading `!`. A glob without `/` matches names at any
    depth; one with `/` matches paths from the directory.
    """
    excluded = glob.startswith("!")
    patterns = _alternatives(glob[1:] if excluded else glob)
    spec = None if any(map(ignore.is_hostile, patterns)) else ignore.spec_of(patterns)
    if spec is None:
        message = f"{visible(glob)!r} is not a usable glob; give one like '*.py' or 'src/**/*.md'"
        raise ToolError(message)
    return lambda path: bool(spec.check_file(path).include) != excluded


def _alternatives(glob: str) -> list[str]:
    """Return the globs that `{a,b}` expands to, innermost groups first."""
    pending = [glob]
    done: list[str] = []
    while pending and len(pending) + len(done) <= _ALTERNATIVES:
        pattern = pending.pop()
        group = _GROUP.search(pattern)
        if group is None:
            done.append(pattern)
            continue
        head, tail = pattern[: group.start()], pattern[group.end() :]
        pending += [head + one + tail for one in group[1].split(",")[:_ALTERNATIVES]]
    return done
