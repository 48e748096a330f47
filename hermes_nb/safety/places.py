"""What a confined command may do and where what it needs is, and what a child may know."""

from __future__ import annotations

import enum
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
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

from hermes_nb.core.errors import HermesError

SYSTEM = tuple(
    "/usr /bin /sbin /lib /lib32 /lib64 /libx32 /nix/store /sys/devices/system/cpu".split()
)
ETC_SECRETS = tuple(
    f"/etc/{name}"
    for name in """shadow shadow- gshadow gshadow- sudoers sudoers.d ssh ssl/private
    security/opasswd krb5.keytab ppp wireguard openvpn NetworkManager/system-connections kubernetes
    rancher docker letsencrypt""".split()
)
"""Hidden for root's sake; others cannot read them anyway."""
TMP = "/tmp"  # noqa: S108 - the sandbox's own
MOST_RULES = 5_000
_PROC = "meminfo cpuinfo stat loadavg uptime version filesystems sys/vm".split()
_DEVICES = "null zero full random urandom".split()

_NAMES_PLACES = re.compile(r".*\.pth|__editable___.*_finder\.py").fullmatch

LevelName = Literal["bubblewrap", "landlock", "none"]


class NoSandboxError(HermesError):
    """The command cannot be confined as asked; the text says why."""


class Need(enum.Enum):
    """What the words of a command want beyond reading; `CREDENTIALS`: no sandbox at all.

    `LATER` has something run when nobody watches, and so asks in every mode.
    """

    WRITE = "write"
    GIT = "git"
    ENVIRONMENT = "environment"
    NETWORK = "network"
    HOME = "home"
    CREDENTIALS = "credentials"
    LATER = "later"


