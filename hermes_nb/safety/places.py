"""Paths that a sandboxed command needs, and the Landlock rules that grant access to them."""

from __future__ import annotations

import functools
import os
import re
import shutil
import site
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

SYSTEM = tuple(
    "/usr /bin /sbin /lib /lib32 /lib64 /libx32 /nix/store /sys/devices/system/cpu".split()
)
"""System folders that every command can read."""
ETC_SECRETS = tuple(
    f"/etc/{name}"
    for name in """shadow shadow- gshadow gshadow- sudoers sudoers.d ssh ssl/private
    security/opasswd krb5.keytab ppp wireguard openvpn NetworkManager/system-connections kubernetes
    rancher docker letsencrypt""".split()
)
"""Paths to hide from commands that run as root. Other users cannot read them anyway."""
TMP = "/tmp"  # noqa: S108 - private to the sandbox
MOST_RULES = 5_000
"""Maximum number of Landlock rules."""
_PROC = "meminfo cpuinfo stat loadavg uptime version filesystems sys/vm".split()
_DEVICES = "null zero full random urandom".split()

_NAMES_PLACES = re.compile(r".*\.pth|__editable___.*_finder\.py").fullmatch


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxPlan:
    """A sandboxed command's paths and permissions. All paths are resolved."""

    workspace: Path
    """The workspace, readable except for `masks`."""
    directory: Path
    """The working directory, in the workspace."""
    home: Path
    """The user's home directory."""
    visible: tuple[str, ...] = ()
    """Readable paths outside the workspace."""
    ways: Mapping[str, str] = field(default_factory=dict)
    """Links and folders that lead to the visible paths as written by users; see `ways`."""
    masks: tuple[str, ...] = ()
    """Paths to hide, mainly secrets."""
    writes: bool = False
    """Whether the workspace is writable."""
    git: bool = False
    """Whether `.git` is writable, except for hooks and configuration."""
    network: bool = False
    """Whether the network is available."""
    readable_home: bool = False
    """Whether the home directory is readable, except for `masks`."""
    writable: tuple[str, ...] = ()
    """Writable folders outside the workspace, for installed packages and caches."""
    fixed_folders: tuple[str, ...] = ()
    """Read-only folders in a writable workspace, because everything in them runs later."""
    fixed_files: tuple[str, ...] = ()
    """Read-only files in a writable workspace, because they run later."""
    unheld: str = ""
    """The reason a command that may write needs hidden paths, which Landlock does not support.
    Empty if there is none."""


@functools.cache
def python() -> tuple[str, ...]:
    """Return the directories of this Python, which may be in the hidden home directory."""
    named = [sys.prefix, sys.base_prefix, site.getusersitepackages(), *_conda()]
    places = {*map(os.path.realpath, named), str(Path(sys.executable).resolve().parent.parent)}
    homes = {
        "/usr",
        "/",
        *map(str, (Path.home(), *Path.home().parents)),
    }  # never expose these completely
    return tuple(sorted(place for place in places - homes if Path(place).is_dir()))


def ways(paths: Iterable[str]) -> dict[str, str]:
    """Return the links and folders on the way to `paths`: a link's target, or "" for a folder."""
    out: dict[str, str] = {}
    for path in paths:
        here, rest = "/", path.split("/")[::-1]
        while rest:
            if (name := rest.pop()) == "..":
                here = os.path.dirname(here)
            elif name not in ("", "."):
                above, here = here, os.path.join(here, name)
                if os.path.islink(here):
                    target = out[here] = os.readlink(here)
                    rest += target.split("/")[::-1]
                    here = "/" if target.startswith("/") else above
                elif rest:
                    out[here] = ""
    return out


def editable() -> tuple[str, ...]:
    """Return the folders of editable installs (`pip install -e`), from .pth files and finders."""
    found: list[str] = []
    for folder in (sysconfig.get_path("purelib"), site.getusersitepackages()):
        for name in filter(_NAMES_PLACES, os.listdir(folder) if os.path.isdir(folder) else ()):
            with suppress(OSError):
                for line in Path(folder, name).read_text("utf-8", "replace").splitlines():
                    if line.startswith("MAPPING"):
                        found += re.findall(r"'(/[^'\\]+)'", line)
                    elif name.endswith(".pth") and not line.startswith("import"):
                        found.append(os.path.join(folder, line))
    return tuple(dict.fromkeys(path for path in found if os.path.exists(path)))


