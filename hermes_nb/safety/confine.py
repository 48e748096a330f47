"""Restrict this process with Landlock, seccomp and resource limits, then execute the command.

Run as `python -I -S confine.py SPEC COMMAND...`. SPEC is the number of a descriptor with a
marshalled mapping: `rules` (pairs of path and rights), `limits`, `filter` (from
`seccomp.filter_program`), `abi` (the Landlock version to use) and `nobody`. This script starts
every command at the Landlock level, so it imports only a few modules, none of them from this
package.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import struct
import sys
from collections.abc import Mapping, Sequence

if sys.platform == "linux":  # other platforms don't have these system calls
    LIBC = ctypes.CDLL(None, use_errno=True)
CREATE_RULESET, ADD_RULE, RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_TRUNCATE, _IOCTL_DEV = 1 << 14, 1 << 15
RIGHTS = {
    "list": _READ_DIR,
    "read": _EXECUTE | _READ_FILE | _READ_DIR,
    "device": _READ_FILE | _WRITE_FILE,
    "write": (1 << 15) - 1,
}
"""Landlock access rights for each kind of rule."""
_ONLY_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_CAPABILITIES = 0x20080522
"""Version 3 of the capability structures."""
NOBODY = 65534
"""User and group id of "nobody"."""


def landlock_abi() -> int:
    """Return this kernel's Landlock version, or 0 if it has none."""
    return max(0, int(LIBC.syscall(CREATE_RULESET, None, 0, 1)))


def restrict(rules: Sequence[tuple[str, str]], abi: int) -> None:
    """Enter a Landlock domain that allows only `rules`."""
    handled = (1 << (13 + (abi >= 2) + (abi >= 3))) - 1 | (_IOCTL_DEV if abi >= 5 else 0)
    words = [handled, 3, 3][: 1 + (abi >= 4) + (abi >= 6)]
    attributes = struct.pack(f"{len(words)}Q", *words)
    ruleset = LIBC.syscall(CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        _fail("no Landlock ruleset")
    for path, kind in rules:
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue
        rights = RIGHTS[kind] & handled
        if not os.path.isdir(path):
            rights &= _ONLY_FILES
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, place))
        if LIBC.syscall(ADD_RULE, ruleset, 1, rule, 0):
            _fail(f"no Landlock rule for {path}")
        os.close(place)
    if LIBC.syscall(RESTRICT_SELF, ruleset, 0):
        _fail("not restricted by Landlock")
    os.close(ruleset)


def load_filter(program: bytes) -> None:
    """Install a seccomp program."""
    kept = ctypes.create_string_buffer(program)
    head = struct.pack("HxxxxxxQ", len(program) // 8, ctypes.addressof(kept))
    if LIBC.prctl(22, 2, ctypes.create_string_buffer(head), 0, 0):
        _fail("no seccomp filter")


def drop_root(*, to_nobody: bool) -> None:
    """Drop root's privileges except access to its files.

    As "nobody", the process is also subject to resource limits and cannot signal other users'
    processes.
    """
    keep = 0
    if to_nobody:  # keep one capability, so that files remain readable
        held = ctypes.create_string_buffer(24)
        LIBC.capget(struct.pack("Ii", _CAPABILITIES, 0), held)
        keep = 2 if struct.unpack("6I", held.raw)[0] & 4 else 1  # DAC_READ_SEARCH, DAC_OVERRIDE
        LIBC.prctl(8, 1, 0, 0, 0)  # keep capabilities when the user changes
        LIBC.prctl(28, 4 | 16, 0, 0, 0)  # also for access(2), which git uses to find a repository
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
    mask = 1 << keep if keep else 0
    kept = struct.pack("6I", mask, mask, mask, 0, 0, 0)
    if LIBC.capset(struct.pack("Ii", _CAPABILITIES, 0), kept):
        _fail("capabilities were not dropped")
    if keep:
        LIBC.prctl(47, 2, keep, 0, 0)  # ambient: through exec


def limit(limits: Mapping[str, int]) -> None:
    """Set resource limits, at most the current hard limits."""
    import resource

    for name, value in limits.items():
        number = getattr(resource, f"RLIMIT_{name.upper()}")
        hard = resource.getrlimit(number)[1]
        most = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (most, most))


def _fail(message: str) -> None:
    raise OSError(ctypes.get_errno(), message)


def main() -> None:
    """Apply SPEC and execute the command."""
    with os.fdopen(int(sys.argv[1]), "rb") as pipe:
        spec = marshal.load(pipe)  # noqa: S302 - from our parent; json takes 4 ms to import
    try:
        with open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
            file.write("1000")
    except OSError:
        pass  # in that case, the OOM killer does not prefer this process
    limit(spec["limits"])
    LIBC.prctl(1, 9, 0, 0, 0)  # dies with its parent
    if LIBC.prctl(38, 1, 0, 0, 0):
        _fail("no_new_privs")
    if os.getuid() == 0:
        drop_root(to_nobody=spec["nobody"])
    restrict(spec["rules"], spec["abi"])
    load_filter(spec["filter"])
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - the requested command


if __name__ == "__main__":
    main()
