"""The embedded model's weights: identified by digest, and downloaded only with the user's consent.

They are looked up in the user's cache, and otherwise downloaded from the sources in `weights.toml`.
`HERMES_NB_GGUF` names a size in that file (0.5b, 1.5b), or a GGUF file of the user's choice, which
is used as it is. Sources are not trusted: data with a different SHA-256 is rejected and
removed. An interrupted download resumes at the same position, from the same or another source.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

from hermes_nb.core.errors import ConfigError, HermesError, TurnInterrupted
from hermes_nb.core.files import locked, write_atomic
from hermes_nb.extras.local.download import (
    DISK_FULL,
    STOPPED,
    Part,
    Partial,
    Progress,
    Source,
    SourceError,
    Url,
    Wheels,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """A weights file."""

    name: str
    """Name of the model."""
    file: str
    """File name in the cache."""
    size: int
    """Size in bytes."""
    sha256: str
    """SHA-256 in lower-case hexadecimal."""
    sources: tuple[Source, ...] = ()
    """Download sources in order of preference."""


SIZES = ("0.5b", "1.5b")
"""Sizes of the built-in model, smallest first."""


def shipped(size: str = "") -> Weights:
    """Return the weights of a size in `weights.toml`; by default the one that the user has set."""
    size = size or os.environ.get("HERMES_NB_GGUF", "").strip().lower()
    text = Path(__file__).with_name("weights.toml").read_text(encoding="utf-8")
    data = tomllib.loads(text)
    chosen = data[size if size in SIZES else SIZES[0]]
    sources = tuple(_source(item) for item in chosen.pop("source"))
    return Weights(**chosen, sources=sources)


def _source(item: Mapping[str, object]) -> Source:
    match item:
        case {"kind": "http", "name": str(name), "url": str(url)} if url.startswith("https://"):
            return Url(name=name, url=url)
        case {"kind": "wheels", "name": str(name), "version": str(version), "parts": list(parts)}:
            pieces = tuple(Part(**part) for part in parts)
            return Wheels(name=name, version=version, parts=pieces)
        case _:
            raise ConfigError(f"weights.toml: no such source: {dict(item)!r}")


MEGABYTE = 1_000_000
RESERVE = 32 * MEGABYTE
"""Bytes of disk space to leave free after the download."""
CONSENT = "HERMES_NB_FETCH_WEIGHTS"


class WeightsError(HermesError):
    """The weights are not available. The message gives the reason and a solution."""


class WeightsNeeded(ConfigError):
    """The weights are missing, and the user has not agreed to download them.

    `megabytes` is their size, and `sources` contains the names of the sources.
    """

    def __init__(self, weights: Weights) -> None:
        self.megabytes = round(weights.size / MEGABYTE)
        self.sources = tuple(source.name for source in weights.sources)
        super().__init__(
            f"the embedded model must download its weights once ({self.megabytes} MB from "
            f"{' or '.join(self.sources)}); set {CONSENT}=1 to download them, set HERMES_NB_GGUF "
            "to a file you have, or choose another model: %hermes model NAME"
        )


def _cache() -> Path:
    return Path(platformdirs.user_cache_dir("hermes_nb", appauthor=False)) / "weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsStore:
    """Where weights are stored on this machine."""

    weights: Weights = field(default_factory=shipped)
    """The weights to look for."""
    folder: Path = field(default_factory=_cache)
    """The cache directory."""
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)
    """The environment variables."""
    free: Callable[[Path], int] = lambda folder: shutil.disk_usage(folder).free
    """Returns the free bytes on a folder's disk."""

    @property
    def given(self) -> str:
        """The path of the user's own file, or ""."""
        given = self.environ.get("HERMES_NB_GGUF", "").strip()
        return "" if given.lower() in SIZES else given

    @property
    def model(self) -> str:
        """A short name of the model, such as qwen2.5-coder-0.5b."""
        name = Path(self.given).stem if self.given else self.weights.name.partition("-Instruct")[0]
        return name.lower()

    def locate(self) -> Path | None:
        """Return the user's file or the verified weights, or None, without using the network.

        Raises:
            ConfigError: `HERMES_NB_GGUF` is not a GGUF file.
        """
        if self.given:
            return _own_file(Path(self.given).expanduser())
        path = self.folder / self.weights.file
        return path if self._verified(path) else None

    def fetch(
        self, progress: Progress = lambda _done, _total: None, stop: threading.Event | None = None
    ) -> Path:
        """Return the weights, downloading them if needed; concurrent processes wait for the first.

        Received data is saved for the next attempt, unless the disk is full or the data is wrong.

        Raises:
            WeightsError: the weights could not be downloaded.
            TurnInterrupted: `stop` was set.
        """
        stop = stop or threading.Event()
        if found := self.locate():
            return found
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._file_lock(stop):
                return self.locate() or self._download(progress, stop)
        except OSError as error:
            if error.errno in DISK_FULL:
                shutil.rmtree(self._partial, ignore_errors=True)
                raise self._disk_full_error() from error
            message = f"cannot write to {str(self.folder)!r}: {error.strerror or error}"
            raise WeightsError(message) from error

    @property
    def _partial(self) -> Path:
        return self.folder / f"{self.weights.file}.partial"

    @contextmanager
    def _file_lock(self, stop: threading.Event) -> Iterator[None]:
        """Lock the file against other processes; waiting for the lock can be stopped."""
        while True:
            lock = locked(self.folder / self.weights.file, timeout=0.2)
            try:
                lock.__enter__()
            except TimeoutError:
                if stop.is_set():
                    raise TurnInterrupted(STOPPED) from None
                continue
            break
        try:
            yield
        finally:
            lock.__exit__(None, None, None)

    def _download(self, progress: Progress, stop: threading.Event) -> Path:
        said: list[str] = []
        for source in self.weights.sources:
            partial = Partial(self._partial, self.weights.size, progress, stop)
            try:
                self._receive(source, partial)
                return self._publish(partial)
            except SourceError as error:
                said.append(f"{source.name}: {error}")
            finally:
                partial.close()
        raise WeightsError(
            f"could not download {self.weights.name} ({'; '.join(said) or 'no source is known'}); "
            "try again later, or set HERMES_NB_GGUF to a file you have"
        )

    def _receive(self, source: Source, partial: Partial) -> None:
        resumed = partial.done > 0
        missing = self.weights.size - partial.done + source.spare + RESERVE
        if self.free(self.folder) < missing:
            raise self._disk_full_error(missing)
        source.receive(partial)
        if partial.digest() == self.weights.sha256:
            return
        partial.restart()
        if not resumed:
            raise SourceError("sent a file with the wrong checksum; it was deleted")
        # Data from an earlier attempt, perhaps from another source, may be wrong, so start again
        # once.
        self._receive(source, partial)

    def _publish(self, partial: Partial) -> Path:
        """Rename the verified file to its final name atomically."""
        path = self.folder / self.weights.file
        partial.close()
        partial.path.replace(path)
        shutil.rmtree(self._partial, ignore_errors=True)
        self._mark(path)
        return path

    def _disk_full_error(self, need: int | None = None) -> WeightsError:
        spare = max((source.spare for source in self.weights.sources), default=0)
        megabytes = round((need or self.weights.size + spare + RESERVE) / MEGABYTE)
        return WeightsError(
            f"the disk is too full for the embedded model's weights: {megabytes} MB are needed in "
            f"{str(self.folder)!r}; free some space, set XDG_CACHE_HOME to another disk, or "
            "HERMES_NB_GGUF to a file you have"
        )

    def _verified(self, path: Path) -> bool:
        """Return whether the digest is correct; a marker avoids hashing the file at every start."""
        try:
            if path.stat().st_size != self.weights.size:
                return False
            if self._marker(path).read_text(encoding="ascii") == self._signature(path):
                return True
        except (OSError, UnicodeDecodeError):
            pass
        try:
            with path.open("rb") as file:
                good = hashlib.file_digest(file, "sha256").hexdigest() == self.weights.sha256
        except OSError:
            return False
        if good:
            self._mark(path)
        return good

    def _mark(self, path: Path) -> None:
        with suppress(OSError):  # without the marker, it is only slower
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            data = self._signature(path).encode("ascii")
            write_atomic(self._marker(path), data, mode=0o600)

    def _marker(self, path: Path) -> Path:
        name = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]
        return self.folder / f"{name}.verified"

    def _signature(self, path: Path) -> str:
        status = path.stat()
        stamp = [self.weights.sha256, status.st_size, status.st_mtime_ns, status.st_ino]
        return json.dumps(stamp)


def _own_file(path: Path) -> Path:
    try:
        with path.open("rb") as file:
            if file.read(4) == b"GGUF":
                return path.absolute()
    except OSError as error:
        why = error.strerror or str(error)
    else:
        why = "not a GGUF file"
    raise ConfigError(f"HERMES_NB_GGUF: {str(path)!r} cannot be used ({why}); correct or unset it")


def locate() -> Path | None:
    """Return the path of this machine's verified weights, or None; never use the network."""
    return WeightsStore().locate()


def fetch(
    progress: Progress = lambda _done, _total: None, stop: threading.Event | None = None
) -> Path:
    """Return the weights, downloading them if necessary; the caller has asked the user.

    See `WeightsStore.fetch`.
    """
    return WeightsStore().fetch(progress, stop)
