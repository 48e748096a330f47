"""The seccomp program for sandboxed commands."""

from __future__ import annotations

import os
import struct
import tomllib
from collections.abc import Sequence
from pathlib import Path

_EPERM, _ENOSYS = 1, 38
_X86, _ARM = 0xC000003E, 0xC00000B7

_LOAD, _JUMP, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x05, 0x15, 0x35, 0x45, 0x54, 0x06
_REFUSE, _ALLOW = 0x50000, 0x7FFF0000
_NAMESPACES = 0x7E020000
"""Flags of clone that create a namespace."""
_TERMINAL_OR_ATTRIBUTES = (0x5412, 0x541C, 0x40086602, 0x401C5820)
"""Denied ioctl requests: TIOCSTI and TIOCLINUX inject input into a terminal; FS_IOC_SETFLAGS and
FSSETXATTR set file attributes."""
_MODES = (
    ((90, 1), (91, 1), (268, 2), (452, 2), (2, 2), (257, 3), (85, 1), (133, 1), (259, 2)),
    ((52, 1), (53, 2), (452, 2), (56, 3), (33, 2)),
)
"""Call numbers of chmod, open, creat, mknod and the like, with the position of their mode argument,
for x86_64 and aarch64."""

_Line = tuple[int, int, int, int]


def filter_program(*, domains: Sequence[int], abi: int | None) -> bytes:
    """Return a seccomp program that allows sockets in `domains`.

    `abi` is the Landlock version in use: the program denies the calls that this version cannot
    restrict. None means bubblewrap, whose namespaces make this unnecessary.
    """
    machine, column = (_ARM, 1) if os.uname().machine == "aarch64" else (_X86, 0)
    code: list[_Line] = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, machine),
        (_RETURN, 0, 0, 0),
        (_LOAD, 0, 0, 0),
    ]
    if machine == _X86:  # deny x32 calls
        code += [(_AT_LEAST, 0, 1, 0x40000000), (_RETURN, 0, 0, _REFUSE | _ENOSYS)]
    for numbers, error in _denied(abi).items():
        if number := numbers[column]:
            code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _REFUSE | error)]
    socket, ioctl, clone = ((41, 16, 56), (198, 29, 220))[column]
    count = len(domains)
    known = [(_EQUAL, count - at, 0, domain) for at, domain in enumerate(domains)]
    code += _unless(socket, 0, known or [(_JUMP, 0, 0, 0)])
    for request in _TERMINAL_OR_ATTRIBUTES:
        code += _unless(ioctl, 1, [(_EQUAL, 0, 1, request)])
    code += _unless(clone, 0, [(_ANY_BIT, 0, 1, _NAMESPACES)])
    for number, argument in _MODES[column]:  # deny set-user-id files
        code += _unless(number, argument, [(_ANY_BIT, 0, 1, 0o6000)])
    if abi is not None:  # prlimit only for the process itself
        code += _unless((302, 261)[column], 0, [(_EQUAL, 1, 0, 0)])
    if abi is not None and abi < 3:
        for number, argument in (((2, 1), (257, 2)), ((56, 2),))[column]:
            code += _unless(number, argument, [(_AND, 0, 0, 0o1003), (_EQUAL, 0, 1, 0o1000)])
    code.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("HBBI", *line) for line in code)


def _denied(abi: int | None) -> dict[tuple[int, int], int]:
    """Return the denied calls in `calls.toml` with their error numbers."""
    calls = {kind: numbers.values() for kind, numbers in _calls().items()}
    denied = dict.fromkeys(calls["dangerous"], _EPERM) | dict.fromkeys(calls["unknown"], _ENOSYS)
    if abi is None:
        return denied
    more = [*calls["metadata"]]
    more += calls["signals"] if abi < 6 else ()
    more += calls["truncates"] if abi < 3 else ()
    return denied | dict.fromkeys(more, _EPERM)


def _calls() -> dict[str, dict[str, tuple[int, int]]]:
    listed = Path(__file__).with_name("calls.toml").read_text(encoding="utf-8")
    return {
        kind: {name: (first, second) for name, (first, second) in numbers.items()}
        for kind, numbers in tomllib.loads(listed).items()
    }


def _unless(number: int, argument: int, tests: list[_Line]) -> list[_Line]:
    """Return instructions that deny a call unless `tests` on an argument jump over the denial."""
    body = [
        (_LOAD, 0, 0, 16 + 8 * argument),
        *tests,
        (_RETURN, 0, 0, _REFUSE | _EPERM),
        (_LOAD, 0, 0, 0),
    ]
    return [(_EQUAL, 0, len(body), number), *body]
