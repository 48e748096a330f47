"""Closes database files before the process forks, so that no child ever inherits one.

SQLite keeps its bookkeeping of locks in the process's memory. A forked child inherits it together
with the belief that it holds the parent's locks, even for a connection that it opens itself; the
parent may then drop a log that the child is writing. The one clean way is to have no file open
while forking. Both sides open theirs again with the next call.
"""

from __future__ import annotations

import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    """Something that lets go of its files around a fork."""

    def before_fork(self) -> None:
        """Close the files and stay closed until one of the next two is called."""
        ...

    def after_fork(self, *, child: bool) -> None:
        """Go on, in the parent or in the child."""
        ...


_watched: weakref.WeakSet[Forkable] = weakref.WeakSet()
_hooks: list[int] = []
"""The process that registered the hooks, if any did; they cannot be taken back."""


def watch(forkable: Forkable) -> None:
    """Tell `forkable` of every fork from now on, for as long as it lives."""
    _watched.add(forkable)
    if not _hooks and hasattr(os, "register_at_fork"):
        _hooks.append(os.getpid())
        os.register_at_fork(
            before=_before,
            after_in_parent=_after_in_parent,
            after_in_child=_after_in_child,
        )


def _before() -> None:
    for each in list(_watched):
        each.before_fork()


def _after_in_parent() -> None:
    for each in list(_watched):
        each.after_fork(child=False)


def _after_in_child() -> None:
    for each in list(_watched):
        each.after_fork(child=True)