class Profile(enum.Flag):
    """What a command may do; flags combine. `OUTSIDE` is no sandbox at all."""

    READ = 0
    WORKSPACE = 1
    _GIT = 2
    GIT = _GIT | WORKSPACE
    _ENVIRONMENT = 4
    ENVIRONMENT = _ENVIRONMENT | WORKSPACE
    NETWORK = 8
    HOME = 16
    OUTSIDE = 32

    @property
    def words(self) -> str:
        """Return what a question and a result say of it."""
        if Profile.OUTSIDE in self:
            return "outside of the sandbox: everything that you may do"
        writes = [
            words
            for flag, words in (
                (Profile.WORKSPACE, "the workspace (not what runs later)"),
                (Profile.GIT, ".git without hooks and configuration"),
                (Profile.ENVIRONMENT, "this Python's packages and their cache"),
            )
            if flag in self
        ]
        home = " and the home" if Profile.HOME in self else ""
        parts = [f"reads the workspace{home} without secrets"]
        parts.append(f"writes {', '.join(writes)}" if writes else "writes nothing")
        network = "uses the network, this machine's servers and 169.254.169.254 too"
        parts.append(network if Profile.NETWORK in self else "no network")
        return f"in a sandbox: {'; '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Level:
    """The best level here; `why` says why it is not better."""

    name: LevelName
    why: str = ""

    @property
    def holds(self) -> str:
        """Return what it keeps a command from."""
        match self.name:
            case "bubblewrap":
                return "a command sees and changes only what its question names"
            case "landlock":
                return (
                    "reading is confined in full; what may write is kept inside of the workspace, "
                    "whose secrets it can read; with network nothing is confined"
                )
            case "none":
                return "commands are not confined"

    def meets(self, required: str) -> bool:
        """Say whether it is as good as `required`: "", landlock or bubblewrap."""
        order = ("none", "landlock", "bubblewrap")
        return order.index(self.name) >= order.index(required or "none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a command may see and do, by paths without links."""

    workspace: Path
    directory: Path
    home: Path
    visible: tuple[str, ...] = ()
    ways: Mapping[str, str] = field(default_factory=dict)
    """What leads to all of this as it is written, by `ways`."""
    masks: tuple[str, ...] = ()
    writes: bool = False
    git: bool = False
    network: bool = False
    readable_home: bool = False
    writable: tuple[str, ...] = ()
    fixed_folders: tuple[str, ...] = ()
    fixed_files: tuple[str, ...] = ()
    unheld: str = ""
    """What a command that writes could reach or plant where nothing can be hidden."""


@functools.cache
def python() -> tuple[str, ...]:
    """Return where this Python lives, which may be in the home that is hidden."""
    named = [sys.prefix, sys.base_prefix, site.getusersitepackages(), *_conda()]
    places = {*map(os.path.realpath, named), str(Path(sys.executable).resolve().parent.parent)}
    homes = {"/usr", "/", *map(str, (Path.home(), *Path.home().parents))}  # never all of it
    return tuple(sorted(place for place in places - homes if Path(place).is_dir()))


def ways(paths: Iterable[str]) -> dict[str, str]:
    """Return what `paths` pass as they are written: links with their targets, folders with ""."""
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
    """Return what is installed in place (`pip install -e`), as .pth files and finders name it."""
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
    """Return where this Python's packages and programs are installed."""
    own = [sys.prefix]
    if sys.prefix in ("/usr", "/"):
        own = [sysconfig.get_path(name) for name in ("purelib", "platlib", "scripts")]
    places = dict.fromkeys([*own, site.getusersitepackages()])
    real = map(os.path.realpath, places)
    return tuple(place for place in real if os.path.isdir(place) and os.access(place, os.W_OK))


def _conda() -> list[str]:
    """Return conda's own folder when this Python is one of its environments."""
    prefix = Path(sys.prefix)
    if not (prefix / "conda-meta").is_dir():
        return []
    return [str(prefix.parent.parent if prefix.parent.name == "envs" else prefix)]


def caches(home: Path) -> tuple[str, ...]:
    """Return the package caches that are there."""
    places = [home / ".cache/pip", home / ".cache/uv", home / ".conda/pkgs"]
    places += [Path(root) / "pkgs" for root in _conda()]
    return tuple(os.path.realpath(place) for place in places if place.is_dir())


def identity(home: Path) -> dict[str, str]:
    """Return who commits, from the user's settings of git, which the sandbox does not show."""
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


def landlock_rules(plan: Plan, temporary: str) -> list[tuple[str, str]]:
    """Return the rules of a plan; raise ValueError when there are too many."""
    out = [(path, "read") for path in (*SYSTEM, *python())]
    out += _readable(Path("/etc"), ETC_SECRETS)
    out += [(f"/proc/{name}", "read") for name in _PROC]
    out += [(f"/dev/{name}", "device") for name in _DEVICES]
    out.append((temporary, "write"))
    hidden = [os.path.realpath(path) for path in plan.masks]
    places = [*map(Path, plan.visible), *([plan.home] if plan.readable_home else [])]
    for place in places:
        out += _readable(place, hidden)
    if plan.writes:  # a name in a folder that may be written cannot be left out
        out.append((str(plan.workspace), "write"))
    else:
        out += _readable(plan.workspace, hidden)
    if len(out) > MOST_RULES:
        raise ValueError("too many files lie beside the secrets of the workspace")
    return out


def _readable(folder: Path, hidden: Iterable[str]) -> list[tuple[str, str]]:
    """Return rules for all below `folder` but what is hidden."""
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
    """Return how many threads a user has here: the limit of processes counts them all."""
    count = 0
    for entry in os.scandir("/proc"):
        if entry.name.isdecimal():
            try:
                if entry.stat().st_uid == user:
                    count += os.stat(f"/proc/{entry.name}/task").st_nlink - 2
            except OSError:
                continue
    return count


_ALLOWED = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_*", "TZ"),
    *("TMPDIR", "TMP", "TEMP", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"),
    *("VIRTUAL_ENV", "CONDA_*", "MAMBA_*", "PYENV_*", "PYTHONPATH", "PYTHONHOME"),
    *("PYTHONUTF8", "PYTHONIOENCODING", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE"),
    *("PYTHONNOUSERSITE", "PYTHONUSERBASE", "MPLBACKEND", "R_HOME", "R_LIBS*", "JAVA_HOME"),
    *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "CUDA_*", "NVIDIA_VISIBLE_DEVICES"),
    *("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
    *("SYSTEMROOT", "COMSPEC", "PATHEXT", "USERPROFILE", "APPDATA", "LOCALAPPDATA"),
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|AUTH", re.IGNORECASE)
_SEARCHED = frozenset({"PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"})
"""An empty or relative place in these is the directory that a program starts in."""
_FIXED = {
    "TERM": "dumb",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
    "GIT_TERMINAL_PROMPT": "0",
    "PYTHONUNBUFFERED": "1",
    "NO_COLOR": "1",
}
"""Nobody sits at the child's terminal: no pagers, no prompts, no colours, output as it comes."""


def child_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return what a child may know of `environment` (default: this process's).

    Names that look like secrets never pass, nor do proxies with a password in them. This Python's
    directory leads the PATH, so that `python` and `pip` are the kernel's.
    """
    source = os.environ if environment is None else environment
    child = {name: value for name, value in source.items() if _passes(name, value)}
    for name in _SEARCHED.intersection(child):
        places = [place for place in child[name].split(os.pathsep) if Path(place).is_absolute()]
        child[name] = os.pathsep.join(places)
    here = str(Path(sys.executable).parent)
    path = child.get("PATH") or os.defpath
    if here not in path.split(os.pathsep):
        path = os.pathsep.join([here, path])
    return {**child, "PATH": path, **_FIXED}


def _passes(name: str, value: str) -> bool:
    if _SECRET.search(name):
        return False
    if name.casefold().endswith("_proxy") and "@" in value:
        return False
    return any(fnmatchcase(name, pattern) for pattern in _ALLOWED)
