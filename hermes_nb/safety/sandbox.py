"""Run commands in a sandbox with a profile's permissions: bubblewrap, otherwise Landlock.

A command sees the system's programs, this Python and the workspace without its secrets. It has a
private /tmp and process space and no network. The home directory, /run, /var and other users' files
are not visible. A profile adds permissions. The available level is found by running a test command.
"""

from __future__ import annotations

import functools
import json
import marshal
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from hermes_nb.safety import bubblewrap, confine, seccomp
from hermes_nb.safety.child_environment import child_environment
from hermes_nb.safety.later import WorkspaceWalk, is_todo
from hermes_nb.safety.permissions import Level, LevelName, NoSandboxError, SandboxProfile
from hermes_nb.safety.places import (
    TMP,
    SandboxPlan,
    caches,
    editable,
    identity,
    landlock_rules,
    python,
    python_writable,
    threads,
    ways,
)
from hermes_nb.safety.protected import Survey, survey, why_secret
from hermes_nb.safety.restore import (
    RestoreSnapshot,
    RevertedChange,
    give_back,
    look_before,
    take_back,
)

__all__ = [
    "HOME_SHOWN",
    "Launch",
    "RestoreSnapshot",
    "RevertedChange",
    "give_back",
    "hidden",
    "level",
    "prepare",
    "take_back",
    "watch_later",
]

MOST_HIDDEN = 500
"""Maximum number of secrets to hide in a workspace. Each one needs a mount."""
MOST_FIXED = 200
"""Maximum number of run-later files to mount read-only.

Changes to other such files are reverted afterwards.
"""
MOST_EDITABLE = 20
"""Maximum number of editable-install folders that a sandbox makes visible."""
HOME_SHOWN = (".local", ".config", ".condarc", ".matplotlib")
"""Hidden entries in a readable home that remain visible, except for the secrets in them."""
_LIMITS = {"nofile": 4096, "core": 0}
"""Resource limits for a command that may write."""
_READ_LIMITS = {"fsize": 256 << 20, "nofile": 1024, "nproc": 256, "core": 0, "cpu": 300}
"""Resource limits for a read-only command."""
_PROCESSES = 4096
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16


@dataclass(slots=True)
class Launch:
    """How to start a sandboxed command. Call `close` afterwards."""

    command: list[str]
    """The command with its sandbox."""
    environment: dict[str, str]
    """All environment variables."""
    descriptors: list[int] = field(default_factory=list)
    """File descriptors that the child inherits."""
    temporary: str = ""
    """The command's temporary directory, removed by `close`. Empty if there is none."""
    level: LevelName = "none"
    """The sandbox level in use."""
    fixed: tuple[str, ...] = ()
    """Paths that the command cannot change, for `watch_later`."""
    started: int = -1
    """Descriptor to read the id of bubblewrap's inner process from, or -1 if there is none."""

    def kill(self, pid: int) -> None:
        """Kill the process that bubblewrap runs.

        Bubblewrap (process `pid`) then exits on its own, and no zombie remains.
        """
        if self.started < 0:
            return
        with suppress(OSError, ValueError):
            inner = int(json.loads(os.read(self.started, 4096))["child-pid"])
            parent = Path(f"/proc/{inner}/stat").read_text("utf-8").rpartition(")")[2].split()[1]
            if int(parent) == pid:  # the id may have been reused for another process
                os.kill(inner, signal.SIGKILL)

    def close(self) -> None:
        """Close descriptors and remove the temporary directory. Safe to call twice."""
        for number in (*self.descriptors, *([self.started] if self.started >= 0 else [])):
            os.close(number)
        self.descriptors, self.started = [], -1
        temporary, self.temporary = self.temporary, ""
        if temporary:
            shutil.rmtree(temporary, ignore_errors=True)

    def __del__(self) -> None:
        """Close a launch that was never used: a turn may stop while a thread is preparing it."""
        self.close()


