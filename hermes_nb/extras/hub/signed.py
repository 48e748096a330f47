"""Skills signed by an administrator, with an index of their files next to them.

`index.json` contains the digest of every file, the revoked names, and an Ed25519 signature over
both. An unlisted, altered or missing file disables its skill. Without a valid signature, all skills
are disabled. The index is checked whenever skills are read, so a revoked skill disappears from
running kernels. Folders starting with a dot are ignored; `.signed` contains a copy of the last
signed files, used to show changes before the next signature.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_nb.core import regular_files
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.files import locked, write_atomic
from hermes_nb.core.json_values import canonical_json
from hermes_nb.core.text import one_line
from hermes_nb.safety.administrator import Policy
from hermes_nb.skills.discovery import Root
from hermes_nb.skills.document import SkillError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

INDEX = "index.json"
SIGNED = ".signed"
LARGEST = 16_777_216
"""Maximum bytes in an index."""
MOST = 16_777_216
"""Maximum bytes in one file."""
SETTLED = 2.0
"""Seconds after which a file's times reliably reveal changes; digests of newer files are not
cached."""
INSTALL = "signed skills need `pip install 'hermes_nb[hub]'`"
NEW_KEY = "create one with `openssl genpkey -algorithm ed25519 -out FILE`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """An index's signed contents."""

    number: int = 0
    """The index's version, incremented by each signature."""
    files: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 digests by path."""
    revoked: Mapping[str, str] = field(default_factory=dict)
    """Reasons for revocation, by name."""

    @property
    def signed_bytes(self) -> bytes:
        """The bytes that are signed."""
        told = {"files": self.files, "number": self.number, "revoked": self.revoked}
        return canonical_json(told).encode()


def read_index(path: Path, key: str) -> Index:
    """Return an index signed by this public key (base64); raise SkillError for any other."""
    try:
        document = json.loads(regular_files.read_regular(path, LARGEST)[0])
        told = document["index"]
        index = Index(
            number=_number(told["number"]),
            files={str(name): str(digest) for name, digest in told["files"].items()},
            revoked={str(name): str(why) for name, why in told["revoked"].items()},
        )
        signature = base64.b64decode(document["signature"], validate=True)
    except OSError as error:
        raise SkillError(f"{path} cannot be read: {error.strerror or error}") from error
    except (
        regular_files.Refused,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
    ) as error:
        raise SkillError(f"{path} is not a signed index") from error
    if not _is_signed(key, signature, index.signed_bytes):
        raise SkillError(f"{path} is not signed by the administrator's key")
    return index


def _number(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError
    return value


def _is_signed(key: str, signature: bytes, told: bytes) -> bool:
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    except ImportError as error:
        raise SkillError(INSTALL) from error
    try:
        Ed25519PublicKey.from_public_bytes(base64.b64decode(key)).verify(signature, told)
    except (InvalidSignature, ValueError, binascii.Error):
        return False
    return True


def files_in(directory: Path, *, whole: bool = False) -> dict[str, Path]:
    """Return the files that an index covers, by path; raise SkillError for links and special files.

    With `whole`, the directory is a skill's own folder, and names starting with a dot are included.
    """
    found: dict[str, Path] = {}
    for folder, names, here in os.walk(directory):
        top = not whole and Path(folder) == directory
        if top:
            names[:] = [name for name in names if name[0] != "."]
        for name in [*here, *(each for each in names if Path(folder, each).is_symlink())]:
            path = Path(folder, name)
            if top and (name == INDEX or name[0] == "."):
                continue
            if path.is_symlink() or not path.is_file():
                raise SkillError(f"{path} is a link or not a file")
            found[path.relative_to(directory).as_posix()] = path
    return dict(sorted(found.items()))


def shared_roots(policy: Policy) -> list[Root]:
    """Return the policy's shared skills: the entry `shared_skills` of `hermes_nb.skill_roots`."""
    if not (shared := policy.values.get("shared_skills")):
        return []
    signed = Signed(Path(shared), policy.values.get("skills_key", ""))
    return [Root(signed.directory, "shared", signed)]


