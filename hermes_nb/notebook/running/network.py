"""Whether code in the kernel uses the network: what it shows is then text from outside.

Python tells its audit hooks of every connection that is made through its own sockets, and of every
program that is started, before it happens; so that it can be refused, too, where the user has to
be asked first. A library that opens sockets in C, or starts programs by itself, is not seen: this
is no boundary.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hermes_nb.safety.grammar import Need, Place, judge

_SENDS = frozenset({"socket.connect", "socket.getaddrinfo", "socket.sendto", "socket.sendmsg"})
_STARTS = frozenset({"subprocess.Popen", "os.system", "os.exec", "os.posix_spawn"})
REFUSED = "the network was not used: the conversation holds text from outside"
_OURS = "hermes-"
"""Threads of the agent's own, which talk to models."""


@dataclass(slots=True)
class Watch:
    """What is noted while code runs, and whether it may do that: `offline` refuses it."""

    offline: bool = False
    networked: bool = False
    refused: bool = False


_watching: list[Watch] = []


@contextmanager
def watched(*, offline: bool = False) -> Iterator[Watch]:
    """Note in the watch that is yielded whether the network is used meanwhile."""
    _installed()
    watch = Watch(offline)
    _watching.append(watch)
    try:
        yield watch
    finally:
        _watching.remove(watch)


@cache
def _installed() -> None:
    """Add the hook, once in a process: none can be taken away again."""
    sys.addaudithook(_heard)


def _heard(event: str, arguments: tuple[object, ...]) -> None:
    if not _watching or (event not in _SENDS and event not in _STARTS):
        return
    if threading.current_thread().name.startswith(_OURS):
        return
    offline = any(watch.offline for watch in _watching)
    if event in _SENDS:
        used = event == "socket.getaddrinfo" or _is_address(arguments[-1])
    else:
        used = _reaches_out(arguments[1] if len(arguments) > 1 else arguments[0], offline=offline)
    if not used:
        return
    for watch in _watching:
        watch.networked, watch.refused = not offline, offline
    if offline:
        raise PermissionError(REFUSED)


def _is_address(address: object) -> bool:
    """Say whether it is one of the network's; a socket of this machine has a path."""
    return isinstance(address, tuple)


def _reaches_out(words: object, *, offline: bool) -> bool:
    """Say whether a program is known to use the network; `offline`: not known to only read."""
    if isinstance(words, bytes):
        words = words.decode("utf-8", "replace")
    given = words if isinstance(words, str) else ""
    if isinstance(words, list | tuple):
        shell = len(words) > 2 and "-c" in words[1:3]  # noqa: PLR2004 - sh -c COMMAND
        given = str(words[-1]) if shell else " ".join(map(str, words))
    place = Place(workspace=Path("/"), directory=Path("/"), home=Path.home())
    judged = judge(given, place)
    if offline:
        return judged.decision != "allow"
    return bool(judged.needs & {Need.NETWORK, Need.CREDENTIALS})