def prepare(  # noqa: PLR0913 - all but two are keywords
    command: Sequence[str],
    profile: SandboxProfile,
    *,
    workspace: Path,
    directory: Path,
    home: Path,
    visible: Sequence[str] = (),
    extra: Mapping[str, str] | None = None,
    use: str = "",
    abi: int = 99,
) -> Launch:
    """Return how to run `command` with a profile's permissions.

    Args:
        command: The program and its arguments.
        profile: The permissions.
        workspace: The folder that the command can see.
        directory: The working directory, in the workspace.
        home: The user's home directory.
        visible: Additional readable paths, except for the secrets in them.
        extra: Additional environment variables.
        use: The sandbox level to use, or "" for the best one.
        abi: The maximum Landlock version to use.

    Raises:
        NoSandboxError: The command cannot be sandboxed this way.
    """
    if SandboxProfile.OUTSIDE in profile:
        return Launch(list(command), child_environment() | dict(extra or {}))
    name = use or level().name
    # These paths keep their links: `ways` recreates them, so that a path works as it was written.
    written = [str(workspace.absolute()), str(home.absolute()), *visible, *editable()]
    workspace, directory = workspace.resolve(), directory.resolve()
    if name == "none":
        raise NoSandboxError(f"no sandbox is available: {level().why}")
    if not directory.is_relative_to(workspace) or workspace == Path(workspace.anchor):
        message = (
            "the workspace must be a folder other than the root, and the command must start in it"
        )
        raise NoSandboxError(message)
    plan = _planned(profile, workspace, directory, home.resolve(), visible)
    plan = replace(plan, ways=ways([*written, sys.executable, sys.prefix, sys.base_prefix]))
    environment = _environment(plan) | dict(extra or {})
    if name == "bubblewrap":
        launch = _by_bubblewrap(command, plan, environment)
    else:
        launch = _by_landlock(command, plan, environment, min(abi, confine.landlock_abi()))
    launch.level = "bubblewrap" if name == "bubblewrap" else "landlock"
    return launch


def _planned(
    profile: SandboxProfile, workspace: Path, directory: Path, home: Path, visible: Sequence[str]
) -> SandboxPlan:
    own = _hidden(workspace, home)
    outside = [Path(os.path.realpath(path)) for path in visible]
    outside = [path for path in outside if path.exists() and not path.is_relative_to(workspace)]
    masks = list(own.secrets)
    for path in outside:
        if why := _refused(path, workspace, home):
            raise NoSandboxError(f"{str(path)!r} cannot be made available in a sandbox: {why}")
        masks += _hidden(path, home).secrets if path.is_dir() else ()
    for path in (Path(os.path.realpath(each)) for each in editable()[:MOST_EDITABLE]):
        there = any(map(path.is_relative_to, (str(workspace), *python())))
        if there or _refused(path, path, home):
            continue
        # A package that takes longer to search stays invisible, because every command would wait.
        found = survey(path, home=home, seconds=0.05)
        if found.complete:
            outside.append(path)
            masks += [mask for mask in found.secrets if not workspace.is_relative_to(mask)]
    readable_home = SandboxProfile.HOME in profile
    if readable_home and not home.is_relative_to(workspace):
        masks += _of_home(home, workspace)
    writes, later = SandboxProfile.WORKSPACE in profile, None
    if writes:
        later = WorkspaceWalk(workspace, environment=SandboxProfile.ENVIRONMENT in profile).walk()
        later.files = [name for name in later.files if not _by_git(Path(name), profile)]
    return SandboxPlan(
        workspace=workspace,
        directory=directory,
        home=home,
        visible=tuple(map(str, outside)),
        masks=tuple(dict.fromkeys(masks)),
        writes=writes,
        git=SandboxProfile.GIT in profile,
        network=SandboxProfile.NETWORK in profile,
        readable_home=readable_home,
        writable=(*python_writable(), *caches(home))
        if SandboxProfile.ENVIRONMENT in profile
        else (),
        fixed_folders=tuple(later.folders[:MOST_FIXED]) if later else (),
        fixed_files=tuple(later.files[:MOST_FIXED]) if later else (),
        unheld=_reason_to_hide(own, workspace, home) if writes else "",
    )


def _reason_to_hide(own: Survey, workspace: Path, home: Path) -> str:
    """Return the reason to hide paths from a command that may write, or "" if there is none.

    Landlock cannot hide paths in a writable folder.
    """
    if home.is_relative_to(workspace):
        return "it contains the home directory, with files that programs run or obey"
    if own.closed:
        return f"{own.closed[0]!r} could not be read"
    for path in own.specials:
        if not Path(path).is_socket():  # the command cannot create a socket to connect to it
            return f"{path!r} is a pipe or a device, which leads out of the sandbox"
    return ""


def _by_git(path: Path, profile: SandboxProfile) -> bool:
    """Return whether git may change a file that runs later, for example in a checkout.

    Such a change is checked after the command.
    """
    if ".git" in path.parts:
        return SandboxProfile.GIT in profile and is_todo(path)
    return SandboxProfile.GIT in profile or path.name in (".gitattributes", ".gitmodules")