def python_writable() -> tuple[str, ...]:
    """Return this Python's writable folders for packages and programs."""
    own = [sys.prefix]
    if sys.prefix in ("/usr", "/"):
        own = [sysconfig.get_path(name) for name in ("purelib", "platlib", "scripts")]
    places = dict.fromkeys([*own, site.getusersitepackages()])
    real = map(os.path.realpath, places)
    return tuple(place for place in real if os.path.isdir(place) and os.access(place, os.W_OK))


def _conda() -> list[str]:
    """Return conda's own folder if this Python is one of its environments."""
    prefix = Path(sys.prefix)
    if not (prefix / "conda-meta").is_dir():
        return []
    return [str(prefix.parent.parent if prefix.parent.name == "envs" else prefix)]


def caches(home: Path) -> tuple[str, ...]:
    """Return the existing package caches."""
    places = [home / ".cache/pip", home / ".cache/uv", home / ".conda/pkgs"]
    places += [Path(root) / "pkgs" for root in _conda()]
    return tuple(os.path.realpath(place) for place in places if place.is_dir())


def identity(home: Path) -> dict[str, str]:
    """Return the user's git identity as environment variables: the sandbox hides the settings."""
    program = shutil.which("git")
    if not program:
        return {}
    asked = [
        program,
        "config",
        "--global",
        "--null",
        "--get-regexp",
        r"^user\.(name|email)$|^init\.defaultbranch$",
    ]
    environment = {"PATH": os.defpath, "HOME": str(home)}
    try:
        done = subprocess.run(
            asked, env=environment, cwd="/", capture_output=True, timeout=5, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    pairs = [
        item.split("\n", 1)
        for item in done.stdout.decode("utf-8", "replace").split("\0")
        if "\n" in item
    ]
    out = {"GIT_CONFIG_COUNT": str(len(pairs))} if pairs else {}
    for number, (key, value) in enumerate(pairs):
        out |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return out


def landlock_rules(plan: SandboxPlan, temporary: str) -> list[tuple[str, str]]:
    """Return a plan's rules. Raise ValueError if there are too many."""
    out = [(path, "read") for path in (*SYSTEM, *python())]
    out += _readable(Path("/etc"), ETC_SECRETS)
    out += [(f"/proc/{name}", "read") for name in _PROC]
    out += [(f"/dev/{name}", "device") for name in _DEVICES]
    out.append((temporary, "write"))
    hidden = [os.path.realpath(path) for path in plan.masks]
    places = [*map(Path, plan.visible), *([plan.home] if plan.readable_home else [])]
    for place in places:
        out += _readable(place, hidden)
    if plan.writes:  # Landlock cannot exclude a path from a writable folder
        out.append((str(plan.workspace), "write"))
    else:
        out += _readable(plan.workspace, hidden)
    if len(out) > MOST_RULES:
        raise ValueError("there are too many files next to the secrets of the workspace")
    return out


def _readable(folder: Path, hidden: Iterable[str]) -> list[tuple[str, str]]:
    """Return rules that allow reading everything under `folder` except `hidden`."""
    inside = {path for path in hidden if path.startswith(f"{folder}/")}
    if not inside:
        return [(str(folder), "read")]
    out = [(str(folder), "list")]
    try:
        entries = list(os.scandir(folder))
    except OSError:
        return out
    for entry in entries:
        if entry.path in inside or entry.is_symlink():
            continue
        below = entry.is_dir() and any(path.startswith(f"{entry.path}/") for path in inside)
        out += _readable(Path(entry.path), inside) if below else [(entry.path, "read")]
    return out


def threads(user: int) -> int:
    """Return the number of the user's threads. The process limit counts them all."""
    count = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            try:
                if entry.stat().st_uid == user:
                    count += os.stat(f"/proc/{entry.name}/task").st_nlink - 2
            except OSError:
                continue
    return count
