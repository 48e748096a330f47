"""A file system without file locks, as a network disk whose server has no lock manager.

The kernel itself answers as such a disk does, to this process and those that it starts.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

FLOCK, FCNTL = {"x86_64": (73, 72), "aarch64": (32, 25)}[platform.machine()]
"""Numbers of the system calls; see asm/unistd.h."""
SETTING = (6, 7, 37, 38)
"""The commands of `fcntl` that take a lock: F_SETLK, F_SETLKW, F_OFD_SETLK, F_OFD_SETLKW."""
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06
"""Classic BPF: load a word, jump if equal, return; see linux/filter.h and linux/seccomp.h."""
ALLOW, ERROR = 0x7FFF0000, 0x00050000
NUMBER, SECOND_ARGUMENT = 0, 24
"""Offsets in `struct seccomp_data`, in bytes."""
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, MODE_FILTER = 22, 38, 2


def without_locks() -> None:
    """Let every attempt to lock a file fail with ENOLCK from now on."""
    commands = [(EQUAL, len(SETTING) - n, 0, each) for n, each in enumerate(SETTING)]
    program = [
        (LOAD, 0, 0, NUMBER),
        (EQUAL, len(SETTING) + 3, 0, FLOCK),
        (EQUAL, 0, len(SETTING) + 1, FCNTL),
        (LOAD, 0, 0, SECOND_ARGUMENT),
        *commands,
        (RETURN, 0, 0, ALLOW),
        (RETURN, 0, 0, ERROR | errno.ENOLCK),
    ]
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in program))
    libc = ctypes.CDLL(None, use_errno=True)
    filtered = struct.pack("HxxxxxxQ", len(program), ctypes.addressof(code))
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    assert libc.prctl(PR_SET_SECCOMP, MODE_FILTER, ctypes.c_char_p(filtered), 0, 0) == 0