def _hidden(root: Path, home: Path) -> Survey:
    found = survey(root, home=home)
    if not found.complete:
        raise NoSandboxError(
            f"{str(root)!r} could not be searched completely for secrets: it is too large, keeps "
            "changing, or cannot be read"
        )
    if len(found.secrets) > MOST_HIDDEN:
        message = f"{str(root)!r} has more than {MOST_HIDDEN} secrets, sockets and pipes to hide"
        raise NoSandboxError(message)
    return found


def _refused(path: Path, workspace: Path, home: Path) -> str:
    if path in (home, *home.parents) or path in workspace.parents:
        return "it contains the home directory or the workspace"
    if path.is_relative_to(home) and any(
        part.startswith(".") for part in path.relative_to(home).parts[:1]
    ):
        return "it is a hidden folder of the home directory"
    return why_secret(path)


def _of_home(home: Path, workspace: Path) -> list[str]:
    """Return the paths to hide in a readable home: hidden entries and known secrets.

    A home directory is too large to be searched before each command, so a secret with a common name
    deep inside it may be missed.
    """
    open_ = [home / name for name in HOME_SHOWN]
    found = [path for path in survey(home, home=home).secrets if Path(path) not in open_]
    for place in open_:
        found += survey(place, home=Path("/")).secrets if place.is_dir() else ()
    masks = [path for path in found if not workspace.is_relative_to(path)]
    return sorted(masks, key=lambda path: path.count("/"))[:MOST_HIDDEN]