class Signed:
    """One directory's signed skills, for a kernel. Thread-safe."""

    def __init__(self, directory: Path, key: str) -> None:
        self.directory, self._key = directory, key
        self._lock = threading.Lock()
        self._stamp: tuple[int, ...] = ()
        self._index = Index()
        self._problem = ""
        self._digests: dict[Path, tuple[tuple[int, ...], str]] = {}

    @property
    def revoked(self) -> Mapping[str, str]:
        """Reasons for revocation, by name, from the current index."""
        return self._read_index().revoked

    def why(self, folder: Path) -> str:
        """Return the reason a folder's skill does not match the signed one, or "" if it does."""
        index = self._read_index()
        if self._problem:
            return self._problem
        root = Path(os.path.realpath(self.directory))
        inside = folder.relative_to(root).as_posix()
        listed = {name: d for name, d in index.files.items() if name.startswith(f"{inside}/")}
        try:
            there = {
                f"{inside}/{name}": path for name, path in files_in(folder, whole=True).items()
            }
            digests = {name: self._digest(path) for name, path in there.items()}
        except (OSError, SkillError) as error:
            return f"it cannot be compared with the signed index: {error}"
        if not listed:
            return "it is not in the signed index"
        odd = sorted(name for name, _ in listed.items() ^ digests.items())
        return f"{odd[0]} differs from its signed version" if odd else ""

    def check(self, path: Path, data: bytes) -> None:
        """Raise SkillError if a file's contents differ from the signed ones."""
        root = Path(os.path.realpath(self.directory))
        name = path.relative_to(root).as_posix()
        if self._read_index().files.get(name) != hashlib.sha256(data).hexdigest():
            raise SkillError(f"{name} differs from its signed version")

    def _read_index(self) -> Index:
        """Return the index, rereading it if it changed; reject one older than the last."""
        path = self.directory / INDEX
        with self._lock:
            try:
                stamp = _stamp(path)
            except OSError as error:
                stamp = (0,)
                self._problem = f"{path} cannot be read: {error.strerror}"
            if stamp not in (self._stamp, (0,)):
                try:
                    index = read_index(path, self._key)
                    older = index.number < self._index.number
                    self._problem = f"{path} is older than the index used before" if older else ""
                    self._index = self._index if older else index
                except SkillError as error:
                    self._problem = one_line(str(error), 300)
            self._stamp = stamp
            return self._index

    def _digest(self, path: Path) -> str:
        stamp = _stamp(path)
        known, digest = self._digests.get(path, ((), ""))
        if known != stamp:
            digest = hashlib.sha256(read_file(path)).hexdigest()
            if time.time() - stamp[1] / 1e9 > SETTLED:
                self._digests[path] = stamp, digest
        return digest


def _stamp(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def digests_of(contents: Mapping[str, bytes]) -> dict[str, str]:
    """Return the digests of files by path."""
    return {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}


def read_file(path: Path) -> bytes:
    """Return a file's contents; raise SkillError if it is too large or not a regular file."""
    data, size = regular_files.read_regular(path, MOST + 1)
    if size > MOST:
        raise SkillError(f"{path} is larger than {MOST:,} bytes")
    return data


def write_files(directory: Path, contents: Mapping[str, bytes]) -> None:
    """Write files by path; raise OSError on failure."""
    for name, data in contents.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)


def private_key(file: Path) -> Ed25519PrivateKey:
    """Return the key in a PEM file; raise `ConfigError` if it is invalid."""
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as error:
        raise ConfigError(INSTALL) from error
    try:
        key = load_pem_private_key(file.read_bytes(), password=None)
    except OSError as error:
        message = f"{file} cannot be read: {error.strerror}; {NEW_KEY}"
        raise ConfigError(message) from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"{file} is not a PEM file with an unencrypted key; {NEW_KEY}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise ConfigError(f"{file} does not contain an Ed25519 key; {NEW_KEY}")
    return key


def public_key(key: Ed25519PrivateKey) -> str:
    """Return the public key in the format of the policy's `skills_key`."""
    return base64.b64encode(key.public_key().public_bytes_raw()).decode()


class Release:
    """Signs a directory's skills. Methods raise SkillError, OSError or TimeoutError."""

    def __init__(self, directory: Path, key: Ed25519PrivateKey) -> None:
        self._directory, self._key = directory, key

    def before(self) -> Index:
        """Return the current index, or an empty one if it does not exist."""
        path = self._directory / INDEX
        return read_index(path, public_key(self._key)) if path.exists() else Index()

    def contents(self, *, signed: bool) -> dict[str, bytes]:
        """Return the files' contents by path: the current or, with `signed`, the last signed ones.

        Copies of signed files that were altered after signing are left out.
        """
        there = self._directory / SIGNED if signed else self._directory
        found = {name: read_file(path) for name, path in files_in(there).items()}
        digests = digests_of(found)
        known = self.before().files if signed else digests
        return {name: data for name, data in found.items() if known.get(name) == digests[name]}

    def sign(self, contents: Mapping[str, bytes]) -> Index:
        """Sign files' contents and store a copy."""
        with locked(self._directory / SIGNED):
            copy = self._directory / SIGNED
            if copy.is_symlink() or copy.exists():
                shutil.rmtree(copy)  # refuses a link
            write_files(copy, contents)
            return self._write(digests_of(contents), self.before().revoked)

    def revoke(self, names: Collection[str], why: str = "") -> Index:
        """Revoke names; without `why`, restore them."""
        with locked(self._directory / SIGNED):
            before = self.before()
            rest = {each: said for each, said in before.revoked.items() if each not in names}
            return self._write(before.files, rest | (dict.fromkeys(names, why) if why else {}))

    def _write(self, digests: Mapping[str, str], revoked: Mapping[str, str]) -> Index:
        made = Index(number=self.before().number + 1, files=digests, revoked=revoked)
        document = {
            "index": json.loads(made.signed_bytes),
            "signature": base64.b64encode(self._key.sign(made.signed_bytes)).decode(),
        }
        text = json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        write_atomic(self._directory / INDEX, text.encode(), mode=0o644)
        return made
