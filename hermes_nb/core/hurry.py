"""Whether the user has pressed stop: what holds up the main thread just then waits no longer."""

from __future__ import annotations

import threading

_PRESSED = threading.Event()


def press() -> None:
    """Note that the user wants the running turn to end; safe in a signal handler."""
    _PRESSED.set()


def release() -> None:
    """Note that it has ended."""
    _PRESSED.clear()


def hurried() -> bool:
    """Say whether a wait on this thread holds up a stop; other threads may take their time."""
    return _PRESSED.is_set() and threading.current_thread() is threading.main_thread()