def _environment(plan: SandboxPlan) -> dict[str, str]:
    """Return a sandboxed command's environment variables."""
    kept = child_environment()
    for name in ("XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "TMP", "TEMP"):
        kept.pop(name, None)
    libraries = kept.pop("LD_LIBRARY_PATH", "").split(os.pathsep)  # bwrap itself would load them
    real = [Path(os.path.realpath(plan.directory / place)) for place in libraries]
    inside = [place.is_relative_to(plan.workspace) for place in real]
    if kept_libraries := [place for place, own in zip(libraries, inside, strict=True) if not own]:
        kept["LD_LIBRARY_PATH"] = os.pathsep.join(kept_libraries)
    home = str(plan.home) if plan.readable_home or plan.writable else TMP
    own = {
        "HOME": home,
        "TMPDIR": TMP,
        "PWD": str(plan.directory),
        "MPLBACKEND": "agg",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "HERMES_NB_SANDBOX": "1",
    }
    if not plan.writable:  # when installing, let Python compile the packages
        own["PYTHONDONTWRITEBYTECODE"] = "1"
    if not plan.writes:
        own |= {
            "RUFF_NO_CACHE": "true",
            "MYPY_CACHE_DIR": os.devnull,
            "GIT_OPTIONAL_LOCKS": "0",  # `git status` would try to update the index
            # Git refuses a repository of another user, and the command may run as "nobody".
            "GIT_CONFIG_PARAMETERS": "'safe.directory=*'",
        }
    return kept | own | (identity(plan.home) if plan.git else {})


def _domains(plan: SandboxPlan) -> list[int]:
    """Return the allowed socket families.

    Unix sockets and the network exclude each other: with the host's network namespace, abstract
    sockets would connect to the host's processes.
    """
    unix = [_UNIX] if plan.writes and not plan.network else []
    return [_INET, _INET6, _NETLINK, *unix]


def _limits(plan: SandboxPlan) -> dict[str, int]:
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if plan.writes:
        return _LIMITS | {"data": memory * 9 // 10, "nproc": _PROCESSES}
    return _READ_LIMITS | {"data": memory // 2}


def _descriptor(content: bytes, name: str) -> int:
    number = os.memfd_create(name, 0)  # no flag: inherited by the child
    os.write(number, content)
    os.lseek(number, 0, os.SEEK_SET)
    return number


def _by_bubblewrap(
    command: Sequence[str], plan: SandboxPlan, environment: dict[str, str]
) -> Launch:
    program = bubblewrap.program()
    program_filter = seccomp.filter_program(domains=_domains(plan), abi=None)
    filter_number = _descriptor(program_filter, "filter")
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    nobody = not plan.writes and not plan.network and bubblewrap.without_user_namespace()
    limits = _limits(plan)
    if os.getuid() == 0 and not nobody:
        limits.pop("nproc")  # must not limit root's processes
    args = bubblewrap.arguments(plan, nobody=nobody)
    args += ["--info-fd", str(writing), "--seccomp", str(filter_number), "--"]
    args += bubblewrap.inside(limits, nobody=nobody)
    choom = shutil.which("choom", path=bubblewrap.SYSTEM_PATH)
    fixed = (*plan.fixed_folders, *plan.fixed_files, *plan.masks)
    first = [choom, "-n", "1000", "--"] if choom else []
    return Launch(
        [*first, program, *args, *command],
        environment,
        [filter_number, writing],
        fixed=tuple(
            path
            for path in fixed
            if not (Path(path).is_symlink() or (plan.git and path.endswith("/.git")))
        ),
        started=reading,
    )


def _by_landlock(
    command: Sequence[str], plan: SandboxPlan, environment: dict[str, str], abi: int
) -> Launch:
    if plan.network or plan.writable:  # installing sets modes and times, which seccomp denies
        what = "the network" if plan.network else "installing packages"
        message = f"the Landlock sandbox does not support {what}; run it outside of the sandbox"
        raise NoSandboxError(message)
    if plan.unheld:
        raise NoSandboxError(
            f"the Landlock sandbox cannot hide parts of the workspace, and {plan.unheld}"
        )
    temporary = tempfile.mkdtemp(prefix="hermes-confined-")
    try:
        rules = landlock_rules(plan, temporary)
        nobody = os.getuid() == 0 and not plan.writes
        if nobody:
            os.chown(temporary, confine.NOBODY, confine.NOBODY)
        limits = _limits(plan)
        limits["nproc"] += threads(os.getuid()) if not nobody else 0
        spec = {
            "abi": abi,
            "rules": rules,
            "limits": limits,
            "filter": seccomp.filter_program(domains=[], abi=abi),
            "nobody": nobody,
        }
        number = _descriptor(marshal.dumps(spec), "spec")
    except (OSError, ValueError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise NoSandboxError(str(error)) from error
    starter = [sys.executable, "-I", "-S", str(Path(confine.__file__)), str(number)]
    own = {"TMPDIR": temporary} | ({"HOME": temporary} if environment["HOME"] == TMP else {})
    return Launch([*starter, *command], environment | own, [number], temporary)


@functools.cache
def level() -> Level:
    """Return the best sandbox level that works here; the first call tests it with a command."""
    if sys.platform != "linux":
        return Level("none", f"no sandbox is available on {sys.platform}")
    why = _tried("bubblewrap")
    if not why:
        return Level("bubblewrap")
    less = _tried("landlock")
    if not less:
        return Level("landlock", f"bubblewrap: {why}")
    return Level("none", f"bubblewrap: {why}; Landlock: {less}")


def _tried(name: str) -> str:
    """Try a level. Return the reason it does not work on this machine, or "" if it does."""
    if name == "bubblewrap" and not bubblewrap.program():
        return "install bubblewrap and util-linux, or the extra hermes_nb[sandbox]"
    if name == "landlock" and not confine.landlock_abi():
        return "this kernel does not support it"
    with tempfile.TemporaryDirectory(prefix="hermes-sandbox-") as folder:
        place = Path(folder).resolve()
        probe = f"! touch {place}/x 2>/dev/null"
        try:
            launch = prepare(
                ["/bin/sh", "-c", probe],
                SandboxProfile.READ,
                workspace=place,
                directory=place,
                home=place / "nowhere",
                use=name,
            )
        except NoSandboxError as error:
            return str(error)
        try:
            done = subprocess.run(
                launch.command,
                env=launch.environment,
                cwd=folder,
                pass_fds=launch.descriptors,
                capture_output=True,
                timeout=10,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        finally:
            launch.close()
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return "" if done.returncode == 0 else (said or ["a command could write"])[-1]


def hidden(workspace: Path, home: Path) -> list[str]:
    """Return the paths that a sandbox hides, relative to the workspace, for reporting."""
    root = workspace.resolve()
    return sorted(os.path.relpath(path, root) for path in survey(root, home=home.resolve()).secrets)


def watch_later(
    workspace: Path,
    profile: SandboxProfile = SandboxProfile.WORKSPACE,
    *,
    launch: Launch | None = None,
) -> RestoreSnapshot:
    """Before a command that may write, save the files in a workspace that run later.

    Files that `launch` protects are not restored afterwards, because only the user can change them.
    """
    fixed = frozenset(launch.fixed if launch else ())
    environment = SandboxProfile.ENVIRONMENT in profile
    return look_before(workspace.resolve(), environment=environment, fixed=fixed)
